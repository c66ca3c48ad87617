// Package history reads all events that a context has kept, in one order: those of
// its aggregates, with [uow.Config].History, and the foreign ones that its projections
// need. Nothing is passed over: an event that commits late holds back those of higher
// positions, and only transactions that write events can do so.
//
//	for e, err := range history.Read(ctx, units, history.Range{Types: []string{"LoanPlaced"}}) {
//		if err != nil {
//			return err
//		}
//		fmt.Println(e.Position, e.Stream, e.Type, string(e.Data))
//	}
//
// One aggregate's events are in the order of its versions. Those of different aggregates
// are in the order in which they were stored; of one unit, those of event-sourced
// aggregates come first.
package history

import (
	"context"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/historydb"
	"github.com/waybill-go/waybill/uow"
)

// Event is a kept event.
type Event struct {
	domain.Metadata
	Position int64 // Its place among all kept events. There are gaps; what was imported is below 0.
	Data     []byte
}

// Range says which events are read.
type Range struct {
	After      int64    // Positions above it. 0: from the beginning.
	Until      int64    // Up to here; 0: up to what is there now.
	Categories []string // As in "ordering::order"; nil: all.
	Types      []string // Of the context's own events "LoanPlaced", of others "Billing.FeePaid", in all their versions; nil: all.
	Follow     bool     // Go on with what comes, until ctx is done or Until is reached.
	Provider   string   // Whose history it is. "": the default provider's.
}

const (
	pageEvents = 500
	// patience is how often it looks for what comes.
	patience = 20 * time.Millisecond
	// longest is how long it waits between looks when nothing has come for a while.
	longest = 500 * time.Millisecond
)

// Read returns events in the order of their positions. It reads pages and holds no
// transaction between them. Without Follow it ends with what was committed before the
// call, and waits for transactions that have written events by then, or until ctx is
// done: its error names them.
//
// Each loop over what it returns reads anew. It may run in a unit of work, and doesn't
// see what that has saved.
func Read(ctx context.Context, units *uow.Manager, r Range) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		if err := read(ctx, units, r, func(e Event) bool { return yield(e, nil) }); err != nil {
			yield(Event{}, err)
		}
	}
}

func read(ctx context.Context, units *uow.Manager, r Range, yield func(Event) bool) error {
	p, err := units.Provider(r.Provider)
	if err != nil {
		return err
	}
	names, err := namesOf(units.Domain(), r.Types)
	if err != nil {
		return err
	}
	until := r.Until
	if !r.Follow {
		head, err := historydb.Head(ctx, p.Reader())
		if err != nil {
			return err
		}
		if until == 0 || head < until {
			until = head
		}
		if until == 0 { // nothing, or only what was imported
			until = -1
		}
	}
	f := own(units.Domain())
	f.Categories, f.Names = r.Categories, names
	reader := historydb.NewReader(p.Reader(), f)
	pause := patience
	for at := r.After; until == 0 || at < until || at == 0; {
		page, err := reader.Page(ctx, at, until, pageEvents)
		if err != nil {
			return err
		}
		for _, e := range page.Events {
			if !yield(eventOf(e)) {
				return nil
			}
		}
		switch {
		case page.UpTo != at:
			pause = patience
		case !r.Follow && until < 0:
			return nil
		default:
			if err := rest(ctx, pause, page.Writers); err != nil {
				return err
			}
			pause = min(2*pause, longest)
		}
		at = page.UpTo
	}
	return nil
}

// own chooses what concerns a context: others may have their tables in the same database.
func own(d *domain.Domain) historydb.Filter {
	f := historydb.Filter{Context: d.Name()}
	for _, t := range d.Events() {
		if t.Foreign {
			f.Foreign = append(f.Foreign, t.Names()...)
		}
	}
	return f
}

func rest(ctx context.Context, d time.Duration, writers []string) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		if len(writers) > 0 {
			return fmt.Errorf("history: wait for open transactions that have written events (pg_locks.virtualtransaction %s): %w", strings.Join(writers, ", "), ctx.Err())
		}
		return fmt.Errorf("history: wait for what is being written: %w", ctx.Err())
	}
}

// namesOf are all names that events of these types are stored under.
func namesOf(d *domain.Domain, types []string) (names []string, err error) {
	for _, want := range types {
		found := false
		for _, t := range d.Events() {
			if own := !t.Foreign && t.ShortName() == want; own || slices.Contains(t.Names(), want) {
				names, found = append(names, t.Names()...), true
			}
		}
		if !found {
			return nil, fmt.Errorf("history: context %s declares no event %q: write one's own as %q, and a foreign one as %q", d.Name(), want, "LoanPlaced", "Billing.FeePaid")
		}
	}
	return names, nil
}

// Head is the highest position that is stored now, on the default provider: what was
// committed before the call is not above it. 0: there is none.
func Head(ctx context.Context, units *uow.Manager) (int64, error) {
	return historydb.Head(ctx, units.Providers()[0].Reader())
}

// Begin is the first kept event, on the default provider: from when History was turned
// on, or of what was imported. ok is false if there is none.
func Begin(ctx context.Context, units *uow.Manager) (first Event, ok bool, err error) {
	db := units.Providers()[0].Reader()
	for at := int64(math.MinInt64); ; {
		next, found, err := historydb.Next(ctx, db, at)
		if err != nil || !found {
			return first, false, err
		}
		events, _, err := historydb.Between(ctx, db, own(units.Domain()), next-1, next, 1)
		if err != nil {
			return first, false, err
		}
		if len(events) > 0 { // else it is another context's, or the mark of a save without events
			return eventOf(events[0]), true, nil
		}
		at = next
	}
}

func eventOf(e historydb.Event) Event {
	return Event{Metadata: e.Metadata, Position: e.Position, Data: e.Data}
}
