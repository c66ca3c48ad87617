package timerdb_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/timerdb"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/outbox"
)

func (w *world) found(f outbox.TimerFilter) (ids []string) {
	w.T.Helper()
	for {
		p, err := w.store().Find(w.T.Context(), f)
		require.NoError(w.T, err)
		for _, t := range p.Timers {
			ids = append(ids, t.ID)
		}
		if p.Next == "" {
			return ids
		}
		f.After = p.Next
	}
}

func TestFind_ChoosesByAllThatATimerHas(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		a, b, c := timer("a", "x", past), timer("b", "y", noon), timer("c", "x", noon)
		b.Row.TenantID, c.Row.MessageType, c.Row.CorrelationID = "t'1", "Other.v1", "cc"
		w.commit(timerdb.Set(c), timerdb.Set(b), timerdb.Set(a))
		require.Equal(t, 1, w.promote(500).Sent)
		for _, test := range []struct {
			f    outbox.TimerFilter
			want []timerdb.Timer
		}{
			{outbox.TimerFilter{Limit: 1}, []timerdb.Timer{a, b, c}},
			{outbox.TimerFilter{IDs: []string{strings.ToUpper(b.Row.MessageID), a.Row.MessageID}}, []timerdb.Timer{a, b}},
			{outbox.TimerFilter{Owner: "b"}, []timerdb.Timer{b}},
			{outbox.TimerFilter{Name: "x"}, []timerdb.Timer{a, c}},
			{outbox.TimerFilter{Status: "sent"}, []timerdb.Timer{a}},
			{outbox.TimerFilter{Status: "waiting", Limit: 1}, []timerdb.Timer{b, c}},
			{outbox.TimerFilter{Type: "Other.v1"}, []timerdb.Timer{c}},
			{outbox.TimerFilter{Tenant: "t'1"}, []timerdb.Timer{b}},
			{outbox.TimerFilter{Correlation: "cc"}, []timerdb.Timer{c}},
			{outbox.TimerFilter{Until: noon}, []timerdb.Timer{a}},
			{outbox.TimerFilter{From: noon, Until: noon.Add(1e6)}, []timerdb.Timer{b, c}},
		} {
			require.Equal(t, idsOf(test.want...), w.found(test.f), "%+v", test.f)
		}
		p, err := w.store().Find(t.Context(), outbox.TimerFilter{Owner: "a"})
		require.NoError(t, err)
		got := p.Timers[0]
		require.WithinDuration(t, time.Now(), *got.SentAt, time.Minute)
		require.WithinDuration(t, time.Now(), got.SetAt, time.Minute)
		got.SentAt, got.SetAt = nil, time.Time{}
		require.Equal(t, outbox.Timer{
			ID: a.Row.MessageID, Owner: "a", Name: "x", Type: a.Row.MessageType, Status: "sent", AvailableAt: past, CorrelationID: a.Row.CorrelationID,
		}, got)
		for want, f := range map[string]outbox.TimerFilter{
			"is not a status": {Status: "late"}, "is not the id of a timer": {IDs: []string{"7"}},
			"is no text": {Owner: "\x00"}, "is not the end of a page": {After: "7"},
		} {
			_, err := w.store().Find(t.Context(), f)
			require.ErrorContains(t, err, want)
			_, err = w.store().Change(t.Context(), f, outbox.TimerChange{Actor: "ada"})
			require.Error(t, err)
		}
	})
}

// A time that was counted from none at all is in the year 1: it is due, and a page may end
// there.
func TestFind_APageEndsAtWhateverTimeATimerMayHave(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		first, second := timer("a", "x", time.Time{}.Add(time.Hour)), timer("a", "y", time.Time{}.Add(2*time.Hour))
		last, never := timer("a", "z", time.Date(9998, 12, 31, 0, 0, 0, 0, time.UTC)), timer("b", "z", time.Date(9998, 12, 31, 0, 0, 0, 1, time.UTC))
		w.commit(timerdb.Set(never), timerdb.Set(last), timerdb.Set(second), timerdb.Set(first))
		require.Equal(t, idsOf(first, second, last, never), w.found(outbox.TimerFilter{Limit: 1}))
	})
}

func TestShow_HasTheMessage(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		a := timer("a", "x", noon)
		w.commit(timerdb.Set(a))
		d, err := w.store().Show(t.Context(), a.Row.MessageID)
		require.NoError(t, err)
		d.Message.Payload = d.Payload
		require.Equal(t, a.Row, d.Message)
		_, err = w.store().Show(t.Context(), outboxdbtest.Row("k").MessageID)
		require.ErrorIs(t, err, timerdb.ErrNoTimer)
	})
}

// Who stops what is on the record; what is stopped isn't handled, wherever its message is.
func TestChange_StopsWhatWaitsAndWhatIsOnItsWay(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		sent, waits, other := timer("a", "x", past), timer("a", "y", noon), timer("b", "x", noon)
		w.commit(timerdb.Set(sent), timerdb.Set(waits), timerdb.Set(other))
		require.Equal(t, 1, w.promote(500).Sent)
		f := outbox.TimerFilter{Owner: "a"}
		dry, err := w.store().Change(t.Context(), f, outbox.TimerChange{DryRun: true})
		require.NoError(t, err)
		require.Equal(t, outbox.TimersChanged{Changed: 2}, dry)
		require.Len(t, w.kept(), 3)
		_, err = w.store().Change(t.Context(), f, outbox.TimerChange{})
		require.ErrorContains(t, err, "timers: stop: Actor is missing")
		_, err = w.store().Change(t.Context(), outbox.TimerFilter{}, outbox.TimerChange{Actor: "ada"})
		require.ErrorContains(t, err, "chooses every timer")
		done, err := w.store().Change(t.Context(), f, outbox.TimerChange{Actor: "ada"})
		require.NoError(t, err)
		require.EqualValues(t, 2, done.Changed)
		require.Equal(t, []kept{of(other, "waiting")}, w.kept())
		require.ErrorIs(t, w.handle(sent.Row.MessageID), errGone)
		actions, err := w.Bench.Store.Actions(t.Context(), 10)
		require.NoError(t, err)
		require.Len(t, actions, 1)
		require.Equal(t, []any{done.Action, "ada", "timers-stop", int64(2)}, []any{actions[0].ID, actions[0].Actor, actions[0].Action, actions[0].Rows})
		require.JSONEq(t, `{"owner": "a"}`, string(actions[0].Filter))
	})
}

