package outbox_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/outbox/outboxtest"
)

const topic = "ordering.order"

// quick is a configuration with short waits.
func quick() outbox.Config {
	return outbox.Config{
		Workers: 2, PollInterval: 10 * time.Millisecond, MaxPollInterval: 50 * time.Millisecond, Lease: 2 * time.Second,
		Retry: outbox.RetryPolicy{BaseDelay: 20 * time.Millisecond, Jitter: -1},
	}
}

// start is a processor that ends with the test.
func start(t *testing.T, cfg outbox.ProcessorConfig) *outbox.Processor {
	t.Helper()
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	p, err := outbox.NewProcessor(cfg)
	require.NoError(t, err)
	require.NoError(t, p.Start(t.Context()))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(t, p.Stop(ctx))
	})
	return p
}

func processor(t *testing.T, b *outboxtest.Bench, cfg outbox.Config, lanes ...outbox.Lane) *outbox.Processor {
	t.Helper()
	return start(t, outbox.ProcessorConfig{Provider: "default", Store: b.Store, Lanes: lanes, Outbox: cfg})
}

func lane(b broker.Broker) outbox.Lane { return outbox.Lane{Target: "default", Broker: b} }

// kill stops a processor as abruptly as a test can: nothing that is out is
// settled and no lease is released.
func kill(t *testing.T, p *outbox.Processor) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, p.Stop(ctx), context.Canceled)
}

func statuses(t *testing.T, b *outboxtest.Bench, want map[outbox.Status]int) {
	t.Helper()
	got := map[outbox.Status]int{}
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		var found []struct {
			Status outbox.Status
			N      int
		}
		require.NoError(t, b.DB.NewRaw("SELECT status, count(*) AS n FROM outbox GROUP BY status").Scan(t.Context(), &found))
		clear(got)
		for _, f := range found {
			got[f.Status] = f.N
		}
		if maps.Equal(want, got) {
			return
		}
		<-time.After(10 * time.Millisecond)
	}
	require.Equal(t, want, got)
}

func ids(messages []broker.Message) []string {
	var ids []string
	for _, m := range messages {
		ids = append(ids, m.ID)
	}
	return ids
}

// byKey are the ids of messages in the order of their first arrival, by key.
func byKey(messages []broker.Message) map[string][]string {
	keys := map[string][]string{}
	for _, m := range messages {
		if !slices.Contains(keys[m.Key], m.ID) {
			keys[m.Key] = append(keys[m.Key], m.ID)
		}
	}
	return keys
}

func rowsByKey(rows []outbox.Row) map[string][]string {
	keys := map[string][]string{}
	for _, r := range rows {
		keys[r.PartitionKey] = append(keys[r.PartitionKey], r.MessageID)
	}
	return keys
}

// S3-07, S4-10, C-56: without a fault each row is published once. D7, A41: in the order of
// its key, over all workers.
func TestProcessor_S3_07_PublishesEachRowOnceInOrder(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		var rows []outbox.Row
		for range 10 {
			rows = append(rows, b.Insert(outboxtest.Numbered("k", 25)...)...)
		}
		m := memory.New(memory.Config{})
		cfg := quick()
		cfg.Workers, cfg.BatchSize = 4, 17
		p := processor(t, b, cfg, lane(m))
		statuses(t, b, map[outbox.Status]int{outbox.Published: 250})
		require.Len(t, m.Messages(topic), 250)
		require.Equal(t, rowsByKey(rows), byKey(m.Messages(topic)))
		for _, size := range m.Calls() {
			require.LessOrEqual(t, size, 17) // A40
		}
		// It counts after the database has done so.
		require.Eventually(t, func() bool { return p.Status()["default"].Published == 250 }, 10*time.Second, time.Millisecond)
		require.Zero(t, p.Status()["default"].RetryRate)
	})
}

