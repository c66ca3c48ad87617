package nats_test

import (
	"context"
	"net"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/nats"
	"github.com/waybill-go/waybill/internal/netfault"
	"github.com/waybill-go/waybill/internal/waittest"
)

// B2: a slow link is used for each message once, and what is on its way takes a
// bounded amount of memory.
func TestSlowLinkCarriesEachMessageOnce_B2(t *testing.T) {
	const messages, size = 100, 200_000
	rate := int64(6_000_000)
	if os.Getenv("WAYBILL_LONG") != "" {
		rate = 1_500_000
	}
	needed := time.Duration(messages*size) * time.Second / time.Duration(rate)

	h := newHost(t)
	b := h.quick(t)
	require.NoError(t, b.EnsureTopics(t.Context(), topic))
	for n := range messages {
		m := message("a", n)
		m.Body = make([]byte, size)
		require.NoError(t, b.Publish(t.Context(), []broker.Message{m}))
	}
	relay, err := netfault.New(t.Context(), strings.TrimPrefix(h.url, "nats://"))
	require.NoError(t, err)
	defer relay.Close()
	relay.Slow(rate)
	slow, err := nats.Open(t.Context(), nats.Config{URL: "nats://" + relay.Address, NKey: h.client.NKey})
	require.NoError(t, err)
	defer func() { require.NoError(t, slow.Close(context.Background())) }()

	before, most := heap(), uint64(0)
	begin := time.Now()
	c := join(t, slow)
	for n := range messages {
		got := receive(t, c, 1)
		require.Equal(t, message("a", n).ID, got[0].ID)
		waittest.Until(t, func() bool { return slow.Conn().Stats().InBytes > uint64(min(n+3, messages)*size) }, "the link isn't idle while one is in hand")
		if n%20 == 0 {
			most = max(most, heap())
		}
		require.NoError(t, c.Ack(t.Context(), got...))
	}
	took := time.Since(begin)
	require.Less(t, slow.Conn().Stats().InBytes, uint64(messages*size*11/10))
	t.Logf("%v for what takes %v; the heap grew by %d kB, at most", took.Round(time.Millisecond), needed, (max(most, before)-before)>>10)
	require.Less(t, most, before+messages*size+16<<20, "the server, which is in this process, may keep all of it")

	js, err := jetstream.New(b.Conn())
	require.NoError(t, err)
	consumer, err := js.Consumer(t.Context(), "ordering_order", "group")
	require.NoError(t, err)
	require.EqualValues(t, messages, consumer.CachedInfo().Delivered.Consumer, "none was delivered twice")
}

// heap is what is in use.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// B2: a message that is larger than all that is asked for at a time comes too, and
// so does what is behind it.
func TestMessageLargerThanTheWindow_B2(t *testing.T) {
	t.Parallel()
	b := newHost(t).patient(t)
	require.NoError(t, b.EnsureTopics(t.Context(), topic))
	for n, size := range []int{10, 7 << 20, 7 << 20, 10, 3 << 20, 100_000, 1 << 20, 2<<20 - 60, 10} {
		m := message("a", n)
		m.Body = make([]byte, size)
		require.NoError(t, b.Publish(t.Context(), []broker.Message{m}))
	}
	for n, d := range receive(t, join(t, b), 9) {
		require.Equal(t, message("a", n).ID, d.ID)
		require.Zero(t, d.Redelivered)
	}
}

// late is a connection to a server that takes more than a second for each answer.
type late struct {
	net.Conn
	asked  atomic.Bool
	closed context.Context
	end    context.CancelFunc
}

func (l *late) Close() error {
	l.end()
	return l.Conn.Close()
}

func (l *late) Write(p []byte) (int, error) {
	l.asked.Store(true)
	return l.Conn.Write(p)
}

func (l *late) Read(p []byte) (int, error) {
	if l.asked.Swap(false) {
		select {
		case <-time.After(1200 * time.Millisecond):
		case <-l.closed.Done():
		}
	}
	return l.Conn.Read(p)
}

type lateDialer struct{}

func (lateDialer) Dial(network, address string) (net.Conn, error) {
	conn, err := net.Dial(network, address)
	if err != nil {
		return nil, err
	}
	l := &late{Conn: conn}
	l.closed, l.end = context.WithCancel(context.Background())
	l.asked.Store(true) // Its first words come as late.
	return l, nil
}

// A server that takes more than a second to answer is slow, and not away, also for who has just started.
func TestSlowServerIsConnectedTo_B2(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	b, err := nats.Open(t.Context(), nats.Config{URL: h.url, NKey: h.client.NKey, Options: []natsgo.Option{natsgo.SetCustomDialer(lateDialer{})}})
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Close(context.Background())) }()
	require.NoError(t, b.EnsureTopics(t.Context(), topic))
	require.NoError(t, b.Publish(t.Context(), []broker.Message{message("a", 0)}))
	require.Equal(t, message("a", 0).ID, receive(t, join(t, h.quick(t)), 1)[0].ID)
}
