package outboxdb_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/internal/waittest"
)

// A87, S1-14, S1-15: on PostgreSQL a claim is three statements, sent at once, and two before it where it
// clears away others, and a settle is one, whatever the number of rows and what became of them: each
// table is written once or twice. A claim with nothing to write back only loses its token.
func TestStatements_A87_S1_14_S1_15_Budget(t *testing.T) {
	require.Len(t, outboxdb.Postgres("claim"), 3)
	require.Len(t, outboxdb.Postgres("look_and_claim"), 3)
	require.Len(t, outboxdb.Postgres("forget"), 2)
	for _, step := range []string{"settle", "settle_published", "settle_back"} {
		require.Len(t, outboxdb.Postgres(step), 1, step)
	}
	b := &bench{outboxdbtest.Open(t, outboxdbtest.PostgreSQL(t))}
	m := b.worker("w1")
	b.Exec("CREATE TABLE written (at text)")
	b.Exec(`CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$ BEGIN INSERT INTO written VALUES (TG_OP || ' ' || TG_TABLE_NAME); RETURN NULL; END $$`)
	for _, table := range []string{"claims", "queue", "messages", "log", "abandoned"} {
		b.Exec(fmt.Sprintf("CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON outbox_%s FOR EACH STATEMENT EXECUTE FUNCTION note()", table))
	}
	for name, outcomes := range map[string][]outcome{
		"published":    {published, published, published, published},
		"of all kinds": {published, failed(time.Hour), given, back},
		"handed back":  {back, back, back, back},
	} {
		var writes []int64
		for _, times := range []int{1, 100} {
			all := slices.Repeat(outcomes, times)
			b.insertMany(len(all))
			b.Exec("DELETE FROM written")
			c := m.claim(len(all))
			require.Len(t, c.rows, len(all))
			require.EqualValues(t, 1, b.Count("SELECT count(*) FROM written"), "a claim writes its token")
			require.True(t, m.settle(c, all...))
			writes = append(writes, b.Count("SELECT count(*) FROM written"))
			if name == "handed back" {
				require.EqualValues(t, 2, writes[0], "its token goes, and that is all")
			}
			for _, table := range []string{"outbox_messages", "outbox_queue", "outbox_log", "outbox_abandoned"} {
				b.Exec("DELETE FROM " + table)
			}
		}
		require.Equal(t, writes[0], writes[1], name)
	}
}

// F-46: a claim and what publishes it update no row of the outbox, and what is written
// all the time, leases and tokens, doesn't grow.
// Conformance: U-11.
func TestBloat_F_46_NoRowIsUpdatedAndLeasesStaySmall(t *testing.T) {
	t.Parallel()
	// Its database is its own: no transaction of another test keeps old versions alive.
	b := outboxdbtest.Open(t, outboxdbtest.Pooler(t))
	m := b.Join("w1", time.Minute, outboxdbtest.Partitions)
	publish := func(n int) {
		b.Insert(outboxdbtest.Numbered("k", n)...)
		require.True(t, m.Settle(m.Settlement(m.ClaimAll()...)))
	}
	publish(500)
	// A session reports what it has done within seconds.
	waittest.Until(t, func() bool {
		return b.Count("SELECT n_tup_del FROM pg_stat_user_tables WHERE relname = 'outbox_queue'") == 500
	})
	require.Zero(t, b.Count("SELECT sum(n_tup_upd) FROM pg_stat_user_tables WHERE relname IN ('outbox_queue', 'outbox_messages', 'outbox_claims', 'outbox_log')"))

	pages := func() int64 {
		return b.Count("SELECT (pg_relation_size('outbox_members') + pg_relation_size('outbox_partitions') + pg_relation_size('outbox_claims')) / 8192")
	}
	// Without pages being used again, so many renewals and tokens would fill more.
	grows := func() bool {
		before := pages()
		for range 200 {
			renewed, err := b.Renew(t.Context(), []relay.Renewal{{Member: m.ID, Target: "default", Healthy: true}}, time.Minute)
			require.NoError(t, err)
			require.Len(t, renewed, 1)
			publish(1)
		}
		b.Exec("VACUUM outbox_claims") // as the server does from a thousand tokens on
		return pages() > before
	}
	for range 10 {
		if !grows() {
			return
		}
	}
	require.Fail(t, "it grows and grows")
}
