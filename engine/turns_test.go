package engine

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/dberr"
)

// An engine of hundreds of schemas starts a few of them at a time, each with all of its
// time, and what waits too long is started later and is no wrong configuration.
func TestStart_OfManyDatabasesIsInTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &Engine{turns: make(chan struct{}, startsAtOnce)}
		var now, most atomic.Int32
		step := func(ctx context.Context) error {
			n := now.Add(1)
			defer now.Add(-1)
			for have := most.Load(); n > have && !most.CompareAndSwap(have, n); {
				have = most.Load()
			}
			select {
			case <-time.After(startTimeout - time.Second):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		var all sync.WaitGroup
		for range 3 * startsAtOnce {
			all.Go(func() { require.NoError(t, e.inTurn(t.Context(), t.Context(), step)) })
		}
		synctest.Wait()
		turn, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := e.inTurn(turn, t.Context(), step)
		require.ErrorContains(t, err, "it waited for its turn")
		require.True(t, dberr.Away(err))
		all.Wait()
		require.EqualValues(t, startsAtOnce, most.Load())
	})
}
