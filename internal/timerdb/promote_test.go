package timerdb_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/timerdb"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/outbox"
)

var past = time.Date(2020, 1, 2, 3, 4, 5, 0, time.UTC)

func (w *world) store() *timerdb.Store { return timerdb.New(w.p.DB(), w.p.Reader()) }

func (w *world) promote(limit int) timerdb.Promoted {
	w.T.Helper()
	p, err := w.store().Promote(w.T.Context(), "default", limit)
	require.NoError(w.T, err)
	return p
}

// sent are the messages in the outbox, in the order in which they leave.
func (w *world) sent() []string {
	w.T.Helper()
	ids := []string{}
	require.NoError(w.T, w.DB.NewRaw("SELECT message_id FROM outbox WHERE status = 'pending' ORDER BY seq").Scan(w.T.Context(), &ids))
	return ids
}

func idsOf(timers ...timerdb.Timer) []string {
	ids := []string{}
	for _, t := range timers {
		ids = append(ids, t.Row.MessageID)
	}
	return ids
}

// What arrives is what was set, in the order of times, and nothing that isn't due.
func TestPromote_SendsWhatIsDueInTheOrderOfTimes(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		last, first, second, later := timer("a", "1", past.Add(time.Hour)), timer("b", "1", past), timer("c", "1", past), timer("a", "2", time.Now().Add(time.Hour))
		first.Row.Payload, first.Row.Priority, first.Row.CloudEvent, first.Row.Topic = []byte{0, 1, '\'', '?'}, 7, `{"a":"?"}`, "own"
		w.commit(timerdb.Set(last), timerdb.Set(first), timerdb.Set(second), timerdb.Set(later))
		done := w.promote(2)
		require.Equal(t, 2, done.Sent)
		require.ElementsMatch(t, []outbox.Poke{{Target: "default", Partition: first.Row.Partition}, {Target: "default", Partition: second.Row.Partition}}, done.Pokes)
		require.Equal(t, idsOf(first, second), w.sent())
		require.Equal(t, 1, w.promote(500).Sent)
		require.Zero(t, w.promote(500).Sent)
		require.Equal(t, idsOf(first, second, last), w.sent())
		require.Equal(t, []kept{of(last, "sent"), of(later, "waiting"), of(first, "sent"), of(second, "sent")}, w.kept())

		m, err := w.Bench.Store.Message(t.Context(), first.Row.MessageID)
		require.NoError(t, err)
		require.Equal(t, first.Row.Payload, m.Rows[0].Payload)
		require.Equal(t, []any{7, "own", "b", first.Row.OccurredAt, 1}, []any{m.Rows[0].Priority, m.Rows[0].Topic, m.Rows[0].PartitionKey, m.Rows[0].OccurredAt, len(m.Rows)})
	})
}

// The look has the earliest of each target, whatever the others have.
func TestNext_IsTheEarliestOfEachTargetThatWaits(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		next := func() (targets []string, all []timerdb.Earliest) {
			all, err := w.store().Next(t.Context())
			require.NoError(t, err)
			for _, e := range all {
				targets = append(targets, e.Target)
			}
			return targets, all
		}
		targets, _ := next()
		require.Empty(t, targets)
		w.commit(timerdb.Set(timer("far", "away", time.Date(9998, 12, 31, 0, 0, 0, 0, time.UTC))))
		_, all := next()
		require.Greater(t, all[0].In, 100*365*24*time.Hour, "and not due because of an overflow")
		w.commit(timerdb.Stop("far", "away"))
		now := time.Now()
		for i := range 5 {
			w.commit(timerdb.Set(to("partner", timer(fmt.Sprint(i), "1", past.Add(time.Hour)))))
		}
		w.commit(timerdb.Set(timer("a", "1", now.Add(time.Hour))), timerdb.Set(timer("a", "2", noon)), timerdb.Set(to("other", timer("b", "1", past))))
		targets, all = next()
		require.Equal(t, []string{"other", "partner", "default"}, targets)
		require.WithinDuration(t, now.Add(time.Hour), all[2].At, time.Millisecond)
		require.InDelta(t, time.Hour, all[2].In, float64(time.Minute))
		require.Negative(t, all[0].In)
		done, err := w.store().Promote(t.Context(), "partner", 500)
		require.NoError(t, err)
		require.Equal(t, 5, done.Sent, "and none of another target")
		targets, _ = next()
		require.Equal(t, []string{"other", "default"}, targets)
	})
}

