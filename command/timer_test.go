package command_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

func (w *world) timers(status string) int {
	return w.count("SELECT count(*) FROM timers WHERE status = ?", status)
}

// update changes a loan.
func (w *world) update(id string, change func(*Loan)) {
	w.t.Helper()
	require.NoError(w.t, w.loans.Update(w.t.Context(), id, func(l *Loan) error { change(l); return nil }))
}

func (w *world) counts(id string) int {
	w.t.Helper()
	l, err := w.loans.Get(w.t.Context(), id)
	require.NoError(w.t, err)
	return l.Count
}

func TestTimer_IsHandledOnceAtItsTime(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		w.place("l1")
		w.run()
		at := time.Now().Add(time.Second)
		w.update("l1", func(l *Loan) { domain.SetTimer(l, "due", at, CountLoan{"l1"}) })
		require.Equal(t, 1, w.timers("waiting"))
		w.until(func() bool { return w.counts("l1") == 1 }, "it is handled")
		var said []byte
		require.NoError(t, w.db.Reader().NewRaw("SELECT payload FROM outbox WHERE stream_category = 'library::commands'").Scan(t.Context(), &said))
		require.Contains(t, string(said), `"time":"`+at.UTC().Format("2006-01-02T15:04:05.000000Z")+`"`, "its message is of that time")
		require.False(t, time.Now().Before(at), "not before its time")
		w.until(func() bool { return w.count("SELECT count(*) FROM timers") == 0 }, "and gone")
		require.Equal(t, 1, w.count("SELECT count(*) FROM inbox"))
	})
}

// A handler sets its own timer anew: the row of the message that it handles goes before
// the next one comes.
func TestTimer_ItsHandlerSetsTheNextOne(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		w.place("l1")
		w.run()
		w.update("l1", func(l *Loan) {
			l.Status = "recurring"
			domain.SetTimer(l, "due", time.Now(), CountLoan{"l1"})
		})
		w.until(func() bool { return w.counts("l1") == 3 }, "three times")
		w.until(func() bool { return w.count("SELECT count(*) FROM timers") == 0 }, "and gone")
	})
}

// A handler removes the aggregate that has set the timer, and all its timers with it.
func TestTimer_ItsHandlerRemovesTheAggregate(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		w.place("l1")
		w.lib = command.Must(command.Config{Units: w.units, Handlers: []command.Handler{
			command.Create(w.loans, Place),
			command.Update(w.loans, (*Loan).Confirm),
			command.On(func(ctx context.Context, c CountLoan) error {
				l, err := w.loans.Get(ctx, c.LoanID)
				if err != nil {
					return err
				}
				return w.loans.Remove(ctx, l)
			}),
			command.Returns(func(context.Context, AskFee) (int, error) { return 0, nil }),
		}})
		w.run()
		w.update("l1", func(l *Loan) { domain.SetTimer(l, "due", time.Now(), CountLoan{"l1"}) })
		w.until(func() bool { return w.count("SELECT count(*) FROM timers") == 0 }, "it is gone")
		require.EqualValues(t, 1, counted(w.lib, "CountLoan").Done)
		require.Zero(t, counted(w.lib, "CountLoan").Failed)
	})
}

// A unit sets a timer and then removes its aggregate: none is left.
func TestTimer_WithItsAggregateItIsGone(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		w.place("l1")
		require.NoError(t, w.units.Do(t.Context(), func(ctx context.Context) error {
			l, err := w.loans.Get(ctx, "l1")
			if err != nil {
				return err
			}
			domain.SetTimer(l, "due", time.Now().Add(time.Hour), CountLoan{"l1"})
			if err := w.loans.Save(ctx, l); err != nil {
				return err
			}
			return w.loans.Remove(ctx, l)
		}))
		require.Zero(t, w.count("SELECT count(*) FROM timers"))
	})
}

