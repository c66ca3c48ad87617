package doctor

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/migrate"
	"github.com/waybill-go/waybill/internal/rights"
	"github.com/waybill-go/waybill/uow/postgres"
)

// That a role may not read the settings says nothing of them: no migration helps.
func TestSchema_OfARoleThatMayNotReadIt(t *testing.T) {
	p := healthyPostgres(t)
	p.exec(t, "CREATE ROLE outsider LOGIN", "GRANT SELECT ON waybill_migrations TO outsider")
	t.Cleanup(func() {
		_, err := p.DB().ExecContext(context.Background(), "DROP OWNED BY outsider; DROP ROLE outsider")
		require.NoError(t, err)
	})
	var name string
	require.NoError(t, p.Reader().NewRaw("SELECT current_database()").Scan(t.Context(), &name))
	outsider, err := postgres.Open(t.Context(), postgres.Config{DSN: strings.Replace(dsn(name), "doctor@", "outsider@", 1)})
	require.NoError(t, err)
	defer func() { require.NoError(t, outsider.Close()) }()
	for _, f := range Examine(t.Context(), outsider, nil) {
		require.NotEqual(t, Critical, f.Severity, "%+v", f)
		if f.Check == "schema" {
			require.Equal(t, "see the check rights; for statistics, GRANT pg_monitor", f.Remedy)
		}
	}
}

// Tables in a schema that a role may not use are as if they weren't there: to migrate is no remedy.
func TestSchema_OfARoleThatMayNotUseIt(t *testing.T) {
	p := healthyPostgres(t)
	p.exec(t, "CREATE ROLE stranger LOGIN", "REVOKE ALL ON SCHEMA public FROM public", "GRANT ALL ON SCHEMA public TO CURRENT_USER")
	t.Cleanup(func() {
		_, err := p.DB().ExecContext(context.Background(), "DROP OWNED BY stranger; DROP ROLE stranger")
		require.NoError(t, err)
	})
	var name string
	require.NoError(t, p.Reader().NewRaw("SELECT current_database()").Scan(t.Context(), &name))
	stranger, err := postgres.Open(t.Context(), postgres.Config{DSN: strings.Replace(dsn(name), "doctor@", "stranger@", 1)})
	require.NoError(t, err)
	defer func() { require.NoError(t, stranger.Close()) }()
	var critical []Finding
	for _, f := range Examine(t.Context(), stranger, nil) {
		if f.Severity == Critical {
			critical = append(critical, f)
		}
	}
	require.Equal(t, []Finding{{
		Check: "schema", Severity: Critical, Where: "tables",
		What:   "schema public has Waybill's tables, and role stranger has no right to use it: nothing of them was looked at",
		Remedy: "let their owner run `waybill migrate --role engine=stranger`, or app= or read= for a program without an engine",
	}}, critical)
}

