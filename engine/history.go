package engine

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/projection"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

// historyBatch is how many foreign events of a lane are kept in one transaction, at most.
const historyBatch = 50

// historyRetry is the time between two attempts to have a history begin.
const historyRetry = 5 * time.Second

// keepHistory has the history of a context begin, if it hasn't. What is saved meanwhile is
// not kept, by nobody: a history has no holes. One that a process has left in the middle is
// brought to its end, whether this program wants one or not.
func (d *database) keepHistory(ctx context.Context, name string, wanted bool) {
	defer d.unkept.Delete(name)
	tell := func(waits string) { d.unkept.Store(name, waits) }
	began := time.Now()
	for {
		have, _, err := outboxdb.FindTargets(ctx, d.provider.Reader(), name)
		if err == nil && (have.History == outbox.HistoryOn || have.History == "" && !wanted) {
			return
		}
		if err == nil {
			err = d.store.KeepHistory(ctx, name, tell)
		}
		if err == nil {
			d.log.Info("the history of a context has begun: its events are kept from now on, by all programs; `waybill history import` adds those that are still in the outbox",
				"provider", d.provider.Name(), "context", name, "took", time.Since(began).Round(time.Millisecond))
			break
		}
		tell("the database: " + err.Error())
		select {
		case <-ctx.Done():
			return
		case <-time.After(historyRetry):
		}
	}
}

// waitingHistories are the contexts whose history is yet to begin, and what it waits for.
func (d *database) waitingHistories() map[string]string {
	all := map[string]string{}
	d.unkept.Range(func(name, waits any) bool {
		all[name.(string)] = waits.(string)
		return true
	})
	return all
}

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
