package repository

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/historydb"
	"github.com/waybill-go/waybill/internal/rootstate"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

// EventSourced keeps an aggregate as its events, in the transaction and with the
// bytes that the outbox has. A is raised by [domain.Record] and loaded by its
// Apply, which sees older events through the domain's upcasters. To save an
// aggregate that raised nothing stores nothing.
//
// A removed aggregate is not found any more, and its history stays. [Snapshots] make it
// faster to load one with many events; [Repository.AsOf], AsOfVersion and Past say what
// one was.
func EventSourced[A domain.Sourced](units *uow.Manager, opts ...Option) *Repository[A] {
	e := events[A]{kept: newKept[A]("EventSourced", units, opts), domain: units.Domain()}
	e.every = optionsOf(opts).every()
	return &Repository[A]{units: units, typ: e.typ, store: e}
}

// events keeps aggregates as what happened to them.
//
// Whoever saves on top of version n writes version n+1, and the primary key lets
// only one do so. This needs every version from 1 on to be there: a save without
// events leaves a mark, and nothing is deleted.
type events[A domain.Sourced] struct {
	kept[A]
	domain *domain.Domain
	every  int // with every so many versions there is a snapshot; 0: with none
}

var (
	_ store[domain.Sourced] = events[domain.Sourced]{}
	_ dated[domain.Sourced] = events[domain.Sourced]{}
	_ uow.EventKeeper       = events[domain.Sourced]{}
)

// KeepsEvents implements [uow.EventKeeper].
func (e events[A]) KeepsEvents() {}

// Types of the rows that are no events. No event can be called so.
const (
	markSaved   = "waybill.saved"
	markRemoved = "waybill.removed"
	// markRefused keeps units out whose commit was lost; for all others there is
	// nothing.
	markRefused = "waybill.refused"
)

// Persist implements [uow.Persister].
func (e events[A]) Persist(c uow.Change) ([]uow.Statement, error) {
	root := rootstate.Of(c.Aggregate)
	if err := checkID(root.ID); err != nil {
		return nil, err
	}
	for _, r := range root.Raised {
		if !r.Applied {
			return nil, fmt.Errorf("%T was raised by Raise, so that it is an event but not part of the state: an event-sourced aggregate raises by domain.Record(aggregate, event)", r.Event)
		}
	}
	in := eventInsert{category: c.Type.Category, id: root.ID, version: c.Version, unit: c.Unit, refusing: refusing(c)}
	for _, event := range c.Events {
		metadata, err := historydb.Metadata(&event)
		if err != nil {
			return nil, err
		}
		in.rows = append(in.rows, eventRow{event: event, metadata: metadata})
	}
	switch {
	case c.Removed:
		in.mark = markRemoved
	case len(c.Events) > 0:
	case c.Expected == 0:
		return nil, errors.New("it has raised no event, and events are all that would be stored")
	default:
		in.mark = markSaved
	}
	rows := len(in.rows)
	if in.mark != "" {
		rows++
	}
	snapshot, err := e.snapshot(c)
	if err != nil {
		return nil, err
	}
	return append([]uow.Statement{{Query: in, Rows: int64(rows), Else: conflict(c)}}, snapshot...), nil
}

func (e events[A]) unchanged(A) bool { return true }

const (
	selectEvents = "SELECT id, version, type, data FROM events WHERE category = ? AND id IN (?) AND type <> '" + markRefused + "' AND version <= ? ORDER BY id, version, n"
	refuseEvent  = "INSERT INTO events (category, id, version, n, type, occurred_at, unit) VALUES (?, ?, ?, 1, '" + markRefused + "', ?, ?)" +
		" ON CONFLICT (category, id, version, n) DO UPDATE SET unit = events.unit || excluded.unit WHERE events.type = '" + markRefused + "'"
	selectEventWriter = "SELECT version, unit FROM events WHERE category = ? AND id = ? AND version = ? AND n = 1"
)

// Resolve implements [uow.Persister]. Rows of events stay for ever, so it is
// always known who wrote a version.
func (e events[A]) Resolve(ctx context.Context, tx bun.Tx, c uow.Change) (uow.Outcome, error) {
	next := c.Expected + 1
	refused, err := affected(tx.ExecContext(ctx, refuseEvent, c.Type.Category, c.Aggregate.ID(), next, dbtime.Value(tx.Dialect(), time.Now()), refusal(c)))
	if err != nil || refused {
		return uow.NotCommitted, err
	}
	return judge(c, tx.QueryRowContext(ctx, selectEventWriter, c.Type.Category, c.Aggregate.ID(), next).Scan)
}

// eventInsert appends one save to the events of an aggregate.
type eventInsert struct {
	category, id string
	version      int64
	unit         string
	refusing     string
	rows         []eventRow
	mark         string // the type of one more row, which is no event
}

type eventRow struct {
	event    outbox.Event
	metadata []byte
}

var _ schema.QueryAppender = eventInsert{}

// AppendQuery implements [schema.QueryAppender].
func (in eventInsert) AppendQuery(gen schema.QueryGen, b []byte) ([]byte, error) {
	d := gen.Dialect()
	size := 600
	for _, r := range in.rows {
		size += 300 + len(r.event.Data) + len(r.metadata)
	}
	b = append(slices.Grow(b, size), "INSERT INTO events (category, id, version, n, message_id, type, data, metadata, occurred_at, unit) VALUES "...)
	key := func(n int) {
		if n > 1 {
			b = append(b, ',')
		}
		b = append(d.AppendString(append(b, '('), in.category), ',')
		b = append(d.AppendString(b, in.id), ',')
		b = append(strconv.AppendInt(b, in.version, 10), ',')
		b = append(strconv.AppendInt(b, int64(n), 10), ',')
	}
	end := func(at time.Time) {
		b = append(gen.Append(b, dbtime.Value(d, at)), ',')
		b = append(d.AppendString(b, in.unit), ')')
	}
	for i, r := range in.rows {
		key(i + 1)
		for _, s := range [...]string{r.event.ID, r.event.Type, string(r.event.Data)} {
			b = append(d.AppendString(b, s), ',')
		}
		if r.metadata == nil {
			b = append(b, "NULL,"...)
		} else {
			b = append(d.AppendString(b, string(r.metadata)), ',')
		}
		end(r.event.Time)
	}
	if in.mark != "" {
		key(len(in.rows) + 1)
		b = append(d.AppendString(append(b, "NULL,"...), in.mark), ",NULL,NULL,"...)
		end(time.Now())
	}
	// What is written over the mark of a refused version is seen now, and not where readers
	// of the history have been: it gets a new position. SQLite's trigger draws its own.
	b = append(b, " ON CONFLICT (category, id, version, n) DO UPDATE SET position = excluded.position, message_id = excluded.message_id, type = excluded.type, data = excluded.data,"+
		" metadata = excluded.metadata, occurred_at = excluded.occurred_at, unit = excluded.unit WHERE events.type = '"+markRefused+"' AND events.unit NOT LIKE "...)
	return d.AppendString(b, in.refusing), nil
}
