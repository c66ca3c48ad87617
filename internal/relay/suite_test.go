package relay_test

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/outbox"
)

// orders is the topic of the rows of outboxdbtest.
const orders = "ordering.order"

// quick is a configuration with short waits.
func quick() outbox.Config {
	return outbox.Config{
		Calls: 2, PollInterval: 10 * time.Millisecond, MaxPollInterval: 50 * time.Millisecond, Lease: 10 * time.Second,
		Retry: outbox.RetryPolicy{BaseDelay: 20 * time.Millisecond, Jitter: -1},
	}
}

// patient never looks by itself.
func patient() outbox.Config {
	cfg := quick()
	cfg.PollInterval, cfg.MaxPollInterval, cfg.Lease = 10*time.Minute, 10*time.Minute, time.Hour
	return cfg
}

// start is a relay that ends with the test.
func start(t testing.TB, cfg relay.Config) *relay.Relay {
	t.Helper()
	cfg.Provider = "default"
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	r, err := relay.New(cfg)
	require.NoError(t, err)
	require.NoError(t, r.Start(t.Context()))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.NoError(t, r.Stop(ctx))
	})
	return r
}

// processor is a relay on a bench's store.
func processor(t testing.TB, b *outboxdbtest.Bench, cfg outbox.Config, lanes ...relay.Lane) *relay.Relay {
	t.Helper()
	return start(t, relay.Config{Store: b.Store, Lanes: lanes, Outbox: cfg})
}

// logged is one whose log can be read.
func logged(t testing.TB, b *outboxdbtest.Bench, cfg outbox.Config, lanes ...relay.Lane) (*relay.Relay, *logs) {
	t.Helper()
	log := &logs{}
	return start(t, relay.Config{Store: b.Store, Lanes: lanes, Outbox: cfg, Logger: slog.New(slog.NewTextHandler(log, nil))}), log
}

func to(b broker.Broker) relay.Lane { return relay.Lane{Target: target, Broker: b} }

// kill stops a relay as abruptly as a test can: nothing that is out is settled and no
// lease is released.
func kill(t *testing.T, r *relay.Relay) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, r.Stop(ctx), context.Canceled)
}

// eventually waits until something is so.
func eventually(t testing.TB, is func() bool, what string, args ...any) {
	t.Helper()
	waittest.Until(t, is, append([]any{what}, args...)...)
}

// statuses waits until so many rows have each status.
func statuses(t testing.TB, b *outboxdbtest.Bench, want map[outbox.Status]int) {
	t.Helper()
	got := map[outbox.Status]int{}
	waittest.Until(t, func() bool {
		var found []struct {
			Status outbox.Status
			N      int
		}
		require.NoError(t, b.As.NewRaw("SELECT status, count(*) AS n FROM outbox GROUP BY status").Scan(t.Context(), &found))
		clear(got)
		for _, f := range found {
			got[f.Status] = f.N
		}
		return maps.Equal(want, got)
	}, "want %v, got %v", want, got)
}

// entries are all rows, by seq.
func entries(t testing.TB, b *outboxdbtest.Bench) []outbox.Entry {
	t.Helper()
	all, err := b.Find(t.Context(), outbox.Filter{Limit: 100_000})
	require.NoError(t, err)
	return all
}

// has says whether there is a row of a status.
func has(t testing.TB, b *outboxdbtest.Bench, s outbox.Status) bool {
	t.Helper()
	return slices.ContainsFunc(entries(t, b), func(e outbox.Entry) bool { return e.Status == s })
}

