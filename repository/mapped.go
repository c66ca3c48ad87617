package repository

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/feature"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/dbtext"
	"github.com/waybill-go/waybill/internal/jsonfields"
	"github.com/waybill-go/waybill/internal/rootstate"
	"github.com/waybill-go/waybill/uow"
)

// Row is embedded by the rows of [Mapped]. The repository fills it in and reads
// it; mapping functions don't touch it.
type Row struct {
	ID      string `bun:"id,pk"`
	Version int64  `bun:"version"`
	Unit    string `bun:"unit"` // which unit of work wrote it
}

func (r *Row) row() *Row { return r }

// Mapping says how an aggregate lies in tables. R is a bun model that embeds
// [Row]:
//
//	type orderRow struct {
//		bun.BaseModel `bun:"table:orders"`
//		repository.Row
//		CustomerID string
//		Lines      []lineRow `bun:"rel:has-many,join:id=order_id"`
//	}
//
//	type lineRow struct {
//		bun.BaseModel `bun:"table:order_lines"`
//		OrderID       string `bun:",pk"`
//		Position      int    `bun:",pk"`
//		Article       string
//	}
type Mapping[A domain.AggregateRoot, R any] struct {
	// ToRow makes the row of an aggregate, with its child rows. Required.
	ToRow func(A) (R, error)
	// Aggregate makes the aggregate of a row. It sets fields and raises nothing;
	// identity and version are the repository's. Required.
	Aggregate func(R) (A, error)
	// Children point to the slices of child rows: func(r *orderRow) any { return
	// &r.Lines }. Each is a has-many relation of R. The repository fills in the
	// column that joins them (order_id above), replaces all of an aggregate's
	// child rows at each save, and loads them in the order of their primary key.
	Children []func(*R) any
}

// Mapped keeps aggregates in tables of your own, and bun's tags out of the
// domain. You create the tables: the first with the columns id (primary key;
// text or uuid), version (bigint) and unit (text), child tables with the parent's
// id. By the column unit a unit of work whose COMMIT was not answered is found
// again: see [uow.CommitUnknownError].
//
// What ToRow returns is written when the unit of work is flushed, in the state
// that it had at Save. bun's hooks for models (BeforeAppendModel) don't run. ToRow is
// also called when an aggregate is loaded, to see later whether it has changed.
func Mapped[A domain.AggregateRoot, R any, P interface {
	*R
	row() *Row
}](units *uow.Manager, mapping Mapping[A, R], opts ...Option,
) *Repository[A] {
	m := mapped[A, R]{
		kept:    newKept[A]("Mapped", units, opts),
		mapping: mapping,
		row:     func(r *R) *Row { return P(r).row() },
	}
	var err error
	if m.children, err = m.check(); err != nil {
		panic(fmt.Errorf("repository.Mapped: %s: %w", m.typ.Category, err))
	}
	return &Repository[A]{units: units, typ: m.typ, store: m}
}

// mapped keeps aggregates in tables of the application's.
type mapped[A domain.AggregateRoot, R any] struct {
	kept[A]
	mapping  Mapping[A, R]
	row      func(*R) *Row
	children []child
}

var _ finder[domain.AggregateRoot] = mapped[domain.AggregateRoot, Row]{}

// child is a has-many relation, as Mapping.Children has its function.
type child struct {
	relation *schema.Relation
	parent   *schema.Field // the column of the child that has the parent's id
}

// check reports all that is wrong with a mapping, and finds the children.
func (m mapped[A, R]) check() (children []child, err error) {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if m.mapping.ToRow == nil {
		fail("Mapping.ToRow is missing: make a row of an aggregate")
	}
	if m.mapping.Aggregate == nil {
		fail("Mapping.Aggregate is missing: make an aggregate of a row")
	}
	row := new(R)
	table := m.provider.DB().Table(reflect.TypeFor[R]())
	if m.row(row) == nil {
		fail("%T embeds *repository.Row: embed it by value", *row)
		return nil, errors.Join(errs...)
	}
	if len(table.PKs) != 1 || table.PKs[0].Name != "id" || table.FieldMap["version"] == nil || table.FieldMap["unit"] == nil {
		fail("%T has its own primary key, id, version or unit: leave them to repository.Row", *row)
	}
	if table.SoftDeleteField != nil {
		fail("%T has soft_delete: drop it, a removed aggregate leaves its version in the table documents", *row)
	}
	errs = append(errs, checkColumns(table)...)
	for i, slice := range m.mapping.Children {
		c, err := findChild(table, reflect.ValueOf(row).Elem(), slice(row))
		if err != nil {
			fail("Mapping.Children[%d]: %w", i, err)
		}
		if err == nil {
			errs = append(errs, checkColumns(c.relation.JoinTable)...)
		}
		children = append(children, c)
	}
	return children, errors.Join(errs...)
}

