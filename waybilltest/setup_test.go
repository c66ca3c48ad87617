package waybilltest_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Two contexts: the library lends books, and billing charges for it. A loan that isn't
// paid for in an hour is cancelled.
type (
	Loan struct {
		domain.Root
		Status string
		Reads  int
	}
	PlaceLoan struct {
		LoanID string `json:"loan_id"`
	}
	CancelLoan struct {
		LoanID string `json:"loan_id"`
	}
	RemindLoan struct {
		LoanID string `json:"loan_id"`
	}
	LoanPlaced struct {
		LoanID string    `json:"loan_id"`
		At     time.Time `json:"at"`
	}
	LoanConfirmed struct {
		LoanID string `json:"loan_id"`
	}
	LoanCancelled struct {
		LoanID string    `json:"loan_id"`
		At     time.Time `json:"at"`
	}
	// FeePaid is billing's ChargePaid, in the words of the library.
	FeePaid struct {
		LoanID string `json:"loan_id"`
	}
	ChargeFee struct {
		LoanID string `json:"loan_id"`
	}

	Charge struct {
		domain.Root
		Cents int
	}
	BillFee struct {
		LoanID string `json:"loan_id"`
	}
	ChargePaid struct {
		LoanID string `json:"loan_id"`
	}
)

var libraryDomain = domain.MustNew("library",
	domain.Aggregate[*Loan]("loan", domain.Event[LoanPlaced](domain.Published()), domain.Event[LoanConfirmed](), domain.Event[LoanCancelled]()),
	domain.Command[PlaceLoan](domain.KeyedBy("loan_id")),
	domain.Command[CancelLoan](domain.KeyedBy("loan_id")),
	domain.Command[RemindLoan](domain.KeyedBy("loan_id")),
	domain.ForeignCommand[ChargeFee]("billing", "Billing.BillFee.v1", domain.KeyedBy("loan_id")),
	domain.Foreign[FeePaid]("Billing.ChargePaid.v1"),
)

var billingDomain = domain.MustNew("billing",
	domain.Aggregate[*Charge]("charge", domain.Event[ChargePaid](domain.Published())),
	domain.Command[BillFee](domain.KeyedBy("loan_id"), domain.FromOthers()),
)

const payWithin = time.Hour

// library is the context that is tested.
type library struct {
	units    *uow.Manager
	loans    *repository.Repository[*Loan]
	commands *command.Handlers
	paid     func(ctx context.Context, e FeePaid) error
}

func newLibrary(units *uow.Manager) *library {
	l := &library{units: units, loans: repository.New[*Loan](units)}
	l.paid = func(ctx context.Context, e FeePaid) error {
		return l.loans.Update(ctx, e.LoanID, func(l *Loan) error {
			l.Status = "active"
			l.Raise(LoanConfirmed(e))
			domain.StopTimer(l, "pay-by")
			return nil
		})
	}
	l.commands = command.Must(command.Config{Units: units, Handlers: []command.Handler{
		command.On(func(ctx context.Context, c PlaceLoan) error {
			loan := &Loan{Root: domain.RootWithID(c.LoanID), Status: "pending"}
			now := domain.Now(ctx)
			loan.Raise(LoanPlaced{c.LoanID, now})
			domain.SetTimer(loan, "pay-by", now.Add(payWithin), CancelLoan(c))
			return errors.Join(l.loans.Save(ctx, loan), command.Send(ctx, ChargeFee(c)))
		}),
		command.On(func(ctx context.Context, c CancelLoan) error {
			return l.loans.Update(ctx, c.LoanID, func(l *Loan) error {
				l.Status = "cancelled"
				l.Raise(LoanCancelled{c.LoanID, domain.Now(ctx)})
				return nil
			})
		}),
		command.On(func(ctx context.Context, c RemindLoan) error {
			return l.loans.Update(ctx, c.LoanID, func(l *Loan) error {
				l.Reads++
				domain.SetTimer(l, "remind", domain.Now(ctx).Add(24*time.Hour), c)
				return nil
			})
		}),
	}})
	return l
}

func (l *library) stream() subscription.Stream {
	return subscription.Stream{
		Name: "library.charges", Category: "billing::charge", Units: l.units,
		Handlers: []subscription.Handler{subscription.On(func(ctx context.Context, e FeePaid) error { return l.paid(ctx, e) })},
	}
}

func (l *library) context() engine.Context {
	return engine.Context{Commands: l.commands, Subscriptions: []subscription.Stream{l.stream()}}
}

func (l *library) status(t *testing.T, id string) string {
	t.Helper()
	loan, err := l.loans.Get(t.Context(), id)
	require.NoError(t, err)
	return loan.Status
}

// billing charges, and is paid at once if it is asked to be.
type billing struct {
	units    *uow.Manager
	charges  *repository.Repository[*Charge]
	commands *command.Handlers
	// charge is what a message does.
	charge func(ctx context.Context, c BillFee) error
}

func newBilling(units *uow.Manager) *billing {
	b := &billing{units: units, charges: repository.New[*Charge](units)}
	b.charge = func(ctx context.Context, c BillFee) error {
		charge := &Charge{Root: domain.RootWithID(c.LoanID), Cents: 100}
		charge.Raise(ChargePaid(c))
		return b.charges.Save(ctx, charge)
	}
	b.commands = command.Must(command.Config{
		Units:    units,
		Handlers: []command.Handler{command.On(func(ctx context.Context, c BillFee) error { return b.charge(ctx, c) })},
	})
	return b
}

func (b *billing) context() engine.Context { return engine.Context{Commands: b.commands} }

// report is a test that is to fail: it keeps what it would have said.
type report struct {
	testing.TB
	mu   sync.Mutex
	said []string
}

func (r *report) Helper() {}

func (r *report) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.said = append(r.said, fmt.Sprintf(format, args...))
}

func (r *report) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

func (r *report) Fatal(args ...any) { r.Fatalf("%s", fmt.Sprint(args...)) }

// failing returns what a test would fail with.
func failing(t *testing.T, test func(tb testing.TB)) string {
	t.Helper()
	r := &report{TB: t}
	var all sync.WaitGroup
	all.Go(func() { test(r) })
	all.Wait()
	require.NotEmpty(t, r.said, "the test has to fail")
	return strings.Join(r.said, "\n")
}
