package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/migrate"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/rights"
)

const toMigrate = "run `waybill migrate`, or what `waybill migrate --print` writes"

// schema holds the version of every feature to this build's.
func (e *exam) schema(ctx context.Context, db bun.IDB) (string, error) {
	var fine, missing []string
	for _, s := range rights.Features() {
		err := s.Check(ctx, db)
		wrong, ok := errors.AsType[*migrate.SchemaError](err)
		switch {
		case ok && wrong.Have > wrong.Need:
			e.add(Critical, "feature "+s.Feature, fmt.Sprintf("its tables are at version %d, and this build knows only %d", wrong.Have, wrong.Need), "use a newer build of waybill, and of the programs that are refused")
		case ok && wrong.Hidden.Are(): // as all of them are
			e.add(Critical, "tables", wrong.Hidden.What()+": nothing of them was looked at", wrong.Hidden.Remedy())
			return "", nil
		case ok && wrong.Have == 0:
			missing = append(missing, s.Feature)
		case ok:
			e.add(Critical, "feature "+s.Feature, fmt.Sprintf("its tables are at version %d, and this build needs %d", wrong.Have, wrong.Need), toMigrate)
		case err != nil:
			return "", err
		default:
			e.current[s.Feature] = true
			steps, err := s.Steps(db.Dialect())
			if err != nil {
				return "", err
			}
			fine = append(fine, fmt.Sprintf("%s %d", s.Feature, len(steps)))
		}
	}
	if len(missing) > 0 {
		none, err := e.unknown(ctx, db, missing)
		if err != nil {
			return "", err
		}
		if len(none) < len(missing) && len(missing) == len(rights.Features()) {
			none = nil // what is in the way comes first: there is no migration before
		}
		missing = none
	}
	if len(missing) == len(rights.Features()) {
		e.add(Critical, "tables", "none of Waybill's is there, unless the services use another database or schema", toMigrate)
		missing = nil
	}
	for _, feature := range missing {
		e.add(Critical, "feature "+feature, "its tables are missing", toMigrate)
	}
	if e.current["outbox"] {
		if _, err := outboxdb.Partitions(ctx, db); dberr.CodeOf(err) == dberr.Denied {
			return "", err // Of the tables it says nothing.
		} else if err != nil {
			e.add(Critical, "table outbox_settings", err.Error(), "run `waybill migrate`, or restore the number that the first migration wrote")
		}
	}
	return "versions: " + strings.Join(fine, ", "), nil
}

// unknown tells of tables that waybill_migrations doesn't know, and returns which of the
// missing features have none.
func (e *exam) unknown(ctx context.Context, db bun.IDB, missing []string) (none []string, err error) {
	known, err := e.wanted(db.Dialect(), rights.Features())
	if err != nil {
		return nil, err
	}
	var there []string
	for _, s := range rights.Features() {
		if !slices.Contains(missing, s.Feature) {
			continue
		}
		want, err := expected(s, db.Dialect())
		if err != nil {
			return nil, err
		}
		have, _, err := e.catalog(ctx, db, want)
		if err != nil {
			return nil, err
		}
		before := len(there)
		for _, o := range want {
			shared := slices.ContainsFunc(known, func(k object) bool { return k.kind == o.kind && k.name == o.name })
			_, table := have["table "+o.name] // of a view's name, too: it is in the way of both
			_, view := have["view "+o.name]
			if (table || view) && (o.kind == "table" || o.kind == "view") && !shared && !slices.Contains(there, o.name) {
				there = append(there, o.name)
			}
		}
		if len(there) == before {
			none = append(none, s.Feature)
		}
	}
	if len(there) > 0 {
		e.add(Critical, "table waybill_migrations", "it doesn't say that a migration made what is there: "+strings.Join(there, ", ")+". Programs are refused, and so is `waybill migrate`", migrate.ToRestoreBooks)
	}
	return none, nil
}

// object is a table, view, index or trigger that a migration makes.
type object struct {
	kind, name string
	on         string // table or view of an index or a trigger
	feature    string
	sql        string // of an index
	keys       int    // of a table: its primary key and unique constraints
}

