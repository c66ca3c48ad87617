package process_test

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/waybill-go/waybill/process"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Two contexts: the library lends books, once billing has been paid.
type (
	Loan struct {
		domain.Root
		Status string
	}
	PlaceLoan struct {
		LoanID string `json:"loan_id"`
	}
	ConfirmLoan struct {
		LoanID string `json:"loan_id"`
	}
	CancelLoan struct {
		LoanID string `json:"loan_id"`
		Reason string `json:"reason"`
	}
	LoanPlaced struct {
		LoanID string `json:"loan_id"`
	}
	LoanClosed struct {
		LoanID string `json:"loan_id"`
		Status string `json:"status"`
	}
	// LoanChecked may begin the process as well.
	LoanChecked struct {
		LoanID string `json:"loan_id"`
	}
	ChargeFee struct {
		LoanID string `json:"loan_id"`
	}
	FeePaid struct {
		LoanID string `json:"loan_id"`
	}
	FeeStep struct {
		LoanID string `json:"loan_id"`
		N      int    `json:"n"`
	}
	FeeNoted struct {
		Loan string `json:"loan"`
	}

	Charge struct{ domain.Root }
	Paid   struct {
		LoanID string `json:"loan_id"`
	}
	Step struct {
		LoanID string `json:"loan_id"`
		N      int    `json:"n"`
	}
	Noted struct {
		Loan string `json:"loan"`
	}
	BillFee struct {
		LoanID string `json:"loan_id"`
	}
)

// Lending sees to it that a loan is paid for, or cancelled.
type Lending struct {
	domain.ProcessRoot
	Steps []int
	Notes int
}

// What lendings do besides, in a test.
var (
	payWithin atomic.Int64
	failing   atomic.Pointer[string] // Steps of this loan fail.
	odd       atomic.Pointer[string] // How this loan begins can't be.
)

func (p *Lending) Placed(LoanPlaced) error {
	if id := odd.Load(); id != nil && *id == p.ID() {
		p.SetTimer("pay-by", p.Now())
		switch p.ID() {
		case "undeclared":
			p.Send(struct{}{})
		case "no time":
			p.SetTimer("pay-by", time.Time{})
		default:
			p.SetTimer("remind", p.Now())
		}
	}
	p.SetTimer("pay-by", p.Now().Add(time.Duration(payWithin.Load())))
	p.Send(ChargeFee{p.ID()})
	return nil
}

func (p *Lending) Checked(LoanChecked) error { p.Steps = append(p.Steps, 0); return nil }

func (p *Lending) Step(e FeeStep) error {
	if id := failing.Load(); id != nil && *id == p.ID() {
		return errors.New("this step fails")
	}
	p.Steps = append(p.Steps, e.N)
	return nil
}

func (p *Lending) Noted(FeeNoted) error { p.Notes++; return nil }

func (p *Lending) Paid(FeePaid) error {
	p.Send(ConfirmLoan{p.ID()})
	p.End()
	return nil
}

func (p *Lending) Refused(r domain.Refusal[ChargeFee]) error {
	return p.cancel(r.Reason + " for " + r.Command.LoanID)
}

func (p *Lending) Unpaid() error { return p.cancel("not paid in time") }

func (p *Lending) cancel(reason string) error {
	p.Send(CancelLoan{p.ID(), reason})
	p.End()
	return nil
}

var library = domain.MustNew("library",
	domain.Aggregate[*Loan]("loan", domain.Event[LoanPlaced](), domain.Event[LoanClosed](), domain.Event[LoanChecked]()),
	domain.Command[PlaceLoan](domain.KeyedBy("loan_id")),
	domain.Command[ConfirmLoan](domain.KeyedBy("loan_id")),
	domain.Command[CancelLoan](domain.KeyedBy("loan_id")),
	domain.ForeignCommand[ChargeFee]("billing", "Billing.BillFee.v1", domain.KeyedBy("loan_id")),
	domain.Foreign[FeePaid]("Billing.Paid.v1", domain.From("billing::charge")),
	domain.Foreign[FeeStep]("Billing.Step.v1", domain.From("billing::charge")),
	domain.Foreign[FeeNoted]("Billing.Noted.v1", domain.From("billing::charge")),
	domain.Process[*Lending]("lending",
		domain.CorrelatedBy("loan_id"),
		domain.Starts((*Lending).Placed),
		domain.Starts((*Lending).Checked),
		domain.Hears((*Lending).Paid),
		domain.Hears((*Lending).Step),
		domain.Hears((*Lending).Noted, domain.By(func(e FeeNoted) string { return e.Loan }), domain.Optional()),
		domain.Hears((*Lending).Refused),
		domain.OnTimer("pay-by", (*Lending).Unpaid),
	),
)

var billing = domain.MustNew("billing",
	domain.Aggregate[*Charge]("charge", domain.Event[Paid](domain.Published()), domain.Event[Step](domain.Published()), domain.Event[Noted](domain.Published())),
	domain.Command[BillFee](domain.KeyedBy("loan_id"), domain.FromOthers()),
)

