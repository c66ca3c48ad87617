package outbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/outbox/outboxtest"
)

// logged starts a processor whose log can be read.
func logged(t *testing.T, b *outboxtest.Bench, cfg outbox.Config, lanes ...outbox.Lane) (*outbox.Processor, *lines) {
	t.Helper()
	log := &lines{}
	return start(t, outbox.ProcessorConfig{
		Provider: "default", Store: b.Store, Lanes: lanes, Outbox: cfg, Logger: slog.New(slog.NewTextHandler(log, nil)),
	}), log
}

// lines is a log.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), text)
}

func eventually(t *testing.T, condition func() bool, what string) {
	t.Helper()
	require.Eventually(t, condition, 30*time.Second, 2*time.Millisecond, what)
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

// S2-14: what goes wrong in a turn of a worker is logged, and the worker goes
// on by itself; a stop ends it while it waits.
func TestProcessor_S2_14_GoesOnAfterErrors(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		m := memory.New(memory.Config{})
		p, log := logged(t, b, quick(), lane(&panicking{Broker: m, after: 1, times: 1}))
		b.Insert("a")
		statuses(t, b, map[outbox.Status]int{outbox.Published: 1})
		b.Exec("ALTER TABLE outbox RENAME TO away")
		eventually(t, func() bool { return log.count("the database does not answer as it should") == 1 }, "it is logged")
		b.Exec("ALTER TABLE away RENAME TO outbox")
		eventually(t, func() bool { return log.count("the database answers again") >= 1 }, "it goes on")
		b.Insert("b") // its call panics
		statuses(t, b, map[outbox.Status]int{outbox.Published: 2})
		require.Equal(t, 1, log.count("a call of the broker crashed"))
		require.True(t, p.Status()["default"].Running)

		cfg := quick()
		cfg.PollInterval, cfg.MaxPollInterval, cfg.Lease = time.Hour, time.Hour, time.Hour
		idle := processor(t, b, cfg, lane(m))
		begin := time.Now()
		require.NoError(t, idle.Stop(t.Context()))
		require.Less(t, time.Since(begin), 5*time.Second)
	})
}

// S2-16, C-52, C-53: the call of the broker has the message as it was stored,
// whatever letters it is made of, and so has the one after a failure.
func TestProcessor_S2_16_C_52_C_53_MessagesUnchanged(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		strange := "\u00fc \u6f22 \U0001F69A 'quoted' \"twice\" \\ ?0 ; % \t"
		row := outboxtest.Row("key " + strange)
		row.Topic, row.CorrelationID, row.TenantID = "elsewhere", "correlation "+strange, "tenant "+strange
		row.Traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
		row.Payload = []byte("{\"data\": {\"text\":\"\\u0000 " + strange + "\"},  \"n\": 1.0 }\x00\xff")
		b.InsertRows(row)
		want := broker.Message{
			ID: row.MessageID, Topic: "elsewhere", Key: row.PartitionKey, Body: row.Payload,
			Headers: map[string]string{
				"id": row.MessageID, "type": row.MessageType, "time": "2026-01-02T03:04:05.678000Z", "content-type": "application/json",
				"correlation-id": row.CorrelationID, "tenant-id": row.TenantID, "traceparent": row.Traceparent,
			},
		}
		m := memory.New(memory.Config{})
		var mu sync.Mutex
		var seen []broker.Message
		m.FailWhere(func(msg broker.Message) error {
			mu.Lock()
			defer mu.Unlock()
			if seen = append(seen, msg); len(seen) < 3 {
				return errors.New("not now")
			}
			return nil
		})
		processor(t, b, quick(), lane(m))
		statuses(t, b, map[outbox.Status]int{outbox.Published: 1})
		stored := m.Messages("elsewhere")
		for _, msg := range slices.Concat(seen, stored) { // what the outbox says of itself may change
			maps.DeleteFunc(msg.Headers, func(name, _ string) bool { return strings.HasPrefix(name, "waybill-") })
		}
		require.Equal(t, []broker.Message{want, want, want}, seen)
		require.Equal(t, []broker.Message{want}, stored)
	})
}