var (
	statements = regexp.MustCompile(`(?m)^(?:CREATE (?:UNIQUE )?(?P<kind>TABLE|VIEW|INDEX|TRIGGER) (?:IF NOT EXISTS )?(?P<made>\w+)` +
		`|DROP (?P<dropped>TABLE|VIEW|INDEX|TRIGGER) (?:IF EXISTS )?(?P<names>[\w, ]+)` +
		`|ALTER (?P<altered>TABLE|INDEX) (?P<old>\w+) RENAME TO (?P<new>\w+))`)
	comments = regexp.MustCompile(`--.*`)
	keys     = regexp.MustCompile(`PRIMARY KEY|\bUNIQUE\b`)
	belongs  = regexp.MustCompile(`\sON (\w+)`)
)

// expected is what the migrations of a feature make, by kind and name.
func expected(s migrate.Set, d schema.Dialect) (all []object, err error) {
	steps, err := s.Steps(d)
	if err != nil {
		return nil, err
	}
	for _, step := range steps {
		text := comments.ReplaceAllString(step.SQL, "")
		for _, m := range statements.FindAllStringSubmatchIndex(text, -1) {
			part := func(name string) string {
				return string(statements.ExpandString(nil, "${"+name+"}", text, m))
			}
			switch {
			case part("kind") != "":
				statement, _, _ := strings.Cut(text[m[0]:], ";")
				all = append(drop(all, part("kind"), part("made")), made(s.Feature, part("kind"), part("made"), statement))
			case part("dropped") != "":
				for name := range strings.SplitSeq(part("names"), ",") {
					all = drop(all, part("dropped"), strings.Fields(name)[0])
				}
			default:
				rename(all, part("altered"), part("old"), part("new"))
			}
		}
	}
	return all, nil
}

// made is what a statement makes.
func made(feature, kind, name, statement string) object {
	o := object{feature: feature, kind: strings.ToLower(kind), name: name}
	switch kind {
	case "TABLE":
		o.keys = len(keys.FindAllString(statement, -1))
	case "INDEX", "TRIGGER":
		if kind == "INDEX" {
			o.sql = strings.Join(strings.Fields(statement), " ")
		}
		if on := belongs.FindStringSubmatch(statement); on != nil {
			o.on = on[1]
		}
	}
	return o
}

// drop is what is left of all. A table takes its indexes and triggers along.
func drop(all []object, kind, name string) []object {
	return slices.DeleteFunc(all, func(o object) bool {
		return o.name == name && strings.EqualFold(o.kind, kind) || o.on == name && kind != "INDEX" && kind != "TRIGGER"
	})
}

func rename(all []object, kind, from, to string) {
	for i := range all {
		o := &all[i]
		if o.name == from && strings.EqualFold(o.kind, kind) {
			o.name = to
		}
		if o.on == from && kind == "TABLE" {
			o.on = to
		}
	}
}

// existing is an object as the database has it.
type existing struct {
	invalid bool   // index
	drops   string // of a trigger or rule that may drop rows, the table
}

// wanted is what the migrations of all features make that are current, each once.
func (e *exam) wanted(d schema.Dialect, features []migrate.Set) (want []object, err error) {
	for _, s := range features {
		if !e.current[s.Feature] {
			continue
		}
		of, err := expected(s, d)
		if err != nil {
			return nil, err
		}
		for _, o := range of {
			// What two features need, the first one that comes makes.
			if !slices.ContainsFunc(want, func(w object) bool { return w.kind == o.kind && w.name == o.name }) {
				want = append(want, o)
			}
		}
	}
	return want, nil
}

