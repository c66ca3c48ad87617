package outboxdb_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/internal/dbtx"
	"github.com/waybill-go/waybill/internal/historydb"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
)

// keeping is a context that has had a history for a while.
type keeping struct {
	*bygone

	all []string // ids of its published events
}

var keptToPartner = func() outbox.Backfill {
	b := toPartner
	b.FromHistory = true
	return b
}()

func newKeeping(b *outboxdbtest.Bench) *keeping {
	b.T.Helper()
	k := &keeping{bygone: newBygone(b)}
	require.NoError(b.T, historydb.Migrations().Up(b.T.Context(), b.DB))
	require.NoError(b.T, repository.Migrations().Up(b.T.Context(), b.DB))
	return k
}

func eachKeeping(t *testing.T, f func(t *testing.T, k *keeping)) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) { f(t, newKeeping(b)) })
}

// store is the outbox as an owner has it, who may read the history.
func (k *keeping) store(hooks ...bun.QueryHook) *outboxdb.Store {
	db := k.DB
	for _, h := range hooks {
		db = db.WithQueryHook(h)
	}
	return outboxdb.New(db, db)
}

// begins has the history begin.
func (k *keeping) begins() {
	k.T.Helper()
	k.Exec(`UPDATE outbox_settings SET value = '{"broker": "default", "external": [], "history": "on"}' WHERE name = 'targets:ordering'`)
}

func (k *keeping) run(db bun.IDB, q schema.QueryAppender) {
	k.T.Helper()
	query, err := q.AppendQuery(k.DB.QueryGen(), nil)
	require.NoError(k.T, err)
	switch db := db.(type) { // past bun, as a unit of work
	case bun.Tx:
		_, err = db.Tx.ExecContext(k.T.Context(), string(query))
	case *bun.DB:
		_, err = db.DB.ExecContext(k.T.Context(), string(query))
	}
	require.NoError(k.T, err)
}

// raise stores n events of some orders, as units do: kept, unless they are of before the
// history.
func (k *keeping) raise(n, orders int, kept bool) {
	k.T.Helper()
	var rows []outbox.Row
	var events []outbox.Event
	for i := range n {
		e := k.event("OrderPlaced", fmt.Sprint("o", i%orders))
		k.all, events, rows = append(k.all, e.ID), append(events, e), append(rows, k.rows(e)...)
	}
	if kept {
		k.run(k.DB, historydb.Insert(events))
	}
	k.InsertRows(rows...)
}

// retention removes the first n events from the outbox, but for the very first.
func (k *keeping) retention(n int64) {
	k.T.Helper()
	k.Exec("DELETE FROM outbox_queue WHERE seq > 1 AND seq <= ?", n)
	k.Exec("DELETE FROM outbox_messages WHERE seq > 1 AND seq <= ?", n)
}

// A partner that joins gets what the outbox has forgotten, too: everything once, in its
// order, and as a unit of work would have written it. What is of before the history comes
// first.
func TestBackfill_FromHistory_A70_BeyondTheOutbox(t *testing.T) {
	eachKeeping(t, func(t *testing.T, k *keeping) {
		k.raise(3, 2, false)
		k.begins()
		k.raise(1200, 7, true)
		noted := k.event("OrderNoted", "o1") // not published
		k.run(k.DB, historydb.Insert([]outbox.Event{noted}))
		private := k.event("OrderPlaced", "o1")
		k.all = append(k.all, private.ID)
		private.Key = "customer"
		k.run(k.DB, historydb.Insert([]outbox.Event{private}))
		want := k.rows(private, keptToPartner.Target)[1]
		k.retention(1100)
		all := append(k.all[:1:1], k.all[3:]...)
		k.joins()
		k.raise(2, 1, true)
		all = append(all, k.all[len(k.all)-2:]...)

		found, err := k.store().CountBackfill(t.Context(), keptToPartner)
		require.NoError(t, err)
		require.EqualValues(t, len(all), found.Events)
		done, err := k.store().BackfillAtOnce(t.Context(), keptToPartner)
		require.NoError(t, err)
		require.Equal(t, found, done)
		require.Equal(t, all, k.got())
		require.Empty(t, k.joining())
		require.Zero(t, k.Count("SELECT count(*) FROM outbox_settings WHERE name LIKE 'backfill%'"))
		var payload, key string
		var part int
		require.NoError(t, k.DB.NewRaw("SELECT payload, partition_key, part FROM outbox_messages WHERE message_id = ?", private.ID).Scan(t.Context(), &payload, &key, &part))
		require.Equal(t, []any{string(want.Payload), want.PartitionKey, want.Partition}, []any{payload, key, part})
		k.forget()
		done, err = k.store().BackfillAtOnce(t.Context(), keptToPartner)
		require.NoError(t, err)
		require.Zero(t, done.Events, "it is live")
	})
}

