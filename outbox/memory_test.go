package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/outbox/outboxtest"
)

// remembering is a worker with a memory.
type remembering struct {
	outboxtest.Worker
	b *outboxtest.Bench
}

func (r *remembering) request(limit int) outbox.ClaimRequest {
	return r.Request(outbox.ClaimRequest{Target: r.Target, Worker: r.Name, Leases: r.Leases, Limit: limit, MaxAttempts: 5})
}

func (r *remembering) peek() bool {
	r.b.T.Helper()
	found, _, err := r.b.Peek(r.b.T.Context(), r.request(1))
	require.NoError(r.b.T, err)
	return found
}

// behind is a bench whose first row is a head that failed, or is held, with so
// many followers, and a worker that remembers them.
func behind(t *testing.T, b *outboxtest.Bench, head outbox.Outcome, followers int) *remembering {
	t.Helper()
	b.Insert("bad")
	r := &remembering{Worker: b.Worker("w1", outboxtest.Partitions, time.Hour), b: b}
	c := r.Claim(1)
	r.Settle(c, outboxtest.All(c, head)...)
	b.Insert(beside("bad")) // another one, which stays
	c = r.Claim(1)
	r.Settle(c, outboxtest.All(c, held)...)
	b.Insert(same("bad", followers)...)
	for range 4 { // see them, note the horizon, pass it, remember
		r.peek()
	}
	return r
}

// beside is another key of the same partition.
func beside(key string) string {
	for n := 0; ; n++ {
		other := fmt.Sprintf("%s-%d", key, n)
		if outbox.PartitionOf(other, outboxtest.Partitions) == outbox.PartitionOf(key, outboxtest.Partitions) {
			return other
		}
	}
}

func same(key string, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = key
	}
	return keys
}

const soon = 3 * time.Second

var (
	waits = outbox.Outcome{Status: outbox.Failed, Class: "transient", Error: "no", After: time.Hour}
	held  = outbox.Outcome{Status: outbox.Abandoned, Class: "permanent", Error: "no", Hold: true}
)

// What stands behind a head that can't go on is remembered, and nothing of it
// is lost: neither when the head's time has come nor when an operator decides.
func TestMemory_FollowersGoOnWhenTheirHeadDoes(t *testing.T) {
	t.Parallel()
	const followers = 700
	for name, c := range map[string]struct {
		head  outbox.Outcome
		free  func(t *testing.T, b *outboxtest.Bench, head int64)
		first bool // the head comes again
	}{
		"an operator retries the failed head": {waits, func(t *testing.T, b *outboxtest.Bench, head int64) {
			require.NoError(t, b.Retry(t.Context(), head))
		}, true},
		"an operator abandons the failed head": {waits, func(t *testing.T, b *outboxtest.Bench, head int64) {
			require.NoError(t, b.Abandon(t.Context(), outbox.Retention{}, head))
		}, false},
		"an operator skips the held head": {held, func(t *testing.T, b *outboxtest.Bench, head int64) {
			require.NoError(t, b.Skip(t.Context(), outbox.Retention{}, head))
		}, false},
		"an operator retries the held head": {held, func(t *testing.T, b *outboxtest.Bench, head int64) {
			require.NoError(t, b.Retry(t.Context(), head))
		}, true},
		"the failed head is due": {outbox.Outcome{Status: outbox.Failed, Class: "transient", Error: "no", After: soon}, func(t *testing.T, b *outboxtest.Bench, head int64) {
			require.Eventually(t, func() bool {
				var due bool
				at := "clock_timestamp()"
				if b.DB.Dialect().Name().String() == "sqlite" {
					at = "strftime('%Y-%m-%dT%H:%M:%fZ','now')"
				}
				require.NoError(t, b.DB.NewRaw("SELECT available_at < "+at+" FROM outbox WHERE seq = ?", head).Scan(context.Background(), &due))
				return due
			}, 10*time.Second, 10*time.Millisecond)
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, b *outboxtest.Bench) {
				r := behind(t, b, c.head, followers)
				if c.head.After != soon {
					require.False(t, r.peek())
					b.Insert("good")
					require.True(t, r.peek())
					require.Equal(t, []string{"good"}, outboxtest.Keys(r.Claim(10)), "others go on")
				}
				head := b.Entries()[0].Seq
				c.free(t, b, head)
				require.Eventually(t, r.peek, 10*time.Second, 10*time.Millisecond)
				want := followers
				if c.first {
					want++
				}
				for n := 0; n < want; {
					got := r.Claim(followers + 10)
					if n == 0 && c.first {
						require.Equal(t, head, got.Rows[0].Seq)
					}
					require.NotEmpty(t, got.Rows)
					for _, row := range got.Rows {
						require.Equal(t, "bad", row.Message.Key)
					}
					n += len(got.Rows)
					require.LessOrEqual(t, n, want)
					require.Zero(t, r.Settle(got, outboxtest.All(got, outbox.Outcome{Status: outbox.Published})...))
				}
				require.Empty(t, r.Claim(followers).Rows)
			})
		})
	}
}

