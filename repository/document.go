package repository

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"unicode/utf8"

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
// have is refused when it is loaded, as an [*UnknownFieldsError], unless
// [domain.KeepUnknown] lets it be.
//
// New, [Mapped] and [EventSourced] panic if A is not declared in the units'
// domain, and where else they could never work; the panic says what to do.
func New[A domain.AggregateRoot](units *uow.Manager, opts ...Option) *Repository[A] {
	d := documents[A]{newKept[A]("New", units, opts)}
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
	if d.typ.KeepUnknown && t.Implements(reflect.TypeFor[json.Marshaler]()) {
		errs = append(errs, fmt.Errorf("repository.New: %s is declared with domain.KeepUnknown() and has MarshalJSON, so what it doesn't know is its own matter: take one of them out", t))
	}
	return errors.Join(errs...)
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
	root := rootstate.Of(c.Aggregate)
	root.Stored = rootstate.Stored{}
	if !c.Removed {
		b, err := encode(c.Aggregate)
		if err != nil {
			return nil, err
		}
		state = string(b)
		root.Stored = rootstate.Stored{Version: c.Version, State: b}
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

// encode makes an aggregate's document, with what else was in the one it comes from.
func encode(a domain.AggregateRoot) ([]byte, error) {
	b, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	if !utf8.Valid(b) {
		return nil, errors.New("its JSON is not UTF-8")
	}
	return jsonfields.Join(b, rootstate.Of(a).Unknown), nil
}

// decode makes the aggregate of a document. What it has beyond the type is an error,
// or stays with the aggregate.
func (d documents[A]) decode(id string, doc []byte) (A, error) {
	a := d.empty()
	known, err := doc, error(nil)
	var unknown []byte
	if d.typ.KeepUnknown {
		known, unknown, err = jsonfields.Split(reflect.TypeFor[A]().Elem(), doc)
	}
	if err == nil {
		err = decodeStrictly(known, a)
	}
	if err != nil {
		if fields := jsonfields.Unknown(reflect.TypeFor[A](), known); len(fields) > 0 {
			return a, &UnknownFieldsError{Type: d.typ.Name, ID: id, GoType: reflect.TypeFor[A]().Elem().String(), Fields: fields}
		}
		return a, fmt.Errorf("repository: the document of %s %s can't be read: %w", d.typ.Category, id, err)
	}
	rootstate.Of(a).Unknown = unknown
	return a, nil
}

func decodeStrictly(doc []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(doc))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows it")
	}
	return nil
}

// UnknownFieldsError is a document with fields that the aggregate's type doesn't have.
// They would be lost with the next save, so it isn't loaded.
type UnknownFieldsError struct {
	Type, ID string
	GoType   string
	Fields   []string // "copys", "Lines[2].Colour"
}

func (e *UnknownFieldsError) Error() string {
	return fmt.Sprintf("repository: the document of %s %q has %q, and %s has no such field, so a save would lose it: give a field that was renamed its old name by a json tag, deploy the build that has written it, or declare domain.KeepUnknown() for fields of the aggregate itself",
		e.Type, e.ID, e.Fields, e.GoType)
}

func (d documents[A]) unchanged(a A) bool {
	root := rootstate.Of(a)
	if root.Stored.Version != root.Version {
		return false
	}
	now, err := encode(a)
	if err != nil || bytes.Equal(now, root.Stored.State) {
		return err == nil
	}
	// An older program may have spelled the same otherwise: without a field that has
	// come since, say.
	stored, err := d.decode(root.ID, root.Stored.State)
	if err != nil {
		return false
	}
	before, err := encode(stored)
	return err == nil && bytes.Equal(now, before)
}

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
		a, err := d.decode(s.id, state)
		if err != nil {
			return nil, err
		}
		unknown := rootstate.Of(a).Unknown
		if s, err = d.restored(a, s.id, s.version); err != nil {
			return nil, err
		}
		root := rootstate.Of(a)
		root.Unknown, root.Stored = unknown, rootstate.Stored{Version: s.version, State: bytes.Clone(state)}
		all = append(all, s)
	}
	if err := rows.Err(); err != nil {
		return nil, d.readError(err)
	}
	return all, nil
}