// Killed anywhere, and run again, also without saying from where: nothing is missing, nothing
// comes twice, though the partner's rows were published and removed meanwhile, and though
// what isn't kept is imported into the history.
func TestBackfill_FromHistory_A70_KilledInTheMiddle(t *testing.T) {
	for i, at := range []struct {
		words string
		n     int64
	}{
		{"INSERT INTO outbox_settings", 2}, // behind the first rows of before the history, before their cursor
		{"INSERT INTO outbox_settings", 3}, // behind the last of these
		{"INSERT INTO outbox_settings", 5}, // behind rows of the history
		{"LOCK TABLE outbox_messages", 5},
		{"DELETE FROM outbox_settings", 1}, // in the last transaction
	} {
		t.Run(fmt.Sprint(at.words, i), func(t *testing.T) {
			eachKeeping(t, func(t *testing.T, k *keeping) {
				k.raise(600, 3, false)
				k.begins()
				k.raise(1100, 5, true)
				k.Exec("DELETE FROM outbox_queue")
				k.Exec("DELETE FROM outbox_messages WHERE seq > 600 AND seq < 1500")
				k.joins()
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				hook := &stopAt{words: at.words, cancel: func() { cancel(errEnough) }}
				hook.n.Store(at.n)
				_, err := k.store(hook).BackfillAtOnce(ctx, keptToPartner)
				if hook.n.Load() > 0 { // SQLite locks no table
					require.NoError(t, err)
					require.Equal(t, k.all, k.got())
					return
				}
				require.Regexp(t, `back-fill of partner, after \d+ events; run it again to continue from there`, err.Error())
				first := k.got()
				k.forget()
				_, err = historydb.Import{
					Context: "ordering", Own: bun.SafeQuery("b.lane = (SELECT id FROM outbox_lanes WHERE target = 'default')"), Hold: func(context.Context, bun.Tx) error { return nil },
					Step: func(ctx context.Context, batch func(tx bun.Tx) (int64, error)) error {
						return dbtx.Run(ctx, k.DB, func(tx bun.Tx) error {
							_, err := batch(tx)
							return err
						})
					},
				}.Run(t.Context())
				require.NoError(t, err)
				_, err = k.store().BackfillAtOnce(t.Context(), toPartner)
				require.NoError(t, err)
				require.Equal(t, k.all, append(first, k.got()...))
				actions, err := k.Actions(t.Context(), 10)
				require.NoError(t, err)
				require.JSONEq(t, `{"context": "ordering", "target": "partner", "from_history": true, "live": true}`, string(actions[0].Filter))
				n := 0
				for _, a := range actions {
					if a.Action == "backfill" {
						n += int(a.Rows)
					}
				}
				require.Len(t, k.all, n, "on record, by both together")
			})
		})
	}
}

