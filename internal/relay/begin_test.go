package relay_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/internal/relay/relaytest"
	"github.com/waybill-go/waybill/outbox"
)

// Where a backlog of several pages waits, the broker doesn't wait for all of them to be read.
func TestLane_AnIdleBrokerGetsWhatTheFirstLookHasRead(t *testing.T) {
	inWorld(t, func(w *world) {
		const rows = 5000 // more than a page
		for n := range rows {
			w.store.InsertRows(relaytest.Row(target, topic, fmt.Sprint(n)))
		}
		first := make(chan time.Duration, 1)
		begin := time.Now()
		w.start(func(p *process, _ *relay.Config) {
			p.store.Always(relaytest.Look, relaytest.Slow(time.Second))
			p.broker.through(func(ctx context.Context, messages []broker.Message) error {
				select {
				case first <- time.Since(begin):
				default:
				}
				return w.broker.Publish(ctx, messages)
			})
		})
		require.Less(t, <-first, 2*time.Second, "the second look isn't answered yet")
		w.until(time.Minute, "all are published", func() bool { return len(w.broker.Messages(topic)) == rows })
	})
}

// joining is a store that says when housekeeping begins.
type joining struct {
	*relaytest.Store

	mu     sync.Mutex
	writes []time.Time
}

func (j *joining) WriteRetention(ctx context.Context, c outbox.Config) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.writes = append(j.writes, time.Now())
	return j.Store.WriteRetention(ctx, c)
}

// A start's first use of the database is to join: what is done beside the work begins
// afterwards, also if the database refuses that.
func TestRelay_HousekeepingBeginsAfterTheLanesHaveTriedToJoin(t *testing.T) {
	for name, fault := range map[string]relaytest.Fault{"joined": relaytest.Slow(3 * time.Second), "refused": {Wait: 3 * time.Second, Fail: true}} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				begin := time.Now()
				var store *joining
				w.start(func(p *process, cfg *relay.Config) {
					p.store.Always(relaytest.Join, fault)
					store = &joining{Store: p.store}
					cfg.Store = store
				})
				w.until(time.Minute, "housekeeping has begun", func() bool {
					store.mu.Lock()
					defer store.mu.Unlock()
					return len(store.writes) > 0
				})
				require.Equal(t, 3*time.Second, store.writes[0].Sub(begin))
			})
		})
	}
}

func TestRelay_AStopDoesNotWaitForHousekeepingToBegin(t *testing.T) {
	inWorld(t, func(w *world) {
		p := w.start(func(p *process, _ *relay.Config) { p.store.Always(relaytest.Join, relaytest.Slow(time.Second)) })
		begin := time.Now()
		require.NoError(t, p.Stop(w.Context()))
		require.LessOrEqual(t, time.Since(begin), time.Second)
	})
}
