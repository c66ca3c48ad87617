package kafka_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/kafka"
	"github.com/waybill-go/waybill/internal/waittest"
)

func join(t testing.TB, b broker.Broker, topic string) broker.Consumer {
	t.Helper()
	c, err := b.Consume(bounded(t), topic, "group."+topic)
	require.NoError(t, err)
	return c
}

func receive(t testing.TB, c broker.Consumer, n int) []broker.Delivery {
	t.Helper()
	var all []broker.Delivery
	ctx := bounded(t)
	for len(all) < n {
		got, err := c.Receive(ctx, n-len(all))
		require.NoError(t, err)
		all = append(all, got...)
	}
	return all
}

// spread is n messages over many keys, hence over all partitions.
func spread(topic string, n int) []broker.Message {
	all := make([]broker.Message, n)
	for i := range all {
		all[i] = message(topic, fmt.Sprint("key-", i%50), fmt.Sprint(i))
	}
	return all
}

func isLost(d broker.Delivery) bool {
	select {
	case <-d.Lost:
		return true
	default:
		return false
	}
}

// A second member takes over part of the partitions: the first one is told which
// messages it lost, keeps the others, and the second one gets exactly the lost
// ones that weren't acknowledged.
func TestConsume_Rebalance_F70(t *testing.T) {
	t.Parallel()
	b, other := open(t, nil), open(t, nil)
	name := topic(t, b)
	require.NoError(t, b.Publish(bounded(t), spread(name, 200)))
	first := join(t, b, name)
	out := receive(t, first, 200)

	second := join(t, other, name)
	taken, err := second.Receive(bounded(t), 200)
	require.NoError(t, err)
	var lost, kept []broker.Delivery
	for _, d := range out {
		if isLost(d) {
			lost = append(lost, d)
		} else {
			kept = append(kept, d)
		}
	}
	require.NotEmpty(t, lost)
	require.NotEmpty(t, kept, "what stays is not disturbed")
	taken = append(taken, receive(t, second, len(lost)-len(taken))...)
	require.ElementsMatch(t, ids(lost), ids(taken))

	require.NoError(t, first.Ack(bounded(t), lost...), "too late, and no harm")
	require.NoError(t, first.Ack(bounded(t), kept...))
	require.NoError(t, first.Close(bounded(t)))
	require.NoError(t, second.Close(bounded(t)), "acknowledged nothing")

	third := join(t, b, name)
	require.ElementsMatch(t, ids(lost), ids(receive(t, third, len(lost))))
	require.NoError(t, b.Publish(bounded(t), []broker.Message{message(name, "last", "last")}))
	require.Equal(t, "last", string(receive(t, third, 1)[0].Body), "nothing else came again")
}

func ids(deliveries []broker.Delivery) []string {
	all := make([]string, len(deliveries))
	for i, d := range deliveries {
		all[i] = d.ID
	}
	return all
}

// C-79 stop_receiving_when_too_busy_and_restart: more than fits into memory's share
// waits in Kafka, the member stays in the group meanwhile, and all comes in order.
func TestConsume_SlowReceiver_F73_F74(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	name := limited(t, b, 1<<20)
	first, other := join(t, b, name), join(t, b, name)
	body := make([]byte, 100_000)
	const n = 100
	for i := range n {
		m := message(name, "key", "")
		m.Body = append([]byte(fmt.Sprintf("%03d", i)), body...)
		require.NoError(t, b.Publish(bounded(t), []broker.Message{m}))
	}
	// Only one of two members has the one partition.
	var mu sync.Mutex
	var order []string
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(bounded(t))
	for _, c := range []broker.Consumer{first, other} {
		wg.Go(func() {
			for {
				got, err := c.Receive(ctx, 1)
				if err != nil {
					return
				}
				mu.Lock()
				order = append(order, string(got[0].Body[:3]))
				mu.Unlock()
				if err := c.Ack(ctx, got...); err != nil {
					t.Error(err) // not of the test's own goroutine
				}
			}
		})
	}
	waittest.Until(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(order) >= n
	})
	cancel()
	wg.Wait()
	for i, got := range order {
		require.Equal(t, fmt.Sprintf("%03d", i), got)
	}
}

// A topic that is created after its consumer has started is consumed.
func TestConsume_BeforeTheTopicExists(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	name := "test.later." + uuid.NewString()
	c := join(t, b, name)
	got := make(chan []broker.Delivery, 1)
	go func() {
		d, _ := c.Receive(bounded(t), 1)
		got <- d
	}()
	require.NoError(t, b.EnsureTopics(bounded(t), name))
	require.NoError(t, b.Publish(bounded(t), run(name, "key", 7, 1)))
	require.Len(t, <-got, 1)
}