// model/backfill.pml, HIGHEST with HISTORY: a position that commits late, below those that were
// copied already, is found.
func TestBackfill_FromHistory_HoleBehindANewerEvent(t *testing.T) {
	t.Parallel()
	k := newKeeping(outboxdbtest.Open(t, outboxdbtest.PostgreSQL(t)))
	k.begins()
	k.raise(2, 1, true)
	k.joins()
	tx, err := k.DB.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	late := k.event("OrderPlaced", "late")
	k.run(tx, outboxdb.Insert(k.rows(late)))
	k.run(tx, historydb.Insert([]outbox.Event{late}))
	k.raise(600, 2, true)

	waits, ended := make(chan struct{}, 1000), make(chan error, 1)
	b := keptToPartner
	b.Progress = func(_ outbox.Backfilled, text string) {
		if text == "a transaction that has been writing to the outbox for long" {
			waits <- struct{}{}
		}
	}
	go func() {
		_, err := k.store().BackfillAtOnce(t.Context(), b)
		ended <- err
	}()
	select {
	case <-waits:
	case err := <-ended:
		require.Fail(t, "it has ended", "%v", err)
	}
	require.LessOrEqual(t, len(k.got()), 2, "nothing behind the hole")
	require.Equal(t, []string{"partner"}, k.joining())
	require.NoError(t, tx.Commit())
	require.NoError(t, <-ended)
	require.Equal(t, append(append(k.all[:2:2], late.ID), k.all[2:]...), k.got())
}

// More than one page that is there at the last transaction is left to others, up to the
// horizon: a unit that has a lower position may not have the lock yet.
func TestBackfill_FromHistory_TheLastTransactionIsSmall(t *testing.T) {
	t.Parallel()
	k := newKeeping(outboxdbtest.Open(t, outboxdbtest.PostgreSQL(t)))
	k.begins()
	k.raise(2, 1, true)
	k.joins()
	hook := &stopAt{words: "LOCK TABLE outbox_messages IN SHARE ROW EXCLUSIVE MODE", cancel: func() { k.raise(700, 1, true) }}
	hook.n.Store(1)
	_, err := k.store(hook).BackfillAtOnce(t.Context(), keptToPartner)
	require.NoError(t, err)
	require.Equal(t, k.all, k.got())
}

// The greatest position that there can be is copied like any other.
func TestBackfill_FromHistory_TheGreatestPosition(t *testing.T) {
	eachKeeping(t, func(t *testing.T, k *keeping) {
		k.begins()
		k.raise(2, 1, true)
		k.run(k.DB, bun.SafeQuery("UPDATE history SET position = ? WHERE position = (SELECT max(position) FROM history)", int64(math.MaxInt64)))
		k.joins()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		done, err := k.store().BackfillAtOnce(ctx, keptToPartner)
		require.NoError(t, err)
		require.EqualValues(t, 2, done.Events)
		require.Equal(t, k.all, k.got())
	})
}

func TestBackfill_FromHistory_Refused(t *testing.T) {
	eachKeeping(t, func(t *testing.T, k *keeping) {
		k.raise(600, 1, true)
		k.joins()
		_, err := k.store().BackfillAtOnce(t.Context(), keptToPartner)
		require.ErrorContains(t, err, "the database keeps no history of context ordering: set uow.Config.History")
		k.Exec(`UPDATE outbox_settings SET value = '{"broker": "default", "external": ["partner"], "joining": ["partner"], "history": "on"}' WHERE name = 'targets:ordering'`)

		k.raise(1, 1, false)
		_, err = k.store().BackfillAtOnce(t.Context(), keptToPartner)
		require.ErrorContains(t, err, "it lacks 1 events of the outbox between others of their aggregates, such as that of row 601")
		k.Exec("DELETE FROM outbox_messages WHERE seq = 601")

		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		b := toPartner
		b.Progress = func(outbox.Backfilled, string) { cancel(errEnough) }
		_, err = k.store().BackfillAtOnce(ctx, b)
		require.Error(t, err)
		_, err = k.store().BackfillAtOnce(t.Context(), keptToPartner)
		require.ErrorContains(t, err, "a part of the outbox was copied already")
	})
}
