package kafka_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/kafka"
)

func TestMain(m *testing.M) {
	if topic := os.Getenv(memberVar); topic != "" {
		fmt.Fprintln(os.Stderr, member(context.Background(), topic))
		os.Exit(1)
	}
	// These tests wait more than they work, so more of them than there are processors run
	// side by side.
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
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
	return openAs(t, conf)
}

func openAs(t testing.TB, conf kafka.Config) *kafka.Broker {
	t.Helper()
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

// stored reads all of a topic, in the order of each partition.
func stored(t testing.TB, topic string) []*kgo.Record {
	t.Helper()
	return readAll(t, admin(t), topic, server(t))
}

// readAll waits for what there is, messages and marks, up to the end of now.
func readAll(t testing.TB, admin *kadm.Client, topic string, servers ...string) (all []*kgo.Record) {
	t.Helper()
	ends, err := admin.ListEndOffsets(bounded(t), topic)
	require.NoError(t, err)
	left := map[int32]int64{}
	for id, end := range ends[topic] {
		if end.Offset > 0 {
			left[id] = end.Offset
		}
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(servers...), kgo.ConsumeTopics(topic), kgo.KeepControlRecords())
	require.NoError(t, err)
	defer client.Close()
	byPartition := map[int32][]*kgo.Record{}
	for len(left) > 0 {
		fetches := client.PollFetches(bounded(t))
		require.NoError(t, fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) {
			if r.Offset+1 == left[r.Partition] {
				delete(left, r.Partition)
			}
			if !r.Attrs.IsControl() {
				byPartition[r.Partition] = append(byPartition[r.Partition], r)
			}
		})
	}
	for _, id := range slices.Sorted(maps.Keys(byPartition)) {
		all = append(all, byPartition[id]...)
	}
	return all
}

// bodies are those of key, in order.
func bodies(messages []*kgo.Record, key string) []string {
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
	mu       sync.Mutex
	down     bool
	redirect bool
	grace    int // So many connections are refused before down ends.
	conns    map[*netConn]struct{}
	onOut    func(request []byte) (forward bool, err error) // Per request that is written.
	onIn     func() error                                   // Per read.
}

func newNetwork() *network { return &network{conns: map[*netConn]struct{}{}} }

func (n *network) Dial(_ context.Context, network, addr string) (net.Conn, error) {
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

// to is n with other addresses.
func (n *network) to(other func(addr string) string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		return n.Dial(ctx, network, other(addr))
	}
}

// rests says that there is no connection: it was closed after some time without use.
func (n *network) rests() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.conns) == 0
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

// refuse ends all connections; who asks isDown refuses new ones.
func (n *network) refuse() {
	n.cut()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down, n.redirect = false, true
}

func (n *network) isDown() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.redirect
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
