package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/outbox/outboxtest"
)

// fillPublished puts n rows into the table that were published the given time
// ago and stay for a week.
func fillPublished(b *outboxtest.Bench, n int, ago time.Duration) {
	b.T.Helper()
	id, payload, numbers, at := "gen_random_uuid()", `'\x00'`, fmt.Sprintf("generate_series(1, %d) AS n", n), "now() - interval '%.0f seconds'"
	if b.DB.Dialect().Name() == dialect.SQLite {
		id, payload, at = "hex(randomblob(16))", "x'00'", "strftime('%%Y-%%m-%%dT%%H:%%M:%%fZ', 'now', '-%.0f seconds')"
		numbers = fmt.Sprintf("(WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < %d) SELECT n FROM numbers)", n)
	}
	past := fmt.Sprintf(at, ago.Seconds())
	b.Exec("INSERT INTO outbox (id, message_id, target_broker, stream, stream_category, partition_key, partition, message_type," +
		" aggregate_type, aggregate_id, aggregate_version, payload, content_type, occurred_at, status, attempts, published_at, finished_at, expires_at)" +
		" SELECT " + id + ", " + id + ", 'default', 's', 'c', 'k' || n, n % 8, 't', 'a', 'k' || n, 1, " + payload + ", 'application/json', " + past + ", 'published', 1, " +
		past + ", " + past + ", " + fmt.Sprintf(at, (ago-168*time.Hour).Seconds()) + " FROM " + numbers)
}

const eightDays = 8 * 24 * time.Hour

func expireAll(b *outboxtest.Bench) {
	b.T.Helper()
	past := "clock_timestamp() - interval '1 hour'"
	if b.DB.Dialect().Name() == dialect.SQLite {
		past = "strftime('%Y-%m-%dT%H:%M:%fZ','now','-1 hours')"
	}
	b.Exec("UPDATE outbox SET expires_at = " + past + " WHERE finished_at IS NOT NULL")
}

func left(t *testing.T, b *outboxtest.Bench) (n int) {
	t.Helper()
	require.NoError(t, b.DB.NewRaw("SELECT count(*) FROM outbox").Scan(t.Context(), &n))
	return n
}

// F-47, F-48: while writers commit and two processors publish, rows that have
// expired go, in many batches; what isn't delivered stays, and is delivered, once
// and in order.
func TestHousekeeping_F_47_F_48_WhileOthersPublish(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		fillPublished(b, 300, eightDays)
		m := memory.New(memory.Config{})
		m.FailWhere(func(msg broker.Message) error {
			if msg.Key == "bad" {
				return broker.Classify(broker.Transient, errors.New("not yet"))
			}
			return nil
		})
		cfg := quick()
		cfg.OnAbandoned, cfg.Retry.MaxAttempts = outbox.Hold, 2
		cfg.Retention.Every, cfg.Retention.Batch = 20*time.Millisecond, 7
		bad := b.Insert("bad", "bad")
		for range 2 {
			processor(t, b, cfg, lane(m))
		}
		var mu sync.Mutex
		var rows []outbox.Row
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				for range 25 {
					added := b.Insert(fmt.Sprintf("k%d", i), fmt.Sprintf("k%d", i))
					mu.Lock()
					rows = append(rows, added...)
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		byBad := map[outbox.Status]int{outbox.Abandoned: 1, outbox.Pending: 1, outbox.Published: 200}
		statuses(t, b, byBad) // the old ones are gone
		require.Equal(t, rowsByKey(rows), byKey(m.Messages(topic)))
		s, err := b.Stats(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 200, s["default"].Counts[outbox.Published])

		m.FailWhere(nil)
		held, err := b.Find(t.Context(), outbox.Filter{Statuses: []outbox.Status{outbox.Abandoned}})
		require.NoError(t, err)
		require.Equal(t, bad[0].MessageID, held[0].MessageID)
		require.NoError(t, b.Retry(t.Context(), held[0].Seq))
		statuses(t, b, map[outbox.Status]int{outbox.Published: 202})
		require.Equal(t, rowsByKey(append(rows, bad...)), byKey(m.Messages(topic)))
	})
}