// S2-34: the same through a broker without prefix, in waves: one row of a key per call.
func TestProcessor_WavesKeepOrder(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		rows := b.Insert("a", "a", "b", "a", "b", "c")
		m := memory.New(memory.Config{NoPrefix: true})
		var failed sync.Map
		m.FailWhere(func(msg broker.Message) error {
			if _, again := failed.LoadOrStore(msg.ID, true); msg.ID == rows[1].MessageID && !again {
				return errors.New("not now")
			}
			return nil
		})
		processor(t, b, quick(), lane(m))
		statuses(t, b, map[outbox.Status]int{outbox.Published: 6})
		require.Len(t, m.Messages(topic), 6)
		require.Equal(t, rowsByKey(rows), byKey(m.Messages(topic)))
	})
}

// A33, A34, S1-13, S4-14, S2-15, S2-35: one message that fails stops neither the others of the call
// nor those of other keys, and its followers wait for it unspent.
func TestProcessor_A33_A34_MixedResults(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		rows := b.Insert("a", "bad", "bad", "b")
		m := memory.New(memory.Config{})
		m.FailWhere(func(msg broker.Message) error {
			if msg.ID == rows[1].MessageID {
				return errors.New("refused")
			}
			return nil
		})
		cfg := quick()
		cfg.Retry.BaseDelay = time.Hour
		processor(t, b, cfg, lane(m))
		statuses(t, b, map[outbox.Status]int{outbox.Published: 2, outbox.Failed: 1, outbox.Pending: 1})
		e := b.Entries()
		require.Equal(t, outbox.Failed, e[1].Status)
		require.Equal(t, "refused", e[1].LastError)
		require.Equal(t, "transient", e[1].FailureClass)
		require.Equal(t, 1, e[1].Attempts)
		require.Equal(t, outbox.Pending, e[2].Status)
		require.Zero(t, e[2].Attempts)
	})
}

// S3-04, S4-02: what failed is published later, without a new request.
func TestProcessor_S3_04_RetriesUntilPublished(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		rows := b.Insert("a", "a")
		m := memory.New(memory.Config{})
		m.FailNext(2, broker.Transient)
		p := processor(t, b, quick(), lane(m))
		statuses(t, b, map[outbox.Status]int{outbox.Published: 2})
		require.Equal(t, []string{rows[0].MessageID, rows[1].MessageID}, ids(m.Messages(topic)))
		require.Equal(t, 3, b.Entries()[0].Attempts)
		require.Equal(t, 1, b.Entries()[1].Attempts, "followers don't pay for their head")
		require.InDelta(t, 0.5, p.Status()["default"].RetryRate, 0.01, "two of the four attempts that count were retries")
	})
}

// S3-17: after max_attempts a row is abandoned with the broker's words, and its key
// goes on, or is held.
func TestProcessor_AbandonsAfterMaxAttempts(t *testing.T) {
	for _, policy := range []outbox.OnAbandoned{outbox.Skip, outbox.Hold} {
		t.Run(string(policy), func(t *testing.T) {
			b := outboxtest.Open(t, openSQLite(t))
			rows := b.Insert("a", "a", "b")
			m := memory.New(memory.Config{})
			m.FailWhere(func(msg broker.Message) error {
				if msg.ID == rows[0].MessageID {
					return errors.New("never")
				}
				return nil
			})
			cfg := quick()
			cfg.OnAbandoned, cfg.Retry.MaxAttempts = policy, 3
			processor(t, b, cfg, lane(m))
			want := map[outbox.Status]int{outbox.Abandoned: 1, outbox.Published: 2}
			if policy == outbox.Hold {
				want = map[outbox.Status]int{outbox.Abandoned: 1, outbox.Published: 1, outbox.Pending: 1}
			}
			statuses(t, b, want)
			e := b.Entries()[0]
			require.Equal(t, 3, e.Attempts)
			require.Equal(t, 3, e.MaxAttempts)
			require.Equal(t, "never", e.LastError)
			require.Equal(t, policy == outbox.Hold, e.Held)
		})
	}
}

// A51, A52, S2-45, C-59: a permanent error abandons at once, and the others of the
// call go on.
func TestProcessor_PermanentErrorAbandonsAtOnce(t *testing.T) {
	b := outboxtest.Open(t, openSQLite(t))
	b.Insert("a", "b")
	m := memory.New(memory.Config{})
	m.FailWhere(func(msg broker.Message) error {
		if msg.Key == "a" {
			return broker.Classify(broker.Permanent, errors.New("too large"))
		}
		return nil
	})
	processor(t, b, quick(), lane(m))
	statuses(t, b, map[outbox.Status]int{outbox.Abandoned: 1, outbox.Published: 1})
	require.Equal(t, 1, b.Entries()[0].Attempts)
	require.Equal(t, "permanent", b.Entries()[0].FailureClass)
}