// S2-19, S4-12, C-18: by default four failures make a row wait and the fifth is
// the end; each try counts once.
func TestProcessor_S2_19_S4_12_C_18_FiveAttempts(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		b.Insert("bad")
		m := memory.New(memory.Config{})
		var mu sync.Mutex
		var attempts []int
		var words []string
		m.FailWhere(func(msg broker.Message) error {
			if msg.Key != "bad" {
				return nil
			}
			found, err := b.Find(context.Background(), outbox.Filter{MessageID: msg.ID})
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			attempts, words = append(attempts, found[0].Attempts), append(words, found[0].LastError)
			return fmt.Errorf("failure %d", len(attempts))
		})
		processor(t, b, quick(), lane(m))
		statuses(t, b, map[outbox.Status]int{outbox.Abandoned: 1})
		b.Insert(outboxtest.Numbered("good", 50)...)
		statuses(t, b, map[outbox.Status]int{outbox.Abandoned: 1, outbox.Published: 50})
		require.Equal(t, []int{1, 2, 3, 4, 5}, attempts, "and never again")
		require.Equal(t, []string{"", "failure 1", "failure 2", "failure 3", "failure 4"}, words)
		e := b.Entries()[0]
		require.Equal(t, 5, e.Attempts)
		require.Equal(t, "failure 5", e.LastError)
		require.Empty(t, e.LockedBy)
	})
}

// S2-41: 100 keys of one row leave with the first two calls, although a key of
// 5,000 rows stands before them.
func TestProcessor_S2_41_ALongKeyDelaysNoOther(t *testing.T) {
	b := outboxtest.Open(t, openPostgres(t))
	cfg := quick()
	cfg.Workers, cfg.BatchSize, cfg.Lease = 1, 500, time.Minute
	const long, short = 5000, 100
	for range 10 {
		b.Insert(slices.Repeat([]string{"long"}, long/10)...)
	}
	b.Insert(outboxtest.Numbered("short", short)...)
	m := memory.New(memory.Config{})
	second := make(chan struct{})
	r := &recorder{Broker: m, before: func(n int, ctx context.Context) {
		switch n {
		case 1: // out until there is another
			select {
			case <-second:
			case <-ctx.Done():
			}
		case 2:
			close(second)
		}
	}}
	processor(t, b, cfg, lane(r))
	statuses(t, b, map[outbox.Status]int{outbox.Published: long + short})
	keys := map[string]bool{}
	for _, call := range r.all()[:2] {
		for _, msg := range call {
			keys[msg.Key] = true
		}
	}
	require.Len(t, keys, short+1)
	require.Len(t, byKey(m.Messages(topic))["long"], long)
}

// recorder keeps the calls of a broker, and does something before each; n counts
// them from 1.
type recorder struct {
	broker.Broker
	before func(n int, ctx context.Context)
	mu     sync.Mutex
	calls  [][]broker.Message
}

func (r *recorder) Publish(ctx context.Context, messages []broker.Message) error {
	r.mu.Lock()
	r.calls = append(r.calls, slices.Clone(messages))
	n := len(r.calls)
	r.mu.Unlock()
	if r.before != nil {
		r.before(n, ctx)
	}
	return r.Broker.Publish(ctx, messages)
}

func (r *recorder) all() [][]broker.Message {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.calls)
}

