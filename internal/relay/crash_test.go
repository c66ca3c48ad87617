package relay_test

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/internal/relay/relaytest"
	"github.com/waybill-go/waybill/outbox"
)

// A82, A83: the poll, the keeping of leases and the lane's loop outlive a panic of
// theirs: each starts again, and the lane says how often.
func TestProcessor_A82_A83_PartsOutliveTheirPanics(t *testing.T) {
	for _, part := range []string{"poll", "join", "claim", "settle"} {
		t.Run(part, func(t *testing.T) {
			outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
				store := counted(b)
				var left atomic.Int64
				left.Store(3)
				store.before = func(step string) {
					if step == part && left.Add(-1) >= 0 {
						panic("nil map")
					}
				}
				m := memory.New(memory.Config{})
				p := start(t, relay.Config{Store: store, Lanes: []relay.Lane{to(m)}, Outbox: quick()})
				b.Insert("a", "b", "a")
				eventually(t, func() bool { return p.Status()[target].Crashes >= 3 }, "it crashes")
				statuses(t, b, map[outbox.Status]int{outbox.Published: 3})
				require.GreaterOrEqual(t, len(m.Messages(orders)), 3)
			})
		})
	}
}

// A82, A83: a lane that crashes at once starts again after pauses that double, up to
// half a minute.
func TestLane_A82_A83_RestartsWithBackoff(t *testing.T) {
	inWorld(t, func(w *world) {
		pauses := &pausing{Handler: slog.DiscardHandler}
		w.start(func(p *process, cfg *relay.Config) {
			cfg.Logger = slog.New(pauses)
			p.store.Before(func(step relaytest.Step) {
				if step == relaytest.Take {
					panic("nil map")
				}
			})
		})
		w.until(time.Hour, "twelve crashes", func() bool { return len(pauses.all()) >= 12 })
		all := pauses.all()
		require.Equal(w, 100*time.Millisecond, all[0])
		for i, d := range all[1:] {
			require.Equal(w, min(2*all[i], 30*time.Second), d)
		}
		require.Equal(w, 30*time.Second, all[11])
	})
}

// pausing is told how long crashed lanes wait.
type pausing struct {
	slog.Handler
	mu   sync.Mutex
	seen []time.Duration
}

func (p *pausing) all() []time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]time.Duration(nil), p.seen...)
}

func (*pausing) Enabled(context.Context, slog.Level) bool { return true }

func (p *pausing) WithAttrs([]slog.Attr) slog.Handler { return p }

func (p *pausing) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "after" {
			p.mu.Lock()
			p.seen = append(p.seen, a.Value.Duration())
			p.mu.Unlock()
		}
		return true
	})
	return nil
}

// S2-14: a lane whose adapter panics goes on, and publishes what it had.
// Conformance: S1-23.
func TestProcessor_WorkerSurvivesAPanic(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		b.Insert("a", "a", "b")
		m := memory.New(memory.Config{})
		cfg := quick()
		cfg.Calls = 1
		processor(t, b, cfg, to(&panicking{Broker: m, times: 2}))
		statuses(t, b, map[outbox.Status]int{outbox.Published: 3})
		require.Len(t, m.Messages(orders), 3)
	})
}

// So does one whose panic was the probe in an outage: the lane isn't left
// waiting for it.
func TestProcessor_WorkerSurvivesAPanicOfTheProbe(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		b.Insert("a")
		m := memory.New(memory.Config{})
		m.FailNext(1, broker.Unavailable)
		p := processor(t, b, quick(), to(&panicking{Broker: m, after: 1, times: 1}))
		statuses(t, b, map[outbox.Status]int{outbox.Published: 1})
		eventually(t, func() bool { return p.Status()[target].InFlight == 0 }, "nothing is out")
	})
}

type panicking struct {
	broker.Broker
	after, times int64 // after so many calls, so many panic
	n            atomic.Int64
}

func (p *panicking) Publish(ctx context.Context, messages []broker.Message) error {
	if n := p.n.Add(1); n > p.after && n <= p.after+p.times {
		panic("adapter")
	}
	return p.Broker.Publish(ctx, messages)
}
