package outboxdb_test

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/outbox"
)

func TestMain(m *testing.M) {
	if where := os.Getenv(takeoverChild); where != "" {
		migrateAsChild(where)
	}
	goleak.VerifyTestMain(m)
}

func TestMigrate_KeepsItsPartitionCount(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		n, err := outboxdb.Partitions(t.Context(), b.DB)
		require.NoError(t, err)
		require.Equal(t, outboxdbtest.Partitions, n)
		require.NoError(t, outboxdb.Migrate(t.Context(), b.DB, 0), "whatever is there")
		require.Equal(t, &outbox.PartitionsError{Have: outboxdbtest.Partitions, Want: 16}, outboxdb.Migrate(t.Context(), b.DB, 16))
		require.ErrorContains(t, outboxdb.Migrate(t.Context(), b.DB, 1025), "from 1 to 1024")
	})
}

// A count that somebody has removed is that of the partitions which are there, whatever is the default.
func TestMigrate_FindsARemovedPartitionCount(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		b.Join("one", time.Minute, 100)
		b.Exec("DELETE FROM outbox_settings")
		plan, err := outboxdb.PlanMigration(t.Context(), b.DB, 0, nil)
		require.NoError(t, err)
		require.Len(t, plan.Then, 1)
		require.Contains(t, plan.Then[0], "'8'")
		require.Equal(t, &outbox.PartitionsError{Have: outboxdbtest.Partitions, Want: 64}, outboxdb.Migrate(t.Context(), b.DB, 64))
		b.Exec("DELETE FROM outbox_settings")
		require.NoError(t, outboxdb.Migrate(t.Context(), b.DB, 0))
		n, err := outboxdb.Partitions(t.Context(), b.DB)
		require.NoError(t, err)
		require.Equal(t, outboxdbtest.Partitions, n)
	})
}

// The tables explain themselves to whoever looks at them with psql.
func TestMigrations_EveryColumnHasAComment(t *testing.T) {
	b := outboxdbtest.Open(t, outboxdbtest.PostgreSQL(t))
	tables := []string{
		"outbox_lanes", "outbox_messages", "outbox_queue", "outbox_members", "outbox_partitions", "outbox_claims", "outbox_log", "outbox_abandoned",
	}
	var silent []string
	require.NoError(t, b.DB.NewRaw("SELECT table_name || '.' || column_name FROM information_schema.columns WHERE table_schema = current_schema() AND table_name IN (?)"+
		" AND col_description((quote_ident(table_schema) || '.' || table_name)::regclass, ordinal_position) IS NULL", bun.List(tables)).Scan(t.Context(), &silent))
	require.Empty(t, silent)
}