// Consume works while Kafka is down, and Close doesn't wait for it.
func TestConsume_Down(t *testing.T) {
	t.Parallel()
	network := newNetwork()
	b := open(t, func(c *kafka.Config) { c.Dial, c.Logger = network.Dial, slog.New(slog.DiscardHandler) })
	name := topic(t, b)
	require.NoError(t, b.Publish(bounded(t), run(name, "key", 0, 1)))
	network.cut()
	c := join(t, b, name)
	_, err := c.Receive(deadline(t), 1)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	network.up()
	require.Equal(t, "0", string(receive(t, c, 1)[0].Body))

	network.on(func([]byte) (bool, error) { return false, nil }, nil)
	require.Error(t, c.Close(bounded(t)), "Kafka said nothing to the last commit")
	network.on(nil, nil)
}

func TestConsume_Misuse(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	_, err := b.Consume(bounded(t), "", "group")
	require.ErrorContains(t, err, "topic")
	_, err = b.Consume(bounded(t), "topic", "")
	require.ErrorContains(t, err, "group")
	name := topic(t, b)
	require.NoError(t, b.Publish(bounded(t), run(name, "key", 0, 1)))
	c, other := join(t, b, name), join(t, b, topic(t, b))
	got := receive(t, c, 1)
	require.ErrorContains(t, other.Ack(bounded(t), got...), "not delivered by this consumer")
	require.ErrorContains(t, other.Release(bounded(t), broker.Delivery{}), "not delivered by this consumer")
	require.NoError(t, c.Close(bounded(t)))
	require.NoError(t, c.Close(bounded(t)), "again")
	_, err = c.Receive(bounded(t), 1)
	require.ErrorIs(t, err, kafka.ErrClosed)
	require.ErrorIs(t, c.Ack(bounded(t), got...), kafka.ErrClosed)
}

// A partition with much to do isn't held up by others that have nothing, for which the
// server keeps the fetch that is out.
func TestReceive_IdlePartitionsHoldUpNoOther(t *testing.T) {
	t.Parallel()
	c := fake(t, kfake.SeedTopics(8, "wide"))
	b := openFake(t, c, func(c *kafka.Config) { c.Compression = "none" })
	const n, size = 600, 100_000
	for i := range n / 10 {
		call := run("wide", "key", 10*i, 10)
		for j := range call {
			call[j].Body = make([]byte, size)
		}
		require.NoError(t, b.Publish(bounded(t), call))
	}
	without := make(chan struct{}, 1) // A fetch is out that leaves out the partition that is full.
	var kept atomic.Int32             // milliseconds, of the fetch that may be kept for longest
	c.ControlKey(kmsg.Fetch.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		f := r.(*kmsg.FetchRequest)
		kept.Store(max(kept.Load(), f.MaxWaitMillis))
		if len(f.ForgottenTopics) > 0 {
			select {
			case without <- struct{}{}:
			default:
			}
		}
		return nil, nil, false
	})
	member := join(t, b, "wide")
	receive(t, member, 1)
	begin := time.Now()
	for left := n - 1; left > 0; {
		select {
		case <-without:
		case <-time.After(tick): // It has been emptied before that.
		}
		got, err := member.Receive(bounded(t), 10)
		require.NoError(t, err)
		require.NoError(t, member.Ack(bounded(t), got...))
		left -= len(got)
	}
	t.Logf("%d MB in %v", n*size/1_000_000, time.Since(begin))
	require.Positive(t, kept.Load())
	require.Less(t, kept.Load(), int32(500), "a server keeps a fetch for 5 s, if it isn't told otherwise")
}

func BenchmarkConsume(b *testing.B) {
	br := open(b, nil)
	name := topic(b, br)
	const size = 1000
	for range b.N {
		require.NoError(b, br.Publish(b.Context(), spread(name, size)))
	}
	c := join(b, br, name)
	b.ReportAllocs()
	b.ResetTimer()
	for n := 0; n < b.N*size; {
		got, err := c.Receive(b.Context(), 500)
		require.NoError(b, err)
		require.NoError(b, c.Ack(b.Context(), got...))
		n += len(got)
	}
	b.ReportMetric(float64(b.N*size)/b.Elapsed().Seconds(), "msg/s")
}
