package command_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
)

func TestSend_D11_IsHandledByTheOtherContextAfterTheCommit(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		require.ErrorIs(t, command.Send(t.Context(), ChargeFee{"l1"}), uow.ErrNone)
		broken := errors.New("broken")
		require.ErrorIs(t, w.units.Do(t.Context(), func(ctx context.Context) error {
			require.NoError(t, command.Send(ctx, ChargeFee{"never"}))
			return broken
		}), broken)
		w.run()
		_, err := command.Call[int](t.Context(), w.lib, AskFee{"l1"})
		require.NoError(t, err)
		w.until(func() bool { _, err := w.charges.Get(t.Context(), "l1"); return err == nil }, "billing has charged")
		w.until(func() bool { return counted(w.bil, "BillFee").Done == 1 }, "and counted it")
		require.Equal(t, 1, w.count("SELECT count(*) FROM inbox WHERE subscription = 'billing.commands'"))
		require.Equal(t, 1, w.count("SELECT count(*) FROM documents WHERE category = 'billing::charge'"))
	})
}

func TestSend_CommandsOfAKeyAreHandledInTheirOrder(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		w.run()
		require.NoError(t, w.units.Do(t.Context(), func(ctx context.Context) error {
			require.NoError(t, command.Send(ctx, PlaceLoan{"l1", "ann"}))
			return command.Send(ctx, ConfirmLoan{"l1"})
		}))
		w.until(func() bool {
			l, err := w.loans.Get(t.Context(), "l1")
			return err == nil && l.Status == "active"
		}, "placed, then confirmed")
		require.Zero(t, counted(w.lib, "ConfirmLoan").Failed)
	})
}

func TestRefuse_AMessageIsDoneWithAtOnce(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		refused := command.Refuse(errors.New("no credit"))
		w.fail.Store(&refused)
		var logs lines
		w.log = slog.New(slog.NewTextHandler(&logs, nil))
		w.run()
		require.NoError(t, w.send(ChargeFee{"l1"}))
		w.until(func() bool { return w.count("SELECT count(*) FROM inbox") == 1 }, "it is done with")
		require.EqualValues(t, 1, counted(w.bil, "BillFee").Refused)
		require.Zero(t, w.count("SELECT count(*) FROM dead_letters"))
		require.Zero(t, w.count("SELECT count(*) FROM documents"))
		w.until(func() bool { return logs.have(`msg="command refused" subscription=billing.commands id=`) }, "the log says it in the words of commands")
		require.True(t, logs.have(`type=Billing.BillFee.v1 key=l1 reason="no credit"`))

		// Another error is tried again, and parked.
		broken := errors.New("broken")
		w.fail.Store(&broken)
		require.NoError(t, w.send(ChargeFee{"l2"}))
		w.until(func() bool { return w.count("SELECT count(*) FROM dead_letters WHERE status = 'parked'") == 1 }, "it is parked")
		require.EqualValues(t, 2, counted(w.bil, "BillFee").Failed)
	})
}

// A sender of another make may give a key that no table has room for.
func TestSend_AKeyThatCannotBeStoredIsParkedAtOnce(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		w.run()
		body := `{"data":{"loan_id":"l1"},"metadata":{"headers":{"id":"m1","type":"Billing.BillFee.v1","time":"2026-01-02T03:04:05Z"},` +
			`"domain":{"context":"library","kind":"COMMAND","stream_category":"billing::commands"},"command":{"idempotency_key":"` + strings.Repeat("k", 10_000) + `"}}}`
		require.NoError(t, w.broker.Publish(t.Context(), []broker.Message{{
			ID: "m1", Topic: "billing.commands", Key: "l1", Headers: map[string]string{"id": "m1", "type": "Billing.BillFee.v1"}, Body: []byte(body),
		}}))
		w.until(func() bool { return w.count("SELECT count(*) FROM dead_letters WHERE status = 'parked'") == 1 }, "it is parked")
		require.Equal(t, 1, w.count("SELECT count(*) FROM dead_letters WHERE reason = 'parked' AND attempts = 1 AND error LIKE '%the idempotency key%has 10000 bytes%'"))
	})
}

