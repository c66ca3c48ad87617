package process_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/process"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

// lender is the Lending of a build of before it heard refusals and had a timer to pay by.
type lender struct {
	domain.ProcessRoot
	Steps []int
	Notes int
}

func (*lender) placed(LoanPlaced) error { return nil }
func (p *lender) step(e FeeStep) error  { p.Steps = append(p.Steps, e.N); return nil }
func (*lender) remind() error           { return nil }

var before = domain.MustNew("library",
	domain.Aggregate[*Loan]("loan", domain.Event[LoanPlaced]()),
	domain.ForeignCommand[ChargeFee]("billing", "Billing.BillFee.v1", domain.KeyedBy("loan_id")),
	domain.Foreign[FeeStep]("Billing.Step.v1", domain.From("billing::charge")),
	domain.Process[*lender]("lending", domain.CorrelatedBy("loan_id"), domain.Starts((*lender).placed), domain.Hears((*lender).step), domain.OnTimer("remind", (*lender).remind)),
)

// N3: a refusal, or a timer, comes for a process of which this build hears neither, as in a
// deployment in which both came: the first build that does handles it by itself, in its
// place, and the process's other messages wait behind it.
func TestProcess_N3_WhatThisBuildDoesNotHearWaitsForOneThatDoes(t *testing.T) {
	for name, c := range map[string]struct {
		refuse      bool
		needs, loan string
	}{
		"refusal": {true, "refusal of Billing.BillFee by library.lending", "cancelled: no credit for l1"},
		"timer":   {false, "timer pay-by of library.lending", "cancelled: not paid in time"},
	} {
		t.Run(name, func(t *testing.T) {
			databases(t, func(t *testing.T, w *world) {
				after := engine.Context{Units: w.units, Commands: w.lib}
				stop := w.runs(after)
				w.place("l1")
				w.until(func() bool { return w.status("l1") == "running" }, "it begins")
				stop()
				if w.refuse.Store(c.refuse); !c.refuse {
					_, err := w.db.DB().ExecContext(t.Context(), "UPDATE timers SET available_at = set_at")
					require.NoError(t, err)
				}
				older, err := uow.New(uow.Config{Domain: before, Providers: []uow.Provider{w.db}})
				require.NoError(t, err)
				stop = w.runs(engine.Context{Units: older, Commands: command.Must(command.Config{Units: older})}, engine.Context{Commands: w.bil})
				w.until(func() bool {
					return w.count("SELECT count(*) FROM dead_letters WHERE status = 'parked' AND reason = 'newer_version' AND needs = ?", c.needs) == 1
				}, "it is kept")
				w.billingSays("l1", Step{"l1", 1})
				w.until(func() bool { return w.count("SELECT count(*) FROM dead_letters WHERE status = 'held'") == 1 }, "and holds its process")
				stop()
				stop = w.runs(after)
				defer stop()
				w.until(func() bool { return w.loan("l1") == c.loan }, "a build that hears it handles it")
				require.Equal(t, "ended", w.status("l1"))
				w.until(func() bool { return w.count("SELECT count(*) FROM dead_letters WHERE status <> 'replayed'") == 0 }, "and nothing is left")
				require.Zero(t, w.count("SELECT count(*) FROM timers"))
			})
		})
	}
}

// shelved is the Lending of a build that hears nothing of billing any more.
type shelved struct {
	domain.ProcessRoot
	Steps []int
	Notes int
}

func (*shelved) placed(LoanPlaced) error     { return nil }
func (p *shelved) checked(LoanChecked) error { p.Notes++; return nil }

