package outbox_test

import (
	"context"
	"fmt"
	"regexp"
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
	b      *outboxtest.Bench
	memory outbox.Memory
}

func (r *remembering) request(limit int) outbox.ClaimRequest {
	return outbox.ClaimRequest{Target: r.Target, Worker: r.Name, Leases: r.Leases, Limit: limit, MaxAttempts: 5, Memory: &r.memory}
}

func (r *remembering) claim(limit int) outbox.Claim {
	r.b.T.Helper()
	c, err := r.b.Claim(r.b.T.Context(), r.request(limit))
	require.NoError(r.b.T, err)
	return c
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
	c := r.claim(1)
	r.Settle(c, outboxtest.All(c, head)...)
	b.Insert(beside("bad")) // another one, which stays
	c = r.claim(1)
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
					require.Equal(t, []string{"good"}, outboxtest.Keys(r.claim(10)), "others go on")
				}
				head := b.Entries()[0].Seq
				c.free(t, b, head)
				require.Eventually(t, r.peek, 10*time.Second, 10*time.Millisecond)
				got := r.claim(followers + 10)
				want := followers
				if c.first {
					want++
					require.Equal(t, head, got.Rows[0].Seq)
				}
				require.Len(t, got.Rows, want)
				require.Equal(t, "bad", got.Rows[0].Message.Key)
			})
		})
	}
}

// F-01, F-02: a row whose transaction commits late appears below what was read
// and remembered before. It is found at once, and before what follows it in its
// key.
func TestMemory_F01_F02_LateCommitIsNotPassed(t *testing.T) {
	b := outboxtest.Open(t, openPostgres(t))
	b.Insert("bad")
	r := &remembering{Worker: b.Worker("w1", outboxtest.Partitions, time.Hour), b: b}
	c := r.claim(1)
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
		require.Empty(t, r.claim(10).Rows)
	}
	require.NoError(t, tx.Commit())
	b.Insert(late)
	require.True(t, r.peek())
	got := r.claim(10)
	require.Equal(t, []string{late, late}, outboxtest.Keys(got))
	require.Less(t, got.Rows[0].Seq, b.Entries()[1200].Seq)
	for range 6 {
		require.Empty(t, r.claim(10).Rows)
	}
	b.Insert("good")
	require.Equal(t, []string{"good"}, outboxtest.Keys(r.claim(10)))
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
			execution, _, _ := strings.Cut(text, "Planning:")
			m := regexp.MustCompile(`(?m)^ *Buffers: shared(?: hit=(\d+))?(?: read=(\d+))?`).FindStringSubmatch(execution)
			for _, n := range m[min(1, len(m)):] {
				pages, _ := strconv.Atoi("0" + n)
				buffers += pages
			}
		}
		return buffers
	}
	pending := func() { b.Insert(outboxtest.Numbered("k", 100)...) }
	pending()
	b.Exec("ANALYZE outbox")
	b.Exec("SET enable_seqscan = off") // the empty history, read as the long one is
	empty := look()
	b.Exec("RESET enable_seqscan")
	require.Positive(t, empty)

	b.Exec("TRUNCATE outbox")
	fill(1_000_000, "'k' || n, n % 8", ", status, finished_at, published_at", ", 'published', now(), now()")
	pending()
	b.Exec("VACUUM ANALYZE outbox")
	require.LessOrEqual(t, look(), 2*empty)

	b.Exec("TRUNCATE outbox")
	bad := fmt.Sprintf("'bad', %d", outbox.PartitionOf("bad", outboxtest.Partitions))
	fill(1, bad, ", status, available_at", ", 'failed', now() + interval '1 hour'")
	fill(100_000, bad, "", "")
	b.Exec("VACUUM ANALYZE outbox")
	require.False(t, r.peek())
	pending()
	// Transactions that run meanwhile, elsewhere on this server, put it off.
	require.Eventually(t, func() bool { return look() <= 2*empty }, 30*time.Second, 10*time.Millisecond)
}
