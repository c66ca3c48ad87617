package doctor

import (
	"context"
	"strings"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/migrate"
)

// shadowed tells of tables that somebody else has, under the names of Waybill's, in a schema
// that the search_path names first: what is meant for Waybill's goes to them. It returns
// what is wanted without them and what belongs to them, as the database shows others there.
func (e *exam) shadowed(ctx context.Context, db bun.IDB, want []object) (left []object, err error) {
	var tables []string
	for _, o := range want {
		if o.kind == "table" || o.kind == "view" {
			tables = append(tables, "to_regclass("+migrate.Quote(o.name)+")")
		}
	}
	if !e.postgres() || len(tables) == 0 {
		return want, nil
	}
	hidden := map[string]bool{}
	err = dbrows.Each(ctx, db, "SELECT c.relname, c.relnamespace::regnamespace::text, m.relnamespace::regnamespace::text, current_setting('search_path')"+
		" FROM pg_class AS c JOIN pg_class AS m ON m.oid = to_regclass('waybill_migrations')"+
		" WHERE c.oid IN ("+strings.Join(tables, ", ")+") AND c.relnamespace <> m.relnamespace"+
		" AND EXISTS (SELECT FROM pg_class AS w WHERE w.relnamespace = m.relnamespace AND w.relname = c.relname) ORDER BY 1",
		func(scan func(...any) error) error {
			var name, other, ours, path string
			err := scan(&name, &other, &ours, &path)
			hidden[name] = true
			e.add(Critical, "table "+name, "the search_path ("+path+") leads to the one of schema "+other+", and Waybill's is in schema "+ours+": programs read and write the wrong one, or fail",
				"name schema "+ours+" in the configuration (schema of the provider, postgres.Config.Schema), put it first in the search_path of the role or the database, or give the other table another name; then restart the programs")
			return err
		})
	for _, o := range want {
		if hidden[o.name] || hidden[o.on] {
			e.current[o.feature] = false // what reads it would say nothing that is so
			continue
		}
		left = append(left, o)
	}
	return left, err
}
