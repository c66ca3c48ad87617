package doctor

import (
	"context"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/migrate"
)

// shadowed tells of tables that somebody else has, under the names of Waybill's, in a schema
// that the search_path names first: what is meant for Waybill's goes to them. It returns
// what is wanted without them and what belongs to them, as the database shows others there.
func (e *exam) shadowed(ctx context.Context, db bun.IDB, want []object) (left []object, err error) {
	var tables []string
	for _, o := range want {
		if o.kind == "table" || o.kind == "view" {
			tables = append(tables, o.name)
		}
	}
	all, err := migrate.Shadows(ctx, db, tables)
	if err != nil {
		return nil, err
	}
	hidden := map[string]bool{}
	for _, s := range all {
		hidden[s.Table] = true
		e.add(Critical, "table "+s.Table, s.What(), s.Remedy())
	}
	for _, o := range want {
		if hidden[o.name] || hidden[o.on] {
			e.current[o.feature] = false // what reads it would say nothing that is so
			continue
		}
		left = append(left, o)
	}
	return left, nil
}