// A message that is published is counted no more.
func TestUnpublished_CountsMessagesThatAreInTheOutbox(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.InsertRows(outboxdbtest.Row("an event"))
		for i := range 5 {
			w.commit(timerdb.Set(timer(fmt.Sprint(i), "x", past)))
		}
		w.commit(timerdb.Set(to("partner", timer("p", "x", past))))
		require.Equal(t, 4, w.promote(4).Sent)
		_, err := w.store().Promote(t.Context(), "partner", 500)
		require.NoError(t, err)
		count := func(limit int) int {
			n, err := w.store().Unpublished(t.Context(), "default", limit)
			require.NoError(t, err)
			return n
		}
		require.Equal(t, 4, count(50))
		require.Equal(t, 3, count(3))
		m := w.Join("one", time.Hour, 100)
		rows := m.ClaimAll()
		require.Len(t, rows, 5)
		require.True(t, m.Settle(m.Settlement(rows[0], rows[1], rows[2])))
		require.LessOrEqual(t, count(50), 2)
	})
}

// A payload that is large travels alone: a batch is bounded by what it takes in memory.
func TestPromote_StopsAtFourMegabytes(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		for i := range 3 {
			large := timer(fmt.Sprint(i), "x", past)
			large.Row.Payload = make([]byte, 3<<20)
			w.commit(timerdb.Set(large))
		}
		require.Equal(t, 1, w.promote(500).Sent)
		require.Equal(t, 1, w.promote(500).Sent)
	})
}

// hold leaves a transaction open that has sent statements, until it is ended.
func (w *world) hold(queries ...schema.QueryAppender) (rollback func()) {
	w.T.Helper()
	tx, err := w.DB.BeginTx(context.WithoutCancel(w.T.Context()), nil)
	require.NoError(w.T, err)
	for _, q := range queries {
		_, err := tx.NewRaw("?", q).Exec(w.T.Context())
		require.NoError(w.T, err)
	}
	ended := false
	rollback = func() {
		if !ended {
			ended = true
			require.NoError(w.T, tx.Rollback())
		}
	}
	w.T.Cleanup(rollback)
	return rollback
}

// WAITROWS, SKIPONLY: a row that somebody has locked is not waited for, and keeps those
// of its key behind it, and no others.
func TestPromote_ALockedRowIsPassedAndHoldsItsKey(t *testing.T) {
	t.Parallel()
	w := openWorld(t, outboxdbtest.PostgreSQL(t))
	first, behind, other := timer("loan-1", "1", past), timer("loan-1", "2", past.Add(time.Hour)), timer("loan-2", "1", past.Add(2*time.Hour))
	w.commit(timerdb.Set(first), timerdb.Set(behind), timerdb.Set(other))
	rollback := w.hold(timerdb.Stop("loan-1", "1"))
	require.Equal(t, timerdb.Promoted{Sent: 1, Left: 2, Pokes: []outbox.Poke{{Target: "default", Partition: other.Row.Partition}}}, w.promote(500))
	require.Equal(t, 2, w.promote(500).Left)
	rollback()
	require.Equal(t, 2, w.promote(500).Sent)
	require.Equal(t, idsOf(other, first, behind), w.sent())
}

