package outboxtest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/outbox"
)

func edges(t *testing.T, b *Bench) {
	w := b.Worker("w1", Partitions, time.Minute)
	for _, from := range outbox.Statuses() {
		for _, to := range outbox.Statuses() {
			if from == to {
				continue
			}
			b.Exec("DELETE FROM outbox")
			b.Insert("a")
			*w.Flights = Flights{} // it would look for more behind what was removed
			if from != outbox.Pending {
				c := w.Claim(1)
				if from != outbox.Processing {
					o := failed(time.Hour)
					o.Status = from
					w.Settle(c, All(c, o)...)
				}
			}
			require.Equal(t, []outbox.Status{from}, b.Statuses())
			claim := "NULL"
			if to == outbox.Processing {
				claim = "1"
			}
			_, err := b.DB.ExecContext(t.Context(), "UPDATE outbox SET status = ?, claim_id = "+claim+", locked_by = "+claim, to)
			if from.CanBecome(to) {
				require.NoError(t, err, "%s to %s", from, to)
			} else {
				require.Error(t, err, "%s to %s", from, to)
			}
		}
	}
	_, err := b.DB.ExecContext(t.Context(), "UPDATE outbox SET status = 'lost'")
	require.Error(t, err)
}

func partitionCount(t *testing.T, b *Bench) {
	ctx := t.Context()
	n, err := outbox.Partitions(ctx, b.DB)
	require.NoError(t, err)
	require.Equal(t, Partitions, n)
	require.NoError(t, outbox.Migrate(ctx, b.DB, 0), "whatever is there")
	require.NoError(t, outbox.Migrate(ctx, b.DB, Partitions))
	err = outbox.Migrate(ctx, b.DB, 16)
	require.Equal(t, &outbox.PartitionsError{Have: Partitions, Want: 16}, err)
	require.ErrorContains(t, err, "configure 8")
	require.NoError(t, b.Check(ctx))
}

func oneRowPerMessageAndTarget(t *testing.T, b *Bench) {
	row := Row("a")
	b.InsertRows(row)
	query, err := outbox.Insert([]outbox.Row{row}).AppendQuery(b.DB.QueryGen(), nil)
	require.NoError(t, err)
	_, err = b.DB.ExecContext(t.Context(), string(query))
	require.Error(t, err)
	row.TargetBroker = "partner"
	b.InsertRows(row)
	_, err = b.DB.ExecContext(t.Context(), "UPDATE outbox SET target_broker = NULL")
	require.Error(t, err, "a null would switch the uniqueness off")
}

func stats(t *testing.T, b *Bench) {
	s, err := b.Stats(t.Context())
	require.NoError(t, err)
	require.Empty(t, s)
	b.Insert("a", "b", "c")
	partner := Row("a")
	partner.TargetBroker = "partner"
	b.InsertRows(partner)
	w := b.Worker("w1", Partitions, time.Minute)
	c := w.Claim(2)
	w.Settle(c, outbox.Outcome{Seq: c.Rows[0].Seq, Status: outbox.Published},
		outbox.Outcome{Seq: c.Rows[1].Seq, Status: outbox.Failed, Class: "transient", Error: "the broker's words", After: time.Hour})
	s, err = b.Stats(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[outbox.Status]int64{"pending": 1, "processing": 0, "published": 1, "failed": 1, "abandoned": 0}, s["default"].Counts)
	require.Equal(t, "the broker's words", *s["default"].LastError)
	require.Equal(t, []string{"w1"}, s["default"].LeaseOwners)
	require.NotNil(t, s["default"].OldestPending)
	require.Less(t, *s["default"].OldestPending, time.Minute)
	require.EqualValues(t, 1, s["partner"].Counts[outbox.Pending])
	require.Empty(t, s["partner"].LeaseOwners)
	require.Nil(t, s["partner"].LastError)
}