// passing is a worker of a bench with a backlog in one partition, of which it has
// claimed so much that it looks only behind what it has in hand.
func passing(t *testing.T, b *outboxtest.Bench) *remembering {
	t.Helper()
	var keys []string
	for n := 0; len(keys) < 600; n++ {
		if key := fmt.Sprint("k-", n); outbox.PartitionOf(key, outboxtest.Partitions) == outbox.PartitionOf("late", outboxtest.Partitions) {
			keys = append(keys, key)
		}
	}
	b.Insert(keys...)
	r := &remembering{Worker: b.Worker("w1", outboxtest.Partitions, time.Hour), b: b}
	for n := 0; n < 300; { // see that there is much, move the horizon, pass
		c := r.Claim(100)
		require.True(t, c.More)
		n += len(c.Rows)
	}
	return r
}

// What is in hand is not read again, and found when it leaves the hand unpublished.
func TestMemory_WhatLeavesTheHandIsFound(t *testing.T) {
	t.Parallel()
	b := outboxtest.Open(t, openPostgres(t))
	r := passing(t, b)
	behind := int64(0)
	b.Observe(func(query string, values []any) {
		if !strings.Contains(query, "LATERAL") {
			return
		}
		for seq := range strings.SplitSeq(strings.Trim(values[3].(string), "{}"), ",") {
			n, err := strconv.ParseInt(seq, 10, 64)
			require.NoError(t, err)
			behind = max(behind, n)
		}
	})
	inHand := int64(0)
	for _, e := range b.Entries() {
		if e.Status == outbox.Processing {
			inHand = max(inHand, e.Seq)
		}
	}
	c := r.Claim(1)
	require.Len(t, c.Rows, 1)
	require.NotZero(t, inHand)
	require.Equal(t, inHand, behind, "what is in hand is not read")
	first := b.Entries()[0]
	var outcomes []outbox.Outcome
	for _, e := range b.Entries() {
		if e.ClaimID == first.ClaimID {
			outcomes = append(outcomes, outbox.Outcome{Seq: e.Seq, Status: outbox.Published})
		}
	}
	outcomes[0] = outbox.Outcome{Seq: first.Seq, Status: outbox.Failed, Class: "transient", Error: "no", After: 3 * time.Second}
	require.Zero(t, r.Settle(outbox.Claim{ID: first.ClaimID}, outcomes...))
	again := func() bool {
		r.peek() // and forgets that it can't go on
		return slices.ContainsFunc(r.Claim(1).Rows, func(row outbox.Claimed) bool { return row.Seq == first.Seq })
	}
	for begin := time.Now(); time.Since(begin) < 2*time.Second; { // it is known that it can't go on, and what is behind it is taken
		require.False(t, again(), "it isn't due")
	}
	require.Eventually(t, again, 10*time.Second, 10*time.Millisecond)
}