// checkColumns refuses fields of rows that aren't stored, or not as they are.
func checkColumns(table *schema.Table) (errs []error) {
	for f := range table.Type.Fields() {
		if !f.IsExported() && !f.Anonymous && f.Name != "_" && f.Tag.Get("bun") != "-" {
			errs = append(errs, fmt.Errorf("%s.%s is unexported, so no column has it: export it, or tag it `bun:\"-\"`", table.Type, f.Name))
		}
	}
	for _, f := range table.Fields {
		of := f.IndirectType
		switch {
		case f.Append == nil:
			errs = append(errs, fmt.Errorf("%s.%s is a %s, which no column can have: change it, or tag it `bun:\"-\"`", table.Type, f.GoName, of))
		case isJSON(f):
			for _, lost := range jsonfields.Lost(of, reflect.TypeFor[domain.Root](), table.Type.Name()+"."+f.GoName) {
				errs = append(errs, fmt.Errorf("%s.%s is stored as JSON: %s", table.Type, f.GoName, lost))
			}
		}
	}
	return errs
}

// isJSON says whether bun stores a struct field as JSON of its own making.
func isJSON(f *schema.Field) bool {
	t := f.IndirectType
	if slices.ContainsFunc([]string{"array", "hstore", "msgpack", "multirange"}, f.Tag.HasOption) {
		return false
	}
	kinds := []reflect.Kind{reflect.Struct, reflect.Slice, reflect.Array, reflect.Map, reflect.Interface}
	return slices.Contains(kinds, t.Kind()) && t != reflect.TypeFor[time.Time]() && t.PkgPath() != "net" && t.PkgPath() != "net/netip" &&
		!reflect.PointerTo(t).Implements(reflect.TypeFor[driver.Valuer]()) && !reflect.PointerTo(t).Implements(reflect.TypeFor[schema.QueryAppender]())
}

// findChild finds the relation whose field slice points to.
func findChild(table *schema.Table, row reflect.Value, slice any) (child, error) {
	p := reflect.ValueOf(slice)
	if p.Kind() != reflect.Pointer || p.IsNil() || p.Elem().Kind() != reflect.Slice {
		return child{}, fmt.Errorf("returns %T: return the address of a slice of child rows, as in &r.Lines", slice)
	}
	for _, rel := range table.Relations {
		if rel.Type != schema.HasManyRelation || rel.Field.Value(row).Addr().Pointer() != p.Pointer() {
			continue
		}
		of := rel.JoinTable
		switch {
		case len(rel.BasePKs) != 1 || rel.BasePKs[0].Name != "id" || rel.PolymorphicField != nil || len(rel.Condition) > 0:
			return child{}, fmt.Errorf("%s is not joined by the id alone: tag it `bun:\"rel:has-many,join:id=<column of %s>\"`", rel.Field.GoName, of.Type)
		case rel.JoinPKs[0].IndirectType.Kind() != reflect.String || rel.JoinPKs[0].IsPtr:
			return child{}, fmt.Errorf("%s.%s is a %s: make it a string, the repository puts the parent's id there", of.Type, rel.JoinPKs[0].GoName, rel.JoinPKs[0].StructField.Type)
		case len(of.PKs) == 0:
			return child{}, fmt.Errorf("%s has no primary key: give it one, as of parent and position; the rows are loaded in its order", of.Type)
		case of.SoftDeleteField != nil:
			return child{}, fmt.Errorf("%s has soft_delete: drop it, child rows are replaced at each save", of.Type)
		}
		return child{relation: rel, parent: rel.JoinPKs[0]}, nil
	}
	return child{}, fmt.Errorf("no has-many relation of %s is what it points to: tag the field `bun:\"rel:has-many,join:id=<column of the child>\"`", table.Type)
}