// A68, S2-47: a clean-up that fails, before or after it has its turn, stops
// nothing; the log has a line when that begins and one when it ends, and what was
// to be removed is removed then.
func TestHousekeeping_A68_S2_47_FailsAndIsTriedAgain(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		fillPublished(b, 10, eightDays)
		m := memory.New(memory.Config{})
		cfg := quick()
		cfg.Retention.Every = 20 * time.Millisecond
		b.Exec("ALTER TABLE outbox_jobs RENAME TO gone")
		_, log := logged(t, b, cfg, lane(m))
		eventually(t, func() bool { return log.count("the outbox could not be cleaned up") == 1 }, "it is logged")
		b.Insert("a", "b")
		statuses(t, b, map[outbox.Status]int{outbox.Published: 12})
		require.Equal(t, 10+2, left(t, b))
		b.Exec("ALTER TABLE gone RENAME TO outbox_jobs")
		statuses(t, b, map[outbox.Status]int{outbox.Published: 2})
		eventually(t, func() bool { return log.count("the outbox is cleaned up again") == 1 }, "so is its end")

		b.Exec("ALTER TABLE outbox RENAME COLUMN held TO gone") // only a removal reads it
		expireAll(b)
		eventually(t, func() bool { return log.count("the outbox could not be cleaned up") == 2 }, "once more")
		b.Exec("ALTER TABLE outbox RENAME COLUMN gone TO held")
		eventually(t, func() bool { return log.count("the outbox is cleaned up again") == 2 }, "and its end")
		require.Equal(t, 2, log.count("the outbox could not be cleaned up"))
		statuses(t, b, map[outbox.Status]int{})
	})
}

// A69: three processes with three workers each clean up once per interval
// together.
func TestHousekeeping_A69_OncePerInterval(t *testing.T) {
	b, sent := watched(outboxtest.Open(t, openPostgres(t)))
	const every = 400 * time.Millisecond
	cfg := quick()
	cfg.Workers, cfg.Retention.Every = 3, every
	begin := time.Now()
	runs := 0
	for range 3 {
		processor(t, b, cfg, lane(memory.New(memory.Config{})))
	}
	eventually(t, func() bool {
		for _, q := range sent.Take() {
			if strings.Contains(q, "COALESCE(expires_at") && !strings.Contains(q, "published_at IS NULL") {
				runs++
			}
		}
		return runs >= 6
	}, "six clean-ups")
	require.GreaterOrEqual(t, time.Since(begin), 5*every-every/10)
}

// S1-19, S2-47, F-48: housekeeping comes at the start, says how many rows of each
// kind it removed and how long that took, and leaves other providers alone.
func TestHousekeeping_S1_19_S2_47_AtTheStart(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		other := outboxtest.Open(t, openSQLite(t))
		for _, b := range []*outboxtest.Bench{b, other} {
			b.Insert("a", "b", "c")
			w := b.Worker("w1", outboxtest.Partitions, time.Minute)
			c := w.Claim(3)
			w.Settle(c, outbox.Outcome{Seq: c.Rows[0].Seq, Status: outbox.Published}, outbox.Outcome{Seq: c.Rows[1].Seq, Status: outbox.Published},
				outbox.Outcome{Seq: c.Rows[2].Seq, Status: outbox.Abandoned, Class: "permanent", Error: "x"})
			expireAll(b)
		}
		_, log := logged(t, b, quick(), lane(memory.New(memory.Config{}))) // hourly
		statuses(t, b, map[outbox.Status]int{})
		eventually(t, func() bool { return log.count("published=2 abandoned=1 took=") == 1 }, "it is logged")
		require.Equal(t, 3, left(t, other))
	})
}