// A table that was emptied and whose numbers begin anew, as between tests of an
// application, is read from its beginning.
func TestMemory_NumbersThatBeginAnew(t *testing.T) {
	b := outboxtest.Open(t, openPostgres(t))
	for name, seen := range map[string]func(r *remembering) bool{
		"by a look":  func(r *remembering) bool { return r.peek() },
		"by a claim": func(r *remembering) bool { return len(r.Claim(10).Rows) == 1 },
	} {
		t.Run(name, func(t *testing.T) {
			r := passing(t, b)
			published := map[int64][]outbox.Outcome{}
			for _, e := range b.Entries() {
				if e.Status == outbox.Processing {
					published[e.ClaimID] = append(published[e.ClaimID], outbox.Outcome{Seq: e.Seq, Status: outbox.Published})
				}
			}
			for id, outcomes := range published {
				require.Zero(t, r.Settle(outbox.Claim{ID: id}, outcomes...))
			}
			r.Claim(1) // notes that they are
			b.Exec("TRUNCATE outbox RESTART IDENTITY")
			*r.Flights = outboxtest.Flights{Memory: r.Memory}
			b.Insert("k-0")
			require.True(t, seen(r))
			b.Exec("TRUNCATE outbox")
			b.Expire()
		})
	}
}

// Followers of a key that waits are none of what is in hand: nothing lands for which
// they would be looked at again.
func TestMemory_FollowersOfAWallAreInNoHand(t *testing.T) {
	b := outboxtest.Open(t, openPostgres(t))
	r := behind(t, b, held, 10)
	tx, err := b.DB.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	query, err := outbox.Insert([]outbox.Row{outboxtest.Row("late")}).AppendQuery(b.DB.QueryGen(), nil)
	require.NoError(t, err)
	_, err = tx.ExecContext(t.Context(), string(query)) // holds the horizon
	require.NoError(t, err)
	b.Insert(same("bad", 600)...)
	more := true
	for range 10 {
		c := r.Claim(10)
		require.Empty(t, c.Rows)
		require.Empty(t, c.InHand)
		more = more && c.More
	}
	require.False(t, more, "at last it has seen all")
}

// F-01, F-02: the same as TestMemory_F01_F02_LateCommitIsNotPassed, while there is
// much to do.
func TestMemory_F01_F02_LateCommitBelowWhatIsInHand(t *testing.T) {
	b := outboxtest.Open(t, openPostgres(t))
	late := outboxtest.Row("late")
	tx, err := b.DB.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	query, err := outbox.Insert([]outbox.Row{late}).AppendQuery(b.DB.QueryGen(), nil)
	require.NoError(t, err)
	_, err = tx.ExecContext(t.Context(), string(query))
	require.NoError(t, err)
	r := passing(t, b)
	require.NoError(t, tx.Commit())
	follower := outboxtest.Row(late.PartitionKey)
	b.InsertRows(follower)
	var got []string
	for c := r.Claim(200); len(c.Rows) > 0 || c.More; c = r.Claim(200) {
		for _, row := range c.Rows {
			if row.Message.Key == late.PartitionKey {
				got = append(got, row.Message.ID)
			}
		}
		r.Settle(c, outboxtest.All(c, outbox.Outcome{Status: outbox.Published})...)
	}
	require.Equal(t, []string{late.MessageID, follower.MessageID}, got)
}

// F-01, F-02: a row whose transaction commits late appears below what was read
// and remembered before. It is found at once, and before what follows it in its
// key.
func TestMemory_F01_F02_LateCommitIsNotPassed(t *testing.T) {
	b := outboxtest.Open(t, openPostgres(t))
	b.Insert("bad")
	r := &remembering{Worker: b.Worker("w1", outboxtest.Partitions, time.Hour), b: b}
	c := r.Claim(1)
	r.Settle(c, outboxtest.All(c, waits)...)
	b.Insert(same("bad", 600)...)
	late := beside("bad") // of the partition that is being remembered
	tx, err := b.DB.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	query, err := outbox.Insert([]outbox.Row{outboxtest.Row(late)}).AppendQuery(b.DB.QueryGen(), nil)
	require.NoError(t, err)
	_, err = tx.ExecContext(t.Context(), string(query))
	require.NoError(t, err)
	b.Insert(same("bad", 600)...) // above it, and committed before it
	for range 6 {
		require.Empty(t, r.Claim(10).Rows)
	}
	require.NoError(t, tx.Commit())
	b.Insert(late)
	require.True(t, r.peek())
	got := r.Claim(10)
	require.Equal(t, []string{late, late}, outboxtest.Keys(got))
	require.Less(t, got.Rows[0].Seq, b.Entries()[1200].Seq)
	for range 6 {
		require.Empty(t, r.Claim(10).Rows)
	}
	b.Insert("good")
	require.Equal(t, []string{"good"}, outboxtest.Keys(r.Claim(10)))
}