func (m mapped[A, R]) unchanged(a A) bool {
	root := rootstate.Of(a)
	if root.Stored.State == nil || root.Stored.Version != root.Version {
		return false
	}
	row, err := m.mapping.ToRow(a)
	return err == nil && bytes.Equal(m.sum(row, root.ID), root.Stored.State)
}

// sum stands for a row with its children, whoever writes it and in which version; nil
// if they can't be written. The rows themselves may share memory with the aggregate,
// and change with it.
func (m mapped[A, R]) sum(row R, id string) []byte {
	*m.row(&row) = Row{ID: id}
	w := m.writer()
	w.add(w.db.NewInsert().Model(&row), -1, nil)
	m.addChildren(w, &row, id)
	if w.err != nil {
		return nil
	}
	sum := sha256.New()
	for _, s := range w.statements {
		sum.Write(s.Query.(sqlText))
	}
	return sum.Sum(nil)
}

func (m mapped[A, R]) addChildren(w *rowWriter, row *R, id string) {
	for i, ch := range m.children {
		if rows := m.mapping.Children[i](row); ch.adopt(rows, id) > 0 {
			insert := w.db.NewInsert().Model(rows).Returning("NULL")
			if left := ch.left(w.db, rows); len(left) > 0 {
				insert.ExcludeColumn(left...)
			}
			w.add(insert, -1, nil)
		}
	}
}

const (
	insertRemoved = "INSERT INTO documents (category, id, version, unit) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
	deleteRemoved = "DELETE FROM documents WHERE category = ? AND id = ? AND version = ? AND state IS NULL AND unit NOT LIKE ?"
	// noneRemoved affects no row where an aggregate was removed, or the unit refused.
	noneRemoved   = "INSERT INTO documents (category, id, version, state, unit) VALUES (?, ?, 0, NULL, ?)" + replaceNothing + "?"
	selectRemoved = "SELECT id, version FROM documents WHERE category = ? AND id IN (?) AND state IS NULL AND version > 0"
)

// Persist implements [uow.Persister]. It writes the row first in any case:
// whoever is second waits for its lock and then sees what the first has done, to
// the row and to what was removed.
func (m mapped[A, R]) Persist(c uow.Change) ([]uow.Statement, error) {
	create := c.Expected == 0 || c.Recreated
	id := c.Aggregate.ID()
	if err := checkID(id); err != nil {
		return nil, err
	}
	w := m.writer()
	var row R
	if create || !c.Removed {
		var err error
		if row, err = m.toRow(c); err != nil {
			return nil, err
		}
	}
	switch {
	case create:
		w.add(w.db.NewInsert().Model(&row).On("CONFLICT (id) DO NOTHING").Returning("NULL"), 1, conflict(c))
		if c.Expected == 0 {
			w.add(bun.SafeQuery(noneRemoved, c.Type.Category, id, c.Unit, refusing(c)), 1, conflict(c))
		}
		w.add(bun.SafeQuery(deleteRemoved, c.Type.Category, id, c.Expected, refusing(c)), 1, conflict(c))
	case c.Removed:
		w.add(w.db.NewUpdate().Model(&row).Set("version = ?", c.Version).Where("id = ?", id).Where("version = ?", c.Expected).Where(notRefused, refusing(c)), 1, conflict(c))
	default:
		w.add(w.db.NewUpdate().Model(&row).WherePK().Where("version = ?", c.Expected).Where(notRefused, refusing(c)), 1, conflict(c))
	}
	if !create {
		for _, ch := range m.children {
			none := reflect.Zero(reflect.PointerTo(ch.relation.JoinTable.Type)).Interface()
			w.add(w.db.NewDelete().Model(none).Where("? = ?", ch.parent.SQLName, id), -1, nil)
		}
	}
	if c.Removed {
		w.add(w.db.NewDelete().Model(&row).Where("id = ?", id), 1, conflict(c))
		w.add(bun.SafeQuery(insertRemoved, c.Type.Category, id, c.Version, c.Unit), 1, conflict(c))
		return w.statements, w.err
	}
	m.addChildren(w, &row, id)
	if w.suspicious && w.err == nil {
		w.err = m.storable(&row)
	}
	if w.err == nil {
		rootstate.Of(c.Aggregate).Stored = rootstate.Stored{Version: c.Version, State: m.sum(row, id)}
	}
	return w.statements, w.err
}

