package kafka_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/kafka"
	"github.com/waybill-go/waybill/internal/waittest"
)

// The partition is Java's: murmur2 of the key. The hashes are those of Kafka's
// own tests.
func TestPublish_PartitionByKeyAsJava(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	name := topic(t, b)
	hashes := map[string]int32{
		"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536,
		"a-little-bit-longer-string":                       -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
	}
	for key := range hashes {
		require.NoError(t, b.Publish(bounded(t), run(name, key, 0, 3)))
	}
	all := stored(t, name)
	require.Len(t, all, 3*len(hashes))
	for _, m := range all {
		require.Equal(t, (hashes[string(m.Key)]&0x7fffffff)%8, m.Partition, "key %s", m.Key)
	}
}

// Conformance: A51, A52.
func TestPublish_RefusedBeforeSending(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	name := topic(t, b)
	for what, spoil := range map[string]func(*broker.Message){
		"too large":             func(m *broker.Message) { m.Body = make([]byte, 2<<20) },
		"a reserved header":     func(m *broker.Message) { m.Headers["_watermill_message_uuid"] = "x" },
		"a bad topic":           func(m *broker.Message) { m.Topic = "not a topic" },
		"a topic of one dot":    func(m *broker.Message) { m.Topic = "." },
		"no id":                 func(m *broker.Message) { m.ID = "" },
		"a header that is huge": func(m *broker.Message) { m.Headers["x"] = string(make([]byte, 2<<20)) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			key := uuid.NewString()
			call := append(run(name, key, 1, 3), message(name, "other", what))
			spoil(&call[1])
			failed := failures(t, b.Publish(bounded(t), call))
			class, scope := broker.Permanent, broker.ScopeRow
			if strings.Contains(what, "topic") {
				class, scope = broker.Unavailable, broker.ScopeTopic
			}
			require.Equal(t, class, broker.ClassOf(failed[1]), "%v", failed[1])
			require.Equal(t, scope, broker.ScopeOf(failed[1]), "%v", failed[1])
			require.Error(t, failed[2], "behind it")
			require.Len(t, failed, 2)
			require.Equal(t, []string{"1"}, bodies(stored(t, name), key))
		})
	}
	failed := failures(t, b.Publish(bounded(t), []broker.Message{message(name, "", "no key")}))
	require.Equal(t, broker.Permanent, broker.ClassOf(failed[0]))
}

// limited is a topic of one partition that takes batches of at most n bytes.
func limited(t *testing.T, b *kafka.Broker, n int) string {
	t.Helper()
	name, limit := "test."+uuid.NewString(), fmt.Sprint(n)
	_, err := admin(t).CreateTopic(bounded(t), 1, -1, map[string]*string{"max.message.bytes": &limit}, name)
	require.NoError(t, err)
	require.NoError(t, b.EnsureTopics(bounded(t), name)) // Waits until it is ready.
	return name
}

// C-62: Kafka refuses a whole batch because of one message, which may not cost
// its neighbours, nor let the followers of its key overtake it.
// Conformance: U-05.
func TestPublish_C62_SameKeyOrderSurvivesMiddleRecordRejection(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	small := limited(t, b, 4000)
	other := topic(t, b)
	noise := make([]byte, 5000) // It doesn't compress.
	_, _ = rand.Read(noise)
	call := []broker.Message{
		message(small, "a", "1"), message(small, "b", "1"), message(small, "a", "2"), message(small, "a", "3"),
		message(small, "b", "2"), message(other, "a", "4"), message(other, "c", "1"),
	}
	call[2].Body = noise
	failed := failures(t, b.Publish(bounded(t), call))
	require.Equal(t, broker.Permanent, broker.ClassOf(failed[2]), "%v", failed[2])
	require.Error(t, failed[3])
	require.Error(t, failed[5], "a key's run is one run, over all topics")
	require.Len(t, failed, 3, "%v", failed)
	require.Equal(t, []string{"1"}, bodies(stored(t, small), "a"))
	require.Equal(t, []string{"1", "2"}, bodies(stored(t, small), "b"))
	require.Empty(t, bodies(stored(t, other), "a"))
	require.Equal(t, []string{"1"}, bodies(stored(t, other), "c"))

	require.NoError(t, b.Publish(bounded(t), append(run(small, "a", 3, 2), run(small, "b", 3, 2)...)), "the next call")
	require.Equal(t, []string{"1", "3", "4"}, bodies(stored(t, small), "a"))
	require.Equal(t, []string{"1", "2", "3", "4"}, bodies(stored(t, small), "b"))
}