// N3: what was set aside of a stream that this build doesn't read any more is nobody's: it waits
// for a build that does, or to be discarded, and says so; it held its process, and an operator's
// replay did nothing.
func TestProcess_N3_WhatIsSetAsideOfAStreamThatThisBuildDoesNotRead(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		w.tuned.Patience = time.Hour
		stop := w.start()
		w.billingSays("l1", Step{"l1", 1})
		w.billingSays("l2", Step{"l2", 1})
		w.until(func() bool { return w.count("SELECT count(*) FROM dead_letters WHERE status = 'early'") == 2 }, "it comes early")
		stop()
		units, err := uow.New(uow.Config{Providers: []uow.Provider{w.db}, Domain: domain.MustNew("library",
			domain.Aggregate[*Loan]("loan", domain.Event[LoanPlaced](), domain.Event[LoanChecked]()),
			domain.Process[*shelved]("lending", domain.CorrelatedBy("loan_id"), domain.Starts((*shelved).placed), domain.Hears((*shelved).checked)))})
		require.NoError(t, err)
		stop = w.runs(engine.Context{Units: units, Commands: command.Must(command.Config{Units: units})})
		w.place("l1")
		w.place("l2")
		w.until(func() bool {
			return w.count("SELECT count(*) FROM dead_letters WHERE status = 'parked' AND holds AND reason = 'newer_version' AND needs = 'Billing.Step.v1'") == 2
		}, "it waits for a build that reads it")
		for _, id := range []string{"l1", "l2"} {
			require.NoError(t, w.units.Do(t.Context(), func(ctx context.Context) error {
				return w.loans.Update(ctx, id, func(l *Loan) error { l.Raise(LoanChecked{id}); return nil })
			}))
		}
		w.until(func() bool { return w.count("SELECT count(*) FROM dead_letters WHERE status = 'held'") == 2 }, "and holds its process")
		_, err = subscription.NewDeadLetters(w.db).Discard(t.Context(), subscription.DeadLetterFilter{Subscription: "library.lending", Key: "l2", Reason: "newer_version"}, subscription.DiscardOptions{Actor: "ada"})
		require.NoError(t, err)
		w.until(func() bool { return w.count("SELECT count(*) FROM dead_letters WHERE status = 'held'") == 1 }, "unless it is discarded")
		stop()
		defer w.start()()
		w.until(func() bool {
			return w.count("SELECT count(*) FROM dead_letters WHERE status NOT IN ('replayed', 'discarded')") == 0
		}, "nothing is left")
		p, _, err := process.Get[*Lending](t.Context(), w.units, "l1")
		require.NoError(t, err)
		require.Equal(t, []int{1, 0}, p.Steps, "what came early, and what was behind it")
	})
}

// Where a build of before heard an event that begins the process now, it was set aside as early,
// and nothing comes that would let it be handled: a replay does.
func TestProcess_WhatCameEarlyAndBeginsTheProcessNowIsReplayed(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		units, err := uow.New(uow.Config{Providers: []uow.Provider{w.db}, Domain: domain.MustNew("library",
			domain.Aggregate[*Loan]("loan", domain.Event[LoanPlaced](), domain.Event[LoanChecked]()),
			domain.Process[*shelved]("lending", domain.CorrelatedBy("loan_id"), domain.Starts((*shelved).placed), domain.Hears((*shelved).checked)))})
		require.NoError(t, err)
		stop := w.runs(engine.Context{Units: units, Commands: command.Must(command.Config{Units: units})})
		require.NoError(t, w.units.Do(t.Context(), func(ctx context.Context) error {
			l := &Loan{Root: domain.RootWithID("l1")}
			l.Raise(LoanChecked{"l1"})
			return w.loans.Save(ctx, l)
		}))
		w.until(func() bool { return w.count("SELECT count(*) FROM dead_letters WHERE status = 'early'") == 1 }, "it comes early")
		stop()
		defer w.start()()
		_, err = subscription.NewDeadLetters(w.db).Replay(t.Context(), subscription.DeadLetterFilter{Subscription: "library.lending", Reason: "early"}, subscription.ReplayOptions{Actor: "ada"})
		require.NoError(t, err)
		w.until(func() bool { return w.status("l1") == "running" }, "it begins")
		require.Zero(t, w.count("SELECT count(*) FROM dead_letters WHERE status <> 'replayed'"))
	})
}
