package uow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/internal/historydb"
	"github.com/waybill-go/waybill/internal/migrate"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/outbox"
)

func (u *Unit) flush(ctx context.Context) error {
	if err := u.usable(); err != nil {
		return err
	}
	for _, p := range u.touched {
		if err := u.flushPart(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

func (u *Unit) flushPart(ctx context.Context, p *part) error {
	statements, err := u.statements(ctx, p, false)
	if err != nil {
		return u.doom(err)
	}
	if len(statements) > 0 {
		if err := p.session.Send(ctx, statements); err != nil {
			return u.doom(err)
		}
	}
	u.flushed(p)
	return nil
}

// statements is what waits for a provider: guards, then the aggregates' state,
// then timers, then the application's own statements, then the history and the outbox
// rows. last says that nothing follows.
//
// The rows come last because the lock on an aggregate's row orders its writers:
// with the rows first, two writers of one aggregate would draw their seq, or their
// position in the history, in one order and commit in the other. Aggregates are in the order of type and id, so
// that two units that touch the same ones don't lock each other out.
func (u *Unit) statements(ctx context.Context, p *part, last bool) ([]Statement, error) {
	waiting := u.waiting(p)
	all, err := u.changes(ctx, p, waiting, last)
	if err != nil {
		return nil, err
	}
	events, history := raised(p, waiting)
	if len(events) == 0 || u.m.cfg.NoOutbox {
		if !u.m.cfg.History {
			history = nil
		}
		return append(all, kept(p, history)...), nil
	}
	known, err := u.outbox(ctx, p)
	if err != nil {
		return nil, err
	}
	if !known.keeps && len(history) > 0 {
		history = nil
		if !known.moving {
			u.m.withoutHistory(p.provider.Name())
		}
	}
	writer := u.m.writer
	if len(known.joining) > 0 {
		writer.External = slices.DeleteFunc(slices.Clone(writer.External), func(t outbox.Target) bool { return slices.Contains(known.joining, t.Broker) })
	}
	rows, err := writer.Rows(events, known.partitions)
	if err != nil {
		return nil, err
	}
	for _, r := range rows {
		p.pokes[outbox.Poke{Target: r.TargetBroker, Partition: r.Partition}] = true
	}
	// SQLite has one writer, whose transactions follow one another anyway.
	if locks := outboxdb.LockKeys(events); locks != nil && p.provider.DB().Dialect().Name() == dialect.PG {
		all = append(all, Statement{Query: locks, Rows: -1})
	}
	all = append(all, kept(p, history)...) // behind the locks of keys, too: aggregates that share one have one order here as well
	u.events, u.rows = u.events+len(events), u.rows+len(rows)
	if len(rows) > 0 {
		all = append(all, Statement{Query: outboxdb.Insert(rows), Rows: -1})
	}
	return all, nil
}

// changes is what waits for a provider up to the application's own statements.
func (u *Unit) changes(ctx context.Context, p *part, waiting []*entry, last bool) ([]Statement, error) {
	all := slices.Clone(p.guards)
	var late []Statement
	for _, e := range waiting {
		for _, s := range e.writes {
			if s.Late {
				late = append(late, s)
			} else {
				all = append(all, s)
			}
		}
	}
	all = append(all, late...)
	// Late, as it is behind all state then; but before what sets the same timer anew, or
	// stops it with its aggregate, and so takes its row away.
	if last || len(p.timers) > 0 {
		all = append(all, p.handled...)
		p.handled = nil
	}
	if len(p.timers) > 0 {
		known, err := u.outbox(ctx, p)
		if err != nil {
			return nil, err
		}
		timers, err := u.timerStatements(p, known.partitions)
		if err != nil {
			return nil, err
		}
		all = append(all, timers...)
	}
	return append(all, p.executions...), nil
}

// raised is what is to be published, and what of it the history keeps: a persister may
// keep events itself. Both are in the order in which they were raised: ids are UUIDv7,
// which grow.
func raised(p *part, waiting []*entry) (events, history []outbox.Event) {
	for _, e := range waiting {
		events = append(events, e.events...)
		if _, keeps := e.persister.(EventKeeper); !keeps {
			history = append(history, e.events...)
		}
	}
	events = append(events, p.messages...)
	byID := func(a, b outbox.Event) int { return strings.Compare(a.ID, b.ID) }
	slices.SortStableFunc(events, byID)
	slices.SortStableFunc(history, byID)
	return events, history
}

// kept writes the history.
func kept(p *part, history []outbox.Event) (all []Statement) {
	if len(history) > 0 {
		all = append(all, Statement{Query: historydb.Insert(history), Rows: -1})
	}
	for _, e := range p.foreign {
		all = append(all, Statement{Query: historydb.InsertMissing(e), Rows: -1})
	}
	return all
}

// outbox is what has to be known before rows are written. If the transaction has
// begun it is read there: units that each wait for a second connection of one pool
// can wait for each other for ever. While a target is joining, or the history about to
// begin, the transaction begins here, because the answer must hold until it ends.
func (u *Unit) outbox(ctx context.Context, p *part) (known *knownOutbox, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("uow: outbox of provider %q: %w", p.provider.Name(), err)
		}
	}()
	o := u.m.outboxes[p.provider.Name()]
	if known := o.fresh(); known != nil {
		return known, nil
	}
	if !p.session.Began() {
		known, err = o.look(ctx, p.provider.Reader(), outboxdb.ConfirmTargets)
		if err != nil || !known.moving {
			return known, err
		}
		db, err := p.session.DB(ctx)
		if err != nil {
			return nil, err
		}
		return o.look(ctx, db, outboxdb.HoldTargets)
	}
	db, err := p.session.DB(ctx)
	if err != nil {
		return nil, err
	}
	// PostgreSQL answers nothing more after a query of a missing table.
	if missing, ok := errors.AsType[*migrate.SchemaError](outboxdb.Migrations().Check(ctx, db)); ok && missing.Have == 0 {
		return nil, missing
	}
	known, err = o.look(ctx, db, outboxdb.ConfirmTargets)
	if err != nil || !known.moving {
		return known, err
	}
	return o.look(ctx, db, outboxdb.HoldTargets)
}

func (u *Unit) waiting(p *part) []*entry {
	var waiting []*entry
	for _, e := range u.entries {
		if e.saved && e.provider == p.provider.Name() {
			waiting = append(waiting, e)
		}
	}
	slices.SortFunc(waiting, func(a, b *entry) int {
		return cmp.Or(strings.Compare(a.typ.Category, b.typ.Category), strings.Compare(a.root.ID, b.root.ID))
	})
	return waiting
}

// written are the aggregates of a provider that were flushed.
func (u *Unit) written(p *part) []*entry {
	var written []*entry
	for _, e := range u.entries {
		if e.flushed && e.provider == p.provider.Name() {
			written = append(written, e)
		}
	}
	return written
}

// flushed notes that what waited has been sent.
func (u *Unit) flushed(p *part) {
	p.guards, p.executions, p.messages, p.foreign, p.timers = nil, nil, nil, nil, nil
	for _, e := range u.waiting(p) {
		e.base++
		e.saved, e.flushed = false, true
		e.events, e.writes = nil, nil
	}
}

func (u *Unit) commit(ctx context.Context) error {
	for _, e := range u.entries {
		if len(e.root.Raised) > e.taken {
			return &UnsavedError{Type: e.typ.Name, ID: e.root.ID, Event: fmt.Sprintf("%T", e.root.Raised[e.taken].Event)}
		}
		if len(e.root.Timers) > e.timersTaken {
			return &UnsavedError{Type: e.typ.Name, ID: e.root.ID, Timer: e.root.Timers[e.timersTaken].Name}
		}
	}
	var committed []string
	for i, p := range u.touched {
		statements, err := u.statements(ctx, p, true)
		if err == nil {
			err = p.session.Commit(ctx, statements)
			if unknown, ok := errors.AsType[*CommitUnknownError](err); ok {
				u.flushed(p) // perhaps
				unknown.lost = newLost(u, p, i == len(u.touched)-1)
			}
		}
		if err != nil {
			if len(committed) > 0 {
				return &PartialCommitError{Committed: committed, Failed: p.provider.Name(), Err: err}
			}
			return err
		}
		u.flushed(p)
		u.settle(p)
		committed = append(committed, p.provider.Name())
	}
	return nil
}

// settle tells the aggregates of a provider that they are stored, and the
// listeners that there are rows. Until then aggregates keep version and events,
// so that a failed save can be tried again.
func (u *Unit) settle(p *part) {
	for _, e := range u.written(p) {
		e.root.Version = e.base
		e.root.Raised = slices.Clone(e.root.Raised[e.taken:])
		e.root.Timers = slices.Clone(e.root.Timers[e.timersTaken:])
		e.taken, e.timersTaken = 0, 0
	}
	u.wake(p)
}

func (u *Unit) wake(p *part) {
	if len(p.pokes) > 0 {
		u.m.wake(p.provider, slices.Collect(maps.Keys(p.pokes)))
	}
	if !p.due.IsZero() {
		u.m.timerSet(p.provider, p.due)
	}
}
