package kafka

import (
	"github.com/IBM/sarama"
)

const (
	// fetchAhead is how many bytes of a partition wait for Receive before fetching
	// pauses.
	fetchAhead = 1 << 20
	// window is how far a partition goes on beyond its first unsettled message.
	window = 50_000
)

// partition is a partition while it is this consumer's. Its consumer's mutex
// protects it.
type partition struct {
	consumer *consumer
	topic    string
	id       int32
	session  sarama.ConsumerGroupSession
	claim    sarama.ConsumerGroupClaim
	lost     chan struct{}

	entries []*entry // From the first that is not acknowledged on.
	base    int64    // The position of entries[0].
	next    int      // Index of the first that may have to be delivered.
	waiting int      // Bytes that wait to be delivered.
	out     int      // Entries that are delivered and not settled.
	unacked int64    // Entries that are not acknowledged.
	fetched int64    // The offset behind the last entry ever; negative before the first of a new group.
	looked  int64    // The offset at which there is a message, or nothing yet, as Kafka was last asked.
	newest  int64    // The offset behind the last message, as Kafka was last asked.
	paused  bool
	ending  bool          // Nothing is delivered any more.
	settled chan struct{} // Closed when ending and out is 0.
	gone    bool
}

// entry is a message of a partition; it is the Token of its delivery.
type entry struct {
	partition *partition
	position  int64
	offset    int64
	message   *sarama.ConsumerMessage // Nil once acknowledged.
	state     entryState
	times     int // How often it was released.
}

type entryState int8

const (
	queued entryState = iota
	delivered
	acked
)

func (e *entry) bytes() int {
	const overhead = 200
	return overhead + len(e.message.Key) + len(e.message.Value)
}

func (p *partition) add(m *sarama.ConsumerMessage) {
	e := &entry{partition: p, position: p.base + int64(len(p.entries)), offset: m.Offset, message: m}
	p.entries = append(p.entries, e)
	p.waiting += e.bytes()
	p.unacked++
	p.fetched = m.Offset + 1
}

// full says that fetching has to pause; hungry, that it may go on.
func (p *partition) full() bool   { return p.waiting >= fetchAhead || len(p.entries) >= window }
func (p *partition) hungry() bool { return p.waiting < fetchAhead/2 && len(p.entries) < window }

// unread is how many offsets are behind what was fetched, as far as is known.
func (p *partition) unread() int64 {
	return max(0, max(p.claim.HighWaterMarkOffset(), p.newest)-max(0, p.fetched))
}

// take delivers up to limit entries.
func (p *partition) take(to []*entry, limit int) []*entry {
	for ; p.next < len(p.entries) && len(to) < limit && !p.ending; p.next++ {
		e := p.entries[p.next]
		if e.state != queued {
			continue
		}
		e.state = delivered
		p.waiting -= e.bytes()
		p.out++
		to = append(to, e)
	}
	return to
}

func (p *partition) release(e *entry) {
	if e.state != delivered || p.gone {
		return
	}
	e.state = queued
	e.times++
	p.waiting += e.bytes()
	p.next = min(p.next, int(e.position-p.base))
	p.settle()
}

// ack marks e, and has everything committed up to the first entry that is not
// acknowledged.
func (p *partition) ack(e *entry) {
	if e.state != delivered || p.gone {
		return
	}
	e.state, e.message = acked, nil
	p.unacked--
	floor := int64(-1)
	for len(p.entries) > 0 && p.entries[0].state == acked {
		floor = p.entries[0].offset + 1
		p.entries[0] = nil
		p.entries = p.entries[1:]
		p.base++
		p.next = max(0, p.next-1)
	}
	if floor >= 0 {
		p.session.MarkOffset(p.topic, p.id, floor, "")
	}
	p.settle()
}

func (p *partition) settle() {
	p.out--
	if p.ending && p.out == 0 {
		close(p.settled)
	}
}

// end stops deliveries. settled is closed when none is out.
func (p *partition) end() {
	p.ending = true
	if p.out == 0 {
		close(p.settled)
	}
}
