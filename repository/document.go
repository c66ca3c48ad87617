package repository

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"strconv"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/jsonfields"
	"github.com/waybill-go/waybill/internal/rootstate"
	"github.com/waybill-go/waybill/uow"
)

// New keeps each aggregate as one JSON document: its exported fields, or what
// its own MarshalJSON makes of it and UnmarshalJSON reads. No table has to be
// designed. Identity and version are not in the document but beside it.
//
// Nothing of an aggregate is lost without a word. A type with fields that JSON drops
// or can't bring back is refused here: unexported ones, two of one name, interfaces.
// Tag json:"-" what needn't be kept. A document with a field that the type doesn't
// have is refused when it is loaded, as a [*domain.UnknownFieldsError], unless
// [domain.KeepUnknown] lets it be, and one of a newer [domain.StateVersion] as a
// [*domain.NewerStateError]. Older ones are read through [domain.UpcastState], and
// written in the new form by the next save that changes something.
//
// New, [Mapped] and [EventSourced] panic if A is not declared in the units'
// domain, and where else they could never work; the panic says what to do.
func New[A domain.AggregateRoot](units *uow.Manager, opts ...Option) *Repository[A] {
	d := documents[A]{kept: newKept[A]("New", units, opts)}
	d.indexed = fingerprint(d.typ.Indexes)
	if err := d.check(); err != nil {
		panic(err)
	}
	return &Repository[A]{units: units, typ: d.typ, store: d}
}

// check refuses a type of which documents would lose something.
func (d documents[A]) check() error {
	t := reflect.TypeFor[A]()
	var errs []error
	for _, lost := range jsonfields.Lost(t, reflect.TypeFor[domain.Root](), "") {
		errs = append(errs, fmt.Errorf("repository.New: %s", lost))
	}
	return errors.Join(errs...)
}

// documents keeps aggregates as JSON.
type documents[A domain.AggregateRoot] struct {
	kept[A]
	indexed int64 // what a document says that is entered in the type's indexes
}

var _ store[domain.AggregateRoot] = documents[domain.AggregateRoot]{}

const (
	// replaceNothing lets an insert take the place of a row that only refuses others.
	replaceNothing = " ON CONFLICT (category, id) DO UPDATE SET version = excluded.version, state = excluded.state, state_version = excluded.state_version, unit = excluded.unit, indexed = excluded.indexed" +
		" WHERE documents.version = 0 AND documents.unit NOT LIKE "
	insertDocument = "INSERT INTO documents (category, id, version, state, state_version, unit, indexed) VALUES (?, ?, ?, ?, ?, ?, ?)" + replaceNothing + "?"
	updateDocument = "UPDATE documents SET version = ?, state = ?, state_version = ?, unit = ?, indexed = ? WHERE category = ? AND id = ? AND version = ? AND unit NOT LIKE ?"
	insertPrepared = "INSERT INTO documents (category, id, version, state, state_version, unit, indexed) VALUES ($1, $2, $3, $4, $5, $6, $7)" + replaceNothing + "$8"
	updatePrepared = "UPDATE documents SET version = $1, state = $2, state_version = $3, unit = $4, indexed = $5 WHERE category = $6 AND id = $7 AND version = $8 AND unit NOT LIKE $9"
	selectDocument = "SELECT id, version, state, state_version, indexed FROM documents WHERE category = ? AND id IN (?) AND version > 0"
)

// Persist implements [uow.Persister]. A removed aggregate is a row without
// state: to create it again is an update like any other.
func (d documents[A]) Persist(c uow.Change) ([]uow.Statement, error) {
	id := c.Aggregate.ID()
	if err := checkID(id); err != nil {
		return nil, err
	}
	var state any
	index, values, err := d.index(c)
	if err != nil {
		return nil, err
	}
	root := rootstate.Of(c.Aggregate)
	root.Stored = rootstate.Stored{}
	form := int64(1)
	if !c.Removed {
		b, written, err := d.encode(c.Aggregate)
		if err != nil {
			return nil, err
		}
		state, form = string(b), int64(written)
		root.Stored = rootstate.Stored{Version: c.Version, State: b, Form: written, Indexed: d.indexed, Values: values}
	}
	s := uow.Statement{Rows: 1, Else: conflict(c)}
	if c.Expected == 0 {
		s.Query = documentWrite{bun.SafeQuery(insertDocument, c.Type.Category, id, c.Version, state, form, c.Unit, d.indexed, refusing(c)), insertPrepared}
	} else {
		s.Query = documentWrite{bun.SafeQuery(updateDocument, c.Version, state, form, c.Unit, d.indexed, c.Type.Category, id, c.Expected, refusing(c)), updatePrepared}
	}
	return append([]uow.Statement{s}, index...), nil
}