// lines are those of a log.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) have(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), text)
}

// A build of before a command came, or of after it was taken out, has no handler for what is
// in the queue, and nobody else has one: the first build that has handles it by itself, in
// its place. It is the same with one that a timer sends.
func TestQueue_N3_WhatThisBuildHasNoHandlerForWaitsForOneThatHas(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		w.place("l1")
		w.place("l2")
		require.NoError(t, w.units.Do(t.Context(), func(ctx context.Context) error {
			return errors.Join(
				command.Send(ctx, CountLoan{"l1"}), command.Send(ctx, ConfirmLoan{"l1"}), command.Send(ctx, ConfirmLoan{"l2"}),
				command.Schedule(ctx, "later", time.Now(), CountLoan{"l2"}))
		}))
		older, err := uow.New(uow.Config{Providers: []uow.Provider{w.db}, Domain: domain.MustNew("library",
			domain.Aggregate[*Loan]("loan", domain.Event[LoanPlaced](), domain.Event[LoanConfirmed]()),
			domain.Command[ConfirmLoan](domain.KeyedBy("loan_id")))})
		require.NoError(t, err)
		confirm := command.Update(repository.New[*Loan](older), (*Loan).Confirm)
		stop := w.runs(engine.Context{Commands: command.Must(command.Config{Units: older, Handlers: []command.Handler{confirm}})})
		w.until(func() bool {
			l, err := w.loans.Get(t.Context(), "l2")
			return err == nil && l.Status == "active"
		}, "what it has a handler for is handled")
		w.until(func() bool {
			return w.count("SELECT count(*) FROM dead_letters WHERE status = 'parked' AND reason = 'newer_version' AND needs = 'Library.CountLoan.v1' AND error LIKE '%no handler for%Library.CountLoan.v1%deploy a build%'") == 2
		}, "the others are kept")
		w.until(func() bool { return w.count("SELECT count(*) FROM dead_letters WHERE status = 'held'") == 1 }, "and hold what comes for the same loan")
		stop()
		w.run()
		w.until(func() bool {
			l, err := w.loans.Get(t.Context(), "l1")
			other, errOther := w.loans.Get(t.Context(), "l2")
			return err == nil && errOther == nil && l.Count == 1 && l.Status == "active" && other.Count == 1
		}, "a build that has one handles them")
		w.until(func() bool { return w.count("SELECT count(*) FROM dead_letters WHERE status <> 'replayed'") == 0 }, "and nothing is left")
		require.Zero(t, w.count("SELECT count(*) FROM timers"))
	})
}

// U-16. What was sent, set for a time, or done under a key by a build of before is known to one
// whose Go type has another name.
func TestQueue_N3_S4_18_ACommandWhoseGoTypeWasRenamed(t *testing.T) {
	type Confirmation struct {
		LoanID string `json:"loan_id"`
	}
	databases(t, func(t *testing.T, w *world) {
		for _, id := range []string{"l1", "l2", "l3"} {
			w.place(id)
		}
		require.NoError(t, w.lib.Do(t.Context(), ConfirmLoan{"l3"}, command.Once("k")))
		require.NoError(t, w.units.Do(t.Context(), func(ctx context.Context) error {
			return errors.Join(command.Send(ctx, ConfirmLoan{"l1"}), command.Schedule(ctx, "later", time.Now(), ConfirmLoan{"l2"}))
		}))
		renamed, err := uow.New(uow.Config{Providers: []uow.Provider{w.db}, Domain: domain.MustNew("library",
			domain.Aggregate[*Loan]("loan", domain.Event[LoanPlaced](), domain.Event[LoanConfirmed]()),
			domain.Command[Confirmation](domain.KeyedBy("loan_id"), domain.Named("ConfirmLoan")))})
		require.NoError(t, err)
		calls := 0
		loans := repository.New[*Loan](renamed)
		commands := command.Must(command.Config{Units: renamed, Handlers: []command.Handler{
			command.Update(loans, func(l *Loan, c Confirmation) error {
				calls++
				return l.Confirm(ConfirmLoan(c))
			}),
		}})
		require.NoError(t, commands.Do(t.Context(), Confirmation{"l3"}, command.Once("k")))
		require.Zero(t, calls, "it was done")
		stop := w.runs(engine.Context{Commands: commands})
		for _, id := range []string{"l1", "l2"} {
			w.until(func() bool {
				l, err := loans.Get(t.Context(), id)
				return err == nil && l.Status == "active"
			}, "what was sent is handled")
		}
		stop()
		require.Zero(t, w.count("SELECT count(*) FROM dead_letters"))
	})
}