// S3-05, S4-05, C-61: an outage burns no attempts, shows in the table, and the lane
// goes on by itself.
func TestProcessor_S3_05_OutageCostsNothingButTime(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		rows := b.Insert(outboxtest.Numbered("k", 50)...)
		m := memory.New(memory.Config{})
		m.SetOutage(true)
		p := processor(t, b, quick(), lane(m))
		require.Eventually(t, func() bool { return p.Status()["default"].Breaker != "closed" }, 10*time.Second, 5*time.Millisecond)
		require.NotEmpty(t, p.Status()["default"].LastError)
		require.Eventually(t, func() bool { return len(m.Calls()) >= 3 }, 20*time.Second, 5*time.Millisecond)
		require.Contains(t, b.Statuses(), outbox.Failed)
		for _, e := range b.Entries() {
			require.LessOrEqual(t, e.Attempts, 1)
			require.NotEqual(t, outbox.Abandoned, e.Status)
			if e.Status == outbox.Failed {
				require.Equal(t, "unavailable", e.FailureClass)
			}
		}
		m.SetOutage(false)
		statuses(t, b, map[outbox.Status]int{outbox.Published: 50})
		require.Len(t, m.Messages(topic), 50)
		require.Equal(t, rowsByKey(rows), byKey(m.Messages(topic)))
		for _, e := range b.Entries() {
			require.Equal(t, 1, e.Attempts, "attempts of the outage were given back")
		}
		require.Equal(t, "closed", p.Status()["default"].Breaker)
	})
}

// S3-11, A56: a partner's outage doesn't touch the internal row.
func TestProcessor_S3_11_A56_TargetsFailApart(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		mine := outboxtest.Row("a")
		theirs := mine
		theirs.ID, theirs.TargetBroker = outboxtest.Row("a").ID, "partner"
		b.InsertRows(mine, theirs)
		internal, partner := memory.New(memory.Config{}), memory.New(memory.Config{})
		partner.FailNext(2, broker.Transient)
		p := processor(t, b, quick(), lane(internal), outbox.Lane{Target: "partner", Broker: partner, External: true})
		statuses(t, b, map[outbox.Status]int{outbox.Published: 2})
		e := b.Entries()
		require.Equal(t, 1, e[0].Attempts)
		require.Equal(t, 3, e[1].Attempts)
		require.Equal(t, []string{mine.MessageID}, ids(internal.Messages(topic)))
		require.Equal(t, []string{mine.MessageID}, ids(partner.Messages(topic)), "the same id at every broker")
		require.Equal(t, "outbox-processor-default-to-default", p.Status()["default"].Name)
		require.Equal(t, "outbox-processor-default-to-partner-external", p.Status()["partner"].Name)
	})
}

// A32: no transaction is open while the broker is called. Those of the next claims are
// soon over.
func TestProcessor_A32_NoTransactionDuringTheCall(t *testing.T) {
	b := outboxtest.Open(t, openPostgres(t))
	b.Exec("SET application_name = 'waybill-stall'")
	b.Insert("a")
	m := memory.New(memory.Config{})
	release := m.Stall()
	defer release()
	cfg := quick()
	cfg.Lease = time.Minute
	processor(t, b, cfg, lane(m))
	require.Eventually(t, func() bool { return len(m.Calls()) == 1 }, 10*time.Second, time.Millisecond)
	require.Equal(t, []outbox.Status{outbox.Processing}, b.Statuses())
	var schema string
	require.NoError(t, b.DB.NewRaw("SELECT current_schema()").Scan(t.Context(), &schema))
	for range 20 {
		var open []string
		require.Eventually(t, func() bool {
			open = nil
			err := b.DB.NewRaw("SELECT query FROM pg_locks JOIN pg_stat_activity USING (pid)"+
				" WHERE relation = ?::regclass AND state = 'idle in transaction'", schema+".outbox").Scan(t.Context(), &open)
			return err == nil && len(open) == 0
		}, 10*time.Second, time.Millisecond, "open: %v", &open)
	}
	release()
	statuses(t, b, map[outbox.Status]int{outbox.Published: 1})
}

