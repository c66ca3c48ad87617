package migrate

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/internal/dbtime"
)

// Plan is what a migration of one database would do.
type Plan struct {
	Steps []Step   `json:"migrations"` // files that would run, in this order
	Then  []string `json:"statements"` // what would be written afterwards
}

// Empty says that there is nothing to do.
func (p Plan) Empty() bool { return len(p.Steps) == 0 && len(p.Then) == 0 }

// Missing returns the files that [Set.Up] would run, and changes nothing. Tables
// of a newer build, and those that the role can't see, are a [*SchemaError].
func (s Set) Missing(ctx context.Context, db bun.IDB) ([]Step, error) {
	err := s.Check(ctx, db)
	missing, ok := errors.AsType[*SchemaError](err)
	if !ok || missing.Have > missing.Need || missing.Hidden.Are() {
		return nil, err
	}
	steps, err := s.Steps(db.Dialect())
	if err != nil {
		return nil, err
	}
	return steps[missing.Have:], nil
}

// Script is the plan as plain SQL for psql or sqlite3: one transaction, which keeps
// the versions as [Set.Up] does. A file's version is written before the file runs, so
// that a script that has run already fails at once.
func (p Plan) Script(ctx context.Context, db bun.IDB) (string, error) {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	if db.Dialect().Name() == dialect.PG {
		path, err := searchPath(ctx, db)
		if err != nil {
			return "", fmt.Errorf("migrate: %w", err)
		}
		line("BEGIN;")
		line("SELECT pg_advisory_xact_lock(%d);", lock)
		b.WriteString(path)
	} else {
		line("BEGIN IMMEDIATE;")
	}
	statements, err := books(ctx, db)
	if err != nil {
		return "", fmt.Errorf("migrate: %w", err)
	}
	for _, statement := range statements {
		line("%s;", statement)
	}
	for _, s := range p.Steps {
		line("\n-- %s: %s", s.Feature, s.Name)
		line("INSERT INTO waybill_migrations (feature, version, tolerates, applied_at) VALUES (%s, %d, %d, %s);", Quote(s.Feature), s.Version, s.Tolerates, dbtime.Now(db.Dialect()))
		line("\n%s", strings.TrimSpace(s.SQL))
	}
	line("")
	for _, statement := range p.Then {
		line("%s;", statement)
	}
	line("COMMIT;")
	return b.String(), nil
}

// searchPath leads the script to the schema in which this connection would create
// tables, whoever runs it.
func searchPath(ctx context.Context, db bun.IDB) (string, error) {
	schema, exists, err := Schema(ctx, db)
	switch {
	case err != nil:
		return "", err
	case exists:
		return fmt.Sprintf("SET LOCAL search_path = %s;\n", schema), nil
	}
	return fmt.Sprintf("CREATE SCHEMA %s;\nSET LOCAL search_path = %s;\n", schema, schema), nil
}

// Schema is the one, as SQL names it, in which this connection creates tables, or
// would if it existed.
func Schema(ctx context.Context, db bun.IDB) (schema string, exists bool, err error) {
	var current *string
	var path string
	if err := db.NewRaw("SELECT quote_ident(current_schema()), current_setting('search_path')").Scan(ctx, &current, &path); err != nil {
		return "", false, err
	}
	switch {
	case current != nil:
		return *current, true, nil
	case strings.Contains(path, ",") || path == "":
		return "", false, fmt.Errorf("there is none of the schemas of search_path, which is %q: create one", path)
	}
	return path, false, nil
}

// LacksCreate says whether a user of PostgreSQL, the one that is connected for "", may not
// create tables where this connection would: with the statement that lets it. "" if it may.
func LacksCreate(ctx context.Context, db bun.IDB, user string) (grant string, err error) {
	if db.Dialect().Name() != dialect.PG {
		return "", nil
	}
	schema, exists, err := Schema(ctx, db)
	if err != nil || !exists {
		return "", err
	}
	var may bool
	err = db.NewRaw("SELECT quote_ident(u), has_schema_privilege(u, to_regnamespace(?), 'CREATE') FROM (SELECT coalesce(nullif(?, ''), current_user::text) AS u) AS u", schema, user).Scan(ctx, &user, &may)
	if err != nil || may {
		return "", err
	}
	return fmt.Sprintf("GRANT CREATE ON SCHEMA %s TO %s", schema, user), nil
}

// Quote is text as a literal of SQL.
func Quote(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }
