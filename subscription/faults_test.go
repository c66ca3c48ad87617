package subscription_test

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/uow"
)

// altered is a broker whose consumers do otherwise: ack says what is really
// acknowledged, receive what is really received.
type altered struct {
	broker.Broker
	ack     func([]broker.Delivery) []broker.Delivery
	receive func(broker.Delivery) broker.Delivery
	release func([]broker.Delivery)
}

type alteredConsumer struct {
	broker.Consumer
	*altered
}

func (a *altered) Consume(ctx context.Context, topic, group string) (broker.Consumer, error) {
	c, err := a.Broker.Consume(ctx, topic, group)
	return &alteredConsumer{c, a}, err
}

func (c *alteredConsumer) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	deliveries, err := c.Consumer.Receive(ctx, limit)
	for i := range deliveries {
		if c.receive != nil {
			deliveries[i] = c.receive(deliveries[i])
		}
	}
	return deliveries, err
}

func (c *alteredConsumer) Ack(ctx context.Context, deliveries ...broker.Delivery) error {
	if c.ack != nil {
		deliveries = c.ack(deliveries)
	}
	return c.Consumer.Ack(ctx, deliveries...)
}

func (c *alteredConsumer) Release(ctx context.Context, deliveries ...broker.Delivery) error {
	if c.release != nil {
		c.release(deliveries)
	}
	return c.Consumer.Release(ctx, deliveries...)
}

// faulty is a provider that can be down, and whose commits can be tampered with.
type faulty struct {
	uow.Provider
	down    atomic.Bool
	commits atomic.Int64
	commit  func(ctx context.Context, s uow.Session, statements []uow.Statement) error
}

var errDown = errors.New("the database is down")

func (p *faulty) Session() uow.Session { return &faultySession{p.Provider.Session(), p} }

func (p *faulty) Reader() *bun.DB {
	if p.down.Load() {
		return p.Provider.Reader().WithQueryHook(refuse{})
	}
	return p.Provider.Reader()
}

type faultySession struct {
	uow.Session
	p *faulty
}

func (s *faultySession) DB(ctx context.Context) (bun.IDB, error) {
	if s.p.down.Load() {
		return nil, errDown
	}
	return s.Session.DB(ctx)
}

func (s *faultySession) Send(ctx context.Context, statements []uow.Statement) error {
	if s.p.down.Load() {
		return errDown
	}
	return s.Session.Send(ctx, statements)
}

func (s *faultySession) Commit(ctx context.Context, statements []uow.Statement) error {
	switch {
	case s.p.down.Load():
		return errDown
	case s.p.commit != nil:
		return s.p.commit(ctx, s.Session, statements)
	}
	return s.Session.Commit(ctx, statements)
}

// refuse makes every query fail.
type refuse struct{}

func (refuse) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	cancel(errDown)
	return ctx
}

func (refuse) AfterQuery(context.Context, *bun.QueryEvent) {}