// More than a batch may hold is several batches, still in order.
func TestPublish_ManyBatches(t *testing.T) {
	t.Parallel()
	b := open(t, func(c *kafka.Config) { c.MaxMessageBytes = 2000 })
	name, other := topic(t, b), topic(t, b)
	var call []broker.Message
	var want []string
	for i := range 300 {
		to := name
		if i%100 > 70 {
			to = other
		} else {
			want = append(want, fmt.Sprint(i))
		}
		call = append(call, message(to, "key", fmt.Sprint(i)))
	}
	require.NoError(t, b.Publish(bounded(t), call))
	require.Equal(t, want, bodies(stored(t, name), "key"))
	require.Len(t, stored(t, other), len(call)-len(want))
}

// Conformance: F-28.
func TestPublish_UnknownTopicIsTransient(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	name := topic(t, b)
	call := []broker.Message{message(name, "a", "1"), message("test.missing", "a", "2"), message(name, "a", "3"), message(name, "b", "1")}
	failed := failures(t, b.Publish(bounded(t), call))
	require.Equal(t, broker.Transient, broker.ClassOf(failed[1]), "%v", failed[1])
	require.ErrorContains(t, failed[1], "EnsureTopics")
	require.Len(t, failed, 2)
	require.Equal(t, []string{"1"}, bodies(stored(t, name), "a"))
}

// produces says that a written request is one of produce.
func produces(request []byte) bool {
	return len(request) > 6 && request[4] == 0 && request[5] == 0
}

// Connections break before and after requests arrive; what was sent twice is
// stored once, in order.
func TestPublish_BrokenConnections(t *testing.T) {
	t.Parallel()
	net := newNetwork()
	b := open(t, func(c *kafka.Config) { c.Dial = net.Dial })
	name := topic(t, b)
	var requests, answers atomic.Int64
	broken := errors.New("broken")
	net.on(func(request []byte) (bool, error) {
		if produces(request) && requests.Add(1)%3 == 0 {
			return false, broken
		}
		return true, nil
	}, func() error {
		if answers.Add(1)%7 == 0 {
			return broken
		}
		return nil
	})
	want := map[string][]string{}
	for i := range 20 {
		var call []broker.Message
		for k := range 10 {
			key := fmt.Sprint("key-", k)
			call = append(call, run(name, key, 2*i, 2)...)
			want[key] = append(want[key], fmt.Sprint(2*i), fmt.Sprint(2*i+1))
		}
		// Where the answer to a question about the cluster is what breaks, some of the
		// call has not been sent, and is known not to be.
		for err := b.Publish(bounded(t), call); err != nil; err = b.Publish(bounded(t), call) {
			var rest []broker.Message
			partial, ok := errors.AsType[*broker.PublishError](err)
			for i, m := range call {
				if !ok || partial.Failed[i] != nil {
					rest = append(rest, m)
				}
			}
			if ok {
				for _, failed := range partial.Failed {
					require.Equal(t, broker.Unavailable, broker.ClassOf(failed), "%v", failed)
				}
			} else {
				require.Equal(t, broker.Unavailable, broker.ClassOf(err), "%v", err)
			}
			call = rest
		}
	}
	net.on(nil, nil)
	all := stored(t, name)
	for key := range want {
		require.Equal(t, want[key], bodies(all, key))
	}
}

