package outboxdb_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow/postgres"
	"github.com/waybill-go/waybill/uow/sqlite"
)

// takeoverChild says which database a process is to migrate that this test starts.
const takeoverChild = "WAYBILL_TEST_TAKEOVER"

// migrateAsChild is the other process's part: it migrates, and never returns.
func migrateAsChild(where string) {
	kind, place, _ := strings.Cut(where, "=")
	var p interface{ DB() *bun.DB }
	var err error
	if kind == "SQLite" {
		p, err = sqlite.Open(context.Background(), sqlite.Config{Path: place})
	} else {
		p, err = postgres.Open(context.Background(), postgres.Config{DSN: os.Getenv("WAYBILL_POSTGRES"), Schema: place})
	}
	if err == nil {
		fmt.Println("migrating")
		err = outboxdb.Migrate(context.Background(), p.DB(), 0)
	}
	fmt.Println("migrated", err)
	select {}
}

// killedIn starts a process that migrates the database, and kills it -9 as soon as
// inside says that it is in the middle.
func killedIn(t *testing.T, where string, inside func() bool) {
	t.Helper()
	child := exec.CommandContext(t.Context(), os.Args[0])
	child.Env = append(os.Environ(), takeoverChild+"="+where)
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	lines := make(chan string)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	for line := range lines {
		if line == "migrating" {
			break
		}
	}
	waittest.Until(t, inside)
	require.NoError(t, child.Process.Kill())
	for line := range lines {
		require.NotContains(t, line, "migrated", "it was killed too late")
	}
	require.Error(t, child.Wait())
}

// A real process that is killed -9 in the middle has changed nothing: migrated again,
// nothing is lost and nothing there twice.
func TestTakeoverSurvivesKill(t *testing.T) {
	const rows = 100_000
	onFirstDesign(t, func(t *testing.T, d outboxdbtest.Database) {
		db := d.DB()
		isSQLite, uuid, now := db.Dialect().Name() == dialect.SQLite, bun.Safe("uuid"), bun.Safe("clock_timestamp()")
		if isSQLite {
			uuid, now = "text", bun.Safe(dbtime.Now(db.Dialect()))
		}
		_, err := db.ExecContext(t.Context(), manyRows, rows, uuid, []byte(`{"data":{}}`), now)
		require.NoError(t, err)
		var where string
		var inside func() bool
		if isSQLite {
			path := ""
			require.NoError(t, db.QueryRowContext(t.Context(), "SELECT file FROM pragma_database_list WHERE name = 'main'").Scan(&path))
			_, err := db.ExecContext(t.Context(), "PRAGMA wal_checkpoint(TRUNCATE)")
			require.NoError(t, err)
			where = "SQLite=" + path
			inside = func() bool {
				wal, err := os.Stat(path + "-wal")
				return err == nil && wal.Size() > 20<<20
			}
		} else {
			schema := ""
			require.NoError(t, db.QueryRowContext(t.Context(), "SELECT current_schema()").Scan(&schema))
			where = "PostgreSQL=" + schema
			// What it has written so far nobody sees, but the files grow.
			inside = func() bool {
				var busy bool
				err := db.QueryRowContext(t.Context(), "SELECT EXISTS (SELECT 1 FROM pg_stat_activity AS a JOIN pg_locks AS l ON l.pid = a.pid"+
					" WHERE l.relation = to_regclass('outbox_partitions') AND l.mode = 'AccessExclusiveLock' AND l.granted AND clock_timestamp() - a.query_start > interval '300 milliseconds')").Scan(&busy)
				return err == nil && busy
			}
		}
		killedIn(t, where, inside)
		require.EqualValues(t, rows, countRows(t, db, "SELECT count(*) FROM outbox WHERE (finished_at IS NULL) = (published_at IS NULL)"), "the first design's table")

		b := outboxdbtest.Open(t, d)
		require.EqualValues(t, rows, b.Count("SELECT count(*) FROM outbox"))
		require.EqualValues(t, rows/2, b.Count("SELECT count(*) FROM outbox_queue"))
		require.EqualValues(t, rows/2, b.Count("SELECT sum(published) FROM outbox_log"))
		require.LessOrEqual(t, b.Count("SELECT max(published) FROM outbox_log"), int64(1000))
		require.EqualValues(t, rows/2, b.Count("SELECT count(*) FROM outbox WHERE status = 'published'"))
		found, err := b.Contradictions(t.Context())
		require.NoError(t, err)
		require.Empty(t, found)
		one, err := b.Find(t.Context(), outbox.Filter{Seqs: []int64{1, rows}})
		require.NoError(t, err)
		require.Len(t, one, 2)
		require.NotNil(t, one[1].PublishedAt)
	})
}

func countRows(t *testing.T, db *bun.DB, query string) (n int64) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(t.Context(), query).Scan(&n))
	return n
}

// manyRows stores that many in the first design's table, of 1,000 keys: every other one
// is published.
const manyRows = `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?0)
INSERT INTO outbox (id, message_id, target_broker, stream, stream_category, partition_key, partition, message_type, aggregate_type, aggregate_id,
	aggregate_version, payload, content_type, status, attempts, occurred_at, published_at, finished_at)
SELECT CAST('00000000-0000-0000-0000-' || substr('000000000000' || i, length('' || i) + 1) AS ?1),
	CAST('00000000-0000-0000-0001-' || substr('000000000000' || i, length('' || i) + 1) AS ?1),
	'default', 'ordering::order-' || i % 1000, 'ordering::order', '' || i % 1000, i % 8, 'Ordering.OrderPlaced.v1', 'order', '' || i % 1000,
	1, ?2, 'application/json', CASE WHEN i % 2 = 0 THEN 'published' ELSE 'pending' END, i % 2, ?3,
	CASE WHEN i % 2 = 0 THEN ?3 END, CASE WHEN i % 2 = 0 THEN ?3 END FROM n`
