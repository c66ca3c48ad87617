package uow

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/rootstate"
)

// Outcome is what became of a unit whose COMMIT was not answered.
type Outcome int

const (
	// Committed: state and events are stored, and the unit's aggregates know it.
	Committed Outcome = iota + 1
	// NotCommitted: nothing of the unit is stored, and nothing of it will ever be.
	// Its aggregates keep their events; save them again, or run Do again.
	NotCommitted
	// Overwritten: all aggregates of the unit were saved again by others, and its
	// outbox rows are not there, or no longer. Nothing of the unit is still under
	// way, but whether it happened only the aggregates themselves can tell: load
	// them and decide. To save the unit's own instances is a [*ConflictError], so
	// that no event is stored twice.
	Overwritten
)

func (o Outcome) String() string {
	switch o {
	case Committed:
		return "committed"
	case NotCommitted:
		return "not committed"
	case Overwritten:
		return "overwritten since"
	}
	return fmt.Sprintf("Outcome(%d)", int(o))
}

var (
	errNoAggregate = errors.New("uow: the unit saved no aggregate, and only an aggregate's row says which unit wrote it; look for what the unit's own SQL wrote")
	errNoUnit      = errors.New("uow: only the error that Do returns can be resolved")
	errInUnit      = errors.New("uow: Resolve was called inside a unit of work, which it might wait for; call it outside Do, or with another context")
)

// lost is a unit whose COMMIT was not answered.
type lost struct {
	unit   *Unit
	part   *part
	last   bool            // it was the last provider to commit
	events map[string]bool // message ids of its events

	mu      sync.Mutex
	outcome Outcome
}

func newLost(u *Unit, p *part, last bool) *lost {
	l := &lost{unit: u, part: p, last: last, events: map[string]bool{}}
	for _, e := range u.written(p) {
		for _, r := range e.root.Raised[:e.taken] {
			l.events[r.ID] = true
		}
	}
	return l
}

// Resolve finds out what became of the unit. It waits while the database may
// still be working on it, hence give ctx a deadline; after an error of Resolve,
// call it again. Once it has answered, the answer stays the same.
//
// For [Committed] it first does what Do would have done: versions advance,
// raised events are cleared, processors are woken, AfterCommit functions run.
// With [AcrossProviders] it speaks of the one database that did not answer, and
// AfterCommit functions run only if that was the last of them.
//
// A unit that saved no aggregate can't be resolved: that is an error. Resolve is
// safe for concurrent use, but the unit's aggregates are not to be used meanwhile.
func (e *CommitUnknownError) Resolve(ctx context.Context) (Outcome, error) {
	if e.lost == nil {
		return 0, errNoUnit
	}
	if u, ok := ctx.Value(unitKey{}).(*Unit); ok && u.state != done {
		return 0, errInUnit
	}
	return e.lost.resolve(ctx)
}

func (l *lost) resolve(ctx context.Context) (Outcome, error) {
	l.mu.Lock()
	known := l.outcome != 0
	if !known {
		var err error
		if l.outcome, err = l.ask(ctx); err != nil {
			l.mu.Unlock()
			return 0, fmt.Errorf("uow: what became of the unit is not known yet: %w", err)
		}
		if l.outcome == Committed {
			l.settle()
		}
	}
	l.mu.Unlock()
	if !known && l.outcome == Committed && l.last {
		for _, f := range l.unit.after {
			f(ctx)
		}
	}
	return l.outcome, nil
}

// ask asks for one aggregate after the other. The unit is one transaction:
// if one of them was written all were, and if one can't be written any more none
// can.
func (l *lost) ask(ctx context.Context) (Outcome, error) {
	written := l.unit.written(l.part)
	if len(written) == 0 {
		return 0, errNoAggregate
	}
	for _, e := range written {
		outcome, err := l.askFor(ctx, e)
		if err != nil {
			return 0, fmt.Errorf("%s %s: %w", e.typ.Name, e.root.ID, err)
		}
		if outcome != Overwritten {
			return outcome, nil
		}
	}
	if len(l.events) == 0 || l.unit.m.cfg.NoOutbox {
		return Overwritten, nil
	}
	// That no row is there says nothing: it may have been published and deleted.
	ids := slices.Collect(maps.Keys(l.events))
	var stored bool
	err := l.part.provider.Reader().NewRaw("SELECT EXISTS (SELECT 1 FROM outbox_messages WHERE message_id IN (?))", bun.List(ids)).Scan(ctx, &stored)
	switch {
	case err != nil:
		return 0, err
	case stored:
		return Committed, nil
	}
	return Overwritten, nil
}

func (l *lost) askFor(ctx context.Context, e *entry) (Outcome, error) {
	// What was committed while one statement waited, the next must see.
	tx, err := l.part.provider.DB().BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }()
	outcome, err := e.persister.Resolve(ctx, tx, Change{
		Aggregate: e.aggregate, Type: e.typ, Expected: e.before, Version: e.base, Removed: e.removed, Recreated: e.recreated, Unit: l.unit.id,
	})
	if err == nil && outcome == NotCommitted {
		err = tx.Commit()
	}
	return outcome, err
}

// settle is what [Unit.settle] does, for aggregates that may have been used since.
func (l *lost) settle() {
	for _, e := range l.unit.written(l.part) {
		e.root.Version = max(e.root.Version, e.base)
		e.root.Raised = slices.DeleteFunc(slices.Clone(e.root.Raised), func(r rootstate.Raised) bool { return l.events[r.ID] })
		e.root.Timers = slices.Clone(e.root.Timers[min(e.timersTaken, len(e.root.Timers)):])
		e.timersTaken = 0
	}
	l.unit.wake(l.part)
}
