package relay_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
)

// A30, D2: a row that ends the process that publishes it does so five times, the last three of
// them alone; what was in hand beside it is published and not abandoned (model/crash.pml).
func TestCrash_PoisonEndsAfterFiveAndTakesNoOther(t *testing.T) {
	inWorld(t, func(w *world) {
		const poison = "key-3"
		var dies atomic.Bool
		var alone atomic.Int64
		begin := func() *process {
			p := w.start()
			p.broker.through(func(ctx context.Context, messages []broker.Message) error {
				if !slices.ContainsFunc(messages, func(m broker.Message) bool { return m.Key == poison }) {
					return w.broker.Publish(ctx, messages)
				}
				if len(messages) == 1 {
					alone.Add(1)
				}
				dies.Store(true)
				<-ctx.Done() // nothing of the call arrives
				return ctx.Err()
			})
			return p
		}
		p := begin()
		ids := w.commit(p, 1, 10)
		deaths := 0
		w.until(time.Hour, "all is decided", func() bool {
			if dies.Swap(false) {
				deaths++
				w.vanish(p)
				p = begin()
			}
			return len(w.store.Undelivered()) == 0 && w.store.Tokens() == 0
		})
		require.Equal(t, 5, deaths)
		require.GreaterOrEqual(t, alone.Load(), int64(3))
		abandoned := w.store.Abandoned()
		require.Len(t, abandoned, 1)
		for _, a := range abandoned {
			require.Equal(t, "crash", a.Class)
		}
		delete(ids, poison)
		w.inOrder(ids)
	})
}
