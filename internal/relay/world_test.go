package relay_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/internal/logtest"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/internal/relay/relaytest"
	"github.com/waybill-go/waybill/outbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	target = "default"
	topic  = "test.thing"
)

// world is a database, a broker, and the relays of some processes.
type world struct {
	*testing.T

	store  *relaytest.Store
	broker *memory.Broker
	logs   logs
}

type logs struct{ logtest.Log }

func (l *logs) count(what string) int { return strings.Count(l.String(), what) }

// inWorld runs a test in a bubble, where time passes when nothing else can.
func inWorld(t *testing.T, test func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		test(&world{T: t, store: relaytest.New(8), broker: memory.New(memory.Config{})})
	})
}

// process is a relay with its own connections.
type process struct {
	*relay.Relay

	store  *relaytest.Store
	broker *connection
}

// connection is a process's to the broker.
type connection struct {
	broker.Broker

	noPrefix bool
	mu       sync.Mutex
	publish  func(ctx context.Context, messages []broker.Message) error
}

var errDown = broker.Scoped(broker.Unavailable, broker.ScopeBroker, errors.New("the broker is down"))

// through has it publish by f; nil: as it should.
func (c *connection) through(f func(ctx context.Context, messages []broker.Message) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.publish = f
}

// down cuts it, or mends it.
func (c *connection) down(is bool) {
	c.through(nil)
	if is {
		c.through(func(context.Context, []broker.Message) error { return errDown })
	}
}

// Publish implements [broker.Publisher].
func (c *connection) Publish(ctx context.Context, messages []broker.Message) error {
	c.mu.Lock()
	publish := c.publish
	c.mu.Unlock()
	if publish == nil {
		return c.Broker.Publish(ctx, messages)
	}
	return publish(ctx, messages)
}

// Capabilities implements [broker.Broker].
func (c *connection) Capabilities() broker.Capabilities {
	all := c.Broker.Capabilities()
	all.Prefix = all.Prefix && !c.noPrefix
	return all
}

// start starts a process, which is stopped at the end of the test.
func (w *world) start(change ...func(*process, *relay.Config)) *process {
	w.Helper()
	p := &process{store: w.store.Connect(), broker: &connection{Broker: w.broker}}
	cfg := relay.Config{
		Provider: "test", Store: p.store, Lanes: []relay.Lane{{Target: target, Broker: p.broker}},
		Outbox: outbox.Config{Retry: outbox.RetryPolicy{Jitter: -1}}, Logger: slog.New(slog.NewTextHandler(&w.logs, nil)),
	}
	for _, c := range change {
		c(p, &cfg)
	}
	var err error
	p.Relay, err = relay.New(cfg)
	require.NoError(w, err)
	require.NoError(w, p.Start(w.Context()))
	w.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_ = p.Stop(ctx) // some tests have stopped it
	})
	return p
}

// insert commits rows of keys, and tells a process.
func (w *world) insert(p *process, keys ...string) {
	var rows []outbox.Row
	for _, key := range keys {
		rows = append(rows, relaytest.Row(target, topic, key))
	}
	pokes := w.store.Insert(rows...)
	if p != nil {
		p.Wake(pokes)
	}
}

// until lets time pass until something is so, at most a limit.
func (w *world) until(limit time.Duration, what string, is func() bool) {
	w.Helper()
	for end := time.Now().Add(limit); !is(); {
		if time.Now().After(end) {
			require.FailNow(w, "it never was: "+what, "%v %v", w.store.Undelivered(), w.logs.String())
		}
		time.Sleep(10 * time.Millisecond) //nolint:forbidigo // in a bubble
	}
}

// delivered waits until nothing is queued or in hand.
func (w *world) delivered(limit time.Duration) {
	w.Helper()
	w.until(limit, "delivered", func() bool { return len(w.store.Undelivered()) == 0 && w.store.Tokens() == 0 })
}

// ids are the messages that the broker has stored of a key, in order.
func (w *world) ids(key string) (ids []string) {
	for _, m := range w.broker.Messages(topic) {
		if m.Key == key {
			ids = append(ids, m.ID)
		}
	}
	return ids
}

// inOrder requires that of each key the first copies came in the order of their seqs, and
// that a copy never comes after what is later than its own repetition began with.
func (w *world) inOrder(rows map[string][]string) {
	w.Helper()
	for key, want := range rows {
		var first []string
		for _, id := range w.ids(key) {
			if !slices.Contains(first, id) {
				first = append(first, id)
			}
		}
		require.Equal(w, want, first, "key %s", key)
	}
}

// commit commits n rows of each key, in turns, and returns their ids by key.
func (w *world) commit(p *process, n, keys int) map[string][]string {
	ids := map[string][]string{}
	for range n {
		for k := range keys {
			row := relaytest.Row(target, topic, fmt.Sprintf("key-%d", k))
			ids[row.PartitionKey] = append(ids[row.PartitionKey], row.MessageID)
			pokes := w.store.Insert(row)
			if p != nil {
				p.Wake(pokes)
			}
		}
	}
	return ids
}
