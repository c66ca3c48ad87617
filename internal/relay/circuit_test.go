package relay_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/outbox"
)

// choking never answers a call that holds certain messages, and notes them.
type choking struct {
	broker.Broker
	on func(m broker.Message) bool

	mu    sync.Mutex
	calls []int // keys in the calls that were not answered
}

func (c *choking) Publish(ctx context.Context, messages []broker.Message) error {
	if !slices.ContainsFunc(messages, c.on) {
		return c.Broker.Publish(ctx, messages)
	}
	c.mu.Lock()
	c.calls = append(c.calls, len(byKey(messages)))
	c.mu.Unlock()
	<-ctx.Done()
	return ctx.Err()
}

// A message that the broker never answers takes no other with it: nobody pays
// for the call of many rows; once another key was answered, the rows of that call
// go one by one, and the one that is then not answered pays until it is abandoned
// as unknown.
func TestProcessor_UnansweredRowPaysAlone(t *testing.T) {
	t.Parallel()
	for name, calls := range map[string]int{"one call": 1, "several": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := outboxdbtest.Open(t, outboxdbtest.PostgreSQL(t))
			rows := b.Insert(append(outboxdbtest.Numbered("k", 20), "choke", "choke")...)
			m := memory.New(memory.Config{})
			c := &choking{Broker: m, on: func(m broker.Message) bool { return m.ID == rows[20].MessageID }}
			cfg := quick()
			cfg.Calls, cfg.Lease, cfg.PublishTimeout = calls, time.Minute, 500*time.Millisecond
			cfg.Retry.MaxAttempts = 2
			p := processor(t, b, cfg, to(c))
			var feed []outbox.Row // neighbours: without one that is answered nothing tells the row from an outage
			eventually(t, func() bool {
				feed = append(feed, b.Insert(fmt.Sprint("later-", len(feed)))...)
				return b.Count("SELECT count(*) FROM outbox_abandoned") == 1
			}, "it is given up")
			statuses(t, b, map[outbox.Status]int{outbox.Published: 21 + len(feed), outbox.Abandoned: 1})
			for _, e := range entries(t, b) {
				if e.MessageID == rows[20].MessageID {
					require.Equal(t, outbox.Abandoned, e.Status)
					require.Equal(t, "unknown", e.FailureClass)
					require.Equal(t, 2, e.Attempts)
				} else {
					require.Equal(t, 1, e.Attempts, "%s paid for another", e.PartitionKey)
				}
			}
			require.Equal(t, rowsByKey(append(slices.Delete(rows, 20, 21), feed...)), byKey(m.Messages(orders)))
			eventually(t, func() bool { return p.Status()[target].Breaker == "closed" }, "in time")
			alone := 0
			for _, n := range c.calls {
				if n == 1 {
					alone++
				}
			}
			require.GreaterOrEqual(t, alone, 2, c.calls)
		})
	}
}

// Also if it is the oldest of all, and everybody was in its call: probes go on
// to others, and don't come to it again and again.
func TestProcessor_ProbesGoPastTheRowThatIsNotAnswered(t *testing.T) {
	t.Parallel()
	b := outboxdbtest.Open(t, outboxdbtest.SQLite(t))
	rows := b.Insert(append([]string{"choke"}, outboxdbtest.Numbered("k", 10)...)...)
	m := memory.New(memory.Config{})
	c := &choking{Broker: m, on: func(m broker.Message) bool { return m.Key == "choke" }}
	cfg := quick()
	cfg.Calls, cfg.Lease, cfg.PublishTimeout = 1, time.Minute, 500*time.Millisecond
	cfg.Retry.MaxAttempts = 1
	processor(t, b, cfg, to(c))
	statuses(t, b, map[outbox.Status]int{outbox.Published: 10, outbox.Abandoned: 1})
	require.Equal(t, rowsByKey(rows[1:]), byKey(m.Messages(orders)))
}

// With nobody else to ask there is no telling a broker that is away from a row
// that it can't stand: nobody pays, and it goes on when it is answered.
func TestProcessor_UnansweredRowAloneInItsLaneDoesNotPay(t *testing.T) {
	t.Parallel()
	b := outboxdbtest.Open(t, outboxdbtest.SQLite(t))
	b.Insert("choke")
	m := memory.New(memory.Config{})
	var mu sync.Mutex
	away := true
	c := &choking{Broker: m, on: func(broker.Message) bool { mu.Lock(); defer mu.Unlock(); return away }}
	cfg := quick()
	cfg.Lease, cfg.PublishTimeout = time.Minute, 20*time.Millisecond
	cfg.Retry.MaxAttempts = 1
	processor(t, b, cfg, to(c))
	eventually(t, func() bool { c.mu.Lock(); defer c.mu.Unlock(); return len(c.calls) >= 3 }, "in time")
	require.False(t, has(t, b, outbox.Abandoned))
	mu.Lock()
	away = false
	mu.Unlock()
	statuses(t, b, map[outbox.Status]int{outbox.Published: 1})
	require.Equal(t, 1, entries(t, b)[0].Attempts)
}

