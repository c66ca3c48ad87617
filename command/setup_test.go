package command_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/internal/dbtest"
	"github.com/waybill-go/waybill/internal/rights"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Two contexts: the library lends books, and billing charges for it.
type (
	Loan struct {
		domain.Root
		Member string
		Status string
		Count  int
	}
	PlaceLoan struct {
		LoanID string `json:"loan_id"`
		Member string `json:"member"`
	}
	ConfirmLoan struct {
		LoanID string `json:"loan_id"`
	}
	CountLoan struct {
		LoanID string `json:"loan_id"`
	}
	AskFee struct {
		LoanID string `json:"loan_id"`
	}
	LoanPlaced struct {
		LoanID string `json:"loan_id"`
	}
	LoanConfirmed struct {
		LoanID string `json:"loan_id"`
	}
	ChargeFee struct {
		LoanID string `json:"loan_id"`
	}
	Audit struct {
		LoanID string `json:"loan_id"`
	}

	Charge     struct{ domain.Root }
	FeeCharged struct {
		LoanID string `json:"loan_id"`
	}
	// BillFee is ChargeFee, in the words of billing.
	BillFee struct {
		LoanID string `json:"loan_id"`
	}
	Close struct {
		LoanID string `json:"loan_id"`
	}
)

var errNotPending = errors.New("the loan is not pending")

var library = domain.MustNew("library",
	domain.Aggregate[*Loan]("loan", domain.Event[LoanPlaced](), domain.Event[LoanConfirmed]()),
	domain.Command[PlaceLoan](domain.KeyedBy("loan_id")),
	domain.Command[ConfirmLoan](domain.KeyedBy("loan_id")),
	domain.Command[CountLoan](domain.KeyedBy("loan_id")),
	domain.Command[AskFee](domain.KeyedBy("loan_id")),
	domain.ForeignCommand[ChargeFee]("billing", "Billing.BillFee.v1", domain.KeyedBy("loan_id")),
	domain.ForeignCommand[Audit]("billing", "Billing.Close.v1", domain.KeyedBy("")),
)

var billing = domain.MustNew("billing",
	domain.Aggregate[*Charge]("charge", domain.Event[FeeCharged]()),
	domain.Command[BillFee](domain.KeyedBy("loan_id"), domain.FromOthers()),
	domain.Command[Close](domain.KeyedBy("loan_id")),
)

func Place(c PlaceLoan) (*Loan, error) {
	if c.Member == "" {
		return nil, errors.New("a loan needs a member")
	}
	l := &Loan{Root: domain.RootWithID(c.LoanID), Member: c.Member, Status: "pending"}
	l.Raise(LoanPlaced{c.LoanID})
	return l, nil
}

func (l *Loan) Confirm(ConfirmLoan) error {
	if l.Status != "pending" {
		return command.Refuse(errNotPending)
	}
	l.Status = "active"
	l.Raise(LoanConfirmed{l.ID()})
	return nil
}

func (l *Loan) Add(CountLoan) error {
	l.Count++
	if l.Status == "recurring" && l.Count < 3 {
		domain.SetTimer(l, "due", time.Now(), CountLoan{l.ID()})
	}
	return nil
}

// world is both contexts in one database.
type world struct {
	t       *testing.T
	db      uow.Provider
	broker  *memory.Broker
	units   *uow.Manager
	billed  *uow.Manager
	loans   *repository.Repository[*Loan]
	charges *repository.Repository[*Charge]
	lib     *command.Handlers
	bil     *command.Handlers
	fail    atomic.Pointer[error] // of BillFee
	handled atomic.Int64          // calls of AskFee
	log     *slog.Logger          // nil: slog.Default()
}

func databases(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	t.Parallel()
	for name, open := range map[string]func(*testing.T) uow.Provider{"postgres": openPostgres, "sqlite": openSQLite} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newWorld(t, open(t)))
		})
	}
}

func openPostgres(t *testing.T) uow.Provider {
	p, _ := dbtest.Postgres(t, func(c *postgres.Config) { c.MaxConns = 24 })
	return p
}

func openSQLite(t *testing.T) uow.Provider {
	return dbtest.SQLite(t, dbtest.With(t, rights.Features()...))
}

func newWorld(t *testing.T, db uow.Provider) *world {
	t.Helper()
	w := &world{t: t, db: db, broker: memory.New(memory.Config{})}
	var err error
	w.units, err = uow.New(uow.Config{Domain: library, Providers: []uow.Provider{db}})
	require.NoError(t, err)
	w.billed, err = uow.New(uow.Config{Domain: billing, Providers: []uow.Provider{db}})
	require.NoError(t, err)
	require.NoError(t, engine.Migrate(t.Context(), w.units, w.billed))
	w.loans, w.charges = repository.New[*Loan](w.units), repository.New[*Charge](w.billed)
	w.lib, err = command.New(command.Config{Units: w.units, Handlers: []command.Handler{
		command.Create(w.loans, Place),
		command.Update(w.loans, (*Loan).Confirm),
		command.Update(w.loans, (*Loan).Add),
		command.Returns(func(ctx context.Context, c AskFee) (int, error) {
			w.handled.Add(1)
			return 7, command.Send(ctx, ChargeFee(c))
		}),
	}})
	require.NoError(t, err)
	w.bil, err = command.New(command.Config{
		Units: w.billed,
		Queue: subscription.Stream{MaxAttempts: 2, Backoff: time.Millisecond},
		Handlers: []command.Handler{
			command.On(func(ctx context.Context, c BillFee) error {
				if err := w.fail.Load(); err != nil {
					return *err
				}
				charge := &Charge{Root: domain.RootWithID(c.LoanID)}
				charge.Raise(FeeCharged(c))
				return w.charges.Save(ctx, charge)
			}),
			command.On(func(context.Context, Close) error { return nil }),
		},
	})
	require.NoError(t, err)
	return w
}

// run runs both contexts until the test ends.
func (w *world) run() {
	w.t.Helper()
	w.t.Cleanup(w.runs(engine.Context{Units: w.units, Commands: w.lib}, engine.Context{Commands: w.bil}))
}

func (w *world) runs(contexts ...engine.Context) (stop func()) {
	w.t.Helper()
	e, err := engine.New(engine.Config{
		Contexts: contexts,
		Brokers:  map[string]broker.Broker{"default": w.broker},
		Logger:   w.log,
		Outbox:   outbox.Config{PollInterval: 20 * time.Millisecond, MaxPollInterval: 20 * time.Millisecond},
	})
	require.NoError(w.t, err)
	require.NoError(w.t, e.Start(w.t.Context()))
	return func() { require.NoError(w.t, e.Stop(context.Background())) }
}

func (w *world) place(id string) {
	w.t.Helper()
	require.NoError(w.t, w.lib.Do(w.t.Context(), PlaceLoan{id, "ann"}))
}

func (w *world) count(query string, args ...any) (n int) {
	w.t.Helper()
	require.NoError(w.t, w.db.Reader().NewRaw(query, args...).Scan(w.t.Context(), &n))
	return n
}

func (w *world) until(condition func() bool, what string) {
	w.t.Helper()
	waittest.Until(w.t, condition, what)
}

// send sends in a unit of the library.
func (w *world) send(c any, options ...command.Option) error {
	return w.units.Do(w.t.Context(), func(ctx context.Context) error { return command.Send(ctx, c, options...) })
}

// counted is how often a command of billing ended so.
func counted(h *command.Handlers, name string) command.Count {
	for _, c := range h.Counts() {
		if c.Command == name {
			return c
		}
	}
	return command.Count{}
}
