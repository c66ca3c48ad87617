package nats

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybill-go/waybill/broker"
)

const (
	// maxHeld is how many messages a member has received and not acknowledged, at
	// most. It is more than a subscription holds, so that messages that wait for
	// their turn don't keep others from coming.
	maxHeld = 20_000
	// pinGroup is the one group of members that the server knows of.
	pinGroup = "members"
	// whole is the one partition of a topic, which a member has all of.
	whole = "0"
)

// timing is how long the parts of consuming take. Tests have less patience.
type timing struct {
	// pull is how long a member's request for messages stands. Asking again is
	// also what keeps its place.
	pull time.Duration
	// absence is how long a member may be silent before another takes its place.
	absence time.Duration
	// check is how often a member asks whether deliveries got lost.
	check time.Duration
}

var usual = timing{pull: 5 * time.Second, absence: 15 * time.Second, check: 30 * time.Second}

// ackWait is when the server gives out a message again by itself. Members don't
// need it: they start over where deliveries may have been lost. So they needn't
// tell the server, message by message, that they are still at work on what they
// hold; what comes again is left aside.
const ackWait = time.Hour

// consumer is a member of a group. The server pins the group to one member: only
// it receives. Its tenure begins with the first message under a new pin. If the
// server had given out messages before, to a member that is gone, those would
// come again some time after later ones; so the new member first resets the
// consumer to the place before which all is acknowledged, and goes on in order
// from there. The same happens when a delivery was lost on its way, which shows
// as a gap in their numbers, and after a reconnect.
type consumer struct {
	b      *Broker
	js     jetstream.Consumer
	topic  string
	stream string
	made   time.Time // When the stream was; zero if it isn't known.
	name   string

	stop    context.CancelFunc
	running sync.WaitGroup
	arrived chan struct{} // Capacity 1: something for Receive.

	mu         sync.Mutex
	tenure     *tenure
	pin        string           // The latest of our own.
	told       string           // The pin of which the group knows whose it is.
	held       map[uint64]*loan // By stream sequence: received, not acknowledged.
	ready      []*loan          // The part of held that isn't on loan, in order.
	readyBytes int              // Its size.
	session    *session         // The latest.
	failed     error            // Why nothing more will come.
	state      broker.State     // But for the connection's.
	missing    missing
	paused     time.Time // Until when somebody has paused the group, as the server said last.

	tried string // The pin that was to be taken from the dead. Used by the pump alone.
}

var (
	_ broker.Consumer = (*consumer)(nil)
	_ broker.Lagging  = (*consumer)(nil)
	_ broker.Stateful = (*consumer)(nil)
)

// tenure is the time for which a member has the group's messages to itself.
type tenure struct {
	pin  string
	next uint64 // The number that the next delivery must have.
	lost chan struct{}
}

// loan is a message that the server gave to this member.
type loan struct {
	tenure      *tenure
	seq         uint64
	reply       string // Where its acknowledgement goes.
	message     broker.Message
	size        int
	published   time.Time
	redelivered int
	out         bool // Handed out by Receive.
}

var errConsumerClosed = errors.New("nats: the consumer is closed")

// Receive implements [broker.Consumer]. It returns what was released first.
// Redelivered counts what this member knows of.
func (c *consumer) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		deliveries, err := c.lend(max(limit, 1))
		if err != nil || len(deliveries) > 0 {
			return deliveries, err
		}
		select {
		case <-c.arrived:
		case <-ctx.Done():
		}
	}
}

func (c *consumer) lend(limit int) ([]broker.Delivery, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed != nil {
		return nil, c.failed
	}
	n := min(limit, len(c.ready))
	deliveries := make([]broker.Delivery, n)
	for i, l := range c.ready[:n] {
		l.out = true
		c.readyBytes -= l.size
		deliveries[i] = broker.Delivery{Message: l.message, Published: l.published, Partition: whole, Redelivered: l.redelivered, Lost: l.tenure.lost, Token: l}
	}
	c.ready = slices.Delete(c.ready, 0, n)
	if n > 0 && c.session != nil {
		c.session.nudge() // There is room for more.
	}
	return deliveries, nil
}

// Ack implements [broker.Consumer]. It returns when the server has confirmed.
// It changes nothing for what was taken back.
func (c *consumer) Ack(ctx context.Context, deliveries ...broker.Delivery) error {
	loans := c.settle(deliveries)
	if len(loans) == 0 {
		return nil
	}
	call := c.b.requests.begin(len(loans))
	defer call.end()
	for i, l := range loans {
		if err := call.send(i, &nats.Msg{Subject: l.reply, Data: []byte("+ACK")}); err != nil {
			return classify(fmt.Errorf("nats: acknowledge: %w", err))
		}
	}
	answered := make([]bool, len(loans))
	for i, l := range loans {
		for !answered[i] {
			select {
			case r := <-call.replies:
				if noResponders(r.Msg) {
					return classify(fmt.Errorf("nats: acknowledge: %w", nats.ErrNoResponders))
				}
				answered[r.number] = true
			case <-l.tenure.lost:
				answered[i] = true // After a reset the server doesn't answer.
			case <-call.broken:
				return broker.Classify(broker.Unknown, errors.New("nats: acknowledge: the connection broke"))
			case <-ctx.Done():
				return fmt.Errorf("nats: acknowledge: no answer: %w", ctx.Err())
			}
		}
	}
	return nil
}

