package kafka_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
)

// C-60: a call whose context is done returns, also when kgo gets to know the topics at
// that moment: what it then moves from the unknown topics into their partitions it doesn't
// take back in the same go.
func TestPublish_ReturnsWhenItsContextIsDone(t *testing.T) {
	t.Parallel()
	names := make([]string, 300)
	for i := range names {
		names[i] = fmt.Sprint("topic-", i)
	}
	b := openFake(t, fake(t, kfake.SeedTopics(4, names...)), nil)
	var callers sync.WaitGroup
	for caller := range 4 {
		callers.Go(func() {
			for i := caller; i < len(names); i += 4 {
				ctx, cancel := context.WithTimeout(context.Background(), rand.N(8*time.Millisecond))
				_ = b.Publish(ctx, spread(names[i], 40))
				cancel()
			}
		})
	}
	done := make(chan struct{})
	go func() { callers.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(wait):
		require.Fail(t, "a call doesn't return")
	}
}