// A36: a process that dies between the broker's answer and
// the write-back is followed by another, which publishes again under the same id.
func TestProcessor_A36_RedeliversAfterACrash(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		rows := b.Insert("a", "a", "b")
		m := memory.New(memory.Config{})
		first := processor(t, b, quick(), lane(mute{m}))
		require.Eventually(t, func() bool { return len(m.Messages(topic)) == 3 }, 10*time.Second, time.Millisecond)
		kill(t, first)
		require.Contains(t, b.Statuses(), outbox.Processing)

		processor(t, b, quick(), lane(m))
		statuses(t, b, map[outbox.Status]int{outbox.Published: 3})
		require.Len(t, m.Messages(topic), 6, "each was stored before the crash, and comes again under its id")
		require.Equal(t, rowsByKey(rows), byKey(m.Messages(topic)))
		for _, e := range b.Entries() {
			require.Equal(t, 1, e.Losses, "claims that nobody settled are counted")
		}
	})
}

// mute stores what it is given and never answers.
type mute struct{ broker.Broker }

func (m mute) Publish(ctx context.Context, messages []broker.Message) error {
	if err := m.Broker.Publish(ctx, messages); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

// A35, S2-07: the database fails when the answer is written back; the row stays in
// hand until it is.
func TestProcessor_A35_SettlesWhenTheDatabaseIsBack(t *testing.T) {
	b := outboxtest.Open(t, openPostgres(t))
	b.Insert("a")
	m := memory.New(memory.Config{})
	release := m.Stall()
	cfg := quick()
	cfg.Lease = time.Minute
	p := processor(t, b, cfg, lane(m))
	require.Eventually(t, func() bool { return len(m.Calls()) == 1 }, 10*time.Second, time.Millisecond)
	b.Exec("ALTER TABLE outbox RENAME COLUMN published_at TO gone")
	release()
	require.Eventually(t, func() bool { return len(m.Messages(topic)) == 1 }, 10*time.Second, time.Millisecond)
	require.Zero(t, p.Status()["default"].Published)
	b.Exec("ALTER TABLE outbox RENAME COLUMN gone TO published_at")
	statuses(t, b, map[outbox.Status]int{outbox.Published: 1})
	require.Len(t, m.Messages(topic), 1, "settled, not published again")
}

// A stop settles what is out and releases everything: another process goes on
// at once, not when leases have run out.
func TestProcessor_StopReleases(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		b.Insert("a")
		m := memory.New(memory.Config{})
		cfg := quick()
		cfg.Lease = time.Hour
		cfg.PublishTimeout = time.Minute
		first := processor(t, b, cfg, lane(m))
		statuses(t, b, map[outbox.Status]int{outbox.Published: 1})
		require.NoError(t, first.Stop(t.Context()))
		require.NoError(t, first.Stop(t.Context()))
		membership, err := b.Membership(t.Context(), "default")
		require.NoError(t, err)
		require.Equal(t, []int{0, outboxtest.Partitions}, []int{membership.Workers, membership.Free})
		b.Insert("b")
		processor(t, b, cfg, lane(m))
		statuses(t, b, map[outbox.Status]int{outbox.Published: 2})
		require.Error(t, first.Start(t.Context()), "a processor starts once")
	})
}

// S4-10, C-40: two processes share the partitions; when one stops, the other takes its part.
func TestProcessor_ProcessesShareThePartitions(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		m := memory.New(memory.Config{})
		owned := func(p *outbox.Processor) int { return p.Status()["default"].Partitions }
		first := processor(t, b, quick(), lane(m))
		require.Eventually(t, func() bool { return owned(first) == outboxtest.Partitions }, 10*time.Second, time.Millisecond)
		second := processor(t, b, quick(), lane(m))
		require.Eventually(t, func() bool {
			return owned(first) == outboxtest.Partitions/2 && owned(second) == outboxtest.Partitions/2
		}, 20*time.Second, time.Millisecond)
		rows := b.Insert(outboxtest.Numbered("k", 200)...)
		statuses(t, b, map[outbox.Status]int{outbox.Published: 200})
		require.Len(t, m.Messages(topic), len(rows))
		for _, p := range []*outbox.Processor{first, second} {
			require.Eventually(t, func() bool { return p.Status()["default"].Published > 0 }, 10*time.Second, time.Millisecond)
		}
		require.NoError(t, first.Stop(t.Context()))
		require.Eventually(t, func() bool { return owned(second) == outboxtest.Partitions }, 20*time.Second, time.Millisecond)
	})
}