// NOADVISORY: only one process at a time promotes, and who is killed lets the next one.
func TestPromote_OneAtATime(t *testing.T) {
	t.Parallel()
	w := openWorld(t, outboxdbtest.PostgreSQL(t))
	w.commit(timerdb.Set(timer("a", "x", past)))
	other := openWorld(t, outboxdbtest.PostgreSQL(t)) // another schema of the database
	other.commit(timerdb.Set(timer("a", "x", past)))
	rollback := w.hold(bun.SafeQuery(timerdb.Text("lock")))
	require.Equal(t, timerdb.Promoted{Busy: true}, w.promote(500))
	require.Equal(t, 1, other.promote(500).Sent)
	rollback()
	require.Equal(t, 1, w.promote(500).Sent)
}

// NORECHECK: what was moved or stopped between the look and the lock stays.
func TestPromote_ReadsAgainWhatItLocks(t *testing.T) {
	t.Parallel()
	w := openWorld(t, outboxdbtest.PostgreSQL(t))
	moved, stopped, later, stays := timer("a", "x", past), timer("b", "x", past), timer("c", "x", past), timer("d", "x", past)
	w.commit(timerdb.Set(moved), timerdb.Set(stopped), timerdb.Set(later), timerdb.Set(stays))
	taken, err := w.store().Take(t.Context(), 500, func() {
		w.commit(timerdb.Set(timer("a", "x", past)), timerdb.Stop("b", "x"))
		w.Exec("UPDATE timers SET available_at = ? WHERE owner = 'c'", noon)
	})
	require.NoError(t, err)
	require.Equal(t, idsOf(stays), taken)
}

// However many timers of one key wait behind a locked row, those of others are sent.
func TestPromote_LooksBehindTheKeyOfALockedRow(t *testing.T) {
	t.Parallel()
	w := openWorld(t, outboxdbtest.PostgreSQL(t))
	for i := range 5 {
		w.commit(timerdb.Set(timer("loan-1", fmt.Sprint(i), past.Add(time.Duration(i)*time.Hour))))
	}
	other, last := timer("loan-2", "1", past.Add(24*time.Hour)), timer("loan-3", "1", past.Add(25*time.Hour))
	w.commit(timerdb.Set(other), timerdb.Set(last))
	rollback := w.hold(timerdb.Stop("loan-1", "0"), timerdb.Stop("loan-2", "1"))
	require.Equal(t, 1, w.promote(2).Sent)
	require.Equal(t, idsOf(last), w.sent())
	require.Zero(t, w.promote(2).Sent)
	rollback()
	require.Equal(t, 2, w.promote(2).Sent)
	require.Equal(t, 4, w.promote(5).Sent)
}

// TWOTX: what can't be inserted is not marked as sent. It is set aside, and keeps nobody: not
// even those of its key.
func TestPromote_WhatTheDatabaseRefusesIsSetAside(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		first, taken, behind := timer("a", "1", past), timer("a", "2", past.Add(time.Hour)), timer("a", "3", past.Add(2*time.Hour))
		w.InsertRows(taken.Row) // a message of this id is there
		w.commit(timerdb.Set(first), timerdb.Set(taken), timerdb.Set(behind))
		var broken []timerdb.Broken
		for range 4 {
			broken = append(broken, w.promote(500).Broken...)
		}
		require.Len(t, broken, 1)
		require.Equal(t, taken.Row.MessageID, broken[0].ID)
		require.Equal(t, []kept{of(first, "sent"), of(taken, "broken"), of(behind, "sent")}, w.kept())
		require.Equal(t, idsOf(taken, first, behind), w.sent())
	})
}