// A call that ends while its request is under way is in doubt. The request may
// still arrive then: after the next call, Kafka refuses it.
func TestPublish_DoubtEndsWithTheNextCall(t *testing.T) {
	t.Parallel()
	network := newNetwork()
	b := open(t, func(c *kafka.Config) { c.Dial = network.Dial })
	name := topic(t, b)
	require.NoError(t, b.Publish(bounded(t), run(name, "key", 0, 1)), "the partition knows the producer")

	held := make(chan []byte, 1)
	network.on(func(request []byte) (bool, error) {
		if produces(request) {
			held <- append([]byte{}, request...)
			return false, nil
		}
		return true, nil
	}, nil)
	ctx, cancel := context.WithCancel(bounded(t))
	var late []byte
	done := make(chan struct{})
	go func() {
		defer close(done)
		late = <-held
		cancel()
	}()
	failed := failures(t, b.Publish(ctx, run(name, "key", 1, 2)))
	<-done
	require.Len(t, failed, 2)
	require.Equal(t, broker.Unknown, broker.ClassOf(failed[0]), "%v", failed[0])
	require.ErrorIs(t, failed[0], context.Canceled)

	network.on(nil, nil)
	require.NoError(t, b.Publish(bounded(t), run(name, "key", 1, 3)))

	conn, err := net.Dial("tcp", server(t))
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.Write(late)
	require.NoError(t, err)
	_, err = conn.Read(make([]byte, 1)) // Kafka has dealt with it.
	require.NoError(t, err)
	require.Equal(t, []string{"0", "1", "2", "3"}, bodies(stored(t, name), "key"))
}

// The answer is lost, not the request: Kafka must not take the next call for the
// same one.
func TestPublish_DoubtIsNoDuplicate(t *testing.T) {
	t.Parallel()
	network := newNetwork()
	b := open(t, func(c *kafka.Config) { c.Dial = network.Dial })
	name := topic(t, b)
	require.NoError(t, b.Publish(bounded(t), run(name, "key", 0, 1)))
	ctx, cancel := context.WithCancel(bounded(t))
	var sent atomic.Bool
	network.on(func(request []byte) (bool, error) {
		sent.Store(sent.Load() || produces(request))
		return true, nil
	}, func() error {
		if sent.Load() {
			cancel()
			return errors.New("lost")
		}
		return nil
	})
	failed := failures(t, b.Publish(ctx, run(name, "key", 1, 2)))
	require.Equal(t, broker.Unknown, broker.ClassOf(failed[0]), "%v", failed[0])
	network.on(nil, nil)
	require.NoError(t, b.Publish(bounded(t), run(name, "key", 3, 2)))
	require.Equal(t, []string{"0", "1", "2", "3", "4"}, bodies(stored(t, name), "key"))
}

// A connection that died while it rested is found out before the call is in
// doubt.
func TestPublish_RestedConnection(t *testing.T) {
	t.Parallel()
	network := newNetwork()
	b := open(t, func(c *kafka.Config) { c.Dial = network.Dial })
	name := topic(t, b)
	require.NoError(t, b.Publish(bounded(t), run(name, "key", 0, 1)))
	waittest.Until(t, network.rests)
	network.on(func([]byte) (bool, error) { return false, nil }, nil)
	failed := failures(t, b.Publish(bounded(t), run(name, "key", 1, 1)))
	require.Equal(t, broker.Unavailable, broker.ClassOf(failed[0]), "%v", failed[0])
}

// Nothing of a call whose context is over before is sent.
func TestPublish_OverBefore(t *testing.T) {
	t.Parallel()
	network := newNetwork()
	b := open(t, func(c *kafka.Config) { c.Dial = network.Dial })
	name := topic(t, b)
	require.NoError(t, b.Publish(bounded(t), run(name, "key", 0, 1)))
	network.on(func(request []byte) (bool, error) {
		require.False(t, produces(request))
		return true, nil
	}, nil)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	failed := failures(t, b.Publish(ctx, run(name, "key", 1, 1)))
	require.Equal(t, broker.Unavailable, broker.ClassOf(failed[0]), "%v", failed[0])
}