// settle ends loans: the messages aren't kept for this member any more. It returns those to
// acknowledge: not those that were taken back, as the server goes by a message's place in
// the stream. In one that was deleted and made again there is another message at that place,
// which somebody may have and not have handled yet.
func (c *consumer) settle(deliveries []broker.Delivery) []*loan {
	c.mu.Lock()
	defer c.mu.Unlock()
	var loans []*loan
	for _, d := range deliveries {
		l, ok := d.Token.(*loan)
		if !ok || !l.out {
			continue
		}
		l.out = false
		if c.held[l.seq] == l {
			delete(c.held, l.seq)
			loans = append(loans, l)
		}
	}
	return loans
}

// Release implements [broker.Consumer]. The messages stay with this member, and
// go before later ones: given back to the server they would come again after
// them.
func (c *consumer) Release(_ context.Context, deliveries ...broker.Delivery) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range deliveries {
		if l, ok := d.Token.(*loan); ok && l.out && c.held[l.seq] == l {
			l.out = false
			l.redelivered++
			c.offer(l)
		}
	}
	return nil
}

// Lag implements [broker.Lagging]. It is the whole group's, also for members that
// stand by, and asks the server.
func (c *consumer) Lag(ctx context.Context) (int64, error) {
	c.mu.Lock()
	err := c.failed
	c.mu.Unlock()
	if err != nil {
		return 0, err
	}
	// Not c.js.Info, which isn't made for two callers.
	js, err := c.b.js.Consumer(ctx, c.stream, c.name)
	if err != nil {
		return 0, classify(fmt.Errorf("nats: lag: %w", err))
	}
	info := js.CachedInfo()
	return int64(info.NumPending) + int64(info.NumAckPending), nil
}

// State implements [broker.Stateful]. A member that stands by has joined. That the group's
// consumer is paused is an error of one that has. Missed is what
// the stream's limits removed, where EnsureTopics made the stream, or it has no other
// topics and this retention, and at least what was gone with the stream, but not what a
// member had fetched that was killed since; it needs the right to $JS.API.STREAM.INFO.
func (c *consumer) State() broker.State {
	c.mu.Lock()
	defer c.mu.Unlock()
	away, back := c.b.away()
	if away != nil && c.failed == nil {
		return broker.State{Since: away.since, LastError: away.err, Missed: c.missing.count}
	}
	s := c.state
	s.Missed = c.missing.count
	if s.Joined && back.After(s.Since) { // It was too short for the pump to notice.
		s.Since = back
	}
	if s.Joined && time.Now().Before(c.paused) {
		s.LastError = broker.Classify(broker.Unavailable, fmt.Errorf("nats: somebody has paused the group's consumer until %s, and it gets no messages: nats consumer resume %s %s", c.paused.UTC().Format(time.RFC3339), c.stream, c.name))
	}
	return s
}

// well notes that the server answers this member. The lock is held.
func (c *consumer) well() {
	if !c.state.Joined && c.failed == nil {
		c.state = broker.State{Joined: true, Since: time.Now()}
	}
}

// unwell notes what keeps this member from receiving, and that what was on its way
// is lost. It says whether the member was well before.
func (c *consumer) unwell(err error) (before bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lose()
	before = c.state.Joined
	c.ail(err)
	return before
}

// ail is unwell with the lock held.
func (c *consumer) ail(err error) {
	if c.state.Joined {
		c.state = broker.State{Since: time.Now()}
	}
	c.state.LastError = classify(err)
}

// offer makes l available to Receive. The lock is held.
func (c *consumer) offer(l *loan) {
	at, _ := slices.BinarySearchFunc(c.ready, l.seq, func(o *loan, seq uint64) int {
		switch {
		case o.seq < seq:
			return -1
		case o.seq > seq:
			return 1
		}
		return 0
	})
	c.ready = slices.Insert(c.ready, at, l)
	c.readyBytes += l.size
	c.signal()
}

func (c *consumer) signal() {
	select {
	case c.arrived <- struct{}{}:
	default:
	}
}

// lose ends the tenure: whoever is next gets everything that isn't acknowledged.
// The lock is held.
func (c *consumer) lose() {
	if c.tenure != nil {
		close(c.tenure.lost)
	}
	c.missing.ahead += int64(len(c.ready))
	c.tenure, c.ready, c.readyBytes = nil, nil, 0
	clear(c.held)
}

// fail ends the consumer. The first reason counts.
func (c *consumer) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed == nil {
		c.failed = err
		c.ail(err)
	}
	c.lose()
	c.signal()
}

// Close implements [broker.Consumer]. The next member gets what wasn't
// acknowledged at once; if the server can't be reached, after 20 s at most.
func (c *consumer) Close(ctx context.Context) error {
	c.b.mu.Lock()
	_, open := c.b.consumers[c]
	delete(c.b.consumers, c)
	c.b.mu.Unlock()
	if !open {
		return nil
	}
	c.stop()
	c.running.Wait()

	c.mu.Lock()
	ours, left := c.tenure != nil, len(c.held)
	c.mu.Unlock()
	c.fail(errConsumerClosed)
	if !ours {
		return nil
	}
	ctx, cancel := c.b.watch(ctx, "."+c.stream)
	defer cancel()
	var err error
	if left > 0 {
		_, err = c.b.js.ResetConsumer(ctx, c.stream, c.name)
	}
	// Only now: the next member would have to reset it otherwise.
	if err == nil {
		err = c.b.unpin(ctx, c.stream, c.name)
	}
	if err != nil {
		return classify(fmt.Errorf("nats: leave the group: %w", cause(ctx, err)))
	}
	return nil
}

func (b *Broker) unpin(ctx context.Context, stream, consumer string) error {
	s, err := b.js.Stream(ctx, stream)
	if err != nil {
		return err
	}
	return s.UnpinConsumer(ctx, consumer, pinGroup)
}