// S1: whoever lacks a right is told which, where, and which grant helps. A role is
// taken for what it may already do, or for what it is said to do.
func TestRights_S1_WhatARoleLacks(t *testing.T) {
	p := healthyPostgres(t)
	for _, name := range []string{"publisher", "writer", "looker"} {
		p.exec(t, "CREATE ROLE "+name+" LOGIN")
		t.Cleanup(func() {
			_, err := p.DB().ExecContext(context.Background(), "DROP OWNED BY "+name+"; DROP ROLE "+name)
			require.NoError(t, err)
		})
	}
	var name string
	require.NoError(t, p.Reader().NewRaw("SELECT current_database()").Scan(t.Context(), &name))
	as := func(role string, roles ...rights.Grantee) (found []Finding) {
		db, err := postgres.Open(t.Context(), postgres.Config{DSN: strings.Replace(dsn(name), "doctor@", role+"@", 1)})
		require.NoError(t, err)
		defer func() { require.NoError(t, db.Close()) }()
		for _, f := range Examine(t.Context(), db, nil, roles...) {
			if f.Check == "rights" {
				found = append(found, f)
			}
		}
		return found
	}
	// What the documentation once said is enough.
	p.exec(t, "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO publisher", "GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO publisher")
	require.Equal(t, []Finding{{
		Check: "rights", Severity: Critical, Where: "sequence outbox_messages_seq_seq", What: "role publisher lacks SELECT, which an engine needs",
		Remedy: "as the owner of the tables: GRANT SELECT ON SEQUENCE public.outbox_messages_seq_seq TO publisher",
	}}, as("publisher"))
	p.exec(t, "GRANT SELECT ON SEQUENCE public.outbox_messages_seq_seq TO publisher")
	require.Equal(t, []Finding{{Check: "rights", Severity: OK, What: "role publisher has what an engine needs"}}, as("publisher"))

	p.exec(t, "ALTER TABLE outbox_messages ENABLE ROW LEVEL SECURITY", "CREATE POLICY tenants ON outbox_messages USING (tenant_id = current_setting('app.tenant', true))")
	hidden := []Finding{{
		Check: "rights", Severity: Critical, Where: "table outbox_messages",
		What:   "row security hides rows of it from role publisher: what a role can't see it neither publishes nor handles nor removes, and nothing fails",
		Remedy: "ALTER TABLE outbox_messages DISABLE ROW LEVEL SECURITY, or ALTER ROLE publisher BYPASSRLS; then restart the engines",
	}}
	require.Equal(t, hidden, as("publisher"))
	require.Contains(t, as("doctor", rights.Grantee{Role: migrate.Engine, Name: "publisher"}), hidden[0])
	p.exec(t, "CREATE POLICY engines ON outbox_messages TO publisher USING (true)")
	require.NotContains(t, as("publisher"), hidden[0], "it sees everything")
	p.exec(t, "CREATE POLICY narrow ON outbox_messages AS RESTRICTIVE USING (tenant_id IS NOT NULL)")
	require.Equal(t, hidden, as("publisher"))
	p.exec(t, "ALTER ROLE publisher BYPASSRLS")
	require.NotContains(t, as("publisher"), hidden[0])
	p.exec(t, "ALTER TABLE outbox_messages DISABLE ROW LEVEL SECURITY")

	p.exec(t, "GRANT INSERT ON outbox_queue TO writer")
	found := as("writer")
	require.Greater(t, len(found), 5)
	for _, f := range found {
		require.Equal(t, Critical, f.Severity)
		require.Contains(t, f.What, "role writer lacks")
		require.Contains(t, f.What, "an application that saves")
	}
	require.NoError(t, rights.Give(t.Context(), p.DB(), []rights.Grantee{{Role: migrate.App, Name: "writer"}, {Role: migrate.Read, Name: "looker"}}, rights.Features()))
	require.Equal(t, []Finding{{Check: "rights", Severity: OK, What: "role writer has what an application that saves and consumes needs"}}, as("writer"))
	require.Contains(t, as("looker")[0].What, "role looker has what somebody who only reads needs")
	for _, f := range as("looker", rights.Grantee{Role: migrate.Engine, Name: "writer"}) {
		require.Contains(t, f.What, "which an engine needs")
	}
	p.exec(t, "REVOKE ALL ON inbox FROM looker")
	require.Equal(t, Warning, as("looker")[0].Severity)

	// Who may do everything needs to know that less is enough, and no more.
	found = as("doctor")
	require.Len(t, found, 1)
	require.Equal(t, OK, found[0].Severity)
	require.Contains(t, found[0].What, "role doctor is a superuser; programs need less")
}

// S1: who may only read can examine everything.
func TestRights_S1_ReadIsEnoughForTheDoctor(t *testing.T) {
	p := healthyPostgres(t)
	p.exec(t, "CREATE ROLE reader LOGIN")
	t.Cleanup(func() {
		_, err := p.DB().ExecContext(context.Background(), "DROP OWNED BY reader; DROP ROLE reader")
		require.NoError(t, err)
	})
	require.NoError(t, rights.Give(t.Context(), p.DB(), []rights.Grantee{{Role: migrate.Read, Name: "reader"}}, rights.Features()))
	var name string
	require.NoError(t, p.Reader().NewRaw("SELECT current_database()").Scan(t.Context(), &name))
	db, err := postgres.Open(t.Context(), postgres.Config{DSN: strings.Replace(dsn(name), "doctor@", "reader@", 1)})
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	for _, f := range Examine(t.Context(), db, nil) {
		require.Equal(t, OK, f.Severity, "%+v", f)
	}
}
