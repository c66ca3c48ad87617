package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/internal/migrate"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/rights/rightstest"
)

// byHand runs a script as a DBA does, with the database's own tool.
func byHand(t *testing.T, dsn, script string) (said string, err error) {
	t.Helper()
	name, args := "sqlite3", []string{"-bail", dsn}
	if strings.Contains(dsn, "://") {
		u, err := url.Parse(dsn)
		require.NoError(t, err)
		u.RawQuery = "" // in a session that knows no search_path
		name, args = "psql", []string{"-X", "-q", "-v", "ON_ERROR_STOP=1", u.String()}
	}
	path, err := exec.LookPath(name)
	require.NoError(t, err, "%s is missing: run scripts/test, or install it (Debian: apt-get install postgresql-client sqlite3)", name)
	c := exec.CommandContext(t.Context(), path, args...)
	c.Stdin = strings.NewReader(script)
	text, err := c.CombinedOutput()
	return string(text), err
}

// tables is all that a database consists of.
func tables(t *testing.T, dsn string) string {
	t.Helper()
	p := openFor(t, dsn)
	var all []string
	query := "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name"
	if strings.Contains(dsn, "://") {
		query = `SELECT replace(what, quote_ident(current_schema()) || '.', '') FROM (
			SELECT table_name || '.' || column_name || ' ' || ordinal_position || ' ' || data_type || ' ' || is_nullable || ' ' || coalesce(column_default, '') || ' ' || coalesce(collation_name, '')
				FROM information_schema.columns WHERE table_schema = current_schema()
			UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = current_schema()
			UNION ALL SELECT conrelid::regclass || ' ' || pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace = current_schema()::regnamespace
			UNION ALL SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = 'outbox'::regclass
			UNION ALL SELECT relname || ' ' || coalesce(reloptions::text, '') || ' ' || coalesce(obj_description(oid), '') FROM pg_class WHERE relnamespace = current_schema()::regnamespace
		) AS t (what) ORDER BY what COLLATE "C"`
	}
	require.NoError(t, p.Reader().NewRaw(query).Scan(t.Context(), &all))
	require.Greater(t, len(all), 20)
	return strings.Join(all, "\n")
}

func versions(t *testing.T, dsn string) (all []string) {
	t.Helper()
	require.NoError(t, openFor(t, dsn).Reader().NewRaw("SELECT feature || version FROM waybill_migrations ORDER BY 1").Scan(t.Context(), &all))
	return all
}

func eachEmpty(t *testing.T, f func(t *testing.T, empty func() string)) {
	t.Run("sqlite", func(t *testing.T) {
		f(t, func() string { return filepath.Join(t.TempDir(), "a.db") })
	})
	t.Run("postgres", func(t *testing.T) { f(t, func() string { return server(t) }) })
}

// What a DBA runs by hand leaves the same tables as `migrate`, which then finds
// nothing to do.
func TestMigrate_PrintedAndRunByHand(t *testing.T) {
	eachEmpty(t, func(t *testing.T, empty func() string) {
		hand, machine := empty(), empty()
		r := waybill(t, "--dsn", hand, "migrate", "--dry-run")
		require.Zero(t, r.code, r.stderr)
		require.Regexp(t, "(?s)^Provider default is not up to date. `waybill migrate` would run:\n  outbox 0001_outbox.sql\n.*  repository 0001_.*  subscription 0001_.*'partitions', '64'", r.stdout)

		r = waybill(t, "--dsn", hand, "migrate", "--print")
		require.Zero(t, r.code, r.stderr)
		if !strings.Contains(hand, "://") {
			require.NoFileExists(t, hand, "nothing was made")
		}
		said, err := byHand(t, hand, r.stdout)
		require.NoError(t, err, said)

		steps, err := outboxdb.Migrations().Missing(t.Context(), openFor(t, machine).Reader())
		require.NoError(t, err)
		old, err := migrate.Plan{Steps: steps[:1]}.Script(t.Context(), openFor(t, machine).Reader())
		require.NoError(t, err)
		said, err = byHand(t, machine, old)
		require.NoError(t, err, said)
		r = waybill(t, "--dsn", machine, "migrate")
		require.Zero(t, r.code, r.stderr)
		require.Regexp(t, `(?s)^Provider default was migrated: 64 partitions\.\n  New tables: timers, .*projection\.\n  Changed tables: outbox 0002_\w+\.sql\.\n`, r.stdout)
		require.Equal(t, tables(t, machine), tables(t, hand))
		require.Equal(t, versions(t, machine), versions(t, hand))

		r = waybill(t, "--dsn", hand, "migrate", "--dry-run")
		require.Equal(t, result{0, "Provider default is up to date.\n", ""}, r)
		require.Equal(t, "-- Provider default is up to date.\n", waybill(t, "--dsn", hand, "migrate", "--print").stdout)
		var now, before []string
		read := func(into *[]string) {
			require.NoError(t, openFor(t, hand).Reader().NewRaw("SELECT applied_at || feature FROM waybill_migrations ORDER BY 1").Scan(t.Context(), into))
		}
		read(&before)
		r = waybill(t, "--dsn", hand, "migrate")
		require.Equal(t, result{0, "Provider default is up to date: 64 partitions.\n", ""}, r)
		read(&now)
		require.Equal(t, before, now)
		place(t, openFor(t, hand), 1)
	})
}