// Who was shown what had been set before a moment has not seen what was set in that moment.
func TestChange_LeavesWhatWasNotSetBefore(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		set := timer("a", "x", noon)
		w.commit(timerdb.Set(set))
		f := outbox.TimerFilter{Owner: "a"}
		found, err := w.store().Find(t.Context(), f)
		require.NoError(t, err)
		at := found.Timers[0].SetAt
		for before, changed := range map[time.Time]int64{at: 0, at.Add(time.Millisecond): 1} {
			dry, err := w.store().Change(t.Context(), f, outbox.TimerChange{DryRun: true, Before: before})
			require.NoError(t, err)
			require.Equal(t, outbox.TimersChanged{Changed: changed}, dry)
		}
	})
}

func TestChange_MovesWhatWaitsAndLeavesWhatIsOnItsWay(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		sent, waits := timer("a", "x", past), timer("a", "y", noon)
		w.commit(timerdb.Set(sent), timerdb.Set(waits))
		require.Equal(t, 1, w.promote(500).Sent)
		change := func(c outbox.TimerChange) outbox.TimersChanged {
			c.Actor = "ada"
			done, err := w.store().Change(t.Context(), outbox.TimerFilter{Owner: "a"}, c)
			require.NoError(t, err)
			done.Action = 0
			return done
		}
		later := noon.Add(time.Hour)
		require.Equal(t, outbox.TimersChanged{Changed: 1, Left: 1}, change(outbox.TimerChange{At: later}))
		next, err := w.store().Next(t.Context())
		require.NoError(t, err)
		require.Equal(t, later, next[0].At)
		require.Equal(t, []string{waits.Row.MessageID}, w.found(outbox.TimerFilter{Status: "waiting"}), "no message of it is on its way, so it keeps its id")
		require.Equal(t, outbox.TimersChanged{Changed: 1, Left: 1}, change(outbox.TimerChange{Now: true}))
		require.Equal(t, 1, w.promote(500).Sent)
		require.Equal(t, outbox.TimersChanged{Left: 2}, change(outbox.TimerChange{Now: true}))
		for want, c := range map[string]outbox.TimerChange{"give one of them": {Now: true, At: noon}, "in the year 9999": {At: noon.AddDate(7000, 0, 0)}} {
			_, err := w.store().Change(t.Context(), outbox.TimerFilter{Owner: "a"}, c)
			require.ErrorContains(t, err, want)
		}
	})
}

// OPERWAITS: a row that somebody has locked is not waited for while others are locked; the
// change comes back to it.
func TestChange_ComesBackToWhatIsLocked(t *testing.T) {
	t.Parallel()
	w := openWorld(t, outboxdbtest.PostgreSQL(t))
	for i := range 3 {
		w.commit(timerdb.Set(timer(fmt.Sprint(i), "x", noon)))
	}
	rollback := w.hold(timerdb.Stop("1", "x"))
	type outcome struct {
		done outbox.TimersChanged
		err  error
	}
	ended := make(chan outcome, 1)
	go func() {
		done, err := w.store().Change(context.WithoutCancel(t.Context()), outbox.TimerFilter{Name: "x"}, outbox.TimerChange{Actor: "ada"})
		ended <- outcome{done, err}
	}()
	waittest.Until(t, func() bool { return w.Count("SELECT count(*) FROM timers") == 1 })
	rollback()
	got := <-ended
	require.NoError(t, got.err)
	require.EqualValues(t, 3, got.done.Changed)
	require.EqualValues(t, 3, w.Count("SELECT rows FROM outbox_actions WHERE id = ?", got.done.Action))

	w.commit(timerdb.Set(timer("1", "x", noon)))
	w.hold(timerdb.Stop("1", "x"))
	done, err := w.store().Change(t.Context(), outbox.TimerFilter{Name: "x"}, outbox.TimerChange{Actor: "ada"})
	require.ErrorContains(t, err, "1 of them are locked by transactions that don't end")
	require.Zero(t, done.Changed)
}

// Who gives up while locked ones are waited for is told what was done, and what isn't.
func TestChange_GivenUpSaysHowFarItCame(t *testing.T) {
	t.Parallel()
	w := openWorld(t, outboxdbtest.PostgreSQL(t))
	for i := range 3 {
		w.commit(timerdb.Set(timer(fmt.Sprint(i), "x", noon)))
	}
	w.hold(timerdb.Stop("1", "x"))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := w.store().Change(ctx, outbox.TimerFilter{Name: "x"}, outbox.TimerChange{Actor: "ada"})
		ended <- err
	}()
	waittest.Until(t, func() bool { return w.Count("SELECT count(*) FROM timers") == 1 })
	cancel()
	require.EqualError(t, <-ended, "timers: stop: it ended early, with 2 timers stopped; run it again for the others: context canceled")
}