func TestFromOthers_WithoutItACommandOfAnotherContextIsParked(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		w.run()
		require.NoError(t, w.send(Audit{"l1"}))
		w.until(func() bool {
			return w.count("SELECT count(*) FROM dead_letters WHERE status = 'parked' AND error LIKE '%Billing.Close.v1 came from context \"library\", and others may not send it%'") == 1
		}, "it is parked")
	})
}

func TestBefore_WhatIsLateHasNoEffect(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		past := command.Before(time.Now().Add(-time.Second))
		expired := new(command.ExpiredError)
		require.ErrorAs(t, w.lib.Do(t.Context(), PlaceLoan{"l1", "ann"}, past), &expired)
		require.NoError(t, w.lib.Do(t.Context(), PlaceLoan{"l2", "ann"}, command.Before(time.Now().Add(time.Hour))))
		w.run()
		require.NoError(t, w.send(ChargeFee{"l1"}, past))
		w.until(func() bool { return counted(w.bil, "BillFee").Expired == 1 }, "it is counted")
		w.until(func() bool { return w.count("SELECT count(*) FROM inbox") == 1 }, "and done with")
		require.Zero(t, w.count("SELECT count(*) FROM documents WHERE category = 'billing::charge'"))
	})
}

// The deadline of a command holds for those that its handler sends.
func TestBefore_GoesOnToWhatItsHandlerSends(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		deadline := time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
		require.NoError(t, w.lib.Do(t.Context(), AskFee{"l1"}, command.Before(deadline)))
		var body []byte
		require.NoError(t, w.db.Reader().NewRaw("SELECT payload FROM outbox").Scan(t.Context(), &body))
		require.Contains(t, string(body), `"kind":"COMMAND"`)
		require.Contains(t, string(body), `"command":{"deadline":"`+deadline.Format("2006-01-02T15:04:05.000000Z")+`"`)
	})
}

func TestSend_WithAKeyOneOfTwoMessagesTakesEffect(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		w.place("l1")
		w.run()
		for range 2 {
			require.NoError(t, w.send(CountLoan{"l1"}, command.Once("once")))
		}
		require.NoError(t, w.send(CountLoan{"l1"}))
		w.until(func() bool { return counted(w.lib, "CountLoan").Done == 3 }, "all are handled")
		w.until(func() bool { return w.count("SELECT count(*) FROM inbox") == 3 }, "and committed")
		l, err := w.loans.Get(t.Context(), "l1")
		require.NoError(t, err)
		require.Equal(t, 2, l.Count)
	})
}

// A command that is sent twice with a key, the second time too late, was done: nobody is told
// that it wasn't.
func TestSend_WhatWasDoneInTimeDidNotComeTooLate(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		w.place("l1")
		w.run()
		require.NoError(t, w.send(CountLoan{"l1"}, command.Once("once")))
		w.until(func() bool { return w.count("SELECT count(*) FROM inbox") == 1 }, "it is done")
		late := command.Before(time.Now().Add(-time.Second))
		require.NoError(t, w.send(CountLoan{"l1"}, command.Once("once"), late))
		require.NoError(t, w.send(CountLoan{"l1"}, command.Once("another"), late))
		w.until(func() bool { return w.count("SELECT count(*) FROM inbox") == 3 }, "all are done with")
		require.EqualValues(t, 2, counted(w.lib, "CountLoan").Done)
		require.EqualValues(t, 1, counted(w.lib, "CountLoan").Expired)
		require.Equal(t, 1, w.count("SELECT count(*) FROM command_keys"))
		l, err := w.loans.Get(t.Context(), "l1")
		require.NoError(t, err)
		require.Equal(t, 1, l.Count)
	})
}