// S2-14: a worker whose adapter panics starts again, and publishes what it had.
func TestProcessor_WorkerSurvivesAPanic(t *testing.T) {
	b := outboxtest.Open(t, openSQLite(t))
	b.Insert("a", "a", "b")
	m := memory.New(memory.Config{})
	cfg := quick()
	cfg.Workers = 1
	processor(t, b, cfg, lane(&panicking{Broker: m, times: 2}))
	statuses(t, b, map[outbox.Status]int{outbox.Published: 3})
	require.Len(t, m.Messages(topic), 3)
}

// So does one whose panic was the probe in an outage: the lane isn't left
// waiting for it.
func TestProcessor_WorkerSurvivesAPanicOfTheProbe(t *testing.T) {
	b := outboxtest.Open(t, openSQLite(t))
	b.Insert("a")
	m := memory.New(memory.Config{})
	m.FailNext(1, broker.Unavailable)
	p := processor(t, b, quick(), lane(&panicking{Broker: m, after: 1, times: 1}))
	statuses(t, b, map[outbox.Status]int{outbox.Published: 1})
	require.Zero(t, p.Status()["default"].InFlight)
}

type panicking struct {
	broker.Broker
	after, times int // after so many calls, so many panic
}

func (p *panicking) Publish(ctx context.Context, messages []broker.Message) error {
	if p.after--; p.after >= 0 {
		return p.Broker.Publish(ctx, messages)
	}
	if p.times--; p.times >= 0 {
		panic("adapter")
	}
	return p.Broker.Publish(ctx, messages)
}

// C-56, S2-28: a poke wakes a worker that would have slept.
func TestProcessor_WakesAtOnce(t *testing.T) {
	b := outboxtest.Open(t, openSQLite(t))
	m := memory.New(memory.Config{})
	cfg := quick()
	cfg.PollInterval, cfg.MaxPollInterval, cfg.Lease = 10*time.Minute, 10*time.Minute, time.Hour
	p := processor(t, b, cfg, lane(m))
	require.Eventually(t, func() bool { return p.Status()["default"].Partitions == outboxtest.Partitions }, 10*time.Second, time.Millisecond)
	b.Insert("a")
	p.Wake([]outbox.Poke{{Target: "elsewhere"}, {Target: "default", Partition: outbox.PartitionOf("a", outboxtest.Partitions)}})
	statuses(t, b, map[outbox.Status]int{outbox.Published: 1})
}

// Delete on publish leaves no row.
func TestProcessor_RetentionDelete(t *testing.T) {
	b := outboxtest.Open(t, openSQLite(t))
	b.Insert("a", "b")
	m := memory.New(memory.Config{})
	cfg := quick()
	cfg.Retention.Delete = true
	processor(t, b, cfg, lane(m))
	statuses(t, b, map[outbox.Status]int{})
	require.Len(t, m.Messages(topic), 2)
}

// S3-18: housekeeping removes what has expired, on schedule.
func TestProcessor_RetentionPublished(t *testing.T) {
	b := outboxtest.Open(t, openSQLite(t))
	b.Insert("a", "b")
	m := memory.New(memory.Config{})
	cfg := quick()
	cfg.Lease, cfg.Retry.MaxAttempts = time.Second, 1 // no retention is shorter than they allow
	cfg.Retention = outbox.Retention{Published: time.Second, Every: 20 * time.Millisecond, Batch: 1}
	processor(t, b, cfg, lane(m))
	statuses(t, b, map[outbox.Status]int{})
	require.Len(t, m.Messages(topic), 2)
}

