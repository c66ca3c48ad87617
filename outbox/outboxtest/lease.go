package outboxtest

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/outbox"
)

func takeover(t *testing.T, b *Bench) {
	b.Insert("a", "a", "b")
	dead := b.Worker("dead", Partitions, time.Minute)
	require.Len(t, dead.Claim(2).Rows, 2)
	require.Empty(t, b.Worker("early", Partitions, time.Minute).Leases, "the lease still runs")
	b.Expire()
	heir := b.Worker("heir", Partitions, time.Minute)
	require.Equal(t, []outbox.Status{outbox.Pending, outbox.Pending, outbox.Pending}, b.Statuses())
	c := heir.Claim(10)
	require.Equal(t, []string{"a", "a", "b"}, Keys(c))
	require.Equal(t, []int{2, 2, 1}, []int{c.Rows[0].Attempts, c.Rows[1].Attempts, c.Rows[2].Attempts})
	require.Equal(t, []int{1, 1, 0}, []int{c.Rows[0].Losses, c.Rows[1].Losses, c.Rows[2].Losses})
	// Settled, they have killed nobody: the lost claim is given back.
	heir.Settle(c, All(c, failed(time.Hour))...)
	require.Equal(t, []int{1, 1, 1}, []int{b.Entries()[0].Attempts, b.Entries()[1].Attempts, b.Entries()[2].Attempts})
	require.Zero(t, b.Entries()[0].Losses)
}

// A takeover gives partitions another owner, frees the rows in the old one's
// hand and ends those that kill: all of it or nothing.
func takeoverAllOrNothing(t *testing.T, b *Bench) {
	b.Insert("a", "b", "c")
	dead := b.Worker("dead", Partitions, time.Minute)
	c := dead.Claim(2)
	b.Exec("UPDATE outbox SET attempts = 5, losses = 4 WHERE seq = ?", c.Rows[0].Seq) // this one is the fifth
	b.Expire()
	before := b.Entries()
	b.Exec("ALTER TABLE outbox RENAME COLUMN failure_class TO away")
	_, _, err := b.Acquire(t.Context(), Owner("heir", time.Minute), Partitions)
	require.Error(t, err)
	b.Exec("ALTER TABLE outbox RENAME COLUMN away TO failure_class")
	require.Equal(t, before, b.Entries())
	m, err := b.Membership(t.Context(), "default")
	require.NoError(t, err)
	require.Equal(t, Partitions, m.Free)

	leases, taken, err := b.Acquire(t.Context(), Owner("heir", time.Minute), Partitions)
	require.NoError(t, err)
	require.Len(t, leases, Partitions)
	require.Equal(t, outbox.Takeover{Pending: 1, Abandoned: []int64{c.Rows[0].Seq}}, taken)
	require.Equal(t, []outbox.Status{outbox.Abandoned, outbox.Pending, outbox.Pending}, b.Statuses())
	require.Equal(t, 1, b.Entries()[1].Losses, "the row keeps the memory of it")
	require.Equal(t, []string{"b", "c"}, Keys(Worker{bench: b, Name: "heir", Target: "default", Leases: leases, Flights: &Flights{}}.Claim(10)))
}

func lateSettle(t *testing.T, b *Bench) {
	b.Insert("a", "b")
	slow := b.Worker("slow", Partitions, time.Minute)
	late := slow.Claim(2)
	b.Expire()
	heir := b.Worker("heir", Partitions, time.Minute)
	require.Equal(t, 2, slow.Settle(late, All(late, published())...), "after the takeover, before the next claim")
	require.Equal(t, []outbox.Status{outbox.Pending, outbox.Pending}, b.Statuses())
	c := heir.Claim(1)
	require.Equal(t, 2, slow.Settle(late, All(late, failed(time.Hour))...), "while the heir has one of them")
	heir.Settle(c, All(c, published())...)
	require.Equal(t, 2, slow.Settle(late, All(late, failed(time.Hour))...), "after the heir has published it")
	require.Equal(t, []outbox.Status{outbox.Published, outbox.Pending}, b.Statuses())
}

// Workers that are forgotten lose their leases as if these had run out, and their
// shares; nobody else loses anything.
func theDead(t *testing.T, b *Bench) {
	ctx := t.Context()
	b.Insert("a", "b")
	dead := b.Worker("dead", Partitions-2, time.Hour)
	other := b.Worker("other", 2, time.Hour)
	_, err := b.Announce(ctx, b.DB, "default", []string{"dead", "other"}, append(dead.Leases, other.Leases...), time.Hour)
	require.NoError(t, err)
	mine, theirs := dead.Claim(10), other.Claim(10)
	require.Len(t, append(mine.Rows, theirs.Rows...), 2)
	m, err := b.Membership(ctx, "default")
	require.NoError(t, err)
	require.Equal(t, []int{2, 0}, []int{m.Workers, m.Free})
	require.Len(t, m.Members, 2)
	require.Equal(t, "dead", m.Members[0].Worker)
	require.Equal(t, []int{Partitions - 2, 2}, []int{m.Members[0].Partitions, m.Members[1].Partitions})
	require.InDelta(t, time.Hour, m.Members[0].Until.Sub(m.Now), float64(time.Minute))

	n, err := b.Forget(ctx, b.DB, "partner", []string{"dead"})
	require.NoError(t, err)
	require.Zero(t, n, "of another target")
	n, err = b.Forget(ctx, b.DB, "default", []string{"dead", "never seen"})
	require.NoError(t, err)
	require.Equal(t, Partitions-2, n)
	m, err = b.Membership(ctx, "default")
	require.NoError(t, err)
	require.Equal(t, []int{1, Partitions - 2}, []int{m.Workers, m.Free})
	require.Equal(t, "other", m.Members[0].Worker)

	heir := b.Worker("heir", Partitions, time.Hour)
	require.Len(t, heir.Leases, Partitions-2)
	c := heir.Claim(10)
	require.Len(t, c.Rows, len(mine.Rows))
	for _, row := range c.Rows {
		require.Equal(t, 1, row.Losses, "its claim was ended as after any death")
	}
	require.Equal(t, len(mine.Rows), dead.Settle(mine, All(mine, published())...), "it changes nothing any more")
	kept, err := b.Announce(ctx, b.DB, "default", []string{"dead"}, dead.Leases, time.Hour)
	require.NoError(t, err)
	require.Empty(t, kept)
	require.Zero(t, heir.Settle(c, All(c, published())...))
	require.Zero(t, other.Settle(theirs, All(theirs, published())...))
}

func fences(t *testing.T, b *Bench) {
	seen := map[int64]bool{}
	for range 3 {
		w := b.Worker("w1", Partitions, time.Minute)
		require.Len(t, w.Leases, Partitions)
		for _, l := range w.Leases {
			require.False(t, seen[l.Fence])
			seen[l.Fence] = true
		}
		b.Expire()
	}
}

func runningLease(t *testing.T, b *Bench) {
	first := b.Worker("w1", 5, time.Minute)
	require.Len(t, first.Leases, 5)
	second := b.Worker("w2", Partitions, time.Minute)
	require.Len(t, second.Leases, Partitions-5)
	require.Empty(t, b.Worker("w3", Partitions, time.Minute).Leases)
}

func renewal(t *testing.T, b *Bench) {
	ctx := t.Context()
	w := b.Worker("w1", 3, time.Minute)
	b.Expire() // ran out, and nobody came
	kept, err := b.Announce(ctx, b.DB, "default", []string{"w1"}, w.Leases, time.Minute)
	require.NoError(t, err)
	require.ElementsMatch(t, w.Leases, kept)
	m, err := b.Membership(ctx, "default")
	require.NoError(t, err)
	require.Equal(t, []int{1, Partitions - 3}, []int{m.Workers, m.Free})

	b.Expire()
	other := b.Worker("w2", Partitions, time.Minute)
	require.Len(t, other.Leases, Partitions)
	kept, err = b.Announce(ctx, b.DB, "default", []string{"w1"}, w.Leases, time.Minute)
	require.NoError(t, err)
	require.Empty(t, kept, "they are another's now")

	b.Exec("UPDATE outbox_workers SET seen_until = " + past(b.DB))
	_, err = b.Announce(ctx, b.DB, "default", []string{"w2"}, nil, time.Minute)
	require.NoError(t, err)
	m, err = b.Membership(ctx, "default")
	require.NoError(t, err)
	require.Equal(t, 1, m.Workers, "the dead are forgotten")
	require.NoError(t, b.Leave(ctx, "default", []string{"w2"}))
	m, err = b.Membership(ctx, "default")
	require.NoError(t, err)
	require.Zero(t, m.Workers)
}

