package engine

import (
	"context"
	"fmt"

	"github.com/waybill-go/waybill/internal/historyverbs"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

// Republish says which kept events of a context are published once more: those that all
// of Causation, Correlation, Category, AggregateID and Messages choose. What is empty chooses
// all; one of them has to be said.
type Republish struct {
	Causation   string   // The id of the command or message whose handling raised them.
	Correlation string   // What they have in common with all that one request set off.
	Category    string   // As in "ordering::order".
	AggregateID string   // Of Category.
	Messages    []string // Their own ids.
	After       int64    // Positions above it. 0: all.

	Target string  // Only to this broker. "": to all that the context sends to.
	Actor  string  // Who asks, for the record. Required.
	Rate   float64 // Events per second, at most. 0: no bound.
}

// Republished is what a republication has done.
type Republished struct {
	Events    int64 // That were chosen.
	Rows      int64 // New ones in the outbox.
	Waiting   int64 // Were there and not published yet, and stay.
	Abandoned int64 // Were there and abandoned, and stay: retry them.
}

// RepublishHistory gives kept events new rows in the outbox, in every provider: they are
// published once more, under their own ids, to each broker that gets them. A consumer that
// has handled one doesn't do so again, as long as its inbox knows it. They come behind what
// is in the outbox, also of their own aggregate: a consumer that goes by order has to expect
// that. It may run beside engines and writers. Refused while a broker is joining.
func RepublishHistory(ctx context.Context, units *uow.Manager, r Republish) (all Republished, err error) {
	targets := units.Targets()
	for _, p := range units.Providers() {
		done, err := historyverbs.Republish{
			Chosen: historyverbs.Chosen{
				Causation: r.Causation, Correlation: r.Correlation, Category: r.Category, AggregateID: r.AggregateID, MessageIDs: r.Messages, After: r.After,
			},
			Writer:  outbox.Writer{Domain: units.Domain(), Internal: targets.Broker, External: units.External()},
			Context: units.Domain().Name(), Published: published(units), Renamed: renamed(units), Target: r.Target, Actor: r.Actor, Rate: r.Rate,
		}.Run(ctx, p)
		all.Events += done.Events
		all.Rows += done.Rows
		all.Waiting += done.Waiting
		all.Abandoned += done.Abandoned
		if err != nil {
			return all, fmt.Errorf("engine: provider %q: %w", p.Name(), err)
		}
	}
	return all, nil
}
