package migrate_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"
)

// A database that was made read-only says so itself, but not what to do about it.
func TestUp_ReadOnly(t *testing.T) {
	databases(t, func(t *testing.T, again func() *bun.DB) {
		db := again()
		db.SetMaxOpenConns(1) // the setting is of a connection
		on, off := "SET default_transaction_read_only = on", "SET default_transaction_read_only = off"
		if db.Dialect().Name() == dialect.SQLite {
			on, off = "PRAGMA query_only = on", "PRAGMA query_only = off"
		}
		run := func(query string) {
			_, err := db.ExecContext(context.WithoutCancel(t.Context()), query)
			require.NoError(t, err)
		}
		run(on)
		defer run(off)
		require.ErrorContains(t, set(first).Up(t.Context(), db), "the database can't be written to")
	})
}

// A role without rights is told which one it lacks. To PostgreSQL the tables of a schema that
// it may not use aren't there, and to migrate would be no remedy.
func TestUp_RoleWithoutRights(t *testing.T) {
	databases(t, func(t *testing.T, again func() *bun.DB) {
		owner, little := again(), again()
		if owner.Dialect().Name() == dialect.SQLite {
			return // It knows no roles.
		}
		little.SetMaxOpenConns(1) // SET ROLE is of a connection
		role, ctx := fmt.Sprintf("Little_%d", os.Getpid()), t.Context()
		run := func(db *bun.DB, query string, args ...any) {
			_, err := db.ExecContext(context.WithoutCancel(ctx), query, args...)
			require.NoError(t, err)
		}
		var schema string
		require.NoError(t, owner.NewRaw("SELECT current_schema()").Scan(ctx, &schema))
		run(owner, "CREATE ROLE ?", bun.Ident(role))
		t.Cleanup(func() { run(owner, "DROP OWNED BY ?0; DROP ROLE ?0", bun.Ident(role)) })
		run(little, "SET ROLE ?", bun.Ident(role))

		require.ErrorContains(t, set(first).Check(ctx, little), "are missing; run `waybill migrate`")
		require.ErrorContains(t, set(first).Up(ctx, little), "no schema of the search_path exists that this role may use")
		require.NoError(t, set(first).Up(ctx, owner))
		hidden := fmt.Sprintf("schema %s has Waybill's tables, and role \"%s\" has no right to use it; let their owner run `waybill migrate --role engine=%[2]s`", schema, role)
		require.ErrorContains(t, set(first).Check(ctx, little), hidden)
		require.ErrorContains(t, set(first).Up(ctx, little), hidden)
		steps, err := set(first).Missing(ctx, little)
		require.Empty(t, steps)
		require.ErrorContains(t, err, hidden)

		run(owner, "GRANT USAGE ON SCHEMA ?0 TO ?1; GRANT SELECT ON waybill_migrations TO ?1", bun.Ident(schema), bun.Ident(role))
		require.NoError(t, set(first).Check(ctx, little))
		require.ErrorContains(t, set(first, second).Up(ctx, little), "migrate as the role that owns them")
	})
}
