package relay_test

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