func find(t *testing.T, b *Bench) {
	ctx := t.Context()
	rows := b.Insert("a", "b", "c")
	partner := rows[0]
	partner.ID, partner.TargetBroker, partner.CausationID, partner.MessageType = newID(), "partner", newID(), "Ordering.OrderCancelled.v2"
	b.InsertRows(partner)
	w := b.Worker("w1", Partitions, time.Minute)
	w.Claim(1) // a
	c := w.Claim(1)
	w.Settle(c, All(c, failed(-time.Second))...) // b

	expect := func(f outbox.Filter, keysAndTargets ...string) {
		t.Helper()
		found, err := b.Find(ctx, f)
		require.NoError(t, err)
		var got []string
		for _, e := range found {
			got = append(got, e.PartitionKey+"@"+e.TargetBroker)
		}
		require.Equal(t, keysAndTargets, got)
	}
	expect(outbox.Filter{}, "a@default", "b@default", "c@default", "a@partner")
	expect(outbox.Filter{MessageID: rows[0].MessageID}, "a@default", "a@partner")
	expect(outbox.Filter{Type: "Ordering.OrderCancelled.v2"}, "a@partner")
	expect(outbox.Filter{CorrelationID: "c-b"}, "b@default")
	expect(outbox.Filter{CausationID: partner.CausationID}, "a@partner")
	expect(outbox.Filter{Stream: "ordering::order-c"}, "c@default")
	expect(outbox.Filter{Statuses: []outbox.Status{outbox.Processing}}, "a@default")
	expect(outbox.Filter{RetryReady: true}, "b@default")
	expect(outbox.Filter{Stale: true})
	b.Expire()
	expect(outbox.Filter{Stale: true}, "a@default")
	expect(outbox.Filter{Limit: 2}, "a@default", "b@default")
	all := b.Entries()
	expect(outbox.Filter{Limit: 2, After: all[1].Seq}, "c@default", "a@partner")
	require.Equal(t, rows[0].OccurredAt, all[0].OccurredAt)
	require.Equal(t, rows[0].MessageID, all[0].MessageID)
}

func purge(t *testing.T, b *Bench) {
	b.Insert("a", "b", "c", "d", "e", "f")
	w := b.Worker("w1", Partitions, time.Minute)
	c := w.Claim(5)
	w.Settle(c, outbox.Outcome{Seq: c.Rows[0].Seq, Status: outbox.Published},
		outbox.Outcome{Seq: c.Rows[1].Seq, Status: outbox.Published},
		outbox.Outcome{Seq: c.Rows[2].Seq, Status: outbox.Abandoned, Class: "permanent", Error: "x"},
		outbox.Outcome{Seq: c.Rows[3].Seq, Status: outbox.Abandoned, Class: "permanent", Error: "x", Hold: true},
		outbox.Outcome{Seq: c.Rows[4].Seq, Status: outbox.Failed, Class: "transient", Error: "x", After: time.Hour})
	n, err := b.Purge(t.Context(), outbox.Retention{Batch: 2})
	require.NoError(t, err)
	require.Zero(t, n)
	// Everything is old, also what must stay.
	b.Exec("UPDATE outbox SET expires_at = "+past(b.DB)+" WHERE seq <> ?", c.Rows[1].Seq)
	n, err = b.Purge(t.Context(), outbox.Retention{Batch: 2})
	require.NoError(t, err)
	require.Equal(t, outbox.Purged{Published: 1, Abandoned: 1}, n)
	require.Equal(t, []outbox.Status{outbox.Published, outbox.Abandoned, outbox.Failed, outbox.Pending}, b.Statuses())
}

