package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A database that isn't the one that its outbox was written in says what differs, and is
// accepted on record.
func TestDatabase_ShowAndAccept(t *testing.T) {
	for name, recorded := range map[string]string{"postgres": `{"system": "1"}`, "sqlite": `{"file": "1"}`, "unreadable": `file 1`} {
		t.Run(name, func(t *testing.T) {
			dsn := t.TempDir() + "/shop.db"
			if name == "postgres" {
				dsn = server(t)
			}
			require.Zero(t, waybill(t, "--dsn", dsn, "migrate").code)
			p := openFor(t, dsn)
			_, err := p.DB().ExecContext(t.Context(), "INSERT INTO outbox_settings (name, value) VALUES ('identity', ?)", recorded)
			require.NoError(t, err)

			r := waybill(t, "--dsn", dsn, "database", "show")
			require.Zero(t, r.code, r.stderr)
			require.Regexp(t, `(?m)(1|unreadable) +(system|file) \d+.* +no$`, r.stdout)
			r = waybill(t, "--dsn", dsn, "doctor")
			require.Equal(t, exitFailed, r.code)
			require.Regexp(t, `engines publish nothing: this is not the database that its outbox was written in \((system|file): it was (1|unreadable) and is \d+\)`, r.stdout)

			r = waybill(t, "--dsn", dsn, "database", "accept", "--dry-run")
			require.Zero(t, r.code, r.stderr)
			require.Regexp(t, `it was (1|unreadable) and is \d+`, r.stdout)
			r = waybill(t, "--dsn", dsn, "database", "accept", "--yes", "--actor", "mia")
			require.Zero(t, r.code, r.stderr)
			require.Regexp(t, `accepted \((system|file): it was (1|unreadable) and is \d+\), by mia\.`, r.stdout)
			r = waybill(t, "--dsn", dsn, "database", "accept", "--yes", "--actor", "mia")
			require.Zero(t, r.code, r.stderr)
			require.Contains(t, r.stdout, "nothing has changed")
			_, err = p.DB().ExecContext(t.Context(), "UPDATE outbox_settings SET value = ? WHERE name = 'identity'", recorded)
			require.NoError(t, err)
			r = waybill(t, "--dsn", dsn, "--json", "database", "accept", "--yes", "--actor", "mia")
			require.Zero(t, r.code, r.stderr)
			require.Contains(t, r.stdout, `"moved": ""`, "as it is now")
			r = waybill(t, "--dsn", dsn, "outbox", "log")
			require.Regexp(t, `mia +database-accept +1 `, r.stdout)
			require.Regexp(t, `(?m)yes$`, waybill(t, "--dsn", dsn, "database", "show").stdout)
		})
	}
}

// Logical replication leaves sequences out: a database that was made so isn't accepted before
// they are set.
func TestDatabase_IsNotAcceptedWithoutItsSequences(t *testing.T) {
	dsn := server(t)
	require.Zero(t, waybill(t, "--dsn", dsn, "migrate").code)
	p := openFor(t, dsn)
	exec := func(query string) {
		_, err := p.DB().ExecContext(t.Context(), query)
		require.NoError(t, err)
	}
	exec(`INSERT INTO outbox_settings (name, value) VALUES ('identity', '{"system": "1"}')`)
	exec("INSERT INTO outbox_actions (id, actor, action, filter, rows) OVERRIDING SYSTEM VALUE VALUES (1, 'ada', 'purge', '{}', 1)")
	for range 2 { // It is refused each time.
		r := waybill(t, "--dsn", dsn, "database", "accept", "--yes")
		require.Equal(t, exitFailed, r.code, r.stdout)
		require.Contains(t, r.stderr, "outbox_actions.id at 1")
		require.Contains(t, r.stderr, "Remedy: with all engines and writers stopped: SELECT setval('outbox_actions_id_seq', 1)")
	}
	exec("SELECT setval('outbox_actions_id_seq', 1)")
	r := waybill(t, "--dsn", dsn, "database", "accept", "--yes", "--actor", "mia")
	require.Zero(t, r.code, r.stderr)
	require.Contains(t, r.stdout, "accepted (system: it was 1")
}