// Only what is missing is printed; run twice, it does nothing the second time.
func TestMigrate_PrintsWhatIsMissing(t *testing.T) {
	eachEmpty(t, func(t *testing.T, empty func() string) {
		dsn := empty()
		require.NoError(t, outboxdb.Migrations().Up(t.Context(), openFor(t, dsn).DB()))
		r := waybill(t, "--dsn", dsn, "migrate", "--print")
		require.Zero(t, r.code, r.stderr)
		require.NotContains(t, r.stdout, "CREATE TABLE outbox ")
		require.Contains(t, r.stdout, "CREATE TABLE documents")
		said, err := byHand(t, dsn, r.stdout)
		require.NoError(t, err, said)
		before := tables(t, dsn)
		said, err = byHand(t, dsn, r.stdout)
		require.Error(t, err)
		require.Regexp(t, "(?i)unique", said)
		require.Equal(t, before, tables(t, dsn))
		require.Equal(t, "Provider default is up to date.\n", waybill(t, "--dsn", dsn, "migrate", "--dry-run").stdout)
	})
}

// With a configuration file the context's brokers are a part of it; nothing is
// made, neither a file nor a schema.
func TestMigrate_PlanOfAFile(t *testing.T) {
	dir := t.TempDir()
	dsn := server(t)
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	schema := u.Query().Get("search_path") + "_planned"
	u.RawQuery = ""
	db, file := filepath.Join(dir, "a.db"), filepath.Join(dir, "waybill.yaml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil,
		"domain: ordering\nproviders: {default: {dialect: sqlite, path: %q}, server: {dialect: postgres, dsn: %q, schema: %s}}\noutbox: {partitions: 8, external_brokers: [partner]}\n",
		db, u, schema), 0o600))

	r := waybill(t, "--config", file, "migrate", "--print")
	require.Equal(t, exitUsage, r.code)
	require.Contains(t, r.stderr, "several databases, and a script is for one: add --provider")

	r = waybill(t, "--config", file, "--json", "migrate", "--dry-run")
	require.Zero(t, r.code, r.stderr)
	var plans struct {
		Providers map[string]struct {
			Migrations []struct {
				Feature, File string
				Version       int
			}
			Statements []string
		}
	}
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &plans))
	for _, p := range []string{"default", "server"} {
		require.Equal(t, "outbox", plans.Providers[p].Migrations[0].Feature)
		require.Equal(t, "0001_outbox.sql", plans.Providers[p].Migrations[0].File)
		require.Equal(t, []string{
			"INSERT INTO outbox_settings (name, value) VALUES ('partitions', '8') ON CONFLICT (name) DO NOTHING",
			`INSERT INTO outbox_settings (name, value) VALUES ('targets:ordering', '{"broker":"default","external":["partner"]}') ON CONFLICT (name) DO NOTHING`,
			"INSERT INTO outbox_lanes (target) VALUES ('default') ON CONFLICT (target) DO NOTHING",
			"INSERT INTO outbox_lanes (target) VALUES ('partner') ON CONFLICT (target) DO NOTHING",
		}, plans.Providers[p].Statements)
	}

	require.NoFileExists(t, db)
	var made bool
	plain := openFor(t, u.String())
	require.NoError(t, plain.Reader().NewRaw("SELECT to_regnamespace(?) IS NOT NULL", schema).Scan(t.Context(), &made))
	require.False(t, made)
	t.Cleanup(func() {
		_, err := plain.DB().ExecContext(context.Background(), "DROP SCHEMA IF EXISTS "+schema+" CASCADE")
		require.NoError(t, err)
	})
	for provider, where := range map[string]string{"default": db, "server": u.String()} {
		r = waybill(t, "--config", file, "migrate", "--print", "--provider", provider)
		require.Zero(t, r.code, r.stderr)
		said, err := byHand(t, where, r.stdout)
		require.NoError(t, err, said)
	}
	r = waybill(t, "--config", file, "migrate", "--dry-run")
	require.Equal(t, "Provider default is up to date.\nProvider server is up to date.\n", r.stdout)
	r = waybill(t, "--config", file, "migrate")
	require.Zero(t, r.code, r.stderr)
	require.Contains(t, r.stdout, "ordering sends to default,partner")

	t.Setenv("WAYBILL_OUTBOX_PARTITIONS", "16")
	r = waybill(t, "--config", file, "migrate", "--dry-run")
	require.Equal(t, exitFailed, r.code)
	require.Contains(t, r.stderr, "the database has 8 partitions, the configuration says 16")
	t.Setenv("WAYBILL_OUTBOX_PARTITIONS", "8")
	t.Setenv("WAYBILL_OUTBOX_EXTERNAL_BROKERS", "other")
	r = waybill(t, "--config", file, "migrate", "--dry-run")
	require.Equal(t, exitFailed, r.code)
	require.Contains(t, r.stderr, "in the database context ordering sends to default,partner")
}

