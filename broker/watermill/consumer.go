package watermill

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/waybill-go/waybill/broker"
)

// settleIn is how long Close waits until the subscriber has taken notice of the
// last acknowledgements.
const settleIn = 2 * time.Second

var _ broker.Consumer = (*consumer)(nil)

type consumer struct {
	broker     *Broker
	topic      string
	subscriber message.Subscriber
	arrived    <-chan *message.Message
	ctx        context.Context // Of the subscription.
	stop       context.CancelFunc
	closing    chan struct{}
	closed     chan struct{} // Closed when Close is through, with err.
	err        error

	mu       sync.Mutex
	leaving  bool
	out      map[*message.Message]struct{} // Received and not settled.
	settling map[*message.Message]struct{} // Acknowledged; the subscriber may not know yet.
}

// Consume makes a subscriber for group and subscribes to topic, as often as
// Config.Subscriptions says.
func (b *Broker) Consume(ctx context.Context, topic, group string) (broker.Consumer, error) {
	if b.conf.Subscriber == nil {
		return nil, errors.New("watermill: Config.Subscriber is missing: give a func that makes a message.Subscriber for a group")
	}
	c := &consumer{
		broker: b, topic: topic, closing: make(chan struct{}), closed: make(chan struct{}),
		out: map[*message.Message]struct{}{}, settling: map[*message.Message]struct{}{},
	}
	c.ctx, c.stop = context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.subscribe(group) }()
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		err = context.Cause(ctx)
		go func() {
			if <-done == nil {
				_ = c.end()
			}
		}()
	}
	if err != nil {
		c.stop()
		return nil, fmt.Errorf("watermill: subscribe to %s: %w", topic, err)
	}
	if !b.add(c) {
		c.stop()
		_ = c.end()
		return nil, broker.Classify(broker.Unavailable, ErrClosed)
	}
	if b.conf.Alive == nil {
		return c, nil
	}
	return watch(c), nil //nolint:contextcheck // it is asked about for as long as it is open
}

func (b *Broker) add(c *consumer) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.consumers[c] = struct{}{}
	return true
}

func (c *consumer) subscribe(group string) error {
	subscriber, err := c.broker.conf.Subscriber(group)
	if err != nil {
		return err
	}
	subscriptions := make([]<-chan *message.Message, c.broker.conf.Subscriptions)
	for i := range subscriptions {
		if subscriptions[i], err = subscriber.Subscribe(c.ctx, c.topic); err != nil {
			c.stop()
			return errors.Join(err, subscriber.Close())
		}
	}
	c.subscriber, c.arrived = subscriber, merge(subscriptions)
	return nil
}

// merge is what arrives by any of channels, and ends with the last of them.
func merge(channels []<-chan *message.Message) <-chan *message.Message {
	if len(channels) == 1 {
		return channels[0]
	}
	arrived := make(chan *message.Message)
	var open sync.WaitGroup
	for _, channel := range channels {
		open.Go(func() {
			for m := range channel {
				arrived <- m
			}
		})
	}
	go func() {
		open.Wait()
		close(arrived)
	}()
	return arrived
}

// Receive waits for the first message only: a subscriber may have no second one
// until the first is settled.
func (c *consumer) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	select { // before there is a choice
	case <-c.closing:
		return nil, ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	default:
	}
	var all []broker.Delivery
	select {
	case m, ok := <-c.arrived:
		if !ok {
			return nil, ErrClosed
		}
		all = append(all, c.deliver(m))
	case <-c.closing:
		return nil, ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for len(all) < limit {
		select {
		case m, ok := <-c.arrived:
			if !ok {
				return all, nil
			}
			all = append(all, c.deliver(m))
		default:
			return all, nil
		}
	}
	return all, nil
}

func (c *consumer) deliver(m *message.Message) broker.Delivery {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leaving {
		m.Nack()
	} else {
		c.out[m] = struct{}{}
	}
	return delivery(m, c.topic, m)
}

// delivery is what m is to a consumer.
func delivery(m *message.Message, topic string, token any) broker.Delivery {
	headers := make(map[string]string, len(m.Metadata))
	for name, value := range m.Metadata {
		if name != KeyHeader {
			headers[name] = value
		}
	}
	return broker.Delivery{
		Message: broker.Message{ID: m.UUID, Topic: topic, Key: m.Metadata[KeyHeader], Headers: headers, Body: m.Payload},
		Lost:    m.Context().Done(),
		Token:   token,
	}
}

// Ack acknowledges the Watermill messages. It changes nothing for those that were
// released before.
func (c *consumer) Ack(_ context.Context, deliveries ...broker.Delivery) error {
	return c.settle(deliveries, func(m *message.Message) {
		if m.Ack() && m.Context().Done() != nil {
			c.settling[m] = struct{}{}
		}
	})
}

// Release rejects the Watermill messages. When and to whom they come again is the
// subscriber's matter.
func (c *consumer) Release(_ context.Context, deliveries ...broker.Delivery) error {
	return c.settle(deliveries, func(m *message.Message) { m.Nack() })
}

func (c *consumer) settle(deliveries []broker.Delivery, do func(*message.Message)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leaving {
		return ErrClosed
	}
	for m := range c.settling {
		if m.Context().Err() != nil {
			delete(c.settling, m)
		}
	}
	for _, d := range deliveries {
		m, ok := d.Token.(*message.Message)
		if !ok {
			return fmt.Errorf("watermill: message %q was not delivered by this consumer", d.ID)
		}
		delete(c.out, m)
		do(m)
	}
	return nil
}

// Close ends the subscription, rejects what is not settled, and closes the
// subscriber, all as long as ctx allows.
func (c *consumer) Close(ctx context.Context) error {
	c.mu.Lock()
	first := !c.leaving
	c.leaving = true
	c.mu.Unlock()
	if first {
		close(c.closing)
		c.err = c.leave(ctx)
		c.broker.mu.Lock()
		delete(c.broker.consumers, c)
		c.broker.mu.Unlock()
		close(c.closed)
	}
	select {
	case <-c.closed:
		return c.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (c *consumer) leave(ctx context.Context) error {
	defer c.stop()
	// A subscriber ends the context of a message when it has dealt with its
	// acknowledgement. One that is stopped before may forget it.
	timer := time.NewTimer(settleIn)
	defer timer.Stop()
	for m := range c.settling {
		select {
		case <-m.Context().Done():
			continue
		case <-timer.C:
		case <-ctx.Done():
		}
		break
	}
	c.stop()
	for m := range c.out {
		m.Nack()
	}
	return within(ctx, c.end)
}

// end closes the subscriber, and rejects what it still hands out meanwhile.
func (c *consumer) end() error {
	go func() {
		for m := range c.arrived {
			m.Nack()
		}
	}()
	return c.subscriber.Close()
}
