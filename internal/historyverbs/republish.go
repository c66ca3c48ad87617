package historyverbs

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/historydb"
	"github.com/waybill-go/waybill/internal/operate"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

// Chosen says which of a context's kept events are published once more. What is empty chooses
// all; all empty is refused.
type Chosen struct {
	Causation   string   `json:"causation,omitempty"`   // The id of the command or message whose handling raised them.
	Correlation string   `json:"correlation,omitempty"` // What they have in common with all that one request set off.
	Category    string   `json:"category,omitempty"`    // As in "ordering::order".
	AggregateID string   `json:"id,omitempty"`          // With Category only.
	MessageIDs  []string `json:"messages,omitempty"`
	After       int64    `json:"after,omitempty"` // Positions above it, when another field chooses; 0: all.
}

func (c Chosen) check(what string) error {
	switch {
	case c.Causation == "" && c.Correlation == "" && c.Category == "" && len(c.MessageIDs) == 0:
		return fmt.Errorf("%s: nothing is chosen: name a causation, a correlation, a category or messages", what)
	case c.AggregateID != "" && c.Category == "":
		return fmt.Errorf("%s: aggregate %q of which category? Two aggregates may have the same id", what, c.AggregateID)
	}
	for _, id := range c.MessageIDs {
		if _, err := uuid.Parse(id); err != nil {
			return fmt.Errorf("%s: message %q: the ids of a context's own events are UUIDs: %w", what, id, err)
		}
	}
	return nil
}

func (c Chosen) filter(context string) historydb.Filter {
	f := historydb.Filter{Context: context, Causation: c.Causation, Correlation: c.Correlation, ID: c.AggregateID, MessageIDs: c.MessageIDs}
	if c.Category != "" {
		f.Categories = []string{c.Category}
	}
	return f
}

const (
	republishEvents = 500
	// span is how many positions one statement looks at.
	span = 100_000
)

// Republish gives kept events new rows in the outbox, by an operator.
type Republish struct {
	Chosen

	Writer    outbox.Writer // What rows depend on, as the context's programs have it. Domain may be nil.
	Context   string
	Published []string          // Short names of events that external targets get. Nil: as the database has them.
	Renamed   map[string]string // Of these, the names by those with which they were stored. Nil: as Published.
	Target    string            // Only for this one. "": all that the context sends to.
	Actor     string
	Rate      float64                   // Events per second, at most; 0: no bound.
	DryRun    bool                      // Count, and change nothing.
	Progress  func(RepublishedToTarget) // After each transaction. May be nil.

	keeps       bool     // The context has its events kept.
	who         string   // Has said what is published.
	unpublished []string // Other programs publish or published these, beside Published.
}

// RepublishedToTarget is what a republication has done so far.
type RepublishedToTarget struct {
	outboxdb.Republished

	Events int64 // That were chosen.
	Last   int64 // The position of the last of them.
	Action int64 // Its id in the record; 0: nothing was changed.
}

const whatRepublish = "history: republish"

// Run republishes into a provider's database. It is done in transactions of their own, each
// with its share in the record. Where it ends early, its error says after which position it
// can go on.
func (r Republish) Run(ctx context.Context, p uow.Provider) (done RepublishedToTarget, err error) {
	run := &operate.Run{
		DB: p.DB(), What: whatRepublish, Done: "rows stored", LockWait: time.Second, Rest: 1,
		Record: operate.Record{Table: "outbox_actions", Count: "rows", Actor: r.Actor, Action: "history-republish", Moves: true},
	}
	if err := r.check(run); err != nil {
		return done, err
	}
	store := outboxdb.New(p.DB(), p.Reader())
	partitions, err := r.prepare(ctx, p)
	if err != nil {
		return done, err
	}
	began, told := time.Now(), r.DryRun
	err = r.each(ctx, p.Reader(), func(events []historydb.Event) error {
		rows, err := r.rows(events, partitions)
		if err != nil {
			return err
		}
		var of outboxdb.Republished
		if r.DryRun {
			of, err = store.CountRepublish(ctx, rows)
		} else {
			run.Record.Asked = r.asked(events[len(events)-1].Position)
			err = run.Step(ctx, func(tx bun.Tx) (int64, error) {
				var err error
				of, err = store.Republish(ctx, tx, r.Context, rows)
				return of.Rows, err
			})
			told = err != nil
		}
		if err != nil {
			return err
		}
		done.Add(of)
		done.Events += int64(len(events))
		done.Last, done.Action = events[len(events)-1].Position, run.Action
		run.GoOn = fmt.Sprintf("what was chosen up to position %d has its rows: go on with --after=%[1]d", done.Last)
		if r.Progress != nil {
			r.Progress(done)
		}
		if r.DryRun || r.Rate == 0 {
			return nil
		}
		return until(ctx, began.Add(operate.Bounds{Rate: r.Rate}.Delay(done.Events)))
	})
	if err != nil && done.Last != 0 && !told {
		err = run.Ended(ctx, err)
	}
	if err == nil && done.Events == 0 && !r.keeps { // what was kept before it was turned off is there
		return done, fmt.Errorf("%s: nothing is there to choose from: %w", whatRepublish, keepsNone(r.Context))
	}
	return done, err
}

