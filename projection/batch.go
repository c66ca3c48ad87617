package projection

import (
	"context"
	"fmt"
	"reflect"
	"runtime/debug"
	"slices"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/apart"
	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/internal/dbtext"
	"github.com/waybill-go/waybill/uow"
)

// maxRows is how many rows one statement writes or reads.
const maxRows = 1000

// batch is what the handlers of some events write, and is committed with the position.
//
// Rows are kept here until the end, so that of several writes of one row the last is
// sent, and rows of one table go together. What the tables have is read outside the
// transaction: nobody else writes them, and if another process does by now, because the
// lease has passed, the commit fails by its fence.
type batch struct {
	program *program
	build   int
	db      *bun.DB // To write.
	reader  *bun.DB
	session uow.Session

	recent     *recent         // What earlier batches have written and read; nil: nothing.
	statements []uow.Statement // To be sent, the fence first.
	open       bool            // Some were sent.
	tables     []*changes
	events     []decoded
	at         int   // The event that is being handled.
	broken     error // What the database has refused to read.
	opaque     bool  // What statements did to rows is not known.

	// scouts find out which rows are going to be read; they write nothing.
	scout   bool
	scouted bool
}

// decoded is an event with the handler that it goes to.
type decoded struct {
	event   any
	handler Handler
	meta    domain.Metadata
}

// changes are those of a table's rows.
type changes struct {
	*schema.Table
	of    Definition
	name  string
	rows  map[string]*row
	order []*row
	// wanted are keys that a scout would have read.
	wanted []string
}

// row is what is known of a row: there is one, or there is none.
type row struct {
	value   reflect.Value // A struct; not valid: there is none.
	key     string
	written bool // To be sent.
}

func (b *batch) table(of Definition, name string, t func(*bun.DB) *schema.Table) (*changes, error) {
	for _, c := range b.tables {
		if c.name == name {
			return c, nil
		}
	}
	if known := b.program.table(name); known == nil || known.of != of {
		return nil, fmt.Errorf("projection %s: table %s is not one of its Tables: add it", b.program.Name, name)
	}
	c := &changes{Table: t(b.db), of: of, name: name, rows: map[string]*row{}}
	b.tables = append(b.tables, c)
	return c, nil
}

func (c *changes) set(key string, value reflect.Value, written bool) *row {
	r, ok := c.rows[key]
	if !ok {
		r = &row{key: key}
		c.rows[key], c.order = r, append(c.order, r)
	}
	r.value, r.written = value, r.written || written
	return r
}

// keyOf is the key of a row, as SQL.
func (c *changes) keyOf(gen schema.QueryGen, value reflect.Value) string {
	var sql []byte
	for i, f := range c.PKs {
		if i > 0 {
			sql = append(sql, ", "...)
		}
		sql = f.AppendValue(gen, sql, value)
	}
	return string(sql)
}

// keyFor is the key that somebody names: a value, or for several columns a []any, in the
// order of the fields. It is written as the columns' own types are. empty is a row that has
// nothing but the key.
func (c *changes) keyFor(gen schema.QueryGen, key any) (k string, empty reflect.Value, err error) {
	parts, ok := key.([]any)
	if !ok {
		parts = []any{key}
	}
	if len(parts) != len(c.PKs) {
		return "", empty, fmt.Errorf("projection: the key %v has %d parts, and that of table %s has %d columns: give a []any with as many", key, len(parts), c.name, len(c.PKs))
	}
	empty = reflect.New(c.Type).Elem()
	for i, f := range c.PKs {
		to, from := f.Value(empty), reflect.ValueOf(parts[i])
		if !from.IsValid() || !from.CanConvert(to.Type()) || (from.Kind() == reflect.String) != (to.Kind() == reflect.String) {
			return "", empty, fmt.Errorf("projection: the key %v is a %T, and column %s of table %s is a %v", parts[i], parts[i], f.Name, c.name, to.Type())
		}
		to.Set(from.Convert(to.Type()))
	}
	return c.keyOf(gen, empty), empty, nil
}

