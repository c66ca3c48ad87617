package migrate

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/internal/dbrows"
)

// Shadow is a table that somebody else has, under the name of one of Waybill's, in a schema
// that the search_path names first: what is meant for Waybill's goes to it.
type Shadow struct{ Table, Schema, Ours, Path string }

// What says what is so.
func (s Shadow) What() string {
	return fmt.Sprintf("the search_path (%s) leads to the one of schema %s, and Waybill's is in schema %s: programs read and write the wrong one, or fail", s.Path, s.Schema, s.Ours)
}

// Remedy says what helps.
func (s Shadow) Remedy() string {
	return fmt.Sprintf("name schema %s in the configuration (schema of the provider, postgres.Config.Schema), put it first in the search_path of the role or the database, or give the other table another name; then restart the programs", s.Ours)
}

// Shadows finds them among tables of those names. SQLite has none.
func Shadows(ctx context.Context, db bun.IDB, names []string) (all []Shadow, err error) {
	if db.Dialect().Name() != dialect.PG || len(names) == 0 {
		return nil, nil
	}
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = "to_regclass(" + Quote(name) + ")"
	}
	err = dbrows.Each(ctx, db, "SELECT c.relname, c.relnamespace::regnamespace::text, m.relnamespace::regnamespace::text, current_setting('search_path')"+
		" FROM pg_class AS c JOIN pg_class AS m ON m.oid = to_regclass('waybill_migrations')"+
		" WHERE c.oid IN ("+strings.Join(quoted, ", ")+") AND c.relnamespace <> m.relnamespace"+
		" AND EXISTS (SELECT FROM pg_class AS w WHERE w.relnamespace = m.relnamespace AND w.relname = c.relname) ORDER BY 1",
		func(scan func(...any) error) error {
			var s Shadow
			err := scan(&s.Table, &s.Schema, &s.Ours, &s.Path)
			all = append(all, s)
			return err
		})
	return all, err
}

// Unshadowed is an error for each table of sets that is shadowed.
func Unshadowed(ctx context.Context, db bun.IDB, sets ...Set) error {
	var names []string
	for _, s := range sets {
		for _, r := range s.Rights {
			if r.Kind == Table || r.Kind == "" {
				names = append(names, r.Name)
			}
		}
	}
	found, err := Shadows(ctx, db, names)
	if err != nil {
		return fmt.Errorf("migrate: whose tables the search_path leads to: %w", err)
	}
	var errs []error
	for _, s := range found {
		errs = append(errs, fmt.Errorf("table %s: %s; %s", s.Table, s.What(), s.Remedy()))
	}
	return errors.Join(errs...)
}