// A26, D8, S4-08: what a claim reads doesn't grow with what is published, nor
// with what stands behind a head that failed: with a million published rows and
// a hundred thousand followers, no more than twice the pages of an empty history,
// and nothing is scanned.
func TestClaim_A26_D8_ReadsTheSameWithALongHistory(t *testing.T) {
	b := outboxtest.Open(t, openPostgres(t))
	fill := func(n int, key, columns, values string) {
		b.Exec(`INSERT INTO outbox (id, message_id, target_broker, stream, stream_category, partition_key, partition, message_type,
			aggregate_type, aggregate_id, aggregate_version, payload, content_type, occurred_at` + columns + `)
			SELECT gen_random_uuid(), gen_random_uuid(), 'default', 's', 'c', ` + key + `, 't', 'a', 'k', 1, '\x00', 'application/json', now()` + values +
			fmt.Sprintf(` FROM generate_series(1, %d) AS n`, n))
	}
	r := &remembering{Worker: b.Worker("w1", outboxtest.Partitions, time.Hour), b: b}
	// All statements of a look, with their plans.
	look := func() (buffers int) {
		watched, sent := watched(b)
		found, _, err := watched.Peek(t.Context(), r.request(100))
		require.NoError(t, err)
		require.True(t, found)
		for _, q := range sent.Take() {
			var plan []string
			require.NoError(t, b.DB.NewRaw("EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF) ?", bun.Safe(q)).Scan(t.Context(), &plan))
			text := strings.Join(plan, "\n")
			require.NotContains(t, text, "Seq Scan on outbox ", text)
			buffers += pages(text)
		}
		return buffers
	}
	// The same for a claim in one round trip, whose rows go back.
	claim := func() (buffers int) {
		var c outbox.Claim
		for _, plan := range lasting(t, b, func(s *outbox.Store) {
			var err error
			c, err = s.Claim(t.Context(), r.request(100))
			require.NoError(t, err)
		}) {
			require.NotContains(t, plan, "Seq Scan on outbox ", plan)
			buffers += pages(plan)
		}
		r.Took(c)
		require.NotEmpty(t, c.Rows)
		require.Zero(t, r.Settle(c, outboxtest.All(c, outbox.Outcome{Status: outbox.Pending, Unspent: true})...))
		return buffers
	}
	// Transactions that run meanwhile, elsewhere on this server, keep versions of rows
	// that are read too.
	within := func(read func() int, most int) {
		t.Helper()
		buffers := read()
		for end := time.Now().Add(time.Minute); buffers > most && time.Now().Before(end); buffers = read() {
			b.Exec("VACUUM outbox")
		}
		require.LessOrEqual(t, buffers, most)
	}
	pending := func() { b.Insert(outboxtest.Numbered("k", 100)...) }
	pending()
	b.Exec("ANALYZE outbox")
	b.Exec("SET enable_seqscan = off") // the empty history, read as the long one is
	empty, emptyClaim := look(), claim()
	b.Exec("RESET enable_seqscan")
	require.Positive(t, empty)
	require.Positive(t, emptyClaim)

	b.Exec("TRUNCATE outbox")
	fill(1_000_000, "'k' || n, n % 8", ", status, finished_at, published_at", ", 'published', now(), now()")
	pending()
	b.Exec("VACUUM ANALYZE outbox")
	within(look, 2*empty)
	within(claim, 2*emptyClaim)

	b.Exec("TRUNCATE outbox")
	bad := fmt.Sprintf("'bad', %d", outbox.PartitionOf("bad", outboxtest.Partitions))
	fill(1, bad, ", status, available_at", ", 'failed', now() + interval '1 hour'")
	fill(100_000, bad, "", "")
	b.Exec("VACUUM ANALYZE outbox")
	require.False(t, r.peek())
	pending()
	within(look, 2*empty)
	within(claim, 2*emptyClaim)
}