// read finds out what there is of a row, and of all rows that the events behind this one
// are going to change.
func (b *batch) read(ctx context.Context, c *changes, key string) (*row, error) {
	wanted := map[*changes][]string{c: {key}}
	if !b.scouted {
		b.scouted = true
		for of, keys := range b.look(ctx) {
			wanted[of] = append(wanted[of], keys...)
		}
	}
	db, err := b.source(ctx)
	if err != nil {
		b.broken = err
		return nil, err
	}
	for of, keys := range wanted {
		for some := range slices.Chunk(keys, maxRows) {
			if err := of.load(ctx, db, b, some); err != nil {
				b.broken = err
				return nil, err
			}
		}
	}
	return c.rows[key], nil
}

// source is what rows are read from: the transaction, if something that isn't a row was
// sent, or waits to be.
func (b *batch) source(ctx context.Context) (bun.IDB, error) {
	if len(b.statements) <= 1 && !b.open { // but for the fence
		return b.reader, nil
	}
	if err := b.session.Send(ctx, b.statements); err != nil {
		return nil, err
	}
	b.statements, b.open = nil, true
	return b.session.DB(ctx)
}

// look runs the handlers of this event and those behind it, to see which rows they
// change. They can't be told what is in these rows, so what they do is a guess, and
// nothing of it stays. A row that they didn't ask for is read when they do.
func (b *batch) look(ctx context.Context) map[*changes][]string {
	s := &batch{program: b.program, build: b.build, db: b.db, recent: b.recent, events: b.events, scout: true, scouted: true}
	known := map[*changes]*changes{}
	for _, c := range b.tables {
		copied := &changes{Table: c.Table, of: c.of, name: c.name, rows: make(map[string]*row, len(c.rows))}
		for k := range c.rows {
			copied.rows[k] = &row{key: k}
		}
		s.tables = append(s.tables, copied)
		known[copied] = c
	}
	for s.at = b.at; s.at < len(s.events) && ctx.Err() == nil; s.at++ {
		_ = apart.Call(func() error { // A handler that ends it would be taken for the one that reads.
			for ; s.at < len(s.events) && ctx.Err() == nil; s.at++ {
				_ = s.handle(ctx, s.events[s.at])
			}
			return nil
		})
	}
	wanted := map[*changes][]string{}
	for _, guessed := range s.tables {
		c := known[guessed]
		if c == nil {
			c, _ = b.table(guessed.of, guessed.name, func(*bun.DB) *schema.Table { return guessed.Table })
		}
		wanted[c] = guessed.wanted
	}
	return wanted
}

// load reads rows by their keys.
func (c *changes) load(ctx context.Context, db bun.IDB, b *batch, keys []string) error {
	sql := []byte("SELECT ")
	for i, f := range c.Fields {
		if i > 0 {
			sql = append(sql, ", "...)
		}
		sql = append(sql, f.SQLName...)
	}
	sql = append(append(sql, " FROM "...), physical(c.name, b.build)...)
	sql = append(sql, " WHERE "...)
	sql = c.appendKeys(b, sql, keys)
	found := reflect.New(reflect.SliceOf(c.Type))
	// As an argument: bun would take a question mark in a key for one.
	if err := db.NewRaw("?", bun.Safe(sql)).Scan(ctx, found.Interface()); err != nil {
		return fmt.Errorf("projection %s: read rows of table %s: %w", b.program.Name, physical(c.name, b.build), err)
	}
	gen := b.db.QueryGen()
	for i := range found.Elem().Len() {
		value := found.Elem().Index(i)
		c.set(c.keyOf(gen, value), value, false)
	}
	for _, k := range keys {
		if c.rows[k] == nil {
			c.set(k, reflect.Value{}, false)
		}
	}
	return nil
}

// appendKeys is the condition that a row has one of these keys.
func (c *changes) appendKeys(b *batch, sql []byte, keys []string) []byte {
	many := len(c.PKs) > 1
	if many {
		sql = append(sql, '(')
	}
	for i, f := range c.PKs {
		if i > 0 {
			sql = append(sql, ", "...)
		}
		sql = append(sql, f.SQLName...)
	}
	if many {
		sql = append(sql, ')')
	}
	sql = append(sql, " IN ("...)
	if many && sqlite(b.db) { // which has no other list of rows
		sql = append(sql, "VALUES "...)
	}
	for i, k := range keys {
		if i > 0 {
			sql = append(sql, ", "...)
		}
		if many {
			sql = append(append(append(sql, '('), k...), ')')
		} else {
			sql = append(sql, k...)
		}
	}
	return append(sql, ')')
}

