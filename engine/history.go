package engine

import (
	"context"
	"maps"
	"slices"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/projection"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

// historyBatch is how many foreign events of a lane are kept in one transaction, at most.
const historyBatch = 50

// keepForeign adds the subscriptions that keep other contexts' events in a history, for
// the projections that handle them: one for each stream, called
// <context>.history.<topic>. Where the application has a subscription to the same stream,
// they read from its broker and believe what it does.
func (w *wiring) keepForeign(all *projection.Projections) {
	units := all.Units()
	for _, p := range units.Providers() {
		byCategory := map[string][]subscription.Handler{}
		for _, t := range all.Foreign(p.Name()) {
			byCategory[t.Category] = append(byCategory[t.Category], keeper(p.Name(), t))
		}
		for _, category := range slices.Sorted(maps.Keys(byCategory)) {
			s := subscription.Stream{
				Name: units.Domain().Name() + ".history." + outbox.DefaultTopic(category), Category: category, Handlers: byCategory[category],
				Units: units, Provider: p.Name(), Broker: units.Broker(), Batch: historyBatch,
			}
			if p != units.Providers()[0] {
				s.Name += "." + p.Name()
			}
			for _, other := range w.cfg.Subscriptions {
				if other.Units == units && other.Category == category && other.Instances == nil {
					s.Broker, s.Inbound = other.WithDefaults().Broker, other.Inbound
				}
			}
			w.cfg.Subscriptions = append(w.cfg.Subscriptions, s)
		}
	}
}

// keeper keeps an event as it came, so that a later build can read more of it.
func keeper(provider string, t *domain.EventType) subscription.Handler {
	return subscription.OnData(t, func(ctx context.Context, data []byte) error {
		u, err := uow.From(ctx)
		if err != nil {
			return err
		}
		meta, _ := domain.MetadataFrom(ctx)
		return u.Keep(provider, outbox.Event{Metadata: meta, Data: data})
	})
}
