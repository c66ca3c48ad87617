package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/kafka"
)

func TestMain(m *testing.M) {
	if topic := os.Getenv(memberVar); topic != "" {
		fmt.Fprintln(os.Stderr, member(context.Background(), topic))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m,
		// sarama's metrics start one goroutine for the whole process, which never ends.
		goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"))
}

const (
	wait = time.Minute
	tick = 50 * time.Millisecond
)

func server(t testing.TB) string {
	t.Helper()
	addr := os.Getenv("WAYBILL_KAFKA")
	require.NotEmpty(t, addr, `WAYBILL_KAFKA is not set: run scripts/test, or eval "$(scripts/services up)"`)
	return addr
}

func bounded(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	t.Cleanup(cancel)
	return ctx
}

// deadline is a context that is over soon.
func deadline(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	t.Cleanup(cancel)
	return ctx
}

// open connects to the real Kafka; change may be nil.
func open(t testing.TB, change func(*kafka.Config)) *kafka.Broker {
	t.Helper()
	conf := kafka.Config{Addresses: []string{server(t)}}
	if change != nil {
		change(&conf)
	}
	b, err := kafka.Open(bounded(t), conf)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close(bounded(t))) })
	return b
}

// topic is a new one that exists.
func topic(t testing.TB, b broker.Broker) string {
	t.Helper()
	name := "test." + uuid.NewString()
	require.NoError(t, b.EnsureTopics(bounded(t), name))
	return name
}

func message(topic, key, body string) broker.Message {
	return broker.Message{
		ID: uuid.NewString(), Topic: topic, Key: key, Body: []byte(body),
		Headers: map[string]string{"type": "Test.Happened.v1", "content-type": "text/plain"},
	}
}

// run is n messages of one key with bodies from first on.
func run(topic, key string, first, n int) []broker.Message {
	all := make([]broker.Message, n)
	for i := range all {
		all[i] = message(topic, key, fmt.Sprint(first+i))
	}
	return all
}

// stored reads all of a topic with sarama alone, in the order of each partition.
func stored(t testing.TB, topic string) []*sarama.ConsumerMessage {
	t.Helper()
	conf := sarama.NewConfig()
	client, err := sarama.NewClient([]string{server(t)}, conf)
	require.NoError(t, err)
	defer client.Close()
	consumer, err := sarama.NewConsumerFromClient(client)
	require.NoError(t, err)
	defer consumer.Close()
	partitions, err := client.Partitions(topic)
	require.NoError(t, err)
	var all []*sarama.ConsumerMessage
	for _, p := range partitions {
		end, err := client.GetOffset(topic, p, sarama.OffsetNewest)
		require.NoError(t, err)
		if end == 0 {
			continue
		}
		pc, err := consumer.ConsumePartition(topic, p, 0)
		require.NoError(t, err)
		for m := range pc.Messages() {
			all = append(all, m)
			if m.Offset == end-1 {
				break
			}
		}
		require.NoError(t, pc.Close())
	}
	return all
}

// bodies are those of key, in order.
func bodies(messages []*sarama.ConsumerMessage, key string) []string {
	var all []string
	for _, m := range messages {
		if string(m.Key) == key {
			all = append(all, string(m.Value))
		}
	}
	return all
}

func failures(t testing.TB, err error) map[int]error {
	t.Helper()
	var e *broker.PublishError
	require.ErrorAs(t, err, &e)
	return e.Failed
}

// network stands between a client and Kafka. It is the client's dialer, because
// Kafka tells clients its own addresses, past any proxy.
type network struct {
	mu    sync.Mutex
	down  bool
	grace int // So many connections are refused before down ends.
	conns map[*netConn]struct{}
	onOut func(request []byte) (forward bool, err error) // Per request that is written.
	onIn  func() error                                   // Per read.
}

func newNetwork() *network { return &network{conns: map[*netConn]struct{}{}} }

func (n *network) tune(c *sarama.Config) {
	c.Net.Proxy.Enable = true
	c.Net.Proxy.Dialer = n
}

func (n *network) Dial(network, addr string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down {
		if n.grace--; n.grace == 0 {
			n.down = false
		}
		return nil, errors.New("connection refused")
	}
	conn, err := net.Dial(network, addr)
	if err != nil {
		return nil, err
	}
	c := &netConn{Conn: conn, n: n}
	n.conns[c] = struct{}{}
	return c, nil
}

// cut ends all connections and refuses new ones until up.
func (n *network) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = true
	for c := range n.conns {
		c.Conn.Close()
	}
	clear(n.conns)
}

func (n *network) up() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = false
}

// on sets what happens to requests and answers; nil for nothing.
func (n *network) on(out func(request []byte) (bool, error), in func() error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.onOut, n.onIn = out, in
}

type netConn struct {
	net.Conn
	n *network
}

func (c *netConn) Write(b []byte) (int, error) {
	c.n.mu.Lock()
	out := c.n.onOut
	c.n.mu.Unlock()
	if out != nil {
		forward, err := out(b)
		if err != nil {
			return 0, err
		}
		if !forward {
			return len(b), nil
		}
	}
	return c.Conn.Write(b)
}

func (c *netConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.n.mu.Lock()
	in := c.n.onIn
	c.n.mu.Unlock()
	if in != nil {
		if err := in(); err != nil {
			return 0, err
		}
	}
	return n, err
}

func (c *netConn) Close() error {
	c.n.mu.Lock()
	delete(c.n.conns, c)
	c.n.mu.Unlock()
	return c.Conn.Close()
}