// F-47: a stop doesn't wait for a clean-up. What was removed by then stays
// removed, and another process goes on when the next turn comes.
func TestHousekeeping_F_47_StoppedInTheMiddle(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		const rows = 3000
		fillPublished(b, rows, eightDays)
		cfg := quick()
		cfg.Retention.Batch = 1 // would take seconds
		p := processor(t, b, cfg, lane(memory.New(memory.Config{})))
		eventually(t, func() bool { return left(t, b) < rows }, "it has begun")
		require.NoError(t, p.Stop(t.Context()))
		n := left(t, b)
		require.Positive(t, n)
		require.Less(t, n, rows)

		cfg.Retention.Batch = 1000
		processor(t, b, cfg, lane(memory.New(memory.Config{})))
		require.Equal(t, n, left(t, b), "not its turn")
		b.Exec("UPDATE outbox_jobs SET due_at = created.at FROM (SELECT min(created_at) AS at FROM outbox) AS created")
		processor(t, b, cfg, lane(memory.New(memory.Config{})))
		eventually(t, func() bool { return left(t, b) == 0 }, "another goes on")
	})
}

// between runs something once, behind the first query that has a text.
type between struct {
	text string
	do   func()
}

func (b *between) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context { return ctx }

func (b *between) AfterQuery(_ context.Context, e *bun.QueryEvent) {
	if do := b.do; do != nil && strings.Contains(e.Query, b.text) {
		b.do = nil
		do()
	}
}

// F-48: what an operator puts back after a purge has seen it is not removed.
func TestPurge_F_48_LooksAgain(t *testing.T) {
	b := outboxtest.Open(t, openPostgres(t))
	b.Insert("a", "b")
	w := b.Worker("w1", outboxtest.Partitions, time.Minute)
	c := w.Claim(2)
	w.Settle(c, outboxtest.All(c, outbox.Outcome{Status: outbox.Abandoned, Class: "permanent", Error: "x"})...)
	expireAll(b)
	hooked := b.As.WithQueryHook(&between{text: "COALESCE(expires_at", do: func() {
		require.NoError(t, b.Retry(t.Context(), c.Rows[0].Seq))
	}})
	n, err := outbox.NewStore(hooked, hooked).Purge(t.Context(), outbox.Retention{})
	require.NoError(t, err)
	require.Equal(t, outbox.Purged{Abandoned: 1}, n)
	statuses(t, b, map[outbox.Status]int{outbox.Pending: 1})
}

// F-47: a statement that fails costs its own batch and nothing else.
func TestPurge_F_47_AFailureCostsNothing(t *testing.T) {
	b := outboxtest.Open(t, openPostgres(t))
	fillPublished(b, 100, eightDays)
	b.Exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not this one'; END $$`)
	b.Exec("CREATE TRIGGER refuse BEFORE DELETE ON outbox FOR EACH ROW WHEN (OLD.seq = 55) EXECUTE FUNCTION refuse()")
	n, err := b.Purge(t.Context(), outbox.Retention{Batch: 10})
	require.ErrorContains(t, err, "not this one")
	require.Equal(t, outbox.Purged{Published: 50}, n)
	require.Equal(t, 50, left(t, b))
	b.Exec("DROP TRIGGER refuse ON outbox")
	n, err = b.Purge(t.Context(), outbox.Retention{Batch: 10})
	require.NoError(t, err)
	require.Equal(t, outbox.Purged{Published: 50}, n)
}

// F-47: on a server on which each row takes 5 ms, a purge makes its statements so
// small that they stay below their limit, and so gets to its end.
func TestPurge_F_47_MakesItselfSmall(t *testing.T) {
	t.Parallel()
	b, sent := watched(outboxtest.Open(t, openPostgres(t)))
	fillPublished(b, 200, eightDays)
	b.Exec(`CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.005); RETURN OLD; END $$`)
	b.Exec("CREATE TRIGGER dawdle BEFORE DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION dawdle()")
	n, err := b.Purge(t.Context(), outbox.Retention{})
	require.NoError(t, err)
	require.Equal(t, outbox.Purged{Published: 200}, n)
	deletes := 0
	for _, q := range sent.Take() {
		if strings.Contains(q, "DELETE") {
			deletes++
		}
	}
	require.Greater(t, deletes, 5)
}

