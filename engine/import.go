package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/waybill-go/waybill/internal/historydb"
	"github.com/waybill-go/waybill/internal/historyverbs"
	"github.com/waybill-go/waybill/uow"
)

// ImportedHistory is what an import has brought into a history.
type ImportedHistory struct {
	Events   int64     // By this call.
	LeftOut  int64     // Would be holes: what was raised before or after them is missing.
	Earliest time.Time // When the first of them was raised; zero if there is none.
}

// ImportHistory brings events into the history of units, in every provider, that were raised
// before it began and are still in the outbox, as `waybill history import` does. It is refused
// once a projection has read beyond the beginning. It may run beside engines and writers, and
// be ended and run again at any time. actor is who asks, for the record.
func ImportHistory(ctx context.Context, units *uow.Manager, actor string) (all ImportedHistory, err error) {
	for _, p := range units.Providers() {
		done, err := historyverbs.Import{Context: units.Domain().Name(), Actor: actor}.Run(ctx, p)
		all.add(done)
		if err != nil {
			return all, fmt.Errorf("engine: provider %q: %w", p.Name(), err)
		}
	}
	return all, nil
}

func (i *ImportedHistory) add(done historydb.Imported) {
	i.Events += done.Events
	i.LeftOut += done.LeftOut
	if i.Earliest.IsZero() || !done.Earliest.IsZero() && done.Earliest.Before(i.Earliest) {
		i.Earliest = done.Earliest
	}
}
