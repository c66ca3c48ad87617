package repository

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"unicode/utf8"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/uow"
)

// New keeps each aggregate as one JSON document: its exported fields, or what
// its own MarshalJSON makes of it and UnmarshalJSON reads. No table has to be
// designed. Identity and version are not in the document but beside it.
//
// New, [Mapped] and [EventSourced] panic if A is not declared in the units'
// domain, and where else they could never work; the panic says what to do.
func New[A domain.AggregateRoot](units *uow.Manager, opts ...Option) *Repository[A] {
	d := documents[A]{newKept[A]("New", units, opts)}
	if err := checkDocument(reflect.TypeFor[A]()); err != nil {
		panic(fmt.Errorf("repository.New: %w", err))
	}
	return &Repository[A]{units: units, typ: d.typ, store: d}
}

// checkDocument refuses a type whose documents would all be {}.
func checkDocument(t reflect.Type) error {
	if t.Implements(reflect.TypeFor[json.Marshaler]()) {
		if !t.Implements(reflect.TypeFor[json.Unmarshaler]()) {
			return fmt.Errorf("%s has MarshalJSON but no UnmarshalJSON: give it both or neither", t)
		}
		return nil
	}
	hidden := false
	for _, f := range reflect.VisibleFields(t.Elem()) {
		switch {
		case f.Type == reflect.TypeFor[domain.Root]():
		case f.IsExported():
			return nil
		default:
			hidden = hidden || len(f.Index) == 1
		}
	}
	if hidden {
		return fmt.Errorf("%s has no exported field, so its document would always be {}: give it MarshalJSON and UnmarshalJSON, or use repository.Mapped or repository.EventSourced", t)
	}
	return nil
}

// documents keeps aggregates as JSON.
type documents[A domain.AggregateRoot] struct{ kept[A] }

var _ store[domain.AggregateRoot] = documents[domain.AggregateRoot]{}

const (
	// replaceNothing lets an insert take the place of a row that only refuses others.
	replaceNothing = " ON CONFLICT (category, id) DO UPDATE SET version = excluded.version, state = excluded.state, unit = excluded.unit" +
		" WHERE documents.version = 0 AND documents.unit NOT LIKE "
	insertDocument = "INSERT INTO documents (category, id, version, state, unit) VALUES (?, ?, ?, ?, ?)" + replaceNothing + "?"
	updateDocument = "UPDATE documents SET version = ?, state = ?, unit = ? WHERE category = ? AND id = ? AND version = ? AND unit NOT LIKE ?"
	insertPrepared = "INSERT INTO documents (category, id, version, state, unit) VALUES ($1, $2, $3, $4, $5)" + replaceNothing + "$6"
	updatePrepared = "UPDATE documents SET version = $1, state = $2, unit = $3 WHERE category = $4 AND id = $5 AND version = $6 AND unit NOT LIKE $7"
	selectDocument = "SELECT id, version, state FROM documents WHERE category = ? AND id IN (?) AND version > 0"
)

// Persist implements [uow.Persister]. A removed aggregate is a row without
// state: to create it again is an update like any other.
func (d documents[A]) Persist(c uow.Change) ([]uow.Statement, error) {
	id := c.Aggregate.ID()
	if err := checkID(id); err != nil {
		return nil, err
	}
	var state any
	if !c.Removed {
		b, err := json.Marshal(c.Aggregate)
		if err != nil {
			return nil, err
		}
		if !utf8.Valid(b) {
			return nil, errors.New("its JSON is not UTF-8")
		}
		state = string(b)
	}
	s := uow.Statement{Rows: 1, Else: conflict(c)}
	if c.Expected == 0 {
		s.Query = documentWrite{bun.SafeQuery(insertDocument, c.Type.Category, id, c.Version, state, c.Unit, refusing(c)), insertPrepared}
	} else {
		s.Query = documentWrite{bun.SafeQuery(updateDocument, c.Version, state, c.Unit, c.Type.Category, id, c.Expected, refusing(c)), updatePrepared}
	}
	return []uow.Statement{s}, nil
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

func (d documents[A]) unchanged(A) bool { return false }

func (d documents[A]) load(ctx context.Context, db bun.IDB, ids []string) (all []stored[A], err error) {
	rows, err := db.QueryContext(ctx, selectDocument, d.typ.Category, bun.List(ids))
	if err != nil {
		return nil, d.readError(err)
	}
	defer func() { _ = rows.Close() }()
	var state sql.RawBytes
	for rows.Next() {
		var s stored[A]
		if err := rows.Scan(&s.id, &s.version, &state); err != nil {
			return nil, d.readError(err)
		}
		if state == nil {
			s.removed = true
			all = append(all, s)
			continue
		}
		a := d.empty()
		if err := json.Unmarshal(state, a); err != nil {
			return nil, fmt.Errorf("repository: the document of %s %s can't be read: %w", d.typ.Category, s.id, err)
		}
		if s, err = d.restored(a, s.id, s.version); err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	if err := rows.Err(); err != nil {
		return nil, d.readError(err)
	}
	return all, nil
}
