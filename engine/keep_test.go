package engine

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
)

// O16: an engine of many schemas in one database has one connection that listens and
// one that renews its leases, beside the pools' own.
func TestEngine_O16_SchemasShareConnections(t *testing.T) {
	const schemas = 20
	b := setup(t)
	u := newDatabaseOn(t)
	asked := openPostgres(t, postgres.Config{Name: "asked", DSN: u.String()})
	settings := u.Query()
	settings.Set("application_name", "many")
	u.RawQuery = settings.Encode()
	servers := postgres.NewServers()
	var providers []uow.Provider
	for i := range schemas {
		name := fmt.Sprintf("s%d", i)
		_, err := asked.DB().ExecContext(t.Context(), "CREATE SCHEMA "+name)
		require.NoError(t, err)
		providers = append(providers, openPostgres(t, postgres.Config{Name: name, DSN: u.String(), Schema: name, MaxConns: 2, Servers: servers}))
	}
	m := units(t, uow.Config{Domain: sales, External: []outbox.Target{{Broker: "partner"}}, Providers: providers})
	require.NoError(t, Migrate(t.Context(), m))
	cfg := b.config()
	cfg.Units = []*uow.Manager{m}
	cfg.Outbox.Lease = 9 * time.Second
	b.start(cfg)
	for _, p := range providers {
		require.NoError(t, repository.New[*sale](m, repository.In(p.Name())).Save(t.Context(), newSale(1)))
	}
	eventually(t, func() bool { return len(b.partner.Messages("sales.sale")) == schemas })
	var n int
	pools := 0
	for _, p := range providers {
		pools += p.(interface{ MaxConns() int }).MaxConns()
	}
	require.NoError(t, asked.DB().NewRaw("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'many'").Scan(t.Context(), &n))
	require.LessOrEqual(t, n, pools+2)
	require.NoError(t, asked.DB().NewRaw("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'many' AND query LIKE 'LISTEN%'").Scan(t.Context(), &n))
	require.LessOrEqual(t, n, 1)
}

// O16: leases are renewed while units of work have all connections of the pool.
func TestEngine_O16_LeasesOutliveAFullPool(t *testing.T) {
	at := newDatabaseOn(t).String()
	asked := openPostgres(t, postgres.Config{Name: "asked", DSN: at})
	db := openPostgres(t, postgres.Config{DSN: at, MaxConns: 2})
	b := setupOn(t, db)
	cfg := b.config()
	cfg.Outbox = outbox.Config{Lease: 30 * time.Second}
	b.start(cfg)
	b.sell(1)
	eventually(t, func() bool { return len(b.partner.Messages("sales.sale")) == 1 })
	type state struct {
		Member int64
		Until  time.Time
	}
	read := func() (all []state) {
		require.NoError(t, asked.DB().NewRaw("SELECT member, until FROM outbox_members WHERE until > clock_timestamp() ORDER BY member").Scan(t.Context(), &all))
		return all
	}
	before := read()
	require.Len(t, before, 2)
	for range 2 { // the pool
		c, err := db.DB().Conn(t.Context())
		require.NoError(t, err)
		defer func() { require.NoError(t, c.Close()) }()
	}
	eventually(t, func() bool {
		now := read()
		require.Len(t, now, 2, "nobody has lost a lease")
		require.Equal(t, before[0].Member, now[0].Member)
		return now[0].Until.After(before[0].Until) && now[1].Until.After(before[1].Until)
	})
}