func TestMigrate_PlanUsage(t *testing.T) {
	db := filepath.Join(t.TempDir(), "a.db")
	for want, args := range map[string][]string{
		"--dry-run and --print can't be used together": {"migrate", "--dry-run", "--print"},
		"leave out --json":                 {"migrate", "--print", "--json"},
		"--set-targets is done at once":    {"migrate", "--dry-run", "--set-targets", "ordering=default"},
		"there is no provider other":       {"migrate", "--provider", "other"},
		"--dry-run says nothing of rights": {"migrate", "--dry-run", "--role", "app"},
		"give app, engine or read":         {"migrate", "--role", "orders"},
	} {
		r := waybill(t, append([]string{"--dsn", db}, args...)...)
		require.Equal(t, exitUsage, r.code, r.stderr)
		require.Contains(t, r.stderr, want)
		require.Empty(t, r.stdout)
	}
	p := openFor(t, db)
	require.NoError(t, engine.MigrateProvider(t.Context(), p, 0))
	_, err := p.DB().ExecContext(t.Context(), "INSERT INTO waybill_migrations (feature, version, applied_at) VALUES ('subscription', 1000, '2026-01-01')")
	require.NoError(t, err)
	r := waybill(t, "--dsn", db, "migrate", "--dry-run")
	require.Equal(t, exitFailed, r.code)
	require.Contains(t, r.stderr, "deploy a newer build")
}