// A27: worker names are unique, also within one process.
func TestProcessor_A27_WorkerNamesAreUnique(t *testing.T) {
	b := outboxtest.Open(t, openSQLite(t))
	cfg := quick()
	cfg.Workers = 3
	for range 2 {
		processor(t, b, cfg, lane(memory.New(memory.Config{})))
	}
	require.Eventually(t, func() bool {
		m, err := b.Membership(t.Context(), "default")
		return err == nil && m.Workers == 6
	}, 10*time.Second, time.Millisecond)
}

func TestNewProcessor_NamesAllMistakes(t *testing.T) {
	m := memory.New(memory.Config{})
	_, err := outbox.NewProcessor(outbox.ProcessorConfig{Lanes: []outbox.Lane{{}, lane(m), lane(m)}, Outbox: outbox.Config{Workers: -1}})
	for _, words := range []string{"workers is -1", "provider's name is missing", "store is missing", `lane ""`, `lane "default" is named twice`} {
		require.ErrorContains(t, err, words)
	}
}

func TestProcessor_StartWithoutTablesSaysWhatToDo(t *testing.T) {
	db := openSQLite(t)
	p, err := outbox.NewProcessor(outbox.ProcessorConfig{Provider: "default", Store: outbox.NewStore(db.DB(), db.Reader()), Lanes: []outbox.Lane{lane(memory.New(memory.Config{}))}})
	require.NoError(t, err)
	require.ErrorContains(t, p.Start(t.Context()), "waybill migrate")
}

func ExampleRetryPolicy_Delay() {
	p := outbox.Config{}.WithDefaults().Retry
	p.Jitter = -1
	for attempt := 1; attempt <= 8; attempt++ {
		fmt.Println(p.Delay(attempt, 0))
	}
	// Output:
	// 1m0s
	// 2m0s
	// 4m0s
	// 8m0s
	// 16m0s
	// 32m0s
	// 1h0m0s
	// 1h0m0s
}

// F-41, C-56: a drain is not one round trip per message: calls hold batches, and every
// worker has one out.
func TestProcessor_F41_CallsAreBatchesAndOverlap(t *testing.T) {
	b := outboxtest.Open(t, openSQLite(t))
	b.Insert(outboxtest.Numbered("k", 400)...)
	m := memory.New(memory.Config{})
	release := m.Stall()
	defer release()
	cfg := quick()
	cfg.Workers, cfg.Lease = 4, time.Minute
	p := processor(t, b, cfg, lane(m))
	require.Eventually(t, func() bool { return len(m.Calls()) == 4 }, 10*time.Second, time.Millisecond)
	require.Equal(t, 400, p.Status()["default"].InFlight)
	release()
	statuses(t, b, map[outbox.Status]int{outbox.Published: 400})
	require.Len(t, m.Calls(), 4)
}

// S4-03: whatever reaches the broker was committed before: another connection
// sees its row, claimed.
func TestProcessor_S4_03_PublishesOnlyWhatIsCommitted(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		m := memory.New(memory.Config{})
		m.FailWhere(func(msg broker.Message) error {
			found, err := b.Find(context.Background(), outbox.Filter{MessageID: msg.ID})
			if err != nil || len(found) != 1 || found[0].Status != outbox.Processing {
				return broker.Classify(broker.Permanent, fmt.Errorf("published too early: %v %w", found, err))
			}
			return nil
		})
		p := processor(t, b, quick(), lane(m))
		for i := range 20 {
			tx, err := b.DB.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			query, err := outbox.Insert([]outbox.Row{outboxtest.Row("k")}).AppendQuery(b.DB.QueryGen(), nil)
			require.NoError(t, err)
			_, err = tx.ExecContext(t.Context(), string(query))
			require.NoError(t, err)
			p.Wake([]outbox.Poke{{Target: "default", Partition: outbox.PartitionOf("k", outboxtest.Partitions)}}) // too early, on purpose
			if i%2 == 0 {
				require.NoError(t, tx.Rollback())
			} else {
				require.NoError(t, tx.Commit())
			}
		}
		statuses(t, b, map[outbox.Status]int{outbox.Published: 10})
		require.Len(t, m.Messages(topic), 10)
	})
}