func TestTimer_SetAgainItIsMovedAndStoppedItIsGone(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		w.place("l1")
		w.place("l2")
		far := time.Now().Add(time.Hour)
		w.update("l1", func(l *Loan) {
			domain.SetTimer(l, "due", time.Now(), CountLoan{"l1"})
			domain.SetTimer(l, "due", far, CountLoan{"l1"})
			domain.SetTimer(l, "other", far, CountLoan{"l1"})
			domain.StopTimer(l, "other")
			domain.StopTimer(l, "never set")
		})
		w.update("l2", func(l *Loan) { domain.SetTimer(l, "due", far, CountLoan{"l2"}) })
		require.Equal(t, 2, w.timers("waiting"), "each has one timer of a name")
		w.run()
		w.update("l1", func(l *Loan) { domain.SetTimer(l, "due", time.Now(), CountLoan{"l1"}) })
		w.until(func() bool { return w.counts("l1") == 1 }, "it is moved to now")

		// To remove an aggregate stops all that it has set.
		require.NoError(t, w.units.Do(t.Context(), func(ctx context.Context) error {
			l, err := w.loans.Get(ctx, "l2")
			if err != nil {
				return err
			}
			return w.loans.Remove(ctx, l)
		}))
		w.until(func() bool { return w.count("SELECT count(*) FROM timers") == 0 }, "none is left")
	})
}

// Once a stop has committed its timer has no effect any more, though its message is on
// its way.
func TestTimer_StoppedWhileItsMessageIsOnItsWay(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		w.place("l1")
		// Behind a message of its key that fails, until the timer is stopped.
		held := make(chan struct{})
		wait := command.Must(command.Config{Units: w.units, Handlers: []command.Handler{
			command.Create(w.loans, Place),
			command.Update(w.loans, func(l *Loan, c ConfirmLoan) error { <-held; return l.Confirm(c) }),
			command.Update(w.loans, (*Loan).Add),
			command.Returns(func(context.Context, AskFee) (int, error) { return 0, nil }),
		}})
		w.lib = wait
		w.run()
		require.NoError(t, w.send(ConfirmLoan{"l1"}))
		w.update("l1", func(l *Loan) { domain.SetTimer(l, "due", time.Now(), CountLoan{"l1"}) })
		w.until(func() bool { return w.timers("sent") == 1 }, "its message is on its way")
		w.update("l1", func(l *Loan) { domain.StopTimer(l, "due") })
		close(held)
		w.until(func() bool { return w.count("SELECT count(*) FROM inbox") == 2 }, "both are done with")
		require.Zero(t, w.counts("l1"))
		require.EqualValues(t, 1, counted(w.lib, "CountLoan").Stopped)
	})
}

// Nor has it one when its message was parked, and is replayed.
func TestTimer_StoppedWhileItsMessageIsParked(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		w.place("l1")
		w.lib = command.Must(command.Config{Units: w.units, Queue: subscription.Stream{MaxAttempts: 1}, Handlers: []command.Handler{
			command.Create(w.loans, Place),
			command.Update(w.loans, (*Loan).Confirm),
			command.On(func(context.Context, CountLoan) error { return errors.New("broken") }),
			command.Returns(func(context.Context, AskFee) (int, error) { return 0, nil }),
		}})
		w.run()
		w.update("l1", func(l *Loan) { domain.SetTimer(l, "due", time.Now(), CountLoan{"l1"}) })
		w.until(func() bool { return w.count("SELECT count(*) FROM dead_letters WHERE status = 'parked'") == 1 }, "it is parked")
		w.update("l1", func(l *Loan) { domain.StopTimer(l, "due") })
		_, err := subscription.NewDeadLetters(w.db).Replay(t.Context(), subscription.DeadLetterFilter{Subscription: "library.commands"}, subscription.ReplayOptions{Actor: "ada"})
		require.NoError(t, err)
		w.until(func() bool { return counted(w.lib, "CountLoan").Stopped == 1 }, "it is found to be stopped")
		w.until(func() bool {
			return w.count("SELECT count(*) FROM dead_letters WHERE status NOT IN ('replayed', 'discarded')") == 0
		}, "and is over")
		require.EqualValues(t, 1, counted(w.lib, "CountLoan").Failed)
	})
}