func (m mapped[A, R]) toRow(c uow.Change) (R, error) {
	row, err := m.mapping.ToRow(c.Aggregate.(A))
	if err != nil {
		return row, fmt.Errorf("Mapping.ToRow: %w", err)
	}
	*m.row(&row) = Row{ID: c.Aggregate.ID(), Version: c.Version, Unit: c.Unit}
	return row, nil
}

// notRefused is a guard on rows of the application's, which may hold a null.
const notRefused = "coalesce(unit, '') NOT LIKE ?"

// Resolve implements [uow.Persister]. The row of a new aggregate is the
// application's, and can't be written to keep a unit out. Its place in documents
// can: Persist writes that too, and deletes it again.
func (m mapped[A, R]) Resolve(ctx context.Context, tx bun.Tx, c uow.Change) (uow.Outcome, error) {
	id := c.Aggregate.ID()
	var refused bool
	var err error
	switch {
	case c.Expected == 0:
		refused, err = affected(tx.ExecContext(ctx, refuseInsert, c.Type.Category, id, refusal(c)))
	case c.Recreated:
		refused, err = affected(tx.ExecContext(ctx, refuseUpdate, refusal(c), c.Type.Category, id, c.Expected))
	default:
		refused, err = affected(tx.NewUpdate().Model((*R)(nil)).Set("unit = coalesce(unit, '') || ?", refusal(c)).Where("id = ?", id).Where("version = ?", c.Expected).Exec(ctx))
	}
	if err != nil || refused && c.Expected > 0 {
		return uow.NotCommitted, err
	}
	exists, err := tx.NewSelect().Model((*R)(nil)).Where("id = ?", id).Exists(ctx)
	switch {
	case err != nil:
		return 0, err
	case refused && !exists:
		return uow.NotCommitted, nil
	case refused: // a place in documents is for what was removed
		_, err = tx.ExecContext(ctx, "DELETE FROM documents WHERE category = ? AND id = ? AND version = 0", c.Type.Category, id)
	}
	if err != nil {
		return 0, err
	}
	if !exists {
		return judge(c, tx.QueryRowContext(ctx, selectWriter, c.Type.Category, id).Scan)
	}
	return judge(c, func(into ...any) error {
		return tx.NewSelect().Model((*R)(nil)).ColumnExpr("version, coalesce(unit, '')").Where("id = ?", id).Scan(ctx, into...)
	})
}

// adopt gives child rows their parent's id, and counts them.
func (c child) adopt(rows any, id string) int {
	slice := reflect.ValueOf(rows).Elem()
	for i := range slice.Len() {
		c.parent.Value(reflect.Indirect(slice.Index(i))).SetString(id)
	}
	return slice.Len()
}

// left are the columns that the database fills in of every row, such as an identity.
// PostgreSQL before 14 takes no DEFAULT in their place where there are several rows.
func (c child) left(db *bun.DB, rows any) (columns []string) {
	if !db.HasFeature(feature.DefaultPlaceholder) {
		return nil
	}
	slice := reflect.ValueOf(rows).Elem()
	for _, f := range c.relation.JoinTable.Fields {
		filled := f.NullZero
		for i := 0; filled && i < slice.Len(); i++ {
			filled = f.HasZeroValue(reflect.Indirect(slice.Index(i)))
		}
		if filled {
			columns = append(columns, f.Name)
		}
	}
	return columns
}

// rowWriter collects statements. It turns each into SQL at once: rows may share
// memory with the aggregate, which may change before the unit is flushed.
type rowWriter struct {
	db         *bun.DB
	statements []uow.Statement
	suspicious bool // a value may not have been written as it is
	err        error
}

func (m mapped[A, R]) writer() *rowWriter { return &rowWriter{db: m.provider.DB()} }

func (w *rowWriter) add(query schema.QueryAppender, rows int64, otherwise error) {
	if w.err != nil {
		return
	}
	var b []byte
	if b, w.err = query.AppendQuery(w.db.QueryGen(), nil); w.err == nil {
		w.suspicious = w.suspicious || dbtext.Suspicious(b)
		w.statements = append(w.statements, uow.Statement{Query: sqlText(b), Rows: rows, Else: otherwise})
	}
}

