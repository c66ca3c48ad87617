package subscription_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
)

// preparing handles OrderPlaced by a shipment, whose event goes to the outbox.
func (w *world) preparing(name string, after func(ctx context.Context, e OrderPlaced) error) subscription.Stream {
	shipments := repository.New[*Shipment](w.units)
	s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
		shipment := &Shipment{Root: domain.RootWithID(name + "-" + e.OrderID)}
		shipment.Raise(ShipmentPrepared{ShipmentID: shipment.ID()})
		if err := shipments.Save(ctx, shipment); err != nil {
			return err
		}
		return after(ctx, e)
	}))
	s.Name = name
	return s
}

// C-08, C-09: of a batch with duplicates, of what is in it and of what was
// handled before, exactly those are named so, and the rest takes effect.
func TestBatchWithDuplicates_C_08_C_09(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		sent := orders(12)
		w.publish(sent[0])
		_, stop := w.start(w.stream(), w.broker)
		w.until(w.acknowledged("shipping"), "one is handled")
		stop()

		w.publish(append(append([]broker.Message{}, sent...), sent[5])...)
		r, stop := w.start(w.stream(), w.broker)
		w.until(w.acknowledged("shipping"), "all are acknowledged")
		stop()
		require.EqualValues(t, 2, r.Status().Duplicates)
		require.EqualValues(t, 11, r.Status().Handled)
		require.Zero(t, r.Status().Retries)
		require.Zero(t, w.deadLetters())
		for i := range sent {
			require.Len(t, w.effects(fmt.Sprintf("o-%d", i)), 1)
		}
	})
}

// C-51: what a handler raised in an attempt that failed is never published; what
// it published past its unit of work is out at once, with every attempt.
func TestFailedAttemptEmitsNothing_C_51(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		const audit = "shipping.audit"
		var attempts, rows atomic.Int64
		s := w.preparing("shipping", func(ctx context.Context, e OrderPlaced) error {
			m := placed(e.OrderID, "")
			m.Topic = audit
			if err := w.broker.Publish(ctx, []broker.Message{m}); err != nil {
				return err
			}
			if attempts.Add(1) < 4 {
				return errors.New("after the send")
			}
			rows.Store(int64(w.count("SELECT count(*) FROM outbox")))
			return nil
		})
		w.process()
		w.publish(placed("o", ""))
		_, stop := w.start(s, w.broker)
		w.until(w.acknowledged("shipping"), "it succeeds")
		w.until(func() bool { return len(w.broker.Messages("shipping.shipment")) == 1 }, "its event is published")
		stop()
		require.Zero(t, rows.Load(), "nothing of the attempts before")
		require.Len(t, w.outboxOf("shipping::shipment"), 1)
		require.Len(t, w.broker.Messages(audit), 4)
	})
}

// C-54: a duplicate is acknowledged and counted at once, whatever else is being
// worked on, and doesn't run its handler.
func TestDuplicateWaitsForNobody_C_54(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		release := make(chan struct{})
		s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
			if e.OrderID == "slow" {
				select {
				case <-release:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return effect(ctx, e)
		}))
		m := placed("o", "")
		w.publish(m)
		r, stop := w.start(s, w.broker)
		w.until(w.acknowledged("shipping"), "it is handled")
		w.publish(placed("slow", ""), m)
		w.until(func() bool { return r.Status().Duplicates == 1 && w.broker.Unacknowledged(topic, "shipping") == 1 }, "only the slow one is left")
		close(release)
		w.until(w.acknowledged("shipping"), "it ends")
		stop()
		require.Len(t, w.effects("o"), 1)
	})
}

// C-55: several subscriptions to one message have their own inbox entries, and
// each publishes what it raised, once, with the message as its cause.
func TestEachSubscriptionPublishesItsOwn_C_55(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		done := func(context.Context, OrderPlaced) error { return nil }
		sent := orders(5)
		for range 2 {
			w.publish(sent...)
		}
		var stops []func()
		names := []string{"one", "two", "three"}
		for _, name := range names {
			_, stop := w.start(w.preparing(name, done), w.broker)
			stops = append(stops, stop)
		}
		for i, name := range names {
			w.until(w.acknowledged(name), name)
			stops[i]()
		}
		causes := map[string]int{}
		for _, row := range w.outboxOf("shipping::shipment") {
			causes[row.CausationID]++
		}
		require.Len(t, causes, len(sent))
		for _, m := range sent {
			require.Equal(t, len(names), causes[m.ID])
		}
		require.Equal(t, len(names)*len(sent), w.inbox())
	})
}
