package relay_test

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/outbox"
)

// S2-14: what goes wrong in a turn of a lane is logged, and the lane goes on by itself; a
// stop ends it while it waits.
// Conformance: A83.
func TestProcessor_S2_14_GoesOnAfterErrors(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		m := memory.New(memory.Config{})
		p, log := logged(t, b, quick(), to(&panicking{Broker: m, after: 1, times: 1}))
		b.Insert("a")
		statuses(t, b, map[outbox.Status]int{outbox.Published: 1})
		b.Exec("ALTER TABLE outbox_queue RENAME TO away")
		eventually(t, func() bool { return log.count("the database does not answer as it should") == 1 }, "it is logged")
		b.Exec("ALTER TABLE away RENAME TO outbox_queue")
		eventually(t, func() bool { return log.count("the database answers again") >= 1 }, "it goes on")
		b.Insert("b") // its call panics
		statuses(t, b, map[outbox.Status]int{outbox.Published: 2})
		require.Equal(t, 1, log.count("a call of the broker crashed"))
		require.True(t, p.Status()[target].Running)

		idle := processor(t, b, patient(), to(m))
		begin := time.Now()
		require.NoError(t, idle.Stop(t.Context()))
		require.Less(t, time.Since(begin), time.Minute, "long before its next look")
	})
}

// S2-16, C-52, C-53: the call of the broker has the message as it was stored,
// whatever letters it is made of, and so has the one after a failure.
func TestProcessor_S2_16_C_52_C_53_MessagesUnchanged(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		strange := "\u00fc \u6f22 \U0001F69A 'quoted' \"twice\" \\ ?0 ; % \t"
		row := outboxdbtest.Row("key " + strange)
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
				return refuse("not now")
			}
			return nil
		})
		processor(t, b, quick(), to(m))
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
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		b.Insert("bad")
		m := memory.New(memory.Config{})
		var mu sync.Mutex
		var paid []int
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
			paid, words = append(paid, found[0].Attempts), append(words, found[0].LastError)
			return refuse(fmt.Sprint("failure ", len(paid)))
		})
		processor(t, b, quick(), to(m))
		statuses(t, b, map[outbox.Status]int{outbox.Abandoned: 1})
		b.Insert(outboxdbtest.Numbered("good", 50)...)
		statuses(t, b, map[outbox.Status]int{outbox.Abandoned: 1, outbox.Published: 50})
		require.Equal(t, []int{0, 1, 2, 3, 4}, paid, "and never again")
		require.Equal(t, []string{"", "failure 1", "failure 2", "failure 3", "failure 4"}, words)
		e := entries(t, b)[0]
		require.Equal(t, 5, e.Attempts)
		require.Equal(t, "failure 5", e.LastError)
		require.Empty(t, e.LockedBy)
	})
}

// S2-41: 100 keys of one row, behind 5,000 rows of another key, leave while the first call of
// that one is out.
// Conformance: U-27.
func TestProcessor_S2_41_ALongKeyDelaysNoOther(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		cfg := quick()
		cfg.BatchSize, cfg.Lease = 500, time.Minute
		const long, short = 5000, 100
		for range 10 {
			b.Insert(slices.Repeat([]string{"long"}, long/10)...)
		}
		b.Insert(outboxdbtest.Numbered("short", short)...)
		m := memory.New(memory.Config{})
		var left atomic.Int64 // of the short keys
		all := make(chan struct{})
		r := &recorder{Broker: m}
		r.before = func(n int, ctx context.Context) {
			others := slices.DeleteFunc(slices.Clone(r.all()[n-1]), func(m broker.Message) bool { return m.Key == "long" })
			if len(others) > 0 {
				if left.Add(int64(len(others))) == short {
					close(all)
				}
				return
			}
			select { // A call of the long key alone is out until all others have left.
			case <-all:
			case <-ctx.Done():
				t.Error("a call ended before all the other keys had left, of which there are ", short-left.Load())
			}
		}
		processor(t, b, cfg, to(r))
		statuses(t, b, map[outbox.Status]int{outbox.Published: long + short})
		require.Greater(t, len(r.all()), 8)
		require.Len(t, byKey(m.Messages(orders))["long"], long)
	})
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
// each as it says; one without an answer counts as failed where others of its topic were
// answered.
// Conformance: U-05.
func TestProcessor_S2_42_C_60_PartialFailure(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
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
		processor(t, b, cfg, to(m))
		statuses(t, b, map[outbox.Status]int{outbox.Published: 3, outbox.Failed: 2, outbox.Abandoned: 1})
		type end struct {
			Status        outbox.Status
			Class, Error  string
			Attempts      int
			HasNextAtHour bool
		}
		got := map[string]end{}
		for _, e := range entries(t, b) {
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

// C-60: a call that fails as a whole fails for every key in it, if the broker refuses its
// rows; if nobody knows whose failure it is, nobody pays.
func TestProcessor_C_60_TheCallFails(t *testing.T) {
	for name, scope := range map[string]broker.Scope{"rows": broker.ScopeRow, "nobody knows": broker.ScopeUnknown} {
		t.Run(name, func(t *testing.T) {
			outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
				m := memory.New(memory.Config{})
				b.Insert("a", "b", "a", "c")
				cfg := quick()
				cfg.Calls, cfg.Retry.BaseDelay = 1, time.Hour
				p := processor(t, b, cfg, to(&failing{Broker: m, err: broker.Scoped(broker.Transient, scope, errors.New("none of it"))}))
				if scope == broker.ScopeUnknown {
					eventually(t, func() bool { return p.Status()[target].LastError == "none of it" }, "it shows")
					statuses(t, b, map[outbox.Status]int{outbox.Published: 4})
				} else {
					statuses(t, b, map[outbox.Status]int{outbox.Failed: 3, outbox.Pending: 1})
					require.Empty(t, m.Messages(orders))
				}
				for _, e := range entries(t, b) {
					require.Equal(t, e.Status != outbox.Pending, e.Attempts == 1)
				}
			})
		})
	}
}