// documentWrite can also be sent as a prepared statement: see uow/postgres.
type documentWrite struct {
	schema.QueryWithArgs
	prepared string
}

// Prepared returns the query and its values as text.
func (w documentWrite) Prepared() (query string, values []any, err error) {
	values = make([]any, len(w.Args), len(w.Args)+1)
	for i, arg := range w.Args {
		if n, ok := arg.(int64); ok {
			arg = strconv.FormatInt(n, 10)
		}
		values[i] = arg
	}
	return w.prepared, values, nil
}

// Resolve implements [uow.Persister].
func (d documents[A]) Resolve(ctx context.Context, tx bun.Tx, c uow.Change) (uow.Outcome, error) {
	var refused bool
	var err error
	if c.Expected == 0 {
		refused, err = affected(tx.ExecContext(ctx, refuseInsert, c.Type.Category, c.Aggregate.ID(), refusal(c)))
	} else {
		refused, err = affected(tx.ExecContext(ctx, refuseUpdate, refusal(c), c.Type.Category, c.Aggregate.ID(), c.Expected))
	}
	if err != nil || refused {
		return uow.NotCommitted, err
	}
	return judge(c, tx.QueryRowContext(ctx, selectWriter, c.Type.Category, c.Aggregate.ID()).Scan)
}

// encode makes an aggregate's document, with what else was in the one it comes from.
func (d documents[A]) encode(a domain.AggregateRoot) (doc []byte, form int, err error) {
	root := rootstate.Of(a)
	return d.typ.State.Encode(a, root.Form, root.Unknown)
}

// decode makes the aggregate of a document. What it has beyond the type is an error,
// or stays with the aggregate.
func (d documents[A]) decode(id string, version int64, doc []byte, form int) (s stored[A], err error) {
	state, unknown, err := d.typ.State.Decode(id, doc, form)
	if err != nil {
		return s, fmt.Errorf("repository: %w", err)
	}
	if s, err = d.restored(state.(A), id, version); err != nil {
		return s, err
	}
	root := rootstate.Of(s.aggregate)
	root.Unknown, root.Form = unknown, form
	return s, nil
}

func (d documents[A]) unchanged(a A) bool {
	root := rootstate.Of(a)
	if root.Stored.Version != root.Version {
		return false
	}
	now, _, err := d.encode(a)
	if err != nil || bytes.Equal(now, root.Stored.State) {
		return err == nil
	}
	// An older program may have spelled the same otherwise: without a field that has
	// come since, say, or in an older form.
	stored, err := d.decode(root.ID, root.Version, root.Stored.State, root.Stored.Form)
	if err != nil {
		return false
	}
	before, _, err := d.encode(stored.aggregate)
	return err == nil && bytes.Equal(now, before)
}

func (d documents[A]) load(ctx context.Context, db bun.IDB, ids []string) (all []stored[A], err error) {
	return d.query(ctx, db, selectDocument, d.typ.Category, bun.List(ids))
}

// query reads documents: id, version, state, state_version, indexed.
func (d documents[A]) query(ctx context.Context, db bun.IDB, query string, args ...any) (all []stored[A], err error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, d.readError(err)
	}
	defer func() { _ = rows.Close() }()
	var state sql.RawBytes
	for rows.Next() {
		var s stored[A]
		var form int
		var indexed int64
		if err := rows.Scan(&s.id, &s.version, &state, &form, &indexed); err != nil {
			return nil, d.readError(err)
		}
		if state == nil {
			s.removed = true
			all = append(all, s)
			continue
		}
		if s, err = d.decode(s.id, s.version, state, form); err != nil {
			return nil, err
		}
		rootstate.Of(s.aggregate).Stored = rootstate.Stored{Version: s.version, State: bytes.Clone(state), Form: form, Indexed: indexed, Values: d.values(s.aggregate)}
		all = append(all, s)
	}
	if err := rows.Err(); err != nil {
		return nil, d.readError(err)
	}
	return all, nil
}