// change is an operator's verb for rows.
func change(ctx context.Context, b *outboxdbtest.Bench, verb outbox.Verb, seqs ...int64) error {
	_, err := b.Change(ctx, outbox.Filter{Seqs: seqs}, outbox.Change{Verb: verb, Actor: "test"})
	return err
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
	keys, seen := map[string][]string{}, map[string]bool{}
	for _, m := range messages {
		if !seen[m.ID] {
			seen[m.ID] = true
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

// poke says that a row of a key was committed.
func poke(key string) []outbox.Poke {
	return []outbox.Poke{{Target: target, Partition: outbox.PartitionOf(key, outboxdbtest.Partitions)}}
}

// beside is another key of the same partition.
func beside(key string) string {
	for _, other := range outboxdbtest.Numbered("beside", 1000) {
		if outbox.PartitionOf(other, outboxdbtest.Partitions) == outbox.PartitionOf(key, outboxdbtest.Partitions) {
			return other
		}
	}
	return ""
}

// refuse is a broker's word about one message, which may do better later.
func refuse(words string) error {
	return broker.Scoped(broker.Transient, broker.ScopeRow, errors.New(words))
}

// refuseFirst refuses what is sent n times.
func refuseFirst(n int, m *memory.Broker, is func(broker.Message) bool) {
	var mu sync.Mutex
	m.FailWhere(func(msg broker.Message) error {
		mu.Lock()
		defer mu.Unlock()
		if !is(msg) || n == 0 {
			return nil
		}
		n--
		return refuse("not now")
	})
}

// failKey makes messages of one key fail.
func failKey(m *memory.Broker, key string, err error) {
	m.FailWhere(func(msg broker.Message) error {
		if msg.Key == key {
			return err
		}
		return nil
	})
}

// counting is a store that counts its steps by their names, and may do something first.
type counting struct {
	*outboxdb.Store

	before func(step string) // may be nil

	mu    sync.Mutex
	steps map[string]int
	looks []relay.PartLow // that were looked at
}

func counted(b *outboxdbtest.Bench) *counting {
	return &counting{Store: b.Store, steps: map[string]int{}}
}

func (c *counting) step(name string) {
	c.mu.Lock()
	c.steps[name]++
	c.mu.Unlock()
	if c.before != nil {
		c.before(name)
	}
}

// take is how often each step was made since the last take, and all together.
func (c *counting) take() (steps map[string]int, all int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	steps, c.steps, c.looks = c.steps, map[string]int{}, nil
	for _, n := range steps {
		all += n
	}
	return steps, all
}

// looked is how many partitions were looked at since the last take.
func (c *counting) looked() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	parts := map[int]bool{}
	for _, at := range c.looks {
		parts[at.Part] = true
	}
	return len(parts)
}

func (c *counting) Join(ctx context.Context, name string, lanes []relay.Joining, lease time.Duration) ([]relay.MemberID, error) {
	c.step("join")
	return c.Store.Join(ctx, name, lanes, lease)
}

func (c *counting) Renew(ctx context.Context, renewals []relay.Renewal, lease time.Duration) ([]relay.Renewed, error) {
	c.step("renew")
	return c.Store.Renew(ctx, renewals, lease)
}

func (c *counting) Take(ctx context.Context, m relay.MemberID, lane relay.LaneID, n int) ([]int, error) {
	c.step("take")
	return c.Store.Take(ctx, m, lane, n)
}

func (c *counting) Look(ctx context.Context, lane relay.LaneID, parts []relay.PartLow, limit int) ([]relay.QueueRow, error) {
	c.step("look")
	c.mu.Lock()
	c.looks = append(c.looks, parts...)
	c.mu.Unlock()
	return c.Store.Look(ctx, lane, parts, limit)
}

func (c *counting) Fetch(ctx context.Context, lane relay.LaneID, key, from int64, limit int) ([]relay.QueueRow, error) {
	c.step("fetch")
	return c.Store.Fetch(ctx, lane, key, from, limit)
}

func (c *counting) Due(ctx context.Context, lane relay.LaneID, parts []int, after relay.DueAt, limit int) ([]relay.DueRow, relay.DueAt, error) {
	c.step("due")
	return c.Store.Due(ctx, lane, parts, after, limit)
}

func (c *counting) First(ctx context.Context, lane relay.LaneID, parts []relay.PartLow, limit int) ([]relay.QueueRow, error) {
	c.step("first")
	return c.Store.First(ctx, lane, parts, limit)
}

func (c *counting) Claim(ctx context.Context, q relay.ClaimRequest) (relay.Claim, error) {
	c.step("claim")
	return c.Store.Claim(ctx, q)
}

func (c *counting) LookAndClaim(ctx context.Context, r relay.LookRequest) (relay.Looked, error) {
	c.step("claim")
	c.mu.Lock()
	c.looks = append(c.looks, r.Parts...)
	c.mu.Unlock()
	return c.Store.LookAndClaim(ctx, r)
}

func (c *counting) Settle(ctx context.Context, s relay.Settlement) (bool, error) {
	c.step("settle")
	return c.Store.Settle(ctx, s)
}

func (c *counting) Poll(ctx context.Context, lanes []relay.LaneID) (relay.Polled, error) {
	c.step("poll")
	return c.Store.Poll(ctx, lanes)
}

func (c *counting) Horizon(ctx context.Context) (relay.HorizonSample, error) {
	c.step("horizon")
	return c.Store.Horizon(ctx)
}