// A timer whose command is refused, or comes too late, is done with, too.
func TestTimer_RefusedItIsGone(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		w.place("l1")
		require.NoError(t, w.lib.Do(t.Context(), ConfirmLoan{"l1"}))
		w.run()
		w.update("l1", func(l *Loan) { domain.SetTimer(l, "confirm", time.Now(), ConfirmLoan{"l1"}) })
		require.NoError(t, w.units.Do(t.Context(), func(ctx context.Context) error {
			return command.Schedule(ctx, "late", time.Now(), CountLoan{"l1"}, command.Before(time.Now().Add(-time.Second)))
		}))
		w.until(func() bool { return counted(w.lib, "ConfirmLoan").Refused == 1 }, "it is refused")
		w.until(func() bool { return counted(w.lib, "CountLoan").Expired == 1 }, "it has expired")
		w.until(func() bool { return w.count("SELECT count(*) FROM timers") == 0 }, "no timer is left")
		require.Equal(t, 2, w.count("SELECT count(*) FROM inbox"))
		require.Zero(t, w.counts("l1"))
	})
}

func TestSchedule_AndUnschedule(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		w.place("l1")
		far := time.Now().Add(time.Hour)
		require.NoError(t, w.units.Do(t.Context(), func(ctx context.Context) error {
			require.NoError(t, command.Schedule(ctx, "a", far, CountLoan{"l1"}))
			return command.Schedule(ctx, "b", far, CountLoan{"l1"})
		}))
		require.Equal(t, 2, w.timers("waiting"))
		require.NoError(t, w.units.Do(t.Context(), func(ctx context.Context) error { return command.Unschedule(ctx, "a") }))
		require.Equal(t, 1, w.timers("waiting"))
		require.ErrorIs(t, command.Schedule(t.Context(), "a", far, CountLoan{"l1"}), uow.ErrNone)
		require.ErrorIs(t, command.Unschedule(t.Context(), "a"), uow.ErrNone)
		for want, do := range map[string]func(ctx context.Context) error{
			"has no time":            func(ctx context.Context) error { return command.Schedule(ctx, "a", time.Time{}, CountLoan{"l1"}) },
			"has no name":            func(ctx context.Context) error { return command.Schedule(ctx, "", far, CountLoan{"l1"}) },
			"command is nil":         func(ctx context.Context) error { return command.Schedule(ctx, "b", far, nil) },
			"is for another context": func(ctx context.Context) error { return command.Schedule(ctx, "a", far, ChargeFee{"l1"}) },
		} {
			require.ErrorContains(t, w.units.Do(t.Context(), do), want)
		}
		require.Equal(t, 1, w.timers("waiting"), "b is still set")
	})
}

// A timer that is set with no command isn't stopped, nor is the one that is moved by it.
func TestTimer_WithoutACommandIsRefused(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		w.place("l1")
		far := time.Now().Add(time.Hour)
		w.update("l1", func(l *Loan) { domain.SetTimer(l, "due", far, CountLoan{"l1"}) })
		require.ErrorContains(t, w.loans.Update(t.Context(), "l1", func(l *Loan) error {
			domain.SetTimer(l, "due", far, nil)
			return nil
		}), `timer "due" of loan l1: its command is nil`)
		require.Equal(t, 1, w.timers("waiting"))
	})
}

// A timer that nobody saves would be lost without a trace.
func TestTimer_OfAnAggregateThatIsNotSaved(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		w.place("l1")
		err := w.units.Do(t.Context(), func(ctx context.Context) error {
			l, err := w.loans.Get(ctx, "l1")
			domain.SetTimer(l, "due", time.Now(), CountLoan{"l1"})
			return err
		})
		unsaved := new(uow.UnsavedError)
		require.ErrorAs(t, err, &unsaved)
		require.ErrorContains(t, err, `set or stopped its timer "due" and was not saved`)
		// One that fails leaves none.
		broken := errors.New("broken")
		require.ErrorIs(t, w.loans.Update(t.Context(), "l1", func(l *Loan) error {
			domain.SetTimer(l, "due", time.Now(), CountLoan{"l1"})
			return broken
		}), broken)
		require.Zero(t, w.count("SELECT count(*) FROM timers"))
	})
}