// Who was in a call that was not answered gets its turn again however its own
// call ends, also if the broker was away just then.
func TestProcessor_SuspectGoesOnAfterAnOutage(t *testing.T) {
	t.Parallel()
	b := outboxdbtest.Open(t, outboxdbtest.SQLite(t))
	rows := b.Insert(append(outboxdbtest.Numbered("k", 5), "choke")...)
	m := memory.New(memory.Config{})
	a := &absent{Broker: m, id: rows[5].MessageID, alone: make(chan struct{})}
	cfg := quick()
	cfg.Calls, cfg.Lease, cfg.PublishTimeout = 1, time.Minute, 200*time.Millisecond
	processor(t, b, cfg, to(a))
	b.Insert("probe")
	<-a.alone
	b.Insert("probe again") // so that the outage ends by another row
	statuses(t, b, map[outbox.Status]int{outbox.Published: 8})
	require.Equal(t, 1, entries(t, b)[5].Attempts)
}

// absent answers no call of several with a certain message, and is away when it
// comes alone for the first time.
type absent struct {
	broker.Broker
	id    string
	alone chan struct{}
	once  sync.Once
}

func (a *absent) Publish(ctx context.Context, messages []broker.Message) (err error) {
	if !slices.ContainsFunc(messages, func(m broker.Message) bool { return m.ID == a.id }) {
		return a.Broker.Publish(ctx, messages)
	}
	if len(messages) > 1 {
		<-ctx.Done()
		return ctx.Err()
	}
	a.once.Do(func() {
		close(a.alone)
		err = broker.Classify(broker.Unavailable, errors.New("away"))
	})
	if err != nil {
		return err
	}
	return a.Broker.Publish(ctx, messages)
}

// insertHalfAway stores n rows, every other one for topic "away".
func insertHalfAway(b *outboxdbtest.Bench, n int) {
	b.T.Helper()
	var rows []outbox.Row
	for i, key := range outboxdbtest.Numbered("k", n) {
		row := outboxdbtest.Row(key)
		if i%2 == 0 {
			row.Topic = "away"
		}
		rows = append(rows, row)
	}
	b.InsertRows(rows...)
}

// C-58: a topic that fails alone opens its own breaker: the others of the lane go on
// at full speed, nobody pays, and it continues by itself.
func TestProcessor_TopicFailsAlone(t *testing.T) {
	t.Parallel()
	for _, class := range []broker.Class{broker.Unavailable, broker.Unknown} {
		t.Run(class.String(), func(t *testing.T) {
			t.Parallel()
			b := outboxdbtest.Open(t, outboxdbtest.PostgreSQL(t))
			insertHalfAway(b, 40)
			m := memory.New(memory.Config{})
			var mu sync.Mutex
			away := true
			m.FailWhere(func(m broker.Message) error {
				mu.Lock()
				defer mu.Unlock()
				if away && m.Topic == "away" {
					return broker.Classify(class, errors.New("no leader"))
				}
				return nil
			})
			cfg := quick()
			cfg.Calls = 1
			p := processor(t, b, cfg, to(m))
			eventually(t, func() bool { return slices.Equal(p.Status()[target].OpenTopics, []string{"away"}) }, "in time")
			require.Equal(t, "closed", p.Status()[target].Breaker)
			eventually(t, func() bool { return len(m.Messages(orders)) == 20 }, "in time")
			calls := len(m.Calls())
			b.Insert(outboxdbtest.Numbered("more", 10)...)
			eventually(t, func() bool { return len(m.Messages(orders)) == 30 }, "in time")
			require.Less(t, len(m.Calls())-calls, 20, "rows of the topic wait instead of being tried again and again")
			mu.Lock()
			away = false
			mu.Unlock()
			statuses(t, b, map[outbox.Status]int{outbox.Published: 50})
			require.Len(t, m.Messages("away"), 20)
			for _, e := range entries(t, b) {
				require.Equal(t, 1, e.Attempts)
			}
			eventually(t, func() bool { return len(p.Status()[target].OpenTopics) == 0 }, "in time")
		})
	}
}

// S2-43: one line when an outage begins and one when it ends, however many calls fail.
// Conformance: F-40.
func TestProcessor_OutageIsTwoLines(t *testing.T) {
	t.Parallel()
	b := outboxdbtest.Open(t, outboxdbtest.SQLite(t))
	b.Insert(outboxdbtest.Numbered("k", 50)...)
	m := memory.New(memory.Config{})
	m.SetOutage(true)
	_, log := logged(t, b, quick(), to(m))
	eventually(t, func() bool { return len(m.Calls()) >= 3 }, "in time")
	m.SetOutage(false)
	statuses(t, b, map[outbox.Status]int{outbox.Published: 50})
	require.Equal(t, 1, log.count("does not answer"))
	require.Equal(t, 1, log.count("answers again"))
}

