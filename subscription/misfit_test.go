package subscription_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
)

// A77, T2: that the list of a context's brokers was changed behind a process is no fault of
// the messages that it gets: they wait, none pays an attempt or is parked, it shows what they
// wait for, and the process continues when it is its list again.
func TestRunner_A77_AListOfBrokersThatIsNotTheDatabasesIsNoMessagesFault(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		require.NoError(t, outboxdb.InitTargets(t.Context(), w.owner.DB(), "shipping", w.units.Targets()))
		shipments := repository.New[*Shipment](w.units)
		s := w.stream()
		s.MaxAttempts = 1
		var calls atomic.Int64
		s.Handlers = []subscription.Handler{subscription.On(func(ctx context.Context, e OrderPlaced) error {
			calls.Add(1)
			shipment := &Shipment{Root: domain.RootWithID(e.Note)}
			shipment.Raise(ShipmentPrepared{ShipmentID: e.Note})
			if err := shipments.Save(ctx, shipment); err != nil {
				return err
			}
			return effect(ctx, e)
		})}
		more := outbox.Targets{Broker: w.units.Targets().Broker, External: []string{"partner"}}
		require.NoError(t, outboxdb.SetTargets(t.Context(), w.owner.DB(), "shipping", more, "mia"))
		r, _ := w.start(s, w.broker)
		w.publish(placed("o-1", "first"), placed("o-1", "second"), placed("o-2", "third"))
		w.until(func() bool {
			require.Zero(t, r.Status().Parked)
			return calls.Load() >= 4 && r.Status().Database != nil
		}, "they are tried again, and it shows")
		trouble := r.Status().Database
		require.Equal(t, dberr.Misfit, trouble.Code)
		require.Contains(t, trouble.Error, "configure default,partner")
		require.Contains(t, dberr.Remedy(trouble.Code), "restart it, or end it")
		require.Zero(t, w.deadLetters())

		require.NoError(t, outboxdb.SetTargets(t.Context(), w.owner.DB(), "shipping", w.units.Targets(), "mia"))
		w.until(w.acknowledged("shipping"), "all are handled")
		require.Equal(t, []string{"first", "second"}, w.effects("o-1"))
		require.Equal(t, 3, w.allEffects())
		require.Zero(t, r.Status().Parked)
		w.until(func() bool { return r.Status().Database == nil }, "it is over")
	})
}
