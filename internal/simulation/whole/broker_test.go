package whole

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/outbox"
)

const parts = 2 // of each topic

// stored is a message that the broker has.
type stored struct {
	broker.Message
	at    time.Time
	given int // how often it was delivered
}

// group is the one consumer group: as Kafka has it, each part of the topic is a member's,
// and what is acknowledged without a gap is what a new owner begins behind.
type group struct {
	log       [parts][]*stored
	members   []*member
	owners    [parts]*member
	turns     [parts]int // counts owners
	lost      [parts]chan struct{}
	next      [parts]int // to be delivered
	acked     [parts]map[int]bool
	committed [parts]int
}

// place is where a delivery stands, and whose it was.
type place struct{ part, offset, turn int }

// member is a consumer.
type member struct {
	w    *world
	p    *process
	g    *group
	gone bool
	lost bool // its process doesn't know that it has joined
}

// give makes a member, or nobody, the owner of a part.
func (g *group) give(part int, m *member) {
	if g.owners[part] == m {
		return
	}
	if g.owners[part] != nil {
		close(g.lost[part])
	}
	g.owners[part], g.lost[part], g.next[part], g.acked[part] = m, make(chan struct{}), g.committed[part], map[int]bool{}
	g.turns[part]++
}

// share gives each part to a member, with the first part to that one.
func (g *group) share(first int) {
	for part := range parts {
		if len(g.members) == 0 {
			g.give(part, nil)
			continue
		}
		g.give(part, g.members[(first+part)%len(g.members)])
	}
}

// expel takes a member out.
func (g *group) expel(m *member) {
	if m.gone {
		return
	}
	m.gone = true
	g.members = slices.DeleteFunc(g.members, func(other *member) bool { return other == m })
	for part, owner := range g.owners {
		if owner == m {
			g.give(part, nil)
		}
	}
	g.share(0)
}

func (g *group) lag() (n int) {
	for part := range parts {
		n += len(g.log[part]) - g.committed[part]
	}
	return n
}

// doubly is how many messages came more than once.
func (g *group) doubly() (n int) {
	for _, log := range g.log {
		for _, s := range log {
			if s.given > 1 {
				n++
			}
		}
	}
	return n
}

// bus is a process's connection to the broker.
type bus struct {
	w *world
	p *process
}

var errAway = broker.Scoped(broker.Unavailable, broker.ScopeBroker, errors.New("connection refused"))

func (b bus) Publish(ctx context.Context, messages []broker.Message) error {
	stored := 0
	r := &request{kind: "publish", what: messages[0].ID, changes: true, do: func() {
		for ; stored < len(messages); stored++ {
			b.w.store(messages[stored])
		}
	}}
	r.half = func() {
		for ; stored < len(messages)/2; stored++ {
			b.w.store(messages[stored])
		}
	}
	err := b.w.ask(ctx, b.p, r)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errRefused):
		return errAway
	}
	return broker.Classify(broker.Unknown, err)
}

// store keeps a message.
func (w *world) store(m broker.Message) {
	g := w.groupOf(m.Topic)
	if g == nil {
		return
	}
	part := outbox.PartitionOf(m.Key, parts)
	g.log[part] = append(g.log[part], &stored{Message: m, at: time.Now()})
	w.say("the broker has %s of %s", m.ID, m.Key)
}

// groups are all of them.
func (w *world) groups() []*group { return append([]*group{&w.group, &w.commands}, w.more...) }

// groupOf is the group that consumes a topic; nil: none does.
func (w *world) groupOf(name string) *group {
	switch {
	case name == topic:
		return &w.group
	case name == commandTopic && w.plan.timers:
		return &w.commands
	case w.plan.journeys:
		if i := slices.Index(journeyTopics, name); i >= 0 {
			return w.more[i]
		}
	}
	return nil
}

func (b bus) EnsureTopics(context.Context, ...string) error { return nil }

func (b bus) Capabilities() broker.Capabilities {
	return broker.Capabilities{Prefix: true, KeyOrder: true, Groups: true, Redelivery: true}
}
func (b bus) Close(context.Context) error { return nil }

func (b bus) Consume(ctx context.Context, topic, _ string) (broker.Consumer, error) {
	m := &member{w: b.w, p: b.p, g: b.w.groupOf(topic)}
	err := b.w.ask(ctx, b.p, &request{kind: "join", do: func() {
		m.g.members = append(m.g.members, m)
		m.g.share(0)
	}})
	if err != nil {
		b.w.mu.Lock()
		defer b.w.mu.Unlock()
		m.lost = true
	}
	return m, err
}

var errLeft = errors.New("whole: the consumer is not in its group")

// most is how many messages come at a time, at most.
const most = 4

func (m *member) Receive(ctx context.Context, limit int) (got []broker.Delivery, err error) {
	g := m.g
	asked := m.w.ask(ctx, m.p, &request{
		kind: "receive",
		ready: func() bool {
			return m.gone || slices.ContainsFunc(m.own(), func(part int) bool { return g.next[part] < len(g.log[part]) })
		},
		do: func() {
			if m.gone {
				err = errLeft
				return
			}
			for _, part := range m.own() {
				for ; g.next[part] < len(g.log[part]) && len(got) < min(limit, most); g.next[part]++ {
					s := g.log[part][g.next[part]]
					d := broker.Delivery{Message: s.Message, Published: s.at, Partition: strconv.Itoa(part), Lost: g.lost[part], Token: place{part, g.next[part], g.turns[part]}}
					if m.w.plan.tells {
						d.Redelivered = s.given
					}
					got = append(got, d)
					s.given++
				}
			}
		},
	})
	if asked != nil {
		return nil, asked
	}
	return got, err
}

// own are the parts that are m's.
func (m *member) own() (all []int) {
	for part, owner := range m.g.owners {
		if owner == m {
			all = append(all, part)
		}
	}
	return all
}

func (m *member) Ack(ctx context.Context, deliveries ...broker.Delivery) error {
	g := m.g
	deliveries = slices.Clone(deliveries) // it may happen when the caller has its own back
	return m.w.ask(ctx, m.p, &request{kind: "ack", changes: true, do: func() {
		for _, d := range deliveries {
			at := d.Token.(place)
			if g.turns[at.part] != at.turn {
				continue
			}
			if g == &m.w.group {
				m.w.acknowledged(g.log[at.part][at.offset].Message)
			}
			g.acked[at.part][at.offset] = true
			for g.acked[at.part][g.committed[at.part]] {
				g.committed[at.part]++
			}
		}
	}})
}

// Release: what isn't acknowledged comes again when the member has left.
func (m *member) Release(context.Context, ...broker.Delivery) error { return nil }

func (m *member) Close(context.Context) error {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	m.g.expel(m)
	return nil
}
