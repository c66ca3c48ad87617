package waybilltest

import (
	"context"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
)

// connection is a process's connection to a broker.
type connection struct {
	*memory.Broker
	process *process
}

// Publish implements [broker.Publisher].
func (c *connection) Publish(ctx context.Context, messages []broker.Message) error {
	if c.process.k.points == nil {
		return c.Broker.Publish(ctx, messages)
	}
	return c.process.around(ctx, publication, func() error { return c.Broker.Publish(ctx, messages) })
}

// Consume implements [broker.Broker].
func (c *connection) Consume(ctx context.Context, topic, group string) (broker.Consumer, error) {
	inner, err := c.Broker.Consume(ctx, topic, group)
	if err != nil {
		return inner, err
	}
	return &consumer{inner.(memoryConsumer), c.process, c.process.handed.of(group)}, nil
}

// memoryConsumer is what a consumer in memory can do.
type memoryConsumer interface {
	broker.Consumer
	broker.Lagging
	broker.Stateful
}

// consumer is one that knows what it has handed out, and whose acknowledgements may be points
// of a crash.
type consumer struct {
	memoryConsumer
	process *process
	out     *outside
}

// Receive implements [broker.Consumer].
func (c *consumer) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	got, err := c.memoryConsumer.Receive(ctx, limit)
	c.out.add(got)
	return got, err
}

// Ack implements [broker.Consumer].
func (c *consumer) Ack(ctx context.Context, deliveries ...broker.Delivery) error {
	ack := func() error { return c.memoryConsumer.Ack(ctx, deliveries...) }
	var err error
	if c.process.k.points == nil {
		err = ack()
	} else {
		err = c.process.around(ctx, acknowledgement, ack)
	}
	c.out.remove(deliveries)
	return err
}

// Release implements [broker.Consumer].
func (c *consumer) Release(ctx context.Context, deliveries ...broker.Delivery) error {
	c.out.remove(deliveries)
	return c.memoryConsumer.Release(ctx, deliveries...)
}