// S2-42, C-60: a server that takes everything and says nothing: what was sent is in doubt,
// later calls are sure that nothing was, and none hangs.
func TestPublish_SilentServer(t *testing.T) {
	t.Parallel()
	network := newNetwork()
	b := open(t, func(c *kafka.Config) {
		c.Dial = network.Dial
		c.PublishTimeout = 2 * time.Second
	})
	name := topic(t, b)
	require.NoError(t, b.Publish(bounded(t), run(name, "key", 0, 1)))
	network.on(func([]byte) (bool, error) { return false, nil }, nil)
	failed := failures(t, b.Publish(context.Background(), run(name, "key", 1, 1)))
	require.Equal(t, broker.Unknown, broker.ClassOf(failed[0]), "%v", failed[0])
	failed = failures(t, b.Publish(context.Background(), run(name, "key", 1, 1)))
	require.Equal(t, broker.Unavailable, broker.ClassOf(failed[0]), "%v", failed[0])
	require.Equal(t, broker.ScopeUnknown, broker.ScopeOf(failed[0]), "who knows what would have come")
	require.Error(t, b.EnsureTopics(deadline(t), "test.silent"))

	network.on(nil, nil)
	require.NoError(t, b.Publish(bounded(t), run(name, "key", 1, 1)))
	require.Equal(t, []string{"0", "1"}, bodies(stored(t, name), "key"))
}

// A server that answers after two seconds is slow, and not away: what a new producer asks it for, one
// after the other, takes longer than a call waits for a server that says nothing.
func TestPublish_SlowServer(t *testing.T) {
	t.Parallel()
	network := newNetwork()
	b := open(t, func(c *kafka.Config) { c.Dial = network.Dial })
	name := topic(t, b)
	var asked atomic.Bool
	network.on(func([]byte) (bool, error) {
		asked.Store(true)
		return true, nil
	}, func() error {
		if asked.Swap(false) {
			<-time.After(2 * time.Second)
		}
		return nil
	})
	require.NoError(t, b.Publish(bounded(t), run(name, "key", 0, 2)))
	network.on(nil, nil)
	require.Equal(t, []string{"0", "1"}, bodies(stored(t, name), "key"))
}

// While no server can be reached a call fails at once, and costs nothing.
func TestPublish_Down(t *testing.T) {
	t.Parallel()
	network := newNetwork()
	b := open(t, func(c *kafka.Config) { c.Dial = network.Dial })
	name := topic(t, b)
	network.cut()
	for range 3 {
		failed := failures(t, b.Publish(bounded(t), run(name, "key", 0, 2)))
		require.Len(t, failed, 2)
		for _, err := range failed {
			require.Equal(t, broker.Unavailable, broker.ClassOf(err), "%v", err)
			require.Equal(t, broker.ScopeBroker, broker.ScopeOf(err), "%v", err)
			require.ErrorContains(t, err, server(t))
		}
	}
	network.up()
	require.NoError(t, b.Publish(bounded(t), run(name, "key", 0, 2)))
	require.Equal(t, []string{"0", "1"}, bodies(stored(t, name), "key"))
}

// What is called unavailable is not stored, even if the server comes back at
// that moment.
func TestPublish_UnavailableIsNotStored(t *testing.T) {
	t.Parallel()
	for refused := 1; refused <= 4; refused++ {
		network := newNetwork()
		b := open(t, func(c *kafka.Config) { c.Dial = network.Dial })
		name := topic(t, b)
		require.NoError(t, b.Publish(bounded(t), run(name, "key", 0, 1)))
		network.cut()
		network.mu.Lock()
		network.grace = refused
		network.mu.Unlock()
		err := b.Publish(bounded(t), run(name, "key", 1, 1))
		want := []string{"0", "1"}
		if err != nil {
			require.Equal(t, broker.Unavailable, broker.ClassOf(failures(t, err)[0]))
			want = want[:1]
		}
		require.Equal(t, want, bodies(stored(t, name), "key"), "refused %d", refused)
	}
}

func BenchmarkPublish(b *testing.B) {
	br := open(b, nil)
	name := topic(b, br)
	body := make([]byte, 500)
	_, _ = rand.Read(body)
	for _, size := range []int{1, 100, 500} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			b.SetParallelism(2) // With two cores four callers.
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				call := make([]broker.Message, size)
				for i := range call {
					call[i] = message(name, fmt.Sprint("key-", i), "")
					call[i].Body = body
				}
				for pb.Next() {
					if err := br.Publish(b.Context(), call); err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64(b.N*size)/b.Elapsed().Seconds(), "msg/s")
		})
	}
}