// prefix is what the broker has before topics and groups.
const prefix = "test."

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
	tuned   process.Config
	refuse  atomic.Bool // BillFee
	engine  *engine.Engine
	heldUp  []int // transactions that hold messages up
}

func databases(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	for name, open := range map[string]func(*testing.T) uow.Provider{"postgres": openPostgres, "sqlite": openSQLite} {
		t.Run(name, func(t *testing.T) {
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
	payWithin.Store(int64(time.Hour))
	failing.Store(nil)
	w := &world{t: t, db: db, broker: memory.New(memory.Config{}), tuned: process.Config{Name: "lending", Queue: subscription.Stream{MaxAttempts: 2, Backoff: time.Millisecond}}}
	var err error
	w.units, err = uow.New(uow.Config{Domain: library, Providers: []uow.Provider{db}})
	require.NoError(t, err)
	w.billed, err = uow.New(uow.Config{Domain: billing, Providers: []uow.Provider{db}})
	require.NoError(t, err)
	require.NoError(t, engine.Migrate(t.Context(), w.units, w.billed))
	w.loans, w.charges = repository.New[*Loan](w.units), repository.New[*Charge](w.billed)
	w.lib, err = command.New(command.Config{Units: w.units, Handlers: []command.Handler{
		command.Create(w.loans, func(c PlaceLoan) (*Loan, error) {
			l := &Loan{Root: domain.RootWithID(c.LoanID), Status: "pending"}
			l.Raise(LoanPlaced(c))
			return l, nil
		}),
		command.Update(w.loans, func(l *Loan, _ ConfirmLoan) error { return l.close("active") }),
		command.Update(w.loans, func(l *Loan, c CancelLoan) error { return l.close("cancelled: " + c.Reason) }),
	}})
	require.NoError(t, err)
	w.bil, err = command.New(command.Config{Units: w.billed, Handlers: []command.Handler{
		command.On(func(context.Context, BillFee) error {
			if w.refuse.Load() {
				return command.Refuse(errors.New("no credit"))
			}
			return nil
		}),
	}})
	require.NoError(t, err)
	return w
}

func (l *Loan) close(status string) error {
	if l.Status != "pending" {
		return fmt.Errorf("the loan is %s already", l.Status)
	}
	l.Status = status
	l.Raise(LoanClosed{l.ID(), status})
	return nil
}

// start runs both contexts until the test ends, or stop is called.
func (w *world) start() (stop func()) {
	w.t.Helper()
	return w.runs(engine.Context{Units: w.units, Commands: w.lib, Processes: []process.Config{w.tuned}}, engine.Context{Commands: w.bil})
}

// runs has an engine run contexts until the test ends, or stop is called.
func (w *world) runs(contexts ...engine.Context) (stop func()) {
	w.t.Helper()
	e, err := engine.New(engine.Config{
		Contexts: contexts,
		Brokers:  map[string]broker.Broker{"default": broker.Prefixed(w.broker, prefix)},
		Outbox:   outbox.Config{PollInterval: 20 * time.Millisecond, MaxPollInterval: 20 * time.Millisecond},
	})
	require.NoError(w.t, err)
	require.NoError(w.t, e.Start(w.t.Context()))
	w.engine = e
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			require.NoError(w.t, e.Stop(context.Background()))
		}
	}
	w.t.Cleanup(stop)
	return stop
}

func (w *world) place(id string) {
	w.t.Helper()
	require.NoError(w.t, w.lib.Do(w.t.Context(), PlaceLoan{id}))
}

// billingSays has billing raise events about a loan, in one unit each.
func (w *world) billingSays(id string, events ...any) {
	w.t.Helper()
	for _, e := range events {
		require.NoError(w.t, w.billed.Do(w.t.Context(), func(ctx context.Context) error {
			c, err := w.charges.Get(ctx, id)
			if _, missing := errors.AsType[*repository.NotFoundError](err); missing {
				c, err = &Charge{Root: domain.RootWithID(id)}, nil
			}
			if err != nil {
				return err
			}
			c.Raise(e)
			return w.charges.Save(ctx, c)
		}))
	}
}

func (w *world) count(query string, args ...any) (n int) {
	w.t.Helper()
	require.NoError(w.t, w.db.Reader().NewRaw(query, args...).Scan(w.t.Context(), &n))
	return n
}

// until waits for a condition, which may fail the test.
func (w *world) until(condition func() bool, what string, args ...any) {
	w.t.Helper()
	waittest.Until(w.t, condition, append([]any{what}, args...)...)
}

// status is that of a process; "": there is none.
func (w *world) status(id string) string {
	_, i, err := process.Get[*Lending](w.t.Context(), w.units, id)
	if _, missing := errors.AsType[*process.NotFoundError](err); missing {
		return ""
	}
	require.NoError(w.t, err)
	return i.Status
}

func (w *world) loan(id string) string {
	l, err := w.loans.Get(w.t.Context(), id)
	if err != nil {
		return ""
	}
	return l.Status
}
