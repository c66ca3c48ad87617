package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/uow/sqlite"
)

// N1: after kill -9 the next start publishes within seconds, on SQLite and, with all
// processes on one host, on PostgreSQL, though the leases of the killed one would
// run for ten minutes.
func TestServe_N1_GoesOnAtOnceAfterAKill(t *testing.T) {
	t.Run("SQLite", func(t *testing.T) {
		dir := t.TempDir()
		write(t, dir, "waybill.yaml", strings.Replace(sqliteAndNATS, "outbox: {", "outbox: {lease: 10m, ", 1))
		succeed(t, dir, "migrate")
		db, err := sqlite.Open(t.Context(), sqlite.Config{Path: filepath.Join(dir, "ordering.db")})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		goesOnAtOnce(t, dir, func(query string) (n int) {
			require.NoError(t, db.Reader().QueryRowContext(t.Context(), query).Scan(&n))
			return n
		})
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		s := newSite(t)
		t.Setenv("WAYBILL_OUTBOX_LEASE", "10m")
		goesOnAtOnce(t, s.dir, func(query string) (n int) {
			require.NoError(t, s.db.QueryRow(query).Scan(&n))
			return n
		})
	})
}

func goesOnAtOnce(t *testing.T, dir string, count func(query string) int) {
	const published = "SELECT count(*) FROM outbox WHERE status = 'published'"
	serve := func() *process {
		p := start(t, dir, orderingProgram, "serve", "--calls", "2")
		p.eventually(func() bool { return strings.Contains(p.stderr.String(), "engine is running") }, "runs")
		return p
	}
	first := serve()
	succeed(t, dir, "place", "--orders", "10")
	first.eventually(func() bool { return count(published) > 0 }, "publishes")
	require.Positive(t, count("SELECT count(*) FROM outbox_partitions WHERE owner IS NOT NULL"))
	first.kill()
	succeed(t, dir, "place", "--orders", "10")
	before := count(published)

	second := serve()
	begin := time.Now()
	second.eventually(func() bool { return count(published) > before }, "publishes")
	require.Less(t, time.Since(begin), time.Minute, "long before the lease ends")
	require.True(t, decode[books](t, succeed(t, dir, "verify", "--wait", "90s")).OK)
	second.stop()
}
