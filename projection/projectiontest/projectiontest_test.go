package projectiontest_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/projection"
	"github.com/waybill-go/waybill/projection/projectiontest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type (
	Loan       struct{ domain.Root }
	LoanPlaced struct{ LoanID string }
	FeePaid    struct{ LoanID string }
	Row        struct {
		LoanID string `bun:",pk"`
		Paid   int
	}
)

var library = domain.MustNew("library", domain.Aggregate[*Loan]("loan", domain.Event[LoanPlaced]()), domain.Foreign[FeePaid]("Billing.Paid.v1", domain.From("billing::fee")))

func loans() (projection.Projection, *projection.Table[Row]) {
	t := projection.NewTable[Row]("loans")
	return projection.Projection{Name: "loans", Tables: []projection.Definition{t}, Handlers: []projection.Handler{
		projection.On(func(ctx context.Context, e LoanPlaced) error { return t.Put(ctx, Row{LoanID: e.LoanID}) }),
		projection.On(func(ctx context.Context, e FeePaid) error {
			if e.LoanID == "" {
				return errors.New("no loan")
			}
			return t.Change(ctx, e.LoanID, func(r *Row) { r.Paid++ })
		}),
	}}, t
}

func TestGivenThen(t *testing.T) {
	p, table := loans()
	s := projectiontest.Given(t, library, p, "l1", LoanPlaced{"l1"}).And("f1", FeePaid{"l1"}, FeePaid{"l1"}).And("l2", LoanPlaced{"l2"})
	projectiontest.Then(s, table, Row{"l2", 0}, Row{"l1", 2})
}

// told is a test that is told what is wrong.
type told struct {
	testing.TB
	text string
}

func (t *told) Helper() {}

func (t *told) Errorf(format string, args ...any) { t.text = fmt.Sprintf(format, args...) }

func (t *told) Fatalf(format string, args ...any) {
	t.Errorf(format, args...)
	runtime.Goexit()
}

func TestGivenThen_SaysWhatIsWrong(t *testing.T) {
	p, table := loans()
	wrong := func(do func(t testing.TB)) string {
		got, done := &told{TB: t}, make(chan struct{})
		go func() {
			defer close(done)
			do(got)
		}()
		<-done
		return got.text
	}
	require.Equal(t, "projectiontest: loans: missing are [{LoanID:l1 Paid:1}], and not expected [{LoanID:l1 Paid:0}]", wrong(func(t testing.TB) {
		projectiontest.Then(projectiontest.Given(t, library, p, "l1", LoanPlaced{"l1"}), table, Row{"l1", 1})
	}))
	require.Regexp(t, "loans can't handle Billing.Paid.v1 .*: no loan", wrong(func(t testing.TB) { projectiontest.Given(t, library, p, "f1", FeePaid{}) }))
	require.Contains(t, wrong(func(t testing.TB) { projectiontest.Given(t, library, projection.Projection{Name: "none"}, "l1") }), "it has no Tables")
}
