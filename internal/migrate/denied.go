package migrate

import (
	"context"
	"fmt"
	"strings"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dberr"
)

// hidden is a schema of the search_path with Waybill's tables which the role may not use,
// both as SQL names them. To PostgreSQL it is as if they weren't there.
type hidden struct{ schema, role string }

// Are says whether there is such a schema.
func (h hidden) Are() bool { return h.schema != "" }

// What says what is wrong.
func (h hidden) What() string {
	return fmt.Sprintf("schema %s has Waybill's tables, and role %s has no right to use it", h.schema, h.role)
}

// Remedy says what helps.
func (h hidden) Remedy() string {
	return fmt.Sprintf("let their owner run `waybill migrate --role engine=%s`, or app= or read= for a program without an engine", strings.Trim(h.role, `"`))
}

// hiddenFrom finds such a schema; the zero value if there is none.
func hiddenFrom(ctx context.Context, db bun.IDB) (h hidden, err error) {
	err = db.NewRaw("SELECT coalesce(min(quote_ident(n.nspname)), ''), quote_ident(current_user)"+
		" FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"+
		" WHERE c.relname = 'waybill_migrations' AND NOT has_schema_privilege(n.oid, 'USAGE')"+
		" AND n.nspname IN (SELECT CASE name WHEN '$user' THEN current_user ELSE name END"+
		" FROM (SELECT trim(both ' \"' FROM part) AS name FROM unnest(string_to_array(current_setting('search_path'), ',')) AS part) AS names)").
		Scan(ctx, &h.schema, &h.role)
	if h.schema == "" {
		return hidden{}, err
	}
	return h, err
}

const (
	// noSchema is PostgreSQL's code where no schema of the search_path can be used.
	noSchema = "3F000"
	readOnly = "25006"
	// readOnlySQLite is what SQLite says of a file and of query_only.
	readOnlySQLite = "sqlite 8"
)

// denied adds what helps to the error of a role or a connection that may not migrate.
func denied(err error) error {
	switch dberr.CodeOf(err) {
	case dberr.Denied:
		return fmt.Errorf("this role may not make or change them: migrate as the role that owns them (`waybill migrate`), or give this one the right (GRANT CREATE ON SCHEMA …): %w", err)
	case noSchema:
		return fmt.Errorf("no schema of the search_path exists that this role may use: name one (schema of the provider, postgres.Config.Schema), or give the role the right (GRANT USAGE, CREATE ON SCHEMA …): %w", err)
	case readOnly, readOnlySQLite:
		return fmt.Errorf("the database can't be written to: lead the connection to the primary, or see who made the database, the role or the file read-only (default_transaction_read_only, query_only): %w", err)
	}
	return err
}