// objects looks for what the migrations made and somebody removed since, for what
// PostgreSQL could not complete, and for what somebody put between.
func (e *exam) objects(ctx context.Context, db bun.IDB) (string, error) {
	want, err := e.wanted(db.Dialect(), rights.Features())
	if err != nil {
		return "", err
	}
	if want, err = e.shadowed(ctx, db, want); err != nil {
		return "", err
	}
	have, unique, err := e.catalog(ctx, db, want)
	if err != nil {
		return "", err
	}
	n := map[string]int64{}
	for _, o := range want {
		n[o.kind]++
		_, ok := have[o.kind+" "+o.name]
		switch {
		case !ok && o.on != "" && !has(have, o.on):
			// It goes with its table, which is said to be missing, and comes with it.
		case !ok && o.kind == "index":
			create := o.sql
			if e.postgres() {
				create = strings.Replace(create, "INDEX ", "INDEX CONCURRENTLY ", 1)
			}
			e.add(Critical, "index "+o.name, "it is missing: what needs it reads whole tables", create)
		case !ok:
			e.add(Critical, o.kind+" "+o.name, "it is missing", "make it again as `waybill migrate --print` shows it for an empty database")
			e.current[o.feature] = e.current[o.feature] && o.kind != "table" // what reads it has nothing to say
		case o.kind == "table" && e.postgres() && unique[o.name] < o.keys:
			e.add(Critical, "table "+o.name, fmt.Sprintf("of its %d primary keys and unique constraints there are %d", o.keys, unique[o.name]), "make them again as `waybill migrate --print` shows them for an empty database")
		}
	}
	for name, o := range have {
		if o.invalid {
			index := strings.TrimPrefix(name, "index ")
			e.add(Critical, name, "it is invalid: PostgreSQL could not complete it, and doesn't use it", "REINDEX INDEX CONCURRENTLY "+index+"; if it is none of Waybill's, DROP INDEX CONCURRENTLY "+index)
		}
		if o.drops != "" && !slices.ContainsFunc(want, func(w object) bool { return w.kind+" "+w.name == name }) {
			kind, rest, _ := strings.Cut(name, " ")
			drop := strings.Join([]string{"DROP", strings.ToUpper(kind), rest}, " ")
			if e.postgres() {
				drop += " ON " + o.drops
			}
			e.add(Warning, name, "it isn't Waybill's, is on table "+o.drops+", and can drop a row without an error: an event that is saved and not there, or one that is published and stays", drop+", unless you know that it lets every row pass; one that only looks is better an AFTER trigger")
		}
	}
	return fmt.Sprintf("%s, %s, %s and %s are there", count(n["table"], "table"), count(n["view"], "view"),
		cmp.Or(map[bool]string{true: "1 index"}[n["index"] == 1], fmt.Sprintf("%d indexes", n["index"])), count(n["trigger"], "trigger")), nil
}

// has says whether there is a table or a view of that name.
func has(have map[string]existing, name string) bool {
	_, table := have["table "+name]
	_, view := have["view "+name]
	return table || view
}

// catalog is what there is, by kind and name, and how many valid unique indexes
// each table has beside those that are wanted by their own names.
func (e *exam) catalog(ctx context.Context, db bun.IDB, want []object) (map[string]existing, map[string]int, error) {
	have, unique := map[string]existing{}, map[string]int{}
	query := "SELECT type, name, tbl_name, TRUE, FALSE, type = 'trigger' AND sql LIKE '%RAISE%IGNORE%' FROM sqlite_master WHERE type IN ('table', 'view', 'index', 'trigger')"
	if e.postgres() {
		var tables []string
		for _, o := range want {
			if o.kind == "table" || o.kind == "view" {
				tables = append(tables, "to_regclass("+migrate.Quote(o.name)+")")
			}
		}
		if len(tables) == 0 {
			return have, unique, nil
		}
		query = "WITH t AS (SELECT oid, relname, relkind FROM pg_class WHERE oid IN (" + strings.Join(tables, ", ") + "))" +
			" SELECT CASE relkind WHEN 'v' THEN 'view' ELSE 'table' END, relname, relname, TRUE, FALSE, FALSE FROM t" +
			" UNION ALL SELECT 'index', c.relname, t.relname, i.indisvalid AND i.indisready, i.indisunique, FALSE FROM t JOIN pg_index AS i ON i.indrelid = t.oid JOIN pg_class AS c ON c.oid = i.indexrelid" +
			// 66: BEFORE or INSTEAD OF. What comes AFTER has the row.
			" UNION ALL SELECT 'trigger', g.tgname, t.relname, TRUE, FALSE, g.tgtype & 66 <> 0 AND g.tgenabled <> 'D' FROM t JOIN pg_trigger AS g ON g.tgrelid = t.oid WHERE NOT g.tgisinternal" +
			" UNION ALL SELECT 'rule', r.rulename, t.relname, TRUE, FALSE, r.ev_enabled <> 'D' FROM t JOIN pg_rewrite AS r ON r.ev_class = t.oid WHERE t.relkind <> 'v'"
	}
	err := dbrows.Each(ctx, db, query, func(scan func(...any) error) error {
		var kind, name, table string
		var good, isUnique, drops bool
		err := scan(&kind, &name, &table, &good, &isUnique, &drops)
		o := existing{invalid: kind == "index" && !good}
		if drops {
			o.drops = table
		}
		have[kind+" "+name] = o
		named := slices.ContainsFunc(want, func(o object) bool { return o.kind == "index" && o.name == name })
		if isUnique && good && !named {
			unique[table]++
		}
		return err
	})
	return have, unique, err
}
