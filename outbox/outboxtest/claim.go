package outboxtest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/outbox"
)

func claimTakesDue(t *testing.T, b *Bench) {
	b.Insert("a", "b", "c")
	w := b.Worker("w1", Partitions, time.Minute)
	c := w.Claim(10)
	require.Equal(t, []string{"a", "b", "c"}, Keys(c))
	require.Zero(t, w.Settle(c, outbox.Outcome{Seq: c.Rows[0].Seq, Status: outbox.Failed, Class: "transient", Error: "x", After: -time.Second},
		outbox.Outcome{Seq: c.Rows[1].Seq, Status: outbox.Failed, Class: "transient", Error: "x", After: time.Hour},
		outbox.Outcome{Seq: c.Rows[2].Seq, Status: outbox.Pending, Unspent: true}))
	again := w.Claim(10)
	require.Equal(t, []string{"a", "c"}, Keys(again))
	require.Equal(t, 2, again.Rows[0].Attempts)
	require.Equal(t, 1, again.Rows[1].Attempts, "what was handed back costs nothing")
	require.Greater(t, again.Next, 50*time.Minute, "the failed row that isn't due says when it will be")
}

func secondClaim(t *testing.T, b *Bench) {
	b.Insert("a", "b")
	w := b.Worker("w1", Partitions, time.Minute)
	require.Len(t, w.Claim(10).Rows, 2)
	require.Empty(t, w.Claim(10).Rows)
}

func keyInHand(t *testing.T, b *Bench) {
	b.Insert("a")
	w := b.Worker("w1", Partitions, time.Minute)
	first := w.Claim(10)
	b.Insert("a", "b")
	require.Equal(t, []string{"b"}, Keys(w.Claim(10)), "a has an unsettled call")
	require.Zero(t, w.Settle(first, All(first, published())...))
	require.Equal(t, []string{"a"}, Keys(w.Claim(10)))
}

func onlyItsTarget(t *testing.T, b *Bench) {
	mine, other := Row("a"), Row("b")
	other.TargetBroker = "partner"
	b.InsertRows(mine, other)
	require.Equal(t, []string{"a"}, Keys(b.Worker("w1", Partitions, time.Minute).Claim(10)))
}

func noLimit(t *testing.T, b *Bench) {
	b.Insert("a")
	w := b.Worker("w1", Partitions, time.Minute)
	require.Empty(t, w.Claim(0).Rows)
	require.Empty(t, w.Claim(-1).Rows)
	require.Equal(t, []outbox.Status{outbox.Pending}, b.Statuses())
}

func respectsLimit(t *testing.T, b *Bench) {
	b.Insert("a", "b", "a", "a", "b", "c")
	w := b.Worker("w1", Partitions, time.Minute)
	first := w.Claim(3)
	require.Equal(t, []string{"a", "b", "a"}, Keys(first))
	require.Equal(t, []string{"c"}, Keys(w.Claim(3)), "a and b have unsettled calls")
	w.Settle(first, All(first, published())...)
	require.Equal(t, []string{"a", "b"}, Keys(w.Claim(3)))
}

func marksTheRow(t *testing.T, b *Bench) {
	b.Insert("a")
	w := b.Worker("w1", Partitions, time.Minute)
	before := b.Entries()[0]
	require.Equal(t, outbox.Pending, before.Status)
	require.Zero(t, before.Attempts)
	require.Nil(t, before.LastAttemptAt)
	c := w.Claim(10)
	row := b.Entries()[0]
	require.Equal(t, outbox.Processing, row.Status)
	require.Equal(t, "w1", row.LockedBy)
	require.Equal(t, 1, row.Attempts)
	require.Equal(t, c.ID, row.ClaimID)
	require.NotNil(t, row.LockedUntil)
	require.NotNil(t, row.LastAttemptAt)
	// By the database's clock: the lease of a minute began just before the claim.
	require.InDelta(t, time.Minute.Seconds(), row.LockedUntil.Sub(*row.LastAttemptAt).Seconds(), 20)
	for _, l := range w.Leases {
		if l.Partition == row.Partition {
			require.Equal(t, l.Fence, row.Fence)
		}
	}
}

func pastBlockedHeads(t *testing.T, b *Bench) {
	b.Insert("bad")
	w := b.Worker("w1", Partitions, time.Minute)
	c := w.Claim(1)
	w.Settle(c, All(c, failed(time.Hour))...)
	keys := make([]string, 450)
	for i := range keys {
		keys[i] = "bad"
	}
	b.Insert(keys...)
	b.Insert("x", "y", "x")
	require.Equal(t, []string{"x", "y", "x"}, Keys(w.Claim(10)), "450 rows behind a failed head hide nothing")
}

func failedHead(t *testing.T, b *Bench) {
	b.Insert("a", "b", "a")
	w := b.Worker("w1", Partitions, time.Minute)
	c := w.Claim(10)
	// The head fails, the one behind it comes back unspent, the other key is done.
	w.Settle(c, outbox.Outcome{Seq: c.Rows[0].Seq, Status: outbox.Failed, Class: "transient", Error: "x", After: time.Hour},
		outbox.Outcome{Seq: c.Rows[1].Seq, Status: outbox.Published},
		outbox.Outcome{Seq: c.Rows[2].Seq, Status: outbox.Pending, Unspent: true})
	b.Insert("a", "b")
	require.Equal(t, []string{"b"}, Keys(w.Claim(10)))
	require.Zero(t, b.Entries()[2].Attempts)
}

func needsLease(t *testing.T, b *Bench) {
	b.Insert("a")
	w := b.Worker("w1", Partitions, time.Minute)
	b.Expire()
	c := w.Claim(10)
	require.Empty(t, c.Rows)
	require.True(t, c.Incomplete)

	forged := w
	forged.Leases = nil
	for _, l := range w.Leases {
		l.Fence += 1000
		forged.Leases = append(forged.Leases, l)
	}
	b.Exec("UPDATE outbox_partitions SET locked_until = NULL, locked_by = NULL")
	taken := b.Worker("w2", Partitions, time.Minute)
	require.Len(t, taken.Leases, Partitions)
	require.Empty(t, w.Claim(10).Rows, "another one's lease")
	require.Empty(t, forged.Claim(10).Rows, "a fence that was never given")
	require.Len(t, taken.Claim(10).Rows, 1)
}

func carriesTheMessage(t *testing.T, b *Bench) {
	row := Row("a")
	row.Payload = []byte("{\"data\":\"\\u0000 'quoted' \\\\ ü\"}")
	row.TenantID, row.Traceparent, row.CausationID = "acme", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", newID()
	other := Row("b")
	other.Topic, other.CorrelationID = "elsewhere", ""
	other.CloudEvent = `{"id":"1","subject":"ü \"x\""}`
	b.InsertRows(row, other)
	c := b.Worker("w1", Partitions, time.Minute).Claim(10)
	require.Equal(t, broker.Message{
		ID: row.MessageID, Topic: "ordering.order", Key: "a", Body: row.Payload,
		Headers: map[string]string{
			"id": row.MessageID, "type": "Ordering.OrderPlaced.v1", "time": "2026-01-02T03:04:05.678000Z", "content-type": "application/json",
			"correlation-id": "c-a", "tenant-id": "acme", "traceparent": row.Traceparent,
		},
	}, c.Rows[0].Message)
	require.Equal(t, "elsewhere", c.Rows[1].Message.Topic)
	require.Equal(t, map[string]string{"id": "1", "subject": `ü "x"`}, c.Rows[1].Message.CloudEvent)
	require.NotContains(t, c.Rows[1].Message.Headers, "tenant-id")
	require.NotContains(t, c.Rows[1].Message.Headers, "correlation-id")
}

// Every status under every kind of lease.
func eligible(t *testing.T, b *Bench) {
	states := []struct {
		status outbox.Status
		hold   bool
		due    bool // only for failed
		free   bool
	}{
		{status: outbox.Processing},
		{status: outbox.Failed},
		{status: outbox.Failed, due: true, free: true},
		{status: outbox.Published},
		{status: outbox.Abandoned},
		{status: outbox.Abandoned, hold: true},
		{status: outbox.Pending, free: true},
	}
	w := b.Worker("w1", Partitions, time.Hour)
	var due []int64
	for i, s := range states {
		seq := b.inState(w, fmt.Sprintf("k-%d", i), s.status, s.hold)
		if s.due {
			due = append(due, seq)
		}
	}
	for _, seq := range due {
		b.Exec("UPDATE outbox SET available_at = "+past(b.DB)+" WHERE seq = ?", seq)
	}
	*w.Flights = Flights{} // nobody told it
	b.Expire()
	require.Empty(t, w.Claim(10).Rows, "the lease has run out")
	kept, err := b.Announce(t.Context(), b.DB, "default", []string{"w1"}, w.Leases, time.Hour)
	require.NoError(t, err)
	require.Len(t, kept, Partitions)
	require.Empty(t, Worker{bench: b, Name: "w2", Target: "default", Leases: w.Leases, Flights: &Flights{}}.Claim(10).Rows, "it is another's")
	require.Empty(t, Worker{bench: b, Name: "w1", Target: "default", Flights: &Flights{}}.Claim(10).Rows, "no partition")
	var free []string
	for i, s := range states {
		if s.free {
			free = append(free, fmt.Sprintf("k-%d", i))
		}
	}
	require.Equal(t, free[:1], Keys(w.Claim(1)), "the oldest")
	require.Equal(t, free[1:], Keys(w.Claim(10)))
}

func limits(t *testing.T, b *Bench) {
	for limit, want := range map[int]int{19: 19, 20: 20, 21: 20} {
		b.Exec("DELETE FROM outbox")
		b.Insert(Numbered("k", 20)...)
		w := b.Worker("w1", Partitions, time.Minute)
		require.Equal(t, Numbered("k", 20)[:want], Keys(w.Claim(limit)))
		require.Len(t, w.Claim(limit).Rows, 20-want)
		b.Expire()
	}
}

func oldestAcrossPartitions(t *testing.T, b *Bench) {
	keys := Numbered("k", 60)
	b.Insert(keys...)
	w := b.Worker("w1", Partitions, time.Minute)
	for range 6 {
		c := w.Claim(10)
		require.Equal(t, keys[:10], Keys(c))
		partitions := map[int]bool{}
		for _, row := range c.Rows {
			partitions[row.Partition] = true
		}
		require.Greater(t, len(partitions), 1)
		keys = keys[10:]
	}
}

// A claim passes over partitions that somebody has locked, without waiting.
func lockedPartitions(t *testing.T, b *Bench) {
	b.Insert(Numbered("k", 40)...)
	w := b.Worker("w1", Partitions, time.Minute)
	within := func(d time.Duration) (outbox.Claim, error) {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		return b.Claim(ctx, outbox.ClaimRequest{Target: "default", Worker: "w1", Leases: w.Leases, Limit: 100, MaxAttempts: 5})
	}
	tx, err := b.DB.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	if b.sqlite() { // one writer: it waits, and takes nothing if that is too long
		_, err := within(100 * time.Millisecond)
		require.Error(t, err)
		require.NoError(t, tx.Rollback())
		require.Len(t, w.Claim(100).Rows, 40)
		return
	}
	_, err = tx.ExecContext(t.Context(), "SELECT 1 FROM outbox_partitions WHERE partition < 3 FOR UPDATE")
	require.NoError(t, err)
	c, err := within(10 * time.Second)
	require.NoError(t, err)
	require.True(t, c.Incomplete)
	require.NotEmpty(t, c.Rows)
	for _, row := range c.Rows {
		require.GreaterOrEqual(t, row.Partition, 3)
	}
	require.NoError(t, tx.Rollback())
	rest := w.Claim(100)
	require.False(t, rest.Incomplete)
	require.Len(t, rest.Rows, 40-len(c.Rows))
}