func takeTurn(t *testing.T, b *Bench) {
	var turns int
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			mine, err := b.TakeTurn(t.Context(), "job", time.Hour)
			if err != nil {
				t.Error(err)
			}
			if mine {
				mu.Lock()
				turns++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	require.Equal(t, 1, turns)
	b.Exec("UPDATE outbox_jobs SET due_at = " + past(b.DB))
	mine, err := b.TakeTurn(t.Context(), "job", time.Hour)
	require.NoError(t, err)
	require.True(t, mine)
}

// A target whose rows nobody publishes, or of whose partitions some have no
// owner, is seen from outside.
func nobodyPublishes(t *testing.T, b *Bench) {
	b.Insert("a")
	lonely := Row("b")
	lonely.TargetBroker = "partner"
	b.InsertRows(lonely)
	ages := func() (s map[string]outbox.Stats) {
		s, err := b.Stats(t.Context())
		require.NoError(t, err)
		return s
	}
	w := b.Worker("w1", 3, time.Minute)
	require.Len(t, w.Leases, 3, "no more than its share")
	m, err := b.Membership(t.Context(), "default")
	require.NoError(t, err)
	require.Equal(t, Partitions-3, m.Free)
	require.Equal(t, []string{"w1"}, ages()["default"].LeaseOwners)
	require.Empty(t, ages()["partner"].LeaseOwners, "nobody ever came")
	require.EqualValues(t, 1, ages()["partner"].Counts[outbox.Pending])
	before := *ages()["partner"].OldestPending
	b.Exec("UPDATE outbox SET created_at = " + past(b.DB))
	require.Greater(t, *ages()["partner"].OldestPending, before+50*time.Minute, "its age grows")
	b.Expire()
	require.Empty(t, ages()["default"].LeaseOwners, "its only worker died")
	require.Greater(t, *ages()["default"].OldestPending, 50*time.Minute)
}

// A message is found with a row per target until its rows are removed; once all
// are published nothing is left to do for it.
func foundUntilRemoved(t *testing.T, b *Bench) {
	row := Row("a")
	partner := row
	partner.ID, partner.TargetBroker = newID(), "partner"
	b.InsertRows(row, partner)
	b.Insert("other")
	find := func() (targets []string, statuses []outbox.Status) {
		found, err := b.Find(t.Context(), outbox.Filter{MessageID: row.MessageID})
		require.NoError(t, err)
		for _, e := range found {
			targets, statuses = append(targets, e.TargetBroker), append(statuses, e.Status)
		}
		return targets, statuses
	}
	targets, statuses := find()
	require.Equal(t, []string{"default", "partner"}, targets)
	require.Equal(t, []outbox.Status{outbox.Pending, outbox.Pending}, statuses)

	w := b.Worker("w1", Partitions, time.Minute)
	c := w.Claim(1)
	require.Equal(t, row.MessageID, c.Rows[0].Message.ID)
	w.Settle(c, All(c, published())...)
	_, statuses = find()
	require.Equal(t, []outbox.Status{outbox.Published, outbox.Pending}, statuses, "it is known, and done for one target")
	require.Equal(t, []string{"other"}, Keys(w.Claim(10)), "nothing of it is left to publish there")
	b.Exec("UPDATE outbox SET expires_at = " + past(b.DB) + " WHERE status = 'published'")
	_, err := b.Purge(t.Context(), outbox.Retention{Batch: 10})
	require.NoError(t, err)
	targets, _ = find()
	require.Equal(t, []string{"partner"}, targets)
}

// Two transactions both see no row of a message and both write one.
func twoWriters(t *testing.T, b *Bench) {
	row := Row("a")
	ready := make(chan struct{}, 2)
	errs := make(chan error, 2)
	for range 2 {
		go func() {
			found, err := b.Find(t.Context(), outbox.Filter{MessageID: row.MessageID})
			ready <- struct{}{}
			if err != nil || len(found) > 0 {
				errs <- fmt.Errorf("found %v, %w", found, err)
				return
			}
			for len(ready) < 2 { // both have looked
				<-time.After(time.Millisecond)
			}
			errs <- b.write(t.Context(), row)
		}()
	}
	first, second := <-errs, <-errs
	require.NotEqual(t, first == nil, second == nil, "%v, %v", first, second)
	require.Len(t, b.Entries(), 1)
}

func (b *Bench) write(ctx context.Context, row outbox.Row) error {
	query, err := outbox.Insert([]outbox.Row{row}).AppendQuery(b.DB.QueryGen(), nil)
	if err != nil {
		return err
	}
	tx, err := b.DB.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, string(query)); err != nil {
		_ = tx.Rollback()
		return err
	}
	return tx.Commit()
}

// A retry that is scheduled can be made due at once or cancelled, also for all
// rows of a type.
func rescheduled(t *testing.T, b *Bench) {
	rows := []outbox.Row{Row("a"), Row("b"), Row("c"), Row("d")}
	rows[2].MessageType, rows[3].MessageType = "Ordering.OrderCancelled.v2", "Ordering.OrderCancelled.v2"
	b.InsertRows(rows...)
	w := b.Worker("w1", Partitions, time.Minute)
	c := w.Claim(10)
	w.Settle(c, All(c, failed(time.Hour))...)
	require.Empty(t, w.Claim(10).Rows, "all are scheduled")

	require.NoError(t, b.Retry(t.Context(), c.Rows[0].Seq))
	require.Equal(t, []string{"a"}, Keys(w.Claim(10)))
	require.NoError(t, b.Abandon(t.Context(), outbox.Retention{}, c.Rows[1].Seq))
	ofType, err := b.Find(t.Context(), outbox.Filter{Type: "Ordering.OrderCancelled.v2"})
	require.NoError(t, err)
	var seqs []int64
	for _, e := range ofType {
		seqs = append(seqs, e.Seq)
	}
	require.NoError(t, b.Abandon(t.Context(), outbox.Retention{}, seqs...))
	b.Exec("UPDATE outbox SET available_at = " + past(b.DB))
	require.Empty(t, w.Claim(10).Rows, "what is cancelled never comes")
	require.Equal(t, []outbox.Status{outbox.Processing, outbox.Abandoned, outbox.Abandoned, outbox.Abandoned}, b.Statuses())
}

func purgeLeavesWhatIsInHand(t *testing.T, b *Bench) {
	b.Insert("a", "b", "c")
	w := b.Worker("w1", Partitions, time.Minute)
	c := w.Claim(2)
	w.Settle(c, outbox.Outcome{Seq: c.Rows[0].Seq, Status: outbox.Published})
	b.Exec("UPDATE outbox SET expires_at = " + past(b.DB))
	n, err := b.Purge(t.Context(), outbox.Retention{Batch: 10})
	require.NoError(t, err)
	require.Equal(t, outbox.Purged{Published: 1}, n)
	require.Equal(t, []outbox.Status{outbox.Processing, outbox.Pending}, b.Statuses())
	require.Zero(t, w.Settle(c, outbox.Outcome{Seq: c.Rows[1].Seq, Status: outbox.Published}))
}
