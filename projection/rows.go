package projection

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbtext"
	"github.com/waybill-go/waybill/uow"
)

type batchKey struct{}

// errNoHandler is a method for handlers that somebody else has called.
var errNoHandler = errors.New("projection: this is for handlers of a projection: call it with the context that they are given")

func batchOf(ctx context.Context) (*batch, error) {
	b, ok := ctx.Value(batchKey{}).(*batch)
	if !ok {
		return nil, errNoHandler
	}
	return b, nil
}

// Put writes rows, in place of those with their keys. Like the other methods without
// units it is for handlers.
func (t *Table[R]) Put(ctx context.Context, rows ...R) error {
	b, err := batchOf(ctx)
	if err != nil {
		return err
	}
	c, err := b.table(t, t.name, t.schema)
	if err != nil {
		return err
	}
	for _, r := range rows {
		value := reflect.New(c.Type).Elem()
		value.Set(reflect.ValueOf(r))
		c.set(c.keyOf(b.db.QueryGen(), value), value, true)
	}
	return nil
}

// Change reads the row of a key, lets change act on it and writes it. The key of several
// columns is a []any, in the order of the fields. A row that isn't there is an error: the
// history says otherwise. change must not change the key.
func (t *Table[R]) Change(ctx context.Context, key any, change func(*R)) error {
	return t.change(ctx, key, change, false)
}

// Upsert is Change for a row that may not be there: then change acts on one that has
// nothing but the key. Counters and sums are made of it.
func (t *Table[R]) Upsert(ctx context.Context, key any, change func(*R)) error {
	return t.change(ctx, key, change, true)
}

// at is where a handler writes a row of a key: empty is one that has nothing but the key.
func (t *Table[R]) at(ctx context.Context, key any) (b *batch, c *changes, k string, empty reflect.Value, err error) {
	if b, err = batchOf(ctx); err == nil {
		c, err = b.table(t, t.name, t.schema)
	}
	if err == nil {
		k, empty, err = c.keyFor(b.db.QueryGen(), key)
	}
	return b, c, k, empty, err
}

func (t *Table[R]) change(ctx context.Context, key any, change func(*R), insert bool) error {
	b, c, k, from, err := t.at(ctx, key)
	if err != nil {
		return err
	}
	r, known := c.rows[k]
	if !known {
		if b.scout && !b.recent.has(t.name, k) { // what change would do is not known
			c.rows[k], c.wanted = &row{}, append(c.wanted, k)
			return nil
		}
		if value, ok := b.recent.get(t.name, k); ok {
			r = c.set(k, value, false)
		} else if r, err = b.read(ctx, c, k); err != nil {
			return err
		}
	}
	if b.scout {
		return nil
	}
	switch {
	case r.value.IsValid():
		from = r.value
	case !insert:
		return &MissingRowError{Projection: b.program.Name, Table: t.name, Key: key}
	}
	value := from.Interface().(R) // a copy: what fails must leave the row
	change(&value)
	changed := reflect.New(c.Type).Elem()
	changed.Set(reflect.ValueOf(value))
	if now := c.keyOf(b.db.QueryGen(), changed); now != k {
		return fmt.Errorf("projection %s: Change of table %s made key %s of %s: Remove the row, and Put another", b.program.Name, t.name, now, k)
	}
	c.set(k, changed, true)
	return nil
}

// MissingRowError is a Change of a row that isn't there.
type MissingRowError struct {
	Projection, Table string
	Key               any
}

func (e *MissingRowError) Error() string {
	key, why := fmt.Sprint(e.Key), ""
	if v := reflect.ValueOf(e.Key); v.IsValid() && v.IsZero() {
		key, why = fmt.Sprintf("%#v", e.Key), "the key is empty, as of an event whose field got another name in Go or JSON without domain.Version and domain.Upcast, "
	}
	return fmt.Sprintf("projection %s: table %s has no row %s to change: %sa handler that was to Put it is missing, the history begins later (see history.Begin), or the database was restored and lacks the event that made it", e.Projection, e.Table, key, why)
}

// Remove removes the row of a key, if there is one.
func (t *Table[R]) Remove(ctx context.Context, key any) error {
	_, c, k, _, err := t.at(ctx, key)
	if err != nil {
		return err
	}
	c.set(k, reflect.Value{}, true)
	return nil
}

// Exec adds a statement, in which {name} is a table of the projection, and each ? an
// argument, as in bun. It sees what was put before it. Rows that are put into tables of
// [NewTable] go together, and faster.
func Exec(ctx context.Context, query string, args ...any) error {
	b, err := batchOf(ctx)
	if err != nil {
		return err
	}
	for _, m := range placeholder.FindAllStringSubmatch(query, -1) {
		if b.program.table(m[1]) == nil {
			return fmt.Errorf("projection %s: Exec: {%s} is not one of its tables", b.program.Name, m[1])
		}
	}
	for i, arg := range args {
		if problem := dbtext.Argument(b.db.QueryGen(), arg); problem != "" {
			return fmt.Errorf("projection %s: Exec: argument %d of %q %s", b.program.Name, i+1, query, problem)
		}
	}
	if b.scout {
		return nil
	}
	if err := b.collect(); err != nil {
		return err
	}
	// It may change any row.
	b.tables, b.recent, b.opaque = nil, nil, true
	b.statements = append(b.statements, uow.Statement{Query: bun.SafeQuery(substitute(query, b.build), args...), Rows: -1})
	return nil
}