// A call that takes long keeps its keys waiting and not the others of its
// lane; and a key has one call at a time.
func TestProcessor_F24_CallsOfOtherKeysOvertakeASlowOne(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		first := b.Insert("slow")
		m := memory.New(memory.Config{})
		block := make(chan struct{})
		s := &stalling{Broker: m, key: "slow", block: block}
		cfg := quick()
		cfg.Lease = time.Minute
		p := processor(t, b, cfg, to(s))
		eventually(t, func() bool { return p.Status()[target].InFlight == 1 }, "in time")
		b.Insert("slow", "a", "b")
		eventually(t, func() bool { return len(m.Messages(orders)) == 2 }, "in time")
		b.Insert("a", "slow")
		eventually(t, func() bool { return len(m.Messages(orders)) == 3 }, "in time")
		close(block)
		statuses(t, b, map[outbox.Status]int{outbox.Published: 6})
		require.Equal(t, 1, s.most, "calls of the slow key at once")
		require.Equal(t, first[0].MessageID, byKey(m.Messages(orders))["slow"][0])
		require.Len(t, byKey(m.Messages(orders))["slow"], 3)
	})
}

// What is committed while a call of its key is out is published when that has
// ended, without a poll.
func TestProcessor_FollowerOfACallThatIsOutIsNotForgotten(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		m := memory.New(memory.Config{})
		s := &stalling{Broker: m, key: "slow", block: make(chan struct{})}
		p := processor(t, b, patient(), to(s))
		eventually(t, func() bool { return p.Status()[target].Partitions == outboxdbtest.Partitions }, "in time")
		b.Insert("slow")
		p.Wake(poke("slow"))
		eventually(t, func() bool { return p.Status()[target].InFlight == 1 }, "in time")
		b.Insert("slow")
		p.Wake(poke("slow"))
		other := beside("slow") // shows that the poke was heard
		b.Insert(other)
		p.Wake(poke("slow"))
		eventually(t, func() bool { return len(m.Messages(orders)) == 1 }, "in time")
		close(s.block)
		statuses(t, b, map[outbox.Status]int{outbox.Published: 3})
	})
}

// When a topic or the broker answers again, what waited for it leaves without a
// poll.
func TestProcessor_RecoveryNeedsNoPoll(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]func(m broker.Message) bool{
		"the broker": func(broker.Message) bool { return true },
		"a topic":    func(m broker.Message) bool { return m.Topic == "away" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := outboxdbtest.Open(t, outboxdbtest.SQLite(t))
			insertHalfAway(b, 20)
			m := memory.New(memory.Config{})
			var away atomic.Bool
			away.Store(true)
			m.FailWhere(func(m broker.Message) error {
				if away.Load() && fails(m) {
					return broker.Classify(broker.Unavailable, errors.New("away"))
				}
				return nil
			})
			processor(t, b, patient(), to(m))
			eventually(t, func() bool { return len(m.Calls()) >= 2 }, "in time")
			away.Store(false)
			statuses(t, b, map[outbox.Status]int{outbox.Published: 20})
		})
	}
}

// stalling answers calls with a certain key only when it is let.
type stalling struct {
	broker.Broker
	key   string
	block chan struct{}

	mu        sync.Mutex
	out, most int
}

func (s *stalling) Publish(ctx context.Context, messages []broker.Message) error {
	if slices.ContainsFunc(messages, func(m broker.Message) bool { return m.Key == s.key }) {
		s.mu.Lock()
		s.out++
		s.most = max(s.most, s.out)
		s.mu.Unlock()
		defer func() { s.mu.Lock(); s.out--; s.mu.Unlock() }()
		select {
		case <-s.block:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return s.Broker.Publish(ctx, messages)
}

// A broker that stores a row although it refused one before it breaks its
// promise: what it stored is published, and counted.
func TestProcessor_OrderBreaksAreCounted(t *testing.T) {
	b := outboxdbtest.Open(t, outboxdbtest.SQLite(t))
	rows := b.Insert("k", "k")
	m := memory.New(memory.Config{})
	p := processor(t, b, quick(), to(&liar{Broker: m, refuses: rows[0].MessageID}))
	statuses(t, b, map[outbox.Status]int{outbox.Published: 2})
	require.EqualValues(t, 1, p.Status()[target].OrderBreaks)
	require.Len(t, m.Messages(orders), 2)
}

// liar refuses a message once, and stores those behind it all the same.
type liar struct {
	broker.Broker
	refuses string
}

func (l *liar) Publish(ctx context.Context, messages []broker.Message) error {
	if messages[0].ID != l.refuses {
		return l.Broker.Publish(ctx, messages)
	}
	l.refuses = ""
	if err := l.Broker.Publish(ctx, messages[1:]); err != nil {
		return err
	}
	return &broker.PublishError{Failed: map[int]error{0: errors.New("refused")}}
}
