// Package rightstest opens PostgreSQL as a role that has just the rights that
// `waybill migrate --print --role` writes, so that suites run as services should.
package rightstest

import (
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/migrate"
	"github.com/waybill-go/waybill/internal/rights"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
)

// As opens the database of an owner, which cfg leads to, anew: as a role that was
// given what it needs of the tables of features. What the owner creates from then on
// stands for the application's own tables, and the role may work with it.
func As(t testing.TB, owner uow.Provider, cfg postgres.Config, role migrate.Role, on ...migrate.Set) uow.Provider {
	t.Helper()
	g := rights.Grantee{Role: role, Name: Login(t, owner.DB(), role)}
	require.NoError(t, rights.Give(t.Context(), owner.DB(), []rights.Grantee{g}, on))
	schema, _, err := migrate.Schema(t.Context(), owner.DB())
	require.NoError(t, err)
	const later = "ALTER DEFAULT PRIVILEGES IN SCHEMA ?0 GRANT "
	_, err = owner.DB().ExecContext(t.Context(), later+"SELECT, INSERT, UPDATE, DELETE ON TABLES TO ?1; "+later+"USAGE ON SEQUENCES TO ?1", bun.Safe(schema), bun.Ident(g.Name))
	require.NoError(t, err)
	cfg.DSN = DSN(t, cfg.DSN, g.Name)
	p, err := postgres.Open(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// Login makes a role of the server that may do nothing yet, and returns its name.
// All tests share it; it stays.
func Login(t testing.TB, db *bun.DB, role migrate.Role) (name string) {
	t.Helper()
	name = "waybill_test_" + string(role)
	create := "CREATE ROLE " + name + " LOGIN"
	if role == migrate.App { // suites that provoke deadlocks need not wait long for them
		create += "; ALTER ROLE " + name + " SET deadlock_timeout = '20ms'"
	}
	_, err := db.ExecContext(t.Context(), "DO $$ BEGIN "+create+"; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$")
	require.NoError(t, err)
	return name
}

// DSN is a URL for another user.
func DSN(t testing.TB, dsn, user string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	u.User = url.User(user)
	return u.String()
}