// collect makes statements of the rows that wait.
func (b *batch) collect() error {
	for _, c := range b.tables {
		var removed []string
		var put []*row
		for _, r := range c.order {
			switch {
			case !r.written:
			case r.value.IsValid():
				put = append(put, r)
			default:
				removed = append(removed, r.key)
			}
			r.written = false
		}
		// First, as a row that is put may have what another had that only one can have.
		for some := range slices.Chunk(removed, maxRows) {
			sql := append([]byte("DELETE FROM "), physical(c.name, b.build)...)
			b.statements = append(b.statements, uow.Statement{Query: raw(c.appendKeys(b, append(sql, " WHERE "...), some)), Rows: -1})
		}
		for some := range slices.Chunk(put, maxRows) {
			s, err := c.upsert(b, some)
			if err != nil {
				return err
			}
			b.statements = append(b.statements, uow.Statement{Query: s, Rows: -1})
		}
	}
	return nil
}

// raw is SQL as it is.
type raw []byte

// AppendQuery implements schema.QueryAppender.
func (r raw) AppendQuery(_ schema.QueryGen, b []byte) ([]byte, error) { return append(b, r...), nil }

func (c *changes) upsert(b *batch, rows []*row) (raw, error) {
	gen := b.db.QueryGen()
	sql := append([]byte("INSERT INTO "), physical(c.name, b.build)...)
	sql = append(sql, " ("...)
	for i, f := range c.Fields {
		if i > 0 {
			sql = append(sql, ", "...)
		}
		sql = append(sql, f.SQLName...)
	}
	sql = append(sql, ") VALUES "...)
	for i, r := range rows {
		if i > 0 {
			sql = append(sql, ", "...)
		}
		sql = append(sql, '(')
		for j, f := range c.Fields {
			if j > 0 {
				sql = append(sql, ", "...)
			}
			sql = f.AppendValue(gen, sql, r.value)
		}
		sql = append(sql, ')')
	}
	sql = append(sql, " ON CONFLICT ("...)
	for i, f := range c.PKs {
		if i > 0 {
			sql = append(sql, ", "...)
		}
		sql = append(sql, f.SQLName...)
	}
	sql = append(sql, ") DO "...)
	if len(c.DataFields) == 0 {
		sql = append(sql, "NOTHING"...)
	}
	for i, f := range c.DataFields {
		if i == 0 {
			sql = append(sql, "UPDATE SET "...)
		} else {
			sql = append(sql, ", "...)
		}
		sql = append(append(append(sql, f.SQLName...), " = excluded."...), f.SQLName...)
	}
	if dbtext.Suspicious(sql) || slices.Contains(sql, 0) {
		return nil, c.storable(b, rows)
	}
	return sql, nil
}

// storable says which value can't be stored.
func (c *changes) storable(b *batch, rows []*row) error {
	gen := b.db.QueryGen()
	for _, r := range rows {
		for _, f := range c.Fields {
			v := f.Value(r.value)
			if !v.CanInterface() {
				continue
			}
			if problem := dbtext.Value(v.Interface(), func(to []byte) []byte { return f.AppendValue(gen, to, r.value) }); problem != "" {
				return fmt.Errorf("projection %s: %s.%s of the row %s of table %s %s", b.program.Name, c.Type, f.GoName, r.key, c.name, problem)
			}
		}
	}
	return nil
}

// HandlerError is an event that a projection can't handle.
type HandlerError struct {
	Projection string
	Position   int64
	Type, ID   string
	Err        error
}

func (e *HandlerError) Error() string {
	return fmt.Sprintf("projection %s: %s %s at position %d: %v", e.Projection, e.Type, e.ID, e.Position, e.Err)
}

func (e *HandlerError) Unwrap() error { return e.Err }

// recovered makes an error of a panic in code that isn't ours. It is deferred.
func recovered(err *error) {
	if crash := recover(); crash != nil {
		*err = fmt.Errorf("%v\n%s", crash, debug.Stack())
	}
}

// handle gives an event to its handler.
func (b *batch) handle(ctx context.Context, e decoded) (err error) {
	defer recovered(&err)
	ctx = context.WithValue(domain.WithMetadata(ctx, e.meta), batchKey{}, b)
	ctx = uow.Without(ctx, fmt.Errorf("projection: %s has no effect but its tables, as it runs again with every rebuild; do this in a subscription", b.program.Name))
	return dberr.Readable(e.handler.handle(ctx, e.event))
}
