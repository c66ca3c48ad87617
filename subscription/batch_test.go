package subscription_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

// A batch is one transaction, over keys and in the order of each; where a message
// fails, the others take effect all the same, and once.
func TestBatch_OneTransaction(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		const keys, each = 4, 75
		var mu sync.Mutex
		units := map[*uow.Unit]int{}
		var runs atomic.Int64
		delivered := make(chan struct{}) // so many that each key has more than a batch
		s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
			<-delivered
			if e.Note == "7" && e.OrderID == "o-3" && runs.Add(1) < 4 {
				return errBad
			}
			u, err := uow.From(ctx)
			if err != nil {
				return err
			}
			mu.Lock()
			units[u]++
			mu.Unlock()
			return effect(ctx, e)
		}))
		s.Lanes, s.Batch = 2, 20
		for i := range each {
			for k := range keys {
				w.publish(placed(fmt.Sprintf("o-%d", k), fmt.Sprint(i)))
			}
		}
		r, stop := w.start(s, w.broker)
		w.until(func() bool { return r.Status().InFlight > keys*(20+1) }, "enough are delivered")
		close(delivered)
		w.until(w.acknowledged("shipping"), "all are handled")
		stop()
		for k := range keys {
			notes := w.effects(fmt.Sprintf("o-%d", k))
			require.Len(t, notes, each)
			for i, note := range notes {
				require.Equal(t, fmt.Sprint(i), note)
			}
		}
		require.EqualValues(t, keys*each, r.Status().Handled)
		most := 0
		for _, n := range units {
			most = max(most, n)
		}
		require.Greater(t, most, 10, "several messages in one unit")
		require.LessOrEqual(t, most, 20)
		require.Zero(t, w.attempts())
	})
}

// What comes twice within a batch, what the inbox knows already, and what has no
// handler, is settled, and nothing else suffers from it.
func TestBatch_DuplicatesAndStrangers(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		s := w.stream()
		s.Batch = 50
		known := orders(40)
		w.publish(known...)
		_, stop := w.start(s, w.broker)
		w.until(w.acknowledged("shipping"), "all are handled")
		stop()
		w.publish(known...)
		fresh := orders(30)
		for i := range fresh {
			fresh[i].Key = fmt.Sprintf("fresh-%d", i)
			w.publish(fresh[i], fresh[i], message(fmt.Sprintf("stranger-%d", i), "Ordering.OrderLost.v1", "o", "{}"))
		}
		r, stop := w.start(s, w.broker)
		w.until(w.acknowledged("shipping"), "all are settled")
		stop()
		require.Equal(t, 70, w.allEffects())
		require.EqualValues(t, 30, r.Status().Handled)
		require.EqualValues(t, 30, r.Status().Ignored)
		require.EqualValues(t, 70, r.Status().Duplicates)
	})
}

// Each message of a batch has its own origin, which the unit's Enrich completes; what it
// said of itself stays in its metadata.
func TestBatch_EachOriginIsEnriched(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		units, err := uow.New(uow.Config{Domain: shipping, Providers: []uow.Provider{w.provider}, Enrich: func(_ context.Context, o domain.Origin) domain.Origin {
			o.Extensions["of"] = o.CorrelationID
			return o
		}})
		require.NoError(t, err)
		var mu sync.Mutex
		got, together := map[string]bool{}, map[*uow.Unit]int{}
		s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
			u, err := uow.From(ctx)
			if err != nil {
				return err
			}
			m, _ := domain.MetadataFrom(ctx)
			mu.Lock()
			defer mu.Unlock()
			together[u]++
			got[e.OrderID] = domain.OriginFrom(ctx).Extensions["of"] == m.ID && m.Extensions["of"] == ""
			return nil
		}))
		s.Units, s.Batch = units, 20
		const n = 60
		for i := range n {
			w.publish(placed(fmt.Sprintf("o-%d", i), ""))
		}
		_, stop := w.start(s, w.broker)
		w.until(w.acknowledged("shipping"), "all are handled")
		stop()
		for i := range n {
			require.True(t, got[fmt.Sprintf("o-%d", i)], "its correlation began with it")
		}
		require.Less(t, len(together), n, "several messages in one unit")
	})
}