// A renewal comes three times per lease: while any of it is left nobody takes
// the partitions, and afterwards they are still the worker's if nobody came.
func missedRenewal(t *testing.T, b *Bench) {
	ctx := t.Context()
	w := b.Worker("w1", Partitions, time.Minute)
	_, err := b.Announce(ctx, b.DB, "default", []string{"w1"}, w.Leases, 20*time.Second) // two of three were missed
	require.NoError(t, err)
	require.Empty(t, b.Worker("w2", Partitions, time.Minute).Leases)
	m, err := b.Membership(ctx, "default")
	require.NoError(t, err)
	require.Equal(t, []int{1, 0}, []int{m.Workers, m.Free})
	b.Expire()
	kept, err := b.Announce(ctx, b.DB, "default", []string{"w1"}, w.Leases, time.Minute)
	require.NoError(t, err)
	require.ElementsMatch(t, w.Leases, kept)
	require.Empty(t, b.Worker("w2", Partitions, time.Minute).Leases)
	b.Expire()
	require.Len(t, b.Worker("w2", Partitions, time.Minute).Leases, Partitions)
	kept, err = b.Announce(ctx, b.DB, "default", []string{"w1"}, w.Leases, time.Minute)
	require.NoError(t, err)
	require.Empty(t, kept)
}

func release(t *testing.T, b *Bench) {
	w := b.Worker("w1", Partitions, time.Minute)
	require.NoError(t, b.Release(t.Context(), "default", w.Leases[:3]))
	heir := b.Worker("w2", Partitions, time.Minute)
	require.Len(t, heir.Leases, 3)
	require.NoError(t, b.Release(t.Context(), "default", w.Leases), "what isn't its own stays")
	m, err := b.Membership(t.Context(), "default")
	require.NoError(t, err)
	require.Equal(t, Partitions-3, m.Free)
}

func refence(t *testing.T, b *Bench) {
	b.Insert("a")
	w := b.Worker("w1", Partitions, time.Minute)
	lost := w.Claim(1) // as if its answer had never come
	leases, _, err := b.Refence(t.Context(), Owner("w1", time.Minute), false)
	require.NoError(t, err)
	require.Len(t, leases, Partitions)
	require.Empty(t, w.Claim(1).Rows, "the old fences are worth nothing")
	require.Equal(t, 1, w.Settle(lost, All(lost, published())...))
	w.Leases = leases
	c := w.Claim(1)
	require.Len(t, c.Rows, 1)
	require.Equal(t, 1, c.Rows[0].Attempts, "what was never sent costs nothing")
	require.Zero(t, c.Rows[0].Losses)

	_, taken, err := b.Refence(t.Context(), Owner("w1", time.Minute), true)
	require.NoError(t, err)
	require.Equal(t, outbox.Takeover{Pending: 1}, taken)
	require.Equal(t, 1, b.Entries()[0].Losses, "what was called counts as lost")
}

// Workers that come at the same moment, to partitions that never had an owner
// and to those of the dead, get different ones, and all of them.
func racingWorkers(t *testing.T, b *Bench) {
	_, err := b.EnsurePartitions(t.Context(), "default")
	require.NoError(t, err)
	const workers, share = 4, Partitions / 4
	for range 5 {
		var mu sync.Mutex
		owners := map[int][]string{}
		var wg sync.WaitGroup
		for i := range workers {
			name := fmt.Sprintf("w%d", i)
			wg.Go(func() {
				for have := 0; have < share; {
					leases, _, err := b.Acquire(t.Context(), Owner(name, time.Minute), share-have)
					if err != nil {
						t.Error(err)
						return
					}
					have += len(leases)
					mu.Lock()
					for _, l := range leases {
						owners[l.Partition] = append(owners[l.Partition], name)
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		require.Len(t, owners, Partitions)
		for p, names := range owners {
			require.Len(t, names, 1, "partition %d", p)
		}
		b.Expire()
	}
}