// S2-42, C-60: of a call of many exactly those fail that the broker says failed,
// each as it says; one without an answer counts as failed; and a call that fails
// as a whole fails for all.
func TestProcessor_S2_42_C_60_PartialFailure(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		b.Insert("ok-1", "refused", "ok-2", "silent", "ok-3", "never")
		m := memory.New(memory.Config{})
		m.FailWhere(func(msg broker.Message) error {
			switch msg.Key {
			case "refused":
				return errors.New("not you")
			case "silent":
				return broker.Classify(broker.Unknown, errors.New("no result"))
			case "never":
				return broker.Classify(broker.Permanent, errors.New("too large"))
			}
			return nil
		})
		cfg := quick()
		cfg.Retry.BaseDelay = time.Hour
		processor(t, b, cfg, lane(m))
		statuses(t, b, map[outbox.Status]int{outbox.Published: 3, outbox.Failed: 2, outbox.Abandoned: 1})
		type end struct {
			Status        outbox.Status
			Class, Error  string
			Attempts      int
			HasNextAtHour bool
		}
		got := map[string]end{}
		for _, e := range b.Entries() {
			got[e.PartitionKey] = end{e.Status, e.FailureClass, e.LastError, e.Attempts, e.AvailableAt.Sub(*e.LastAttemptAt) > 50*time.Minute}
		}
		require.Equal(t, map[string]end{
			"ok-1": {outbox.Published, "", "", 1, false}, "ok-2": {outbox.Published, "", "", 1, false}, "ok-3": {outbox.Published, "", "", 1, false},
			"refused": {outbox.Failed, "transient", "not you", 1, true},
			"silent":  {outbox.Failed, "unknown", "no result", 1, true},
			"never":   {outbox.Abandoned, "permanent", "too large", 1, false},
		}, got)
	})
}

// C-60: a call that fails as a whole fails for every key in it.
func TestProcessor_C_60_TheCallFails(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		m := memory.New(memory.Config{})
		m.FailNext(1, broker.Transient)
		b.Insert("a", "b", "a", "c")
		cfg := quick()
		cfg.Workers, cfg.Retry.BaseDelay = 1, time.Hour
		processor(t, b, cfg, lane(m))
		statuses(t, b, map[outbox.Status]int{outbox.Failed: 3, outbox.Pending: 1})
		require.Empty(t, m.Messages(topic))
		for _, e := range b.Entries() {
			require.Equal(t, e.Status == outbox.Failed, e.Attempts == 1)
		}
	})
}

// S2-43, C-61: while the broker isn't there rows stay, and none of it costs an
// attempt. The log has one line at the beginning and one at the end, in the next
// outage again.
func TestProcessor_S2_43_C_61_NotReady(t *testing.T) {
	t.Parallel()
	b := outboxtest.Open(t, openSQLite(t))
	m := memory.New(memory.Config{})
	p, log := logged(t, b, quick(), lane(m))
	for outage := 1; outage <= 2; outage++ {
		m.SetOutage(true)
		calls := len(m.Calls())
		b.Insert(outboxtest.Numbered(fmt.Sprintf("k%d", outage), 20)...)
		eventually(t, func() bool { return len(m.Calls()) >= calls+2 }, "it is called and probed")
		eventually(t, func() bool { return p.Status()["default"].InFlight == 0 }, "nothing is out")
		for _, e := range b.Entries() {
			require.NotEqual(t, outbox.Abandoned, e.Status)
		}
		require.Equal(t, outage, log.count("the broker does not answer"))
		require.Equal(t, outage-1, log.count("the broker answers again"))
		m.SetOutage(false)
		statuses(t, b, map[outbox.Status]int{outbox.Published: 20 * outage})
		require.Equal(t, outage, log.count("the broker answers again"))
	}
	for _, e := range b.Entries() {
		require.Equal(t, 1, e.Attempts)
	}
	require.Len(t, m.Messages(topic), 40)
}