// storable names the first field of a row or its children that can't be stored.
func (m mapped[A, R]) storable(row *R) error {
	if err := m.storableRow(reflect.ValueOf(row).Elem()); err != nil {
		return err
	}
	for _, rows := range m.mapping.Children {
		slice := reflect.ValueOf(rows(row)).Elem()
		for i := range slice.Len() {
			if err := m.storableRow(reflect.Indirect(slice.Index(i))); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m mapped[A, R]) storableRow(row reflect.Value) error {
	db := m.provider.DB()
	for _, f := range db.Table(row.Type()).Fields {
		value := reflect.Indirect(f.Value(row))
		if !value.IsValid() {
			continue
		}
		is := value.Interface()
		if value.Kind() == reflect.String {
			is = value.String()
		}
		problem := dbtext.Value(is, func(b []byte) []byte { return f.AppendValue(db.QueryGen(), b, row) })
		if problem != "" {
			return fmt.Errorf("%s.%s %s", row.Type().Name(), f.GoName, problem)
		}
	}
	return nil
}

// sqlText is a finished statement.
type sqlText []byte

// AppendQuery implements [schema.QueryAppender].
func (t sqlText) AppendQuery(_ schema.QueryGen, b []byte) ([]byte, error) {
	return append(b, t...), nil
}

func (m mapped[A, R]) load(ctx context.Context, db bun.IDB, ids []string) ([]stored[A], error) {
	all, err := m.find(ctx, db, func(q *bun.SelectQuery) *bun.SelectQuery {
		return q.Where("?TableAlias.id IN (?)", bun.List(ids))
	})
	if err != nil {
		return nil, err
	}
	missing := map[string]bool{}
	for _, id := range ids {
		missing[id] = true
	}
	for _, s := range all {
		delete(missing, s.id)
	}
	if len(missing) == 0 {
		return all, nil
	}
	removed, err := m.loadRemoved(ctx, db, ids)
	if err != nil {
		return nil, err
	}
	return append(all, removed...), nil
}

func (m mapped[A, R]) loadRemoved(ctx context.Context, db bun.IDB, ids []string) (all []stored[A], err error) {
	rows, err := db.QueryContext(ctx, selectRemoved, m.typ.Category, bun.List(ids))
	if err != nil {
		return nil, m.readError(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		s := stored[A]{removed: true}
		if err := rows.Scan(&s.id, &s.version); err != nil {
			return nil, m.readError(err)
		}
		all = append(all, s)
	}
	if err := rows.Err(); err != nil {
		return nil, m.readError(err)
	}
	return all, nil
}

func (m mapped[A, R]) find(ctx context.Context, db bun.IDB, where func(*bun.SelectQuery) *bun.SelectQuery) ([]stored[A], error) {
	var rows []R
	q := db.NewSelect().Model(&rows)
	for _, ch := range m.children {
		q = q.Relation(ch.relation.Field.GoName, ch.inOrder)
	}
	if where != nil {
		q = where(q)
	}
	if err := q.Scan(ctx); err != nil && !errors.Is(err, sql.ErrNoRows) {
		return nil, m.readError(err)
	}
	all := make([]stored[A], 0, len(rows))
	for _, row := range rows {
		at := *m.row(&row)
		a, err := m.mapping.Aggregate(row)
		if err == nil && reflect.ValueOf(a).IsNil() {
			err = errors.New("it returned nil")
		}
		if err != nil {
			return nil, fmt.Errorf("repository: Mapping.Aggregate of %s %s: %w", m.typ.Category, at.ID, err)
		}
		s, err := m.restored(a, at.ID, at.Version)
		if err != nil {
			return nil, err
		}
		if as, err := m.mapping.ToRow(a); err == nil {
			rootstate.Of(a).Stored = rootstate.Stored{Version: at.Version, State: m.sum(as, at.ID)}
		}
		all = append(all, s)
	}
	return all, nil
}

// inOrder lets child rows come in the order of their primary key.
func (c child) inOrder(q *bun.SelectQuery) *bun.SelectQuery {
	for _, pk := range c.relation.JoinTable.PKs {
		q = q.OrderExpr("?.?", c.relation.JoinTable.SQLAlias, pk.SQLName)
	}
	return q
}
