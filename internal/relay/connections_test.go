package relay_test

import (
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow/postgres"
)

// F-18: there is no session whose end could cost anything: all connections are cut again
// and again while a process works, and nothing is lost, published twice or out of order.
// C-44: its membership and its partitions stay.
func TestProcessor_F_18_LostConnectionsCostNothing(t *testing.T) {
	t.Parallel()
	b := outboxdbtest.Open(t, outboxdbtest.PostgreSQL(t))
	var schema string
	require.NoError(t, b.DB.NewRaw("SELECT current_schema()").Scan(t.Context(), &schema))
	u, err := url.Parse(os.Getenv("WAYBILL_POSTGRES"))
	require.NoError(t, err)
	query := u.Query()
	query.Set("application_name", schema)
	u.RawQuery = query.Encode()
	cut, err := postgres.Open(t.Context(), postgres.Config{DSN: u.String(), Schema: schema})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cut.Close()) })

	var rows []outbox.Row
	for range 30 {
		rows = append(rows, b.Insert(outboxdbtest.Numbered("k", 40)...)...)
	}
	m := memory.New(memory.Config{})
	cfg := quick()
	cfg.BatchSize, cfg.Lease = 10, 30*time.Second
	p := start(t, relay.Config{Store: outboxdb.New(cut.DB(), cut.Reader()), Lanes: []relay.Lane{to(slow{m, 20 * time.Millisecond})}, Outbox: cfg})
	eventually(t, func() bool { return owned(p) == outboxdbtest.Partitions }, "it has all")
	member := b.Count("SELECT min(member) FROM outbox_members")
	var cuts int64
	for round := range 6 {
		eventually(t, func() bool { return len(m.Messages(orders)) >= 150*round+1 }, "it goes on after %d cuts", round)
		cuts += b.Count("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = ?", schema)
	}
	require.Positive(t, cuts)
	statuses(t, b, map[outbox.Status]int{outbox.Published: len(rows)})
	require.Len(t, m.Messages(orders), len(rows))
	require.Equal(t, rowsByKey(rows), byKey(m.Messages(orders)))
	for _, e := range entries(t, b) {
		require.Equal(t, 1, e.Attempts, "F-34: a claim that was not answered costs nothing")
		require.Zero(t, e.Losses)
	}
	require.EqualValues(t, outboxdbtest.Partitions, b.Count("SELECT count(*) FROM outbox_partitions WHERE owner = ?", member))
	require.Zero(t, p.Status()[target].TakenOver)
}