// S4-13: published, sent when, no lock, no error: one statement.
func TestSettle_S4_13_OneStatement(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		b.Insert("a", "b")
		w := b.Worker("w1", outboxtest.Partitions, time.Minute)
		c := w.Claim(2)
		require.Zero(t, w.Settle(c, outboxtest.All(c, outbox.Outcome{Status: outbox.Failed, Class: "transient", Error: "x", After: -time.Second})...))
		c = w.Claim(2)
		watched, sent := watched(b)
		_, err := watched.Settle(t.Context(), outbox.Settlement{
			Claim: c.ID, Target: "default", Outcomes: outboxtest.All(c, outbox.Outcome{Status: outbox.Published}),
		})
		require.NoError(t, err)
		writes := slices.DeleteFunc(sent.Take(), func(query string) bool { return !strings.Contains(query, "UPDATE") })
		require.Len(t, writes, 1)
		for _, e := range b.Entries() {
			require.Equal(t, outbox.Published, e.Status)
			require.NotNil(t, e.PublishedAt)
			require.Empty(t, e.LockedBy)
			require.Nil(t, e.LockedUntil)
			require.Empty(t, e.LastError)
		}
	})
}

// S4-14: what an earlier call published stays published when a later one ends
// with its process.
func TestProcessor_S4_14_EachCallIsSettledByItself(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		rows := b.Insert("a", "b", "c", "d")
		m := memory.New(memory.Config{})
		cfg := quick()
		cfg.Workers, cfg.BatchSize = 1, 2
		first := processor(t, b, cfg, lane(&lastWords{Broker: m, calls: 1}))
		eventually(t, func() bool { return len(m.Messages(topic)) == 4 }, "all are stored")
		statuses(t, b, map[outbox.Status]int{outbox.Published: 2, outbox.Processing: 2})
		kill(t, first)
		statuses(t, b, map[outbox.Status]int{outbox.Published: 2, outbox.Processing: 2})
		processor(t, b, cfg, lane(m))
		statuses(t, b, map[outbox.Status]int{outbox.Published: 4})
		require.Equal(t, []string{rows[0].MessageID, rows[1].MessageID, rows[2].MessageID, rows[3].MessageID, rows[2].MessageID, rows[3].MessageID}, ids(m.Messages(topic)))
	})
}

// lastWords answers so many calls, and then none.
type lastWords struct {
	broker.Broker
	calls int64
	seen  atomic.Int64
}

func (l *lastWords) Publish(ctx context.Context, messages []broker.Message) error {
	if l.seen.Add(1) > l.calls {
		return mute{l.Broker}.Publish(ctx, messages)
	}
	return l.Broker.Publish(ctx, messages)
}

// C-57: a message that fails and fails delays neither other keys nor other
// targets, and costs no more work than its delays allow.
func TestProcessor_C_57_ABadMessageIsCheap(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		const delay = 100 * time.Millisecond
		b.Insert("bad")
		m, partner := memory.New(memory.Config{}), memory.New(memory.Config{})
		failKey(m, "bad", errors.New("no"))
		watched, sent := watched(b)
		cfg := quick()
		cfg.Workers, cfg.PollInterval, cfg.MaxPollInterval, cfg.Lease = 1, delay, 2*delay, time.Minute
		cfg.Retry = outbox.RetryPolicy{MaxAttempts: 1000, BaseDelay: delay, Multiplier: 1, Jitter: -1}
		processor(t, watched, cfg, lane(m), outbox.Lane{Target: "partner", Broker: partner, External: true})
		eventually(t, func() bool { return len(m.Calls()) >= 1 }, "it begins to fail")

		begin, calls := time.Now(), len(m.Calls())
		sent.Take()
		eventually(t, func() bool { return len(m.Calls()) >= calls+10 }, "it goes on failing")
		turns := float64(time.Since(begin)/delay + 1)
		require.LessOrEqual(t, float64(len(m.Calls())-calls), turns+1)
		// Per turn and lane: look, look for free partitions, claim, settle.
		require.LessOrEqual(t, float64(len(sent.Take())), 40*turns)

		b.Insert(outboxtest.Numbered("good", 100)...)
		other := outboxtest.Row("bad")
		other.TargetBroker = "partner"
		b.InsertRows(other)
		eventually(t, func() bool { return len(m.Messages(topic)) == 100 && len(partner.Messages(topic)) == 1 }, "all others are published")
		e := b.Entries()[0]
		require.NotEqual(t, outbox.Published, e.Status)
		require.Equal(t, "no", e.LastError)
	})
}