// A timer whose message isn't what was stored stops nobody. An operator sees why, and tries it
// again when it is repaired, or forgets it.
func TestPromote_ABrokenTimerIsSetAside(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		damaged := []timerdb.Timer{timer("a", "1", past), timer("b", "1", past), timer("c", "1", past)}
		good := timer("a", "2", past.Add(time.Hour))
		w.commit(timerdb.Set(damaged[0]), timerdb.Set(damaged[1]), timerdb.Set(damaged[2]), timerdb.Set(good))
		var message string
		require.NoError(t, w.DB.QueryRowContext(t.Context(), "SELECT message FROM timers WHERE owner = 'a' AND name = '1'").Scan(&message))
		for owner, wrong := range map[string]string{"a": `{"target":"default","occurred_at":"soon"}`, "b": `{"target":"default","message_id":"` + good.Row.MessageID + `"}`, "c": `7`} {
			w.Exec("UPDATE timers SET message = ? WHERE owner = ? AND name = '1'", wrong, owner)
		}
		done := w.promote(500)
		require.Equal(t, []int{1, 2}, []int{done.Sent, len(done.Broken)})
		done, err := w.store().Promote(t.Context(), "", 500) // it isn't known where to
		require.NoError(t, err)
		require.Len(t, done.Broken, 1)
		require.Equal(t, idsOf(good), w.sent())
		next, err := w.store().Next(t.Context())
		require.NoError(t, err)
		require.Empty(t, next, "nobody looks at them again")

		page, err := w.store().Find(t.Context(), outbox.TimerFilter{Status: outbox.TimerBroken})
		require.NoError(t, err)
		require.Len(t, page.Timers, 3)
		stats, err := w.store().Stats(t.Context())
		require.NoError(t, err)
		require.Equal(t, timerdb.Stats{Sent: 1, Broken: 3}, stats)
		shown, err := w.store().Show(t.Context(), damaged[0].Row.MessageID)
		require.NoError(t, err)
		require.Contains(t, shown.Error, "its message is not what was stored: ")
		require.Equal(t, damaged[0].Row.Payload, shown.Payload)

		w.Exec("UPDATE timers SET message = ? WHERE owner = 'a' AND name = '1'", message)
		fired, err := w.store().Change(t.Context(), outbox.TimerFilter{Owner: "a"}, outbox.TimerChange{Now: true, Actor: "ada"})
		require.NoError(t, err)
		require.Equal(t, []int64{1, 1}, []int64{fired.Changed, fired.Left})
		require.Equal(t, 1, w.promote(500).Sent)
		require.Equal(t, idsOf(good, damaged[0]), w.sent())
		stopped, err := w.store().Change(t.Context(), outbox.TimerFilter{Status: outbox.TimerBroken}, outbox.TimerChange{Actor: "ada"})
		require.NoError(t, err)
		require.Equal(t, int64(2), stopped.Changed)
	})
}

// A timer may wait for years: it goes where its key's events go when it is due.
func TestPromote_IntoAPartitionThatThereIs(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.commit(timerdb.Set(timer("a", "1", past)), timerdb.Set(timer("b", "1", past)), timerdb.Set(timer("c", "1", past)))
		w.Exec("UPDATE outbox_settings SET value = '1' WHERE name = 'partitions'")
		require.Equal(t, []outbox.Poke{{Target: "default", Partition: 0}}, w.promote(500).Pokes)
		require.Equal(t, int64(3), w.Count("SELECT count(*) FROM outbox_queue WHERE part = 0"))
	})
}

// What is due and not sent is counted, and how late the earliest is; who asks at once
// again gets the same.
func TestStats_CountWaitingDueAndSent(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		store := timerdb.New(w.p.DB(), w.p.Reader())
		stats := func() timerdb.Stats {
			f, err := store.Stats(t.Context())
			require.NoError(t, err)
			return f
		}
		require.Equal(t, timerdb.Stats{}, stats())
		now := time.Now()
		w.commit(timerdb.Set(timer("a", "x", now.Add(-2*time.Hour))), timerdb.Set(timer("b", "x", now.Add(-time.Hour))), timerdb.Set(timer("c", "x", now.Add(time.Hour))))
		_, err := store.Promote(t.Context(), "default", 1)
		require.NoError(t, err)
		waittest.Until(t, func() bool { return stats().Waiting == 2 })
		f := stats()
		require.InDelta(t, time.Hour, f.Late, float64(time.Minute))
		f.Late = 0
		require.Equal(t, timerdb.Stats{Waiting: 2, Due: 1, Sent: 1, Of: "default"}, f)
	})
}
