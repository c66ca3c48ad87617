package engine

import (
	"context"
	"fmt"
	"slices"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

// Backfill gives an external broker that is joining the earlier events
// and lets it live, in every provider of units, as `waybill outbox backfill`
// does. It may run beside engines and writers. See [OutboxStore]. actor is who asks, for
// the record.
func Backfill(ctx context.Context, units *uow.Manager, broker, actor string) (outbox.Backfilled, error) {
	return backfill(ctx, units, broker, actor, false)
}

// BackfillFromHistory is [Backfill] with all events that the context has kept, and not only
// those that are still in the outbox, as `waybill outbox backfill --from-history` does.
func BackfillFromHistory(ctx context.Context, units *uow.Manager, broker, actor string) (outbox.Backfilled, error) {
	return backfill(ctx, units, broker, actor, true)
}

func backfill(ctx context.Context, units *uow.Manager, broker, actor string, fromHistory bool) (outbox.Backfilled, error) {
	var all outbox.Backfilled
	external := units.External()
	i := slices.IndexFunc(external, func(t outbox.Target) bool { return t.Broker == broker })
	if i < 0 {
		return all, fmt.Errorf("engine: context %s has no external broker %q: add it to uow.Config.External", units.Domain().Name(), broker)
	}
	for _, p := range units.Providers() {
		done, err := Outbox(p).Backfill(ctx, outbox.Backfill{
			Context: units.Domain().Name(), Target: external[i], Actor: actor, Domain: units.Domain(), Published: published(units), Renamed: renamed(units), FromHistory: fromHistory,
		})
		all.Add(done)
		if err != nil {
			return all, fmt.Errorf("engine: provider %q: %w", p.Name(), err)
		}
	}
	return all, nil
}