// asked is what the record says: also of one that was killed, up to where it came.
func (r Republish) asked(last int64) any {
	return struct {
		Context string `json:"context"`
		Chosen
		Target string  `json:"target,omitempty"`
		Rate   float64 `json:"rate,omitempty"`
		Last   int64   `json:"last_position"`
	}{r.Context, r.Chosen, r.Target, r.Rate, last}
}

func (r Republish) check(run *operate.Run) error {
	return errors.Join(run.Record.Check(whatRepublish, r.DryRun), r.Chosen.check(whatRepublish), operate.Bounds{Rate: r.Rate}.Check(whatRepublish))
}

// prepare learns from the database what the rows depend on, and refuses what is configured
// otherwise.
func (r *Republish) prepare(ctx context.Context, p uow.Provider) (partitions int, err error) {
	if err := outboxdb.Migrations().Check(ctx, p.Reader()); err != nil {
		return 0, err
	}
	if err := historydb.Migrations().Check(ctx, p.Reader()); err != nil {
		return 0, err
	}
	have, found, err := outboxdb.FindTargets(ctx, p.Reader(), r.Context)
	switch {
	case err != nil:
		return 0, err
	case !found:
		return 0, fmt.Errorf("%s: the database does not know context %s; run `waybill migrate` with its configuration file, or start its program", whatRepublish, r.Context)
	case len(have.Joining) > 0:
		return 0, fmt.Errorf("%s: broker %s is joining: run `waybill outbox backfill` first", whatRepublish, have.Joining[0])
	case r.Target != "" && r.Target != have.Broker && !slices.Contains(have.External, r.Target):
		return 0, fmt.Errorf("%s: context %s sends to %v, and not to %s", whatRepublish, r.Context, have, r.Target)
	}
	if err := outboxdb.CheckTargets(ctx, p.Reader(), r.Context, outbox.TargetsOf(r.Writer.Internal, r.Writer.External)); err != nil {
		return 0, err
	}
	if len(have.External) > 0 {
		if err := r.learn(ctx, p.Reader()); err != nil {
			return 0, err
		}
	}
	r.keeps = have.History != ""
	return outboxdb.Partitions(ctx, p.Reader())
}

// learn reads which events are published, unless who asks has said it, and which ones others publish.
func (r *Republish) learn(ctx context.Context, db bun.IDB) (err error) {
	r.who = "the one that asks"
	if r.Published == nil {
		r.who = "the one that started last"
		if r.Published, err = outboxdb.ReadPublished(ctx, db, r.Context); err != nil {
			return err
		}
		if r.Renamed, err = outboxdb.ReadRenamed(ctx, db, r.Context); err != nil {
			return err
		}
	}
	r.unpublished, err = outboxdb.ReadUnpublished(ctx, db, r.Context, r.Published)
	return err
}

// missed refuses an event that a target would get if another program of the context had said what
// is published: in a rolling deployment these differ, and nobody would see that it is left out.
func (r *Republish) missed(wireName string) error {
	for _, t := range r.Writer.External {
		b := outbox.Backfill{Target: t, Published: r.unpublished, Renamed: r.Renamed}
		if (r.Target == "" || r.Target == t.Broker) && b.Wants(wireName) {
			return fmt.Errorf("programs of context %s publish different events, and %s would not get %s, which %s doesn't publish: "+
				"let the deployment end, with a program that publishes it as the last one to start (or to ask), and try again; "+
				"if %[2]s is not to get it any more, list in its target's events those that it gets, or name another target", r.Context, t.Broker, wireName, r.who)
		}
	}
	return nil
}

// each calls do with pages of what is chosen, in its order, up to what is there now.
func (r Republish) each(ctx context.Context, db *bun.DB, do func(events []historydb.Event) error) error {
	head, err := historydb.Head(ctx, db)
	if err != nil {
		return err
	}
	limit := republishEvents
	if r.Rate > 0 {
		limit = max(1, int(min(r.Rate, republishEvents)))
	}
	after := r.After
	if after == 0 {
		after = math.MinInt64
	}
	for {
		next, found, err := historydb.Next(ctx, db, after)
		if err != nil || !found || next > head {
			return err
		}
		end := historydb.Until(next-1, span, head)
		events, full, err := historydb.Between(ctx, db, r.filter(r.Context), next-1, end, limit)
		if err != nil {
			return err
		}
		if len(events) > 0 {
			if err := do(events); err != nil {
				return err
			}
		}
		if after = end; full {
			after = events[len(events)-1].Position
		}
	}
}

func (r *Republish) rows(events []historydb.Event, partitions int) (rows []outbox.Row, err error) {
	for i := range events {
		e := &events[i].Event
		var of []outbox.Row
		err := r.missed(e.Type)
		if err == nil {
			of, err = r.Writer.Again(e, r.Published, r.Renamed, partitions)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: event at position %d: %w", whatRepublish, events[i].Position, err)
		}
		for _, row := range of {
			if r.Target == "" || row.TargetBroker == r.Target {
				rows = append(rows, row)
			}
		}
	}
	return rows, nil
}

func until(ctx context.Context, at time.Time) error {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
