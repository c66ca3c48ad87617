package memory

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/waybill-go/waybill/broker"
)

// group is one consumer group's progress in one topic. Its fields are guarded by
// store.mu.
type group struct {
	ready     []int          // Offsets to deliver, ascending.
	delivered map[int]int    // How often, by offset; until acknowledged.
	loans     map[int]*loan  // By offset.
	owners    map[string]own // By key, while some of it is on loan.
	members   map[*consumer]struct{}
}

// own keeps a key with one member while any of its messages is on loan there:
// another member could overtake it otherwise.
type own struct {
	member *consumer
	loans  int
}

type loan struct {
	member *consumer
	offset int
	key    string
	lost   chan struct{}
}

func newGroup(t *topic) *group {
	g := &group{delivered: map[int]int{}, loans: map[int]*loan{}, owners: map[string]own{}, members: map[*consumer]struct{}{}}
	for offset := range t.log {
		g.ready = append(g.ready, offset)
	}
	return g
}

// lag counts what isn't acknowledged.
func (g *group) lag() int { return len(g.ready) + len(g.loans) }

// lend hands at most limit messages to c.
func (g *group) lend(c *consumer, log []stored, limit int) []broker.Delivery {
	var lent []broker.Delivery
	var kept []int
	next := 0
	for ; next < len(g.ready) && len(lent) < limit; next++ {
		offset := g.ready[next]
		m := log[offset]
		o := g.owners[m.Key]
		if o.member != nil && o.member != c {
			kept = append(kept, offset)
			continue
		}
		g.owners[m.Key] = own{c, o.loans + 1}
		l := &loan{member: c, offset: offset, key: m.Key, lost: make(chan struct{})}
		g.loans[offset] = l
		lent = append(lent, broker.Delivery{Message: clone(m.Message), Published: m.at, Partition: c.partition(), Redelivered: g.delivered[offset], Lost: l.lost, Token: l})
		g.delivered[offset]++
	}
	copy(g.ready[next-len(kept):], kept)
	g.ready = g.ready[next-len(kept):]
	return lent
}

// end ends l, and says whether it was still running.
func (g *group) end(l *loan) bool {
	if g.loans[l.offset] != l {
		return false
	}
	delete(g.loans, l.offset)
	if o := g.owners[l.key]; o.loans > 1 {
		g.owners[l.key] = own{o.member, o.loans - 1}
	} else {
		delete(g.owners, l.key)
	}
	return true
}

// giveBack makes offsets deliverable again.
func (g *group) giveBack(offsets []int) {
	g.ready = append(g.ready, offsets...)
	slices.Sort(g.ready)
}

// takeBack ends the loans that match, and tells their holders.
func (g *group) takeBack(match func(*loan) bool) {
	var offsets []int
	for offset, l := range g.loans {
		if match(l) {
			g.end(l)
			close(l.lost)
			offsets = append(offsets, offset)
		}
	}
	g.giveBack(offsets)
}

type consumer struct {
	conn   *Broker
	topic  *topic
	group  *group
	closed bool      // Guarded by store.mu.
	shares bool      // There is, or was, another member. Guarded by store.mu.
	since  time.Time // When it joined or left.
}

// partition is all of the topic for the only member of a group; several share it by
// key.
func (c *consumer) partition() string {
	if c.shares {
		return ""
	}
	return "0"
}

var (
	_ broker.Consumer = (*consumer)(nil)
	_ broker.Lagging  = (*consumer)(nil)
	_ broker.Stateful = (*consumer)(nil)
)

// Consume implements [broker.Broker].
func (b *Broker) Consume(_ context.Context, topic, group string) (broker.Consumer, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.usable(); err != nil {
		return nil, err
	}
	t := b.topic(topic)
	g := t.groups[group]
	if g == nil {
		g = newGroup(t)
		t.groups[group] = g
	}
	c := &consumer{conn: b, topic: t, group: g, since: time.Now()}
	g.members[c] = struct{}{}
	if len(g.members) > 1 {
		for member := range g.members {
			member.shares = true
		}
	}
	b.consumers[c] = struct{}{}
	return c, nil
}

var errLeft = errors.New("memory: the consumer is closed")

// Receive implements [broker.Consumer]. It waits while the broker is down.
func (c *consumer) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		c.conn.mu.Lock()
		changed := c.conn.changed
		if c.closed {
			c.conn.mu.Unlock()
			return nil, errLeft
		}
		var lent []broker.Delivery
		if !c.conn.faults.outage {
			lent = c.group.lend(c, c.topic.log, max(limit, 1))
		}
		c.conn.mu.Unlock()
		if len(lent) > 0 {
			return lent, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// Ack implements [broker.Consumer].
func (c *consumer) Ack(ctx context.Context, deliveries ...broker.Delivery) error {
	return c.settle(ctx, deliveries, func(offsets []int) {
		for _, offset := range offsets {
			delete(c.group.delivered, offset)
		}
	})
}

// Release implements [broker.Consumer].
func (c *consumer) Release(ctx context.Context, deliveries ...broker.Delivery) error {
	return c.settle(ctx, deliveries, c.group.giveBack)
}

func (c *consumer) settle(ctx context.Context, deliveries []broker.Delivery, as func(offsets []int)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c.conn.mu.Lock()
	defer c.conn.mu.Unlock()
	if c.closed {
		return errLeft
	}
	if err := c.conn.usable(); err != nil {
		return err
	}
	var ended []int
	for _, d := range deliveries {
		if l, ok := d.Token.(*loan); ok && c.group.end(l) {
			ended = append(ended, l.offset)
		}
	}
	as(ended)
	c.conn.notify() // A key may be free for another member.
	return nil
}

// Lag implements [broker.Lagging]. It is the whole group's, as
// [Broker.Unacknowledged] is.
func (c *consumer) Lag(ctx context.Context) (int64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	c.conn.mu.Lock()
	defer c.conn.mu.Unlock()
	if c.closed {
		return 0, errLeft
	}
	if err := c.conn.usable(); err != nil {
		return 0, err
	}
	return int64(c.group.lag()), nil
}

// State implements [broker.Stateful]. While the broker is down, no consumer is in its
// group.
func (c *consumer) State() broker.State {
	c.conn.mu.Lock()
	defer c.conn.mu.Unlock()
	s := broker.State{Since: c.since, LastError: errLeft}
	if !c.closed {
		s.LastError = c.conn.usable()
		s.Joined = s.LastError == nil
		if at := c.conn.faults.turned; at.After(s.Since) {
			s.Since = at
		}
	}
	return s
}

// Close implements [broker.Consumer].
func (c *consumer) Close(context.Context) error {
	c.conn.mu.Lock()
	defer c.conn.mu.Unlock()
	c.leave()
	return nil
}

// leave gives back what c has on loan. The lock is held.
func (c *consumer) leave() {
	if c.closed {
		return
	}
	c.closed, c.since = true, time.Now()
	delete(c.conn.consumers, c)
	delete(c.group.members, c)
	c.group.takeBack(func(l *loan) bool { return l.member == c })
	c.conn.notify()
}
