package projection

import (
	"context"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/internal/dbrows"
)

// Definition is a table of a projection: a [Table], or [SQL].
type Definition interface {
	names() []string
	check(db *bun.DB) []error
	// create are the statements that make the tables of a build.
	create(db *bun.DB, build int) []string
	// columns are those that a table must have; nil: not known before it is made.
	columns(db *bun.DB) []string
	// text is what a build is made of, where its columns don't say; "" if they do.
	text() string
}

// physical is a table's name in a build.
func physical(name string, build int) string { return fmt.Sprintf("%s__%d", name, build) }

// SQL creates tables and indexes by statements of your own. {name} is a table of this
// projection: what handlers write is its version that is built, what others read,
// under the name alone, a view of the one in use.
func SQL(statements ...string) Definition { return definition{statements} }

type definition struct{ statements []string }

var placeholder = regexp.MustCompile(`\{([a-z_][a-z0-9_]*)\}`)

func (d definition) names() (names []string) {
	for _, s := range d.statements {
		for _, m := range placeholder.FindAllStringSubmatch(s, -1) {
			if !slices.Contains(names, m[1]) {
				names = append(names, m[1])
			}
		}
	}
	return names
}

func (d definition) check(*bun.DB) []error {
	if len(d.names()) == 0 {
		return []error{fmt.Errorf("its projection.SQL names no table: write CREATE TABLE {current_loans} (…), with the braces")}
	}
	return nil
}

func (d definition) create(_ *bun.DB, build int) (all []string) {
	for _, s := range d.statements {
		all = append(all, substitute(s, build))
	}
	return all
}

func (definition) columns(*bun.DB) []string { return nil }

func (d definition) text() string {
	return strings.Join(strings.Fields(strings.Join(d.statements, "; ")), " ")
}

// substitute puts the tables of a build into SQL.
func substitute(query string, build int) string {
	return placeholder.ReplaceAllString(query, fmt.Sprintf("${1}__%d", build))
}

// Table is a table with a row for each R: a bun model with a primary key.
type Table[R any] struct {
	name    string
	indexes []string
}

// NewTable makes a table and its columns of R's fields. indexes are lists of columns,
// as in "member_id, due".
func NewTable[R any](name string, indexes ...string) *Table[R] { return &Table[R]{name, indexes} }

func (t *Table[R]) names() []string { return []string{t.name} }

func (t *Table[R]) text() string { return "" }

func (t *Table[R]) schema(db *bun.DB) *schema.Table { return db.Table(reflect.TypeFor[R]()) }

func (t *Table[R]) check(db *bun.DB) (errs []error) {
	fail := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("table %s: "+format, append([]any{t.name}, args...)...))
	}
	g := reflect.TypeFor[R]()
	if g.Kind() != reflect.Struct {
		return []error{fmt.Errorf("table %s: a row is a struct, and %v is none", t.name, g)}
	}
	of := t.schema(db)
	if len(of.PKs) == 0 {
		fail(`%v has no primary key: tag a field with bun:",pk"`, g)
	}
	if of.SoftDeleteField != nil {
		fail("%v has soft_delete: drop it, Remove removes", g)
	}
	if len(of.Relations) > 0 {
		fail("%v has relations: give each table its own NewTable", g)
	}
	for group := range of.Unique {
		if group != "" {
			fail("%v has the constraint unique:%s, whose name two builds can't both have: use projection.SQL", g, group)
		}
	}
	for f := range g.Fields() {
		if !f.IsExported() && !f.Anonymous && f.Name != "_" && f.Tag.Get("bun") != "-" {
			fail("%v.%s is unexported, so no column has it: export it, or tag it `bun:\"-\"`", g, f.Name)
		}
	}
	for _, f := range of.PKs {
		if kind := f.IndirectType.Kind(); f.IsPtr || kind == reflect.Float32 || kind == reflect.Float64 || f.IndirectType == reflect.TypeFor[time.Time]() {
			fail("%v.%s is a %v, which a database may keep as another one, and is a key: use a text or an integer", g, f.GoName, f.StructField.Type)
		}
	}
	for _, f := range of.Fields {
		switch {
		case f.Append == nil:
			fail("%v.%s is a %s, which no column can have: change it, or tag it `bun:\"-\"`", g, f.GoName, f.IndirectType)
		case f.AutoIncrement, f.Identity:
			fail("%v.%s is numbered by the database, and a rebuild would number differently: take the number from the event", g, f.GoName)
		}
	}
	for _, index := range t.indexes {
		for part := range strings.SplitSeq(index, ",") {
			column, _, _ := strings.Cut(strings.TrimSpace(part), " ")
			if !slices.ContainsFunc(of.Fields, func(f *schema.Field) bool { return f.Name == column }) {
				fail("the index %q names the column %q, which %v has not", index, column, g)
			}
		}
	}
	return errs
}

func (t *Table[R]) columns(db *bun.DB) (all []string) {
	for _, f := range t.schema(db).Fields {
		all = append(all, f.Name)
	}
	return all
}

func (t *Table[R]) create(db *bun.DB, build int) []string {
	name := physical(t.name, build)
	all := []string{string(must(db.NewCreateTable().Model((*R)(nil)).ModelTableExpr("?", bun.Ident(name)).AppendQuery(db.QueryGen(), nil)))}
	for i, index := range t.indexes {
		all = append(all, fmt.Sprintf("CREATE INDEX %s_%d ON %s (%s)", name, i+1, name, index))
	}
	return all
}

// must is for a query of a table that was checked.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// columnsOf are the columns that a table or a view has, in their order; none if it is
// not there.
func columnsOf(ctx context.Context, db bun.IDB, name string) (columns []string, err error) {
	query := "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(?) AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
	if sqlite(db) {
		query = "SELECT name FROM pragma_table_info(?) ORDER BY cid"
	} else {
		name = `"` + name + `"`
	}
	err = dbrows.Each(ctx, db, query, func(scan func(...any) error) error {
		var column string
		err := scan(&column)
		columns = append(columns, column)
		return err
	}, name)
	if err != nil {
		return nil, fmt.Errorf("projection: columns of %s: %w", name, err)
	}
	return columns, nil
}
