package rights_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/internal/dbtest"
	"github.com/waybill-go/waybill/internal/migrate"
	"github.com/waybill-go/waybill/internal/rights"
	"github.com/waybill-go/waybill/internal/rights/rightstest"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
)

// openMigrated is a migrated schema of a test's own, as its owner.
func openMigrated(t *testing.T) uow.Provider {
	t.Helper()
	p, _ := dbtest.Postgres(t, func(c *postgres.Config) { c.Schema = fmt.Sprintf("Rights %d %s", os.Getpid(), t.Name()) }) // has to be quoted
	require.NoError(t, engine.MigrateProvider(t.Context(), p, 0))
	return p
}

// S1: whoever adds a table, a sequence or a function says who needs what of it.
func TestRights_MentionEverythingThatMigrationsMake(t *testing.T) {
	p := openMigrated(t)
	var there, said []string
	require.NoError(t, p.Reader().NewRaw(`SELECT CASE WHEN relkind = 'S' THEN 'SEQUENCE ' ELSE 'TABLE ' END || relname FROM pg_class
		WHERE relnamespace = quote_ident(current_schema())::regnamespace AND relkind NOT IN ('i', 'I', 'c', 't')
		UNION ALL SELECT 'FUNCTION ' || proname || '(' || oidvectortypes(proargtypes) || ')' FROM pg_proc WHERE pronamespace = quote_ident(current_schema())::regnamespace`).Scan(t.Context(), &there))
	for _, r := range rights.On(rights.Features()) {
		said = append(said, string(r.Kind)+" "+r.Name)
	}
	slices.Sort(there)
	slices.Sort(said)
	require.Equal(t, there, said)
}

// S1: what is printed is what is needed, and one that misses any of it is told what,
// and what helps.
func TestRights_WhatIsMissingIsNamedWithItsGrant(t *testing.T) {
	p := openMigrated(t)
	ctx := t.Context()
	// As in a database whose defaults give everybody nothing.
	_, err := p.DB().ExecContext(ctx, "REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA ? FROM PUBLIC", bun.Ident(fmt.Sprintf("Rights %d %s", os.Getpid(), t.Name())))
	require.NoError(t, err)
	for _, role := range migrate.Roles() {
		g := rights.Grantee{Role: role, Name: rightstest.Login(t, p.DB(), role)}
		lacks, err := rights.Missing(ctx, p.DB(), g)
		require.NoError(t, err)
		require.Equal(t, "USAGE", lacks[0].What)
		for _, l := range lacks { // one grant after the other
			_, err := p.DB().DB.ExecContext(ctx, l.Grant)
			require.NoError(t, err, l.Grant)
		}
		lacks, err = rights.Missing(ctx, p.DB(), g)
		require.NoError(t, err)
		require.Empty(t, lacks)

		all, err := rights.Grants(ctx, p.DB(), g, rights.Features())
		require.NoError(t, err)
		for _, grant := range all { // each of them is needed
			undo := strings.Replace(strings.Replace(grant, "GRANT", "REVOKE", 1), " TO ", " FROM ", 1)
			_, err := p.DB().DB.ExecContext(ctx, undo)
			require.NoError(t, err, undo)
			lacks, err = rights.Missing(ctx, p.DB(), g)
			require.NoError(t, err)
			require.NotEmpty(t, lacks, undo)
			require.NoError(t, rights.Give(ctx, p.DB(), []rights.Grantee{g}, rights.Features()))
		}
		lacks, err = rights.Missing(ctx, p.DB(), g)
		require.NoError(t, err)
		require.Empty(t, lacks)
	}
}

func TestParse(t *testing.T) {
	for text, want := range map[string]rights.Grantee{
		"app=orders": {Role: migrate.App, Name: "orders"}, "engine": {Role: migrate.Engine, Name: "waybill_engine"}, "read=A b=c": {Role: migrate.Read, Name: "A b=c"},
	} {
		g, err := rights.Parse(text)
		require.NoError(t, err)
		require.Equal(t, want, g)
	}
	for _, text := range []string{"", "orders", "owner=x", "app=", "app=public", "app=a\nDROP"} {
		_, err := rights.Parse(text)
		require.ErrorContains(t, err, "--role", text)
	}
}