// A worker with one call out takes, with its second claim at the latest, what
// other keys have, however much the first key has in front of them.
func longKey(t *testing.T, b *Bench) {
	batch := 500
	if b.sqlite() {
		batch = 150
	}
	b.insertMany(slices.Repeat([]string{"long"}, 10*batch)...)
	short := Numbered("short", 100)
	b.Insert(short...)
	w := b.Worker("w1", Partitions, time.Minute)
	first := w.Claim(batch)
	require.Equal(t, "long", first.Rows[0].Message.Key, "the oldest is among the first")
	keys := Keys(first)
	for range 5 {
		keys = append(keys, Keys(w.Claim(batch))...)
	}
	require.ElementsMatch(t, short, slices.DeleteFunc(keys, func(k string) bool { return k == "long" }))
	w.Settle(first, All(first, published())...)
	next := w.Claim(batch)
	require.NotEmpty(t, next.Rows)
	require.Equal(t, slices.Repeat([]string{"long"}, len(next.Rows)), Keys(next), "the long one goes on")
}

// The outbox doesn't read what it carries: bytes that are no envelope neither
// hide other rows nor change on their way.
func anyBytes(t *testing.T, b *Bench) {
	rows := []outbox.Row{Row("a"), Row("b"), Row("c")}
	rows[1].Payload, rows[1].ContentType = []byte{0, 0xff, '{', '\'', 0}, "no/thing"
	b.InsertRows(rows...)
	require.Len(t, b.Entries(), 3)
	c := b.Worker("w1", Partitions, time.Minute).Claim(10)
	require.Equal(t, []string{"a", "b", "c"}, Keys(c))
	for i, row := range rows {
		require.Equal(t, row.Payload, c.Rows[i].Message.Body)
		require.Equal(t, row.ContentType, c.Rows[i].Message.Headers["content-type"])
	}
}

func retryOnce(t *testing.T, b *Bench) {
	b.Insert("a")
	w := b.Worker("w1", Partitions, time.Minute)
	c := w.Claim(1)
	w.Settle(c, All(c, failed(-time.Second))...)
	var wg sync.WaitGroup
	var mu sync.Mutex
	taken := 0
	for range 8 {
		wg.Go(func() {
			c, err := b.Claim(t.Context(), outbox.ClaimRequest{Target: "default", Worker: "w1", Leases: w.Leases, Limit: 1, MaxAttempts: 5})
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			taken += len(c.Rows)
		})
	}
	wg.Wait()
	require.Equal(t, 1, taken)
	require.Equal(t, 2, b.Entries()[0].Attempts)
}

func concurrentClaims(t *testing.T, b *Bench) {
	rows := 400
	if b.sqlite() {
		rows = 150 // where all wait for one writer
	}
	b.Insert(Numbered("k", rows)...)
	var mu sync.Mutex
	seen := map[int64]int{}
	var wg sync.WaitGroup
	for _, name := range []string{"w1", "w2", "w3", "w4"} {
		leases := b.Worker(name, Partitions/4, time.Minute).Leases
		wg.Go(func() {
			for {
				c, err := b.Claim(t.Context(), outbox.ClaimRequest{Target: "default", Worker: name, Leases: leases, Limit: 7, MaxAttempts: 5})
				if err != nil {
					t.Error(err)
					return
				}
				if len(c.Rows) == 0 {
					return
				}
				mu.Lock()
				for _, row := range c.Rows {
					seen[row.Seq]++
				}
				mu.Unlock()
				if _, err := b.Settle(t.Context(), outbox.Settlement{Claim: c.ID, Target: "default", Outcomes: All(c, published())}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	require.Len(t, seen, rows)
	for seq, n := range seen {
		require.Equal(t, 1, n, "row %d", seq)
	}
}