// failing fails its first call as a whole.
type failing struct {
	broker.Broker
	err  error
	once sync.Once
}

func (f *failing) Publish(ctx context.Context, messages []broker.Message) (err error) {
	if f.once.Do(func() { err = f.err }); err != nil {
		return err
	}
	return f.Broker.Publish(ctx, messages)
}

// S2-43, C-61: while the broker isn't there rows stay, and none of it costs an
// attempt. The log has one line at the beginning and one at the end, in the next
// outage again.
func TestProcessor_S2_43_C_61_NotReady(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		m := memory.New(memory.Config{})
		p, log := logged(t, b, quick(), to(m))
		for outage := 1; outage <= 2; outage++ {
			m.SetOutage(true)
			calls := len(m.Calls())
			b.Insert(outboxdbtest.Numbered(fmt.Sprintf("k%d", outage), 20)...)
			eventually(t, func() bool { return len(m.Calls()) >= calls+2 }, "it is called and probed")
			eventually(t, func() bool { return p.Status()[target].InFlight == 0 }, "nothing is out")
			require.False(t, has(t, b, outbox.Abandoned))
			require.Equal(t, outage, log.count("the broker does not answer"))
			require.Equal(t, outage-1, log.count("the broker answers again"))
			m.SetOutage(false)
			statuses(t, b, map[outbox.Status]int{outbox.Published: 20 * outage})
			require.Equal(t, outage, log.count("the broker answers again"))
		}
		for _, e := range entries(t, b) {
			require.Equal(t, 1, e.Attempts)
		}
		require.Len(t, m.Messages(orders), 40)
	})
}

// S4-14: what an earlier call published stays published when a later one ends
// with its process.
func TestProcessor_S4_14_EachCallIsSettledByItself(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		rows := b.Insert("a", "b", "c", "d")
		m := memory.New(memory.Config{})
		cfg := quick()
		cfg.Calls, cfg.BatchSize = 1, 2
		first := processor(t, b, cfg, to(&lastWords{Broker: m, calls: 1}))
		eventually(t, func() bool { return len(m.Messages(orders)) == 4 }, "all are stored")
		statuses(t, b, map[outbox.Status]int{outbox.Published: 2, outbox.Processing: 2})
		kill(t, first)
		statuses(t, b, map[outbox.Status]int{outbox.Published: 2, outbox.Processing: 2})
		b.Expire()
		processor(t, b, cfg, to(m))
		statuses(t, b, map[outbox.Status]int{outbox.Published: 4})
		got, want := ids(m.Messages(orders)), []string{}
		for _, row := range rows {
			want = append(want, row.MessageID)
		}
		require.Len(t, got, 6)
		require.ElementsMatch(t, want, got[:4])
		require.Equal(t, got[2:4], got[4:], "those of the call that wasn't answered come again")
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
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		const delay = 200 * time.Millisecond
		b.Insert("bad")
		m, partner := memory.New(memory.Config{}), memory.New(memory.Config{})
		failKey(m, "bad", refuse("no"))
		store := counted(b)
		cfg := quick()
		cfg.Calls, cfg.PollInterval, cfg.MaxPollInterval, cfg.Lease = 1, delay, 2*delay, time.Minute
		cfg.Retry = outbox.RetryPolicy{MaxAttempts: 1000, BaseDelay: delay, Multiplier: 1, Jitter: -1}
		start(t, relay.Config{Store: store, Lanes: []relay.Lane{to(m), {Target: "partner", Broker: partner, External: true}}, Outbox: cfg})
		eventually(t, func() bool { return len(m.Calls()) >= 1 }, "it begins to fail")

		begin, calls := time.Now(), len(m.Calls())
		store.take()
		eventually(t, func() bool { return len(m.Calls()) >= calls+10 }, "it goes on failing")
		turns := float64(time.Since(begin)/delay + 1)
		require.LessOrEqual(t, float64(len(m.Calls())-calls), turns+1)
		// Per turn: poll, due, fetch, claim, settle; now and then look, horizon and first.
		steps, all := store.take()
		require.LessOrEqual(t, float64(all), 12*turns, steps)

		b.Insert(outboxdbtest.Numbered("good", 100)...)
		other := outboxdbtest.Row("bad")
		other.TargetBroker = "partner"
		b.InsertRows(other)
		eventually(t, func() bool { return len(m.Messages(orders)) == 100 && len(partner.Messages(orders)) == 1 }, "all others are published")
		e := entries(t, b)[0]
		require.NotEqual(t, outbox.Published, e.Status)
		require.Equal(t, "no", e.LastError)
	})
}
