package memory

import (
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/waybill-go/waybill/broker"
)

// faults is what the broker was told to do wrong.
type faults struct {
	outage   bool
	turned   time.Time       // When outage became what it is.
	topics   map[string]bool // That are down.
	failNext int
	class    broker.Class
	loseAcks int
	where    func(broker.Message) error
	stalled  chan struct{} // Closed on release; nil while calls go through.
}

func (f *faults) outageError() error {
	if !f.outage {
		return nil
	}
	return broker.Scoped(broker.Unavailable, broker.ScopeBroker, errors.New("memory: the broker is down"))
}

func (f *faults) beforeStore() error {
	if f.failNext == 0 {
		return nil
	}
	f.failNext--
	return broker.Classify(f.class, fmt.Errorf("memory: failed as told: %v", f.class))
}

func (f *faults) afterStore() error {
	if f.loseAcks == 0 {
		return nil
	}
	f.loseAcks--
	return broker.Classify(broker.Unknown, errors.New("memory: the acknowledgement was lost"))
}

// SetOutage takes the broker down or brings it back. While it is down, Publish,
// EnsureTopics, Consume, Ack and Release fail as Unavailable, of scope broker, and
// Receive waits.
func (b *Broker) SetOutage(down bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.faults.outage != down {
		b.faults.outage, b.faults.turned = down, time.Now()
	}
	b.notify()
}

// SetTopicOutage takes a topic down or brings it back. While it is down, what is
// published there isn't stored and fails as Transient, of scope topic: as a broker
// answers that misses replicas or refuses the right to write.
func (b *Broker) SetTopicOutage(topic string, down bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	topics := maps.Clone(b.faults.topics) // Calls under way have the other one.
	if topics == nil {
		topics = map[string]bool{}
	}
	topics[topic] = down
	b.faults.topics = topics
}

// FailNext makes the next n calls of Publish fail as a whole, without a scope. They
// store nothing, whatever the class.
func (b *Broker) FailNext(n int, class broker.Class) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.faults.failNext, b.faults.class = n, class
}

// LoseAcks makes the next n calls of Publish that get as far as being stored
// answer Unknown all the same.
func (b *Broker) LoseAcks(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.faults.loseAcks = n
}

// FailWhere asks fail about each message that is published: one for which it
// returns an error isn't stored and fails with it, and the later messages of its
// key in the same call aren't stored either and fail as Unavailable. Class and
// scope are those of the error. Nil ends it. fail may be called concurrently, and may call the broker.
func (b *Broker) FailWhere(fail func(broker.Message) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.faults.where = fail
}

// Stall holds every call of Publish until release is called; then they go on.
// One whose context ends first answers Unknown and stores nothing, then or
// later. [Broker.Calls] tells that a call has come.
func (b *Broker) Stall() (release func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	stalled := make(chan struct{})
	b.faults.stalled = stalled
	return sync.OnceFunc(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		close(stalled)
		if b.faults.stalled == stalled {
			b.faults.stalled = nil
		}
	})
}

// Revoke takes back what a group has on loan of a topic, as a rebalance does:
// Lost is closed, and the messages are delivered again. Acknowledging them
// afterwards has no effect.
func (b *Broker) Revoke(topic, group string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.topics[topic]
	if t == nil {
		return
	}
	g := t.groups[group]
	if g == nil {
		return
	}
	g.takeBack(func(*loan) bool { return true })
	b.notify()
}
