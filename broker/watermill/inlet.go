package watermill

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/waybill-go/waybill/broker"
)

// ErrReleased is what a handler of an [Inlet] returns for a message that has to come
// again: the subscription gave it back, or stopped.
var ErrReleased = errors.New("watermill: given back")

var _ broker.Broker = (*Inlet)(nil)

// Inlet is a broker whose messages come from Watermill handlers: what a router hands
// to [Inlet.Handler], behind all of the router's middleware, is delivered to the
// consumer of that topic and group, such as a subscription of Waybill. It publishes
// nothing. It is safe for concurrent use.
//
// Its capabilities are none. A router calls a handler for each message that its
// subscriber hands out, in a goroutine of its own, so messages that are out together
// have no order. And what the middleware does is done before the subscription knows of
// the message: one that acknowledges early, filters or drops messages loses them, and
// one that puts messages with errors aside gets each that a stopping subscription gives
// back.
type Inlet struct {
	closed chan struct{}

	mu    sync.Mutex
	over  bool
	feeds map[feed]chan *loan
}

type feed struct{ topic, group string }

// loan is a message that a consumer holds.
type loan struct {
	*message.Message
	settled chan error // Takes one, which the handler returns.
}

// NewInlet makes an inlet. Close it after its consumers, and before the router.
func NewInlet() *Inlet {
	return &Inlet{closed: make(chan struct{}), feeds: map[feed]chan *loan{}}
}

// Handler delivers to the group of a topic. It returns when the message is settled:
// nil if it was acknowledged, [ErrReleased] if it has to come again, and the error of
// the message's context when that is done first: then it comes again, too, even if it
// is acknowledged later. Until there is a consumer it waits.
func (i *Inlet) Handler(topic, group string) message.NoPublishHandlerFunc {
	to := i.feed(topic, group)
	return func(m *message.Message) error {
		l := &loan{m, make(chan error, 1)}
		select {
		case to <- l:
		case <-m.Context().Done():
			return context.Cause(m.Context())
		case <-i.closed:
			return ErrClosed
		}
		select {
		case err := <-l.settled:
			return err
		case <-m.Context().Done():
			return context.Cause(m.Context())
		}
	}
}

func (i *Inlet) feed(topic, group string) chan *loan {
	i.mu.Lock()
	defer i.mu.Unlock()
	f := feed{topic, group}
	if i.feeds[f] == nil {
		i.feeds[f] = make(chan *loan)
	}
	return i.feeds[f]
}

// Consume receives what a handler of the topic and the group is called with.
func (i *Inlet) Consume(_ context.Context, topic, group string) (broker.Consumer, error) {
	select {
	case <-i.closed:
		return nil, broker.Classify(broker.Unavailable, ErrClosed)
	default:
		return &taker{topic: topic, from: i.feed(topic, group), inlet: i.closed, closed: make(chan struct{}), out: map[*loan]struct{}{}}, nil
	}
}

// Publish refuses: an inlet has no way out.
func (i *Inlet) Publish(context.Context, []broker.Message) error {
	return broker.Classify(broker.Permanent, errors.New("watermill: an Inlet publishes nothing: publish to the broker behind the router, under a name of its own"))
}

// EnsureTopics does nothing: topics are the router's matter.
func (i *Inlet) EnsureTopics(context.Context, ...string) error { return nil }

// Capabilities are none.
func (i *Inlet) Capabilities() broker.Capabilities { return broker.Capabilities{} }

// Close ends the handlers that wait for a consumer, and those to come, with
// [ErrClosed]. Consumers that are open receive nothing more.
func (i *Inlet) Close(context.Context) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.over {
		i.over = true
		close(i.closed)
	}
	return nil
}

// taker is a consumer of an inlet.
type taker struct {
	topic  string
	from   <-chan *loan
	inlet  <-chan struct{}
	closed chan struct{}

	mu   sync.Mutex
	over bool
	out  map[*loan]struct{}
}

func (t *taker) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	select { // before there is a choice
	case <-t.closed:
		return nil, ErrClosed
	case <-t.inlet:
		return nil, ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	default:
	}
	var all []broker.Delivery
	select {
	case l := <-t.from:
		all = append(all, t.deliver(l))
	case <-t.closed:
		return nil, ErrClosed
	case <-t.inlet:
		return nil, ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for len(all) < limit {
		select {
		case l := <-t.from:
			all = append(all, t.deliver(l))
		default:
			return all, nil
		}
	}
	return all, nil
}

func (t *taker) deliver(l *loan) broker.Delivery {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		l.settled <- ErrReleased
	} else {
		t.out[l] = struct{}{}
	}
	return delivery(l.Message, t.topic, l)
}

func (t *taker) Ack(_ context.Context, deliveries ...broker.Delivery) error {
	return t.settle(nil, deliveries)
}

func (t *taker) Release(_ context.Context, deliveries ...broker.Delivery) error {
	return t.settle(ErrReleased, deliveries)
}

func (t *taker) settle(with error, deliveries []broker.Delivery) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return ErrClosed
	}
	for _, d := range deliveries {
		l, ok := d.Token.(*loan)
		if !ok {
			return fmt.Errorf("watermill: message %q was not delivered by this consumer", d.ID)
		}
		if _, ours := t.out[l]; ours { // else it is settled
			delete(t.out, l)
			l.settled <- with
		}
	}
	return nil
}

func (t *taker) Close(context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return nil
	}
	t.over = true
	close(t.closed)
	for l := range t.out {
		l.settled <- ErrReleased
	}
	return nil
}