// A87, S1-14, S1-15: a claim has four statements, the first of a partition one
// more, and a write-back at most three, two of them of the outbox itself, whatever
// the number of rows. With nothing to write back there is none.
func TestStatements_A87_S1_14_S1_15_Budget(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		b, sent := watched(b)
		w := b.Worker("w1", outboxtest.Partitions, time.Minute)
		statements := func() (n int) {
			for _, q := range sent.Take() {
				if !regexp.MustCompile("^(BEGIN|COMMIT)").MatchString(q) {
					n++
				}
			}
			return n
		}
		for i, rows := range []int{400, 1, 10, 400} { // the first raises claimed_below
			b.Insert(outboxtest.Numbered(fmt.Sprintf("k%d", i), rows)...)
			statements()
			c := w.Claim(1000)
			require.Len(t, c.Rows, rows)
			if i > 0 {
				require.LessOrEqual(t, statements(), 4)
			}
			require.LessOrEqual(t, statements(), 5)

			outcomes := outboxtest.All(c, outbox.Outcome{Status: outbox.Published})
			if i%2 == 1 {
				outcomes[0].Status = outbox.Abandoned
				for j := range outcomes[:len(outcomes)/2] {
					outcomes[j] = outbox.Outcome{Seq: outcomes[j].Seq, Status: outbox.Failed, Class: "transient", Error: "no", After: time.Hour}
				}
			}
			for _, r := range []outbox.Retention{{}, {Delete: true}} { // the second comes too late
				_, err := b.Settle(t.Context(), outbox.Settlement{Claim: c.ID, Target: "default", Outcomes: outcomes, Retention: r})
				require.NoError(t, err)
				of := 0
				all := sent.Take()
				for _, q := range all {
					if strings.Contains(q, "UPDATE outbox SET") || strings.Contains(q, "DELETE FROM outbox ") {
						of++
					}
				}
				budget := 2
				if r.Delete {
					budget = 3 // what could not be removed is marked
				}
				require.LessOrEqual(t, of, budget)
				require.LessOrEqual(t, len(all), budget+3) // and BEGIN, the count, COMMIT
			}
		}
		_, err := b.Settle(t.Context(), outbox.Settlement{Claim: 1, Target: "default"})
		require.NoError(t, err)
		require.Empty(t, sent.Take())
	})
}

// S1-26, S1-13: a stop settles what was out: nothing that the broker has stored stays
// unpublished in the table.
func TestProcessor_S1_26_StopSettlesWhatIsOut(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		b.Insert(outboxtest.Numbered("k", 100)...)
		m := memory.New(memory.Config{})
		release := m.Stall()
		defer release()
		cfg := quick()
		cfg.BatchSize, cfg.Lease = 10, time.Minute
		p := processor(t, b, cfg, lane(m))
		eventually(t, func() bool { return p.Status()["default"].InFlight > 0 }, "something is out")
		stopped := make(chan error, 1)
		go func() { stopped <- p.Stop(context.Background()) }()
		release()
		require.NoError(t, <-stopped)
		stored := map[string]bool{}
		for _, id := range ids(m.Messages(topic)) {
			stored[id] = true
		}
		require.NotEmpty(t, stored)
		for _, e := range b.Entries() {
			require.Equal(t, stored[e.MessageID], e.Status == outbox.Published)
			require.NotEqual(t, outbox.Processing, e.Status)
		}
	})
}

// S1-18: whoever commits never waits for the processor, however many wake-ups
// are not answered.
func TestProcessor_S1_18_WakingNeverWaits(t *testing.T) {
	b := outboxtest.Open(t, openSQLite(t))
	m := memory.New(memory.Config{})
	release := m.Stall()
	defer release()
	cfg := quick()
	cfg.Workers, cfg.Lease = 1, time.Minute
	p := processor(t, b, cfg, lane(m))
	b.Insert("a")
	eventually(t, func() bool { return p.Status()["default"].InFlight == 1 }, "the only worker has its hands full")
	woken := make(chan struct{})
	go func() {
		for i := range 100_000 {
			p.Wake([]outbox.Poke{{Target: "default", Partition: i % outboxtest.Partitions}})
		}
		close(woken)
	}()
	select {
	case <-woken:
	case <-time.After(20 * time.Second):
		require.Fail(t, "a wake-up waits")
	}
}
