package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/doctor"
)

// A server without a connection left runs: to start it helps nobody.
func TestDoctor_NoConnectionLeft(t *testing.T) {
	require.Contains(t, cannotOpen(fmt.Errorf("no connection left: %w", &pgconn.PgError{Code: "53300"})), "pg_stat_activity")
	require.Contains(t, cannotOpen(errors.New("connection refused")), "start it")
}

// Nobody starts a file.
func TestDoctor_AFileThatCanNotBeOpened(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	require.NoError(t, os.WriteFile(path, []byte(strings.Repeat("no database ", 1000)), 0o600))
	r := waybill(t, "--dsn", path, "doctor")
	require.Equal(t, exitFailed, r.code)
	require.Contains(t, r.stdout, path+" is not a SQLite database; correct Config.Path")
	require.Contains(t, r.stdout, "Remedy: do what the error says, or correct the path in the configuration\n")
}

// A healthy database has no finding; one that isn't says where, what and what
// helps.
func TestDoctor(t *testing.T) {
	db := filepath.Join(t.TempDir(), "a.db")
	r := waybill(t, "--dsn", db, "doctor")
	require.Equal(t, exitFailed, r.code)
	require.Contains(t, r.stdout, "Provider default\n  critical  connection: it can't be opened: there is no SQLite file")
	require.Equal(t, "waybill: 1 critical and 0 other findings\n", r.stderr)
	require.NoFileExists(t, db)

	require.Zero(t, waybill(t, "--dsn", db, "migrate", "--set-targets", "ordering=default,partner").code)
	r = waybill(t, "--dsn", db, "doctor")
	require.Zero(t, r.code, r.stderr)
	require.NotContains(t, r.stdout, "Remedy")
	require.Regexp(t, "^Provider default\n  ok        connection: SQLite [0-9.]+\\.\n  ok        schema: versions: outbox [0-9]+, ", r.stdout)
	require.Empty(t, r.stderr)

	p := openFor(t, db)
	place(t, p, 2)
	r = waybill(t, "--dsn", db, "doctor", "--json")
	require.Zero(t, r.code, "warnings only: %s", r.stderr)
	var report examined
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &report))
	require.Equal(t, doctor.Warning, report.Severity)
	require.Contains(t, r.stdout, `"remedy": "start an engine that has this broker`)

	_, err := p.DB().ExecContext(t.Context(), "UPDATE outbox_messages SET created_at = '2026-01-01T00:00:00.000Z' WHERE lane = (SELECT id FROM outbox_lanes WHERE target = 'partner')")
	require.NoError(t, err)
	r = waybill(t, "--dsn", db, "doctor")
	require.Equal(t, exitFailed, r.code)
	require.Regexp(t, `^Provider default
  critical  lanes, target broker partner: 2 rows wait, the oldest for [0-9]+h.*: nothing is published.
            Remedy: start an engine that has this broker; .*
  warning   lanes, target broker default: `, r.stdout)
	require.Equal(t, "waybill: 1 critical and 1 other findings\n", r.stderr)
}

func TestDoctor_PostgreSQL(t *testing.T) {
	dsn := server(t)
	r := waybill(t, "--dsn", dsn, "doctor")
	require.Equal(t, exitFailed, r.code)
	require.Contains(t, r.stdout, "critical  schema, tables: none of Waybill's is there, unless the services use another database or schema.\n            Remedy: run `waybill migrate`")
	require.Zero(t, waybill(t, "--dsn", dsn, "migrate").code)
	r = waybill(t, "--dsn", dsn, "doctor", "--json")
	for _, check := range []string{"connection", "schema", "objects", "clock", "settings", "checkpoints", "vacuum", "transactions", "connections", "pooler", "lanes", "retention"} {
		require.Contains(t, r.stdout, `"check": "`+check+`"`)
	}
}

// A database that is down doesn't keep the others from being examined, and none is
// made.
func TestDoctor_SeveralProviders(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "waybill.yaml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, "providers: {one: {dialect: sqlite, path: %q}, two: {dialect: postgres, dsn: %q}, three: {dialect: sqlite, path: %q}}\n",
		filepath.Join(dir, "a.db"), "postgres://u:sekret@127.0.0.1:1/db", filepath.Join(dir, "b.db")), 0o600))
	require.Zero(t, waybill(t, "--dsn", filepath.Join(dir, "a.db"), "migrate").code)
	r := waybill(t, "--config", file, "doctor", "--json")
	require.Equal(t, exitFailed, r.code)
	require.NotContains(t, r.stdout, "sekret")
	var report examined
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &report))
	require.Equal(t, doctor.Critical, report.Severity)
	require.Equal(t, doctor.OK, doctor.Worst(report.Providers["one"]))
	require.Contains(t, report.Providers["two"][0].What, "no PostgreSQL answers at 127.0.0.1:1")
	require.Contains(t, report.Providers["three"][0].What, "b.db: file does not exist")
	require.NoFileExists(t, filepath.Join(dir, "b.db"))
	require.Zero(t, waybill(t, "--config", file, "doctor", "--provider", "one").code)
	require.Equal(t, exitUsage, waybill(t, "--config", file, "doctor", "--provider", "four").code)
}

// The list of brokers in the file is compared with that of the database: programs with another
// one are refused.
func TestDoctor_AnotherListOfBrokers(t *testing.T) {
	dir := t.TempDir()
	file := func(name, external string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, "domain: todo\nproviders: {default: {dialect: sqlite, path: %q}}\n"+
			"brokers: {default: {kind: nats, url: \"nats://127.0.0.1:1\"}, partner: {kind: nats, url: \"nats://127.0.0.1:1\", topic_prefix: p.}}\noutbox: {external_brokers: [%s]}\n",
			filepath.Join(dir, "a.db"), external), 0o600))
		return path
	}
	before, after := file("before.yaml", "partner"), file("after.yaml", "")
	require.Zero(t, waybill(t, "--config", before, "migrate").code)
	require.Zero(t, waybill(t, "--config", before, "doctor").code)
	require.Zero(t, waybill(t, "--config", after, "migrate", "--set-targets", "todo=default").code)
	require.Zero(t, waybill(t, "--config", after, "doctor").code)
	r := waybill(t, "--config", before, "doctor")
	require.Equal(t, exitFailed, r.code)
	require.Contains(t, r.stdout, "critical  targets, context todo: in the database it sends to default, in this file to default,partner: programs with this file don't start, and those that run can't save events.\n"+
		"            Remedy: configure default, or stop all its processes and run: waybill migrate --set-targets todo=default,partner\n")
}
