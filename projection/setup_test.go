package projection_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/internal/dbtest"
	"github.com/waybill-go/waybill/internal/rights"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/projection"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type (
	Loan struct {
		domain.Root
		Status string
	}
	LoanPlaced struct {
		LoanID   string `json:"loan_id"`
		MemberID string `json:"member_id"`
	}
	LoanMoved struct {
		LoanID string `json:"loan_id"`
		Status string `json:"status"`
	}
	LoanReturned struct {
		LoanID string `json:"loan_id"`
	}
	// LoanNoted is nothing to any projection.
	LoanNoted struct {
		LoanID string `json:"loan_id"`
	}
)

var library = domain.MustNew("library",
	domain.Aggregate[*Loan]("loan", domain.Event[LoanPlaced](), domain.Event[LoanMoved](), domain.Event[LoanReturned](), domain.Event[LoanNoted]()),
)

type CurrentLoan struct {
	LoanID   string `bun:",pk"`
	MemberID string
	Status   string
}

// currentLoans is a projection with a table of its own.
func currentLoans(version int, change ...func(*projection.Projection)) (projection.Projection, *projection.Table[CurrentLoan]) {
	t := projection.NewTable[CurrentLoan]("current_loans", "member_id, loan_id")
	p := projection.Projection{
		Name: "current-loans", Version: version, Tables: []projection.Definition{t},
		Handlers: []projection.Handler{
			projection.On(func(ctx context.Context, e LoanPlaced) error {
				return t.Put(ctx, CurrentLoan{e.LoanID, e.MemberID, "pending"})
			}),
			projection.On(func(ctx context.Context, e LoanMoved) error {
				return t.Change(ctx, e.LoanID, func(l *CurrentLoan) { l.Status = e.Status })
			}),
			projection.On(func(ctx context.Context, e LoanReturned) error { return t.Remove(ctx, e.LoanID) }),
		},
	}
	for _, c := range change {
		c(&p)
	}
	return p, t
}

// world is a context on a migrated database.
type world struct {
	p     uow.Provider
	units *uow.Manager
	loans *repository.Repository[*Loan]
}

func each(t *testing.T, f func(t *testing.T, w *world)) {
	t.Parallel()
	for name, open := range map[string]func(testing.TB) uow.Provider{
		"SQLite":     func(t testing.TB) uow.Provider { return dbtest.SQLite(t, dbtest.With(t, rights.Features()...)) },
		"PostgreSQL": func(t testing.TB) uow.Provider { p, _ := dbtest.Postgres(t); return p },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, newWorld(t, open(t)))
		})
	}
}

func newWorld(t *testing.T, p uow.Provider) *world {
	t.Helper()
	w := (&world{p: p}).program(t)
	require.NoError(t, engine.Migrate(t.Context(), w.units))
	return w
}

// program is another program on the same database.
func (w *world) program(t *testing.T) *world {
	t.Helper()
	units, err := uow.New(uow.Config{Domain: library, Providers: []uow.Provider{w.p}, History: true})
	require.NoError(t, err)
	return &world{p: w.p, units: units, loans: repository.New[*Loan](units)}
}

// of are projections of this program.
func (w *world) of(t *testing.T, all ...projection.Projection) *projection.Projections {
	t.Helper()
	ps, err := projection.New(w.units, all, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	projection.Fast(ps)
	return ps
}

// run runs projections until the test ends, or stop is called.
func (w *world) run(t *testing.T, all ...projection.Projection) (r *projection.Runner, stop func()) {
	t.Helper()
	r = w.of(t, all...).Runner(w.p.Name(), nil)
	require.NoError(t, r.Start(t.Context()))
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			require.NoError(t, r.Stop(ctx))
		}
	}
	t.Cleanup(stop)
	return r, stop
}

func (w *world) do(t *testing.T, id string, events ...any) {
	t.Helper()
	require.NoError(t, w.save(t.Context(), id, events...))
}

// save saves an aggregate with events.
func (w *world) save(ctx context.Context, id string, events ...any) error {
	return w.units.Do(ctx, func(ctx context.Context) error {
		l, err := w.loans.Get(ctx, id)
		if err != nil {
			l = &Loan{Root: domain.RootWithID(id)}
		}
		for _, e := range events {
			l.Raise(e)
		}
		l.Status = fmt.Sprint(l.Version())
		return w.loans.Save(ctx, l)
	})
}

func (w *world) place(t *testing.T, ids ...string) {
	t.Helper()
	for _, id := range ids {
		w.do(t, id, LoanPlaced{id, "m1"})
	}
}

func (w *world) wait(t *testing.T, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var err error
	eventually(t, func() bool {
		err = projection.Wait(ctx, w.units, name)
		behind, ok := errors.AsType[*projection.BehindError](err)
		return !ok || behind.Stopped == "" // An event that has failed is tried again.
	})
	require.NoError(t, err)
}

func find[R any](t *testing.T, w *world, table *projection.Table[R], order string) []R {
	t.Helper()
	rows, err := table.Find(t.Context(), w.units, func(q *bun.SelectQuery) *bun.SelectQuery { return q.OrderExpr(order) })
	require.NoError(t, err)
	return rows
}

// view is what others read.
func (w *world) view(t *testing.T, query string) (all []string) {
	t.Helper()
	require.NoError(t, w.p.Reader().NewRaw(query).Scan(t.Context(), &all))
	return all
}

// list are the builds of a projection, as "1 live".
func (w *world) list(t *testing.T) (all []string) {
	t.Helper()
	ps, err := projection.List(t.Context(), w.p)
	require.NoError(t, err)
	for _, p := range ps {
		all = append(all, fmt.Sprintf("%d v%d %s", p.Build, p.Version, p.Status))
	}
	return all
}

func eventually(t *testing.T, f func() bool, about ...any) {
	t.Helper()
	waittest.Until(t, f, about...)
}

func (w *world) becomes(t *testing.T, builds ...string) {
	t.Helper()
	var have []string
	for end := time.Now().Add(3 * time.Minute); time.Now().Before(end); {
		if have = w.list(t); fmt.Sprint(have) == fmt.Sprint(builds) {
			return
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-t.Context().Done():
		}
	}
	require.Equal(t, builds, have)
}