// S1: what is printed for roles is what psql runs as it is, of tables that are there
// or are made by the same script, in whatever schema; a role then does its part, and
// no more.
func TestMigrate_S1_PrintsTheRightsOfRoles(t *testing.T) {
	for name, before := range map[string]string{"of tables that are there": "migrate", "with the tables": ""} {
		t.Run(name, func(t *testing.T) {
			dsn := server(t)
			owner := openFor(t, dsn)
			if before != "" {
				require.Zero(t, waybill(t, "--dsn", dsn, before).code)
			}
			args := []string{"--dsn", dsn, "migrate", "--print"}
			as := map[migrate.Role]string{}
			for _, role := range migrate.Roles() {
				user := rightstest.Login(t, owner.DB(), role)
				as[role] = rightstest.DSN(t, dsn, user)
				args = append(args, "--role", string(role)+"="+user)
			}
			r := waybill(t, args...)
			require.Zero(t, r.code, r.stderr)
			require.Contains(t, r.stdout, "-- Tables of your own (repository.Mapped, uow.DB) are not among these")
			said, err := byHand(t, dsn, r.stdout)
			require.NoError(t, err, said)
			require.NotContains(t, said, "WARNING")

			place(t, openFor(t, as[migrate.App]), 1)
			for _, command := range []string{"outbox stats", "outbox list", "outbox show 1 --payload", "outbox log", "partitions", "dead-letters list", "dead-letters summary", "dead-letters log", "doctor"} {
				r = waybill(t, append([]string{"--dsn", as[migrate.Read]}, strings.Fields(command)...)...)
				require.Zero(t, r.code, "%s: %s", command, r.stderr)
				require.NotContains(t, r.stdout+r.stderr, "permission denied", command)
			}
			r = waybill(t, "--dsn", as[migrate.Engine], "outbox", "abandon", "--status", "pending", "--yes", "--actor", "ada")
			require.Zero(t, r.code, r.stderr)
			for _, role := range []migrate.Role{migrate.App, migrate.Read} {
				r = waybill(t, "--dsn", as[role], "outbox", "retry", "--status", "abandoned", "--yes", "--actor", "ada")
				require.Equal(t, exitFailed, r.code)
				require.Contains(t, r.stderr, "permission denied")
			}
		})
	}
}

// S1: without --print the grants are given at once.
func TestMigrate_S1_GivesRights(t *testing.T) {
	dsn := server(t)
	user := rightstest.Login(t, openFor(t, dsn).DB(), migrate.App)
	r := waybill(t, "--dsn", dsn, "migrate", "--role", "app="+user)
	require.Equal(t, result{0, "Provider default was migrated: 64 partitions.\n  New tables: " + features + ".\n  Role " + user + " has what app needs.\n", ""}, r)
	place(t, openFor(t, rightstest.DSN(t, dsn, user)), 1)

	r = waybill(t, "--dsn", dsn, "migrate", "--role", "app=nobody of that name")
	require.Equal(t, exitFailed, r.code)
	require.Contains(t, r.stderr, `role "nobody of that name" does not exist`)
}

// S1: SQLite has no roles, and says so.
func TestMigrate_S1_SQLiteHasNoRoles(t *testing.T) {
	db := filepath.Join(t.TempDir(), "a.db")
	for _, args := range [][]string{{"--print", "--role", "app"}, {"--role", "engine=orders"}} {
		r := waybill(t, append([]string{"--dsn", db, "migrate"}, args...)...)
		require.Equal(t, exitUsage, r.code)
		require.Contains(t, r.stderr, "SQLite has no roles")
		require.Empty(t, r.stdout)
	}
}

// S1: the grants in the documentation are those that are printed.
func TestMigrate_S1_GrantsOfTheDocumentation(t *testing.T) {
	const path = "../../docs/guides/operating.md"
	dsn := server(t)
	require.Zero(t, waybill(t, "--dsn", dsn, "migrate").code)
	r := waybill(t, "--dsn", dsn, "migrate", "--print", "--role", "app=orders", "--role", "engine=orders_engine", "--role", "read=orders_read")
	require.Zero(t, r.code, r.stderr)
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	_, grants, _ := strings.Cut(strings.ReplaceAll(r.stdout, u.Query().Get("search_path"), "public"), "BEGIN;")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	before, rest, _ := strings.Cut(string(text), "\n```sql\nBEGIN;")
	have, after, ok := strings.Cut(rest, "```\n")
	require.True(t, ok, "the grants are the first block of SQL")
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(before+"\n```sql\nBEGIN;"+grants+"```\n"+after), 0o600))
		return
	}
	require.Equal(t, have, grants, "go test ./cmd/waybill -run GrantsOfTheDocumentation -update")
}
