package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/pipeline"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
)

// sharing lets providers share s under a name of the test's own in pg_stat_activity,
// and gives back what their pools don't use.
func sharing(t *testing.T, s *postgres.Servers, name string) func(*postgres.Config) {
	u, err := url.Parse(dsn(t))
	require.NoError(t, err)
	u.RawQuery = url.Values{"application_name": {name}, "pool_max_conn_idle_time": {"1ms"}, "pool_health_check_period": {"10ms"}}.Encode()
	return func(c *postgres.Config) { c.DSN, c.Servers = u.String(), s }
}

func keep(ctx context.Context, p uow.Provider, statements ...pipeline.Statement) error {
	return p.DB().Driver().(pipeline.Keeper).Keep(ctx, statements...)
}

// whoKeeps is the connection and the schema of what p keeps.
func whoKeeps(t *testing.T, p uow.Provider) (pid, schema string) {
	t.Helper()
	require.NoError(t, keep(t.Context(), p, pipeline.Statement{Query: "SELECT pg_backend_pid()::text::bytea, current_schema()::text::bytea", Row: func(columns [][]byte) error {
		pid, schema = string(columns[0]), string(columns[1])
		return nil
	}}))
	return pid, schema
}

func schemaOf(t *testing.T, p uow.Provider) (schema string) {
	t.Helper()
	require.NoError(t, p.DB().NewRaw("SELECT current_schema()").Scan(t.Context(), &schema))
	return schema
}

// connections are those of a name that are not of pools.
func connections(t *testing.T, p uow.Provider, name string, n int) {
	t.Helper()
	var have int
	waittest.Until(t, func() bool {
		err := p.Reader().NewRaw("SELECT count(*) FROM pg_stat_activity WHERE application_name = ?", name).Scan(t.Context(), &have)
		return err == nil && have == n
	}, "there should be %d", n)
}

// O16: providers of one server share a connection that listens and one that keeps
// leases, however many schemas there are. Each hears of its own schema, and keeps what
// is its own.
// Conformance: U-17.
func TestServers_O16_TwoConnectionsForFiftySchemas(t *testing.T) {
	const schemas = 50
	own, name := open(t), fmt.Sprintf("uow_shared_%d", os.Getpid())
	with := sharing(t, postgres.NewServers(), name)
	var all []uow.Provider
	var watchers []*heard
	keepers := map[string]bool{}
	for range schemas {
		p := open(t, with)
		exec(t, p, "CREATE TABLE outbox_settings ()")
		all, watchers = append(all, p), append(watchers, watch(t, p))
	}
	for _, p := range all {
		pid, schema := whoKeeps(t, p)
		keepers[pid] = true
		require.Equal(t, schemaOf(t, p), schema)
	}
	require.Len(t, keepers, 1)
	connections(t, own, name, 2)
	for i, p := range all {
		p.Signal([]outbox.Poke{{Target: "default", Partition: i}})
	}
	for i, w := range watchers {
		waittest.Until(t, func() bool { return w.distinct() == 1 })
		w.mu.Lock()
		require.Equal(t, 1, w.pokes[outbox.Poke{Target: "default", Partition: i}])
		w.mu.Unlock()
	}
	for _, w := range watchers {
		w.stop()
	}
	connections(t, own, name, 1)
}

// O16: other databases and users have their own, and who opens providers without
// Servers shares nothing.
func TestServers_O16_OnlyWhatIsTheSameIsShared(t *testing.T) {
	s := postgres.NewServers()
	a := open(t, sharing(t, s, "uow_one"))
	b := open(t, sharing(t, s, "uow_one"))
	c := open(t, sharing(t, s, "uow_another"))
	d := open(t, sharing(t, nil, "uow_one"))
	pids := map[string]bool{}
	for _, p := range []uow.Provider{a, b, c, d} {
		pid, _ := whoKeeps(t, p)
		pids[pid] = true
	}
	require.Len(t, pids, 3)
}

// O16: the last provider that is closed closes what was shared.
func TestServers_O16_ClosedWithTheLast(t *testing.T) {
	own, s, name := open(t), postgres.NewServers(), fmt.Sprintf("uow_closed_%d", os.Getpid())
	cfg := postgres.Config{}
	sharing(t, s, name)(&cfg)
	var all []uow.Provider
	for range 2 {
		p, err := postgres.Open(t.Context(), cfg)
		require.NoError(t, err)
		all = append(all, p)
	}
	before, _ := whoKeeps(t, all[0])
	require.NoError(t, all[0].Close())
	require.NoError(t, all[0].Close(), "once more changes nothing")
	after, _ := whoKeeps(t, all[1])
	require.Equal(t, before, after)
	require.NoError(t, all[1].Close())
	connections(t, own, name, 0)
}

// O16: what one schema has locked doesn't cost the others their leases, nor does a
// pool in which nothing is free.
func TestServers_O16_KeepingWaitsForNobody(t *testing.T) {
	with := sharing(t, postgres.NewServers(), "uow_kept")
	p, other := open(t, with, onOne), open(t, with, onOne)
	things(t, p)
	things(t, other)
	exec(t, p, "INSERT INTO things VALUES ('a', 0)")
	exec(t, other, "INSERT INTO things VALUES ('a', 0)")
	renew := pipeline.Statement{Query: "UPDATE things SET n = n + 1 WHERE id = $1", Values: []any{"a"}}
	taken, err := other.DB().Conn(t.Context())
	require.NoError(t, err)
	require.NoError(t, keep(t.Context(), other, renew), "the pool is empty")
	require.NoError(t, taken.Close())

	holder := p.Session()
	db, err := holder.DB(t.Context())
	require.NoError(t, err)
	_, err = db.ExecContext(t.Context(), "SELECT FROM things FOR UPDATE")
	require.NoError(t, err)
	stuck := make(chan error, 1)
	go func() { stuck <- keep(context.Background(), p, renew) }()
	waittest.Until(t, func() bool {
		var waits bool
		err := other.Reader().NewRaw("SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'uow_kept' AND wait_event_type = 'Lock')").Scan(t.Context(), &waits)
		return err == nil && waits
	})
	require.NoError(t, keep(t.Context(), other, renew))
	require.ErrorContains(t, <-stuck, "55P03")
	giveBack := postgres.TakeKeeper(p)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, keep(ctx, other, renew), "however long it is stuck")
	giveBack()
	require.NoError(t, holder.Rollback(t.Context()))
	require.NoError(t, keep(t.Context(), p, renew))
	var n int
	require.NoError(t, p.DB().NewRaw("SELECT n FROM things").Scan(t.Context(), &n))
	require.Equal(t, 1, n, "what was given up has not happened later")
}

// O16: a connection that broke is made anew, and what fails is rolled back.
func TestServers_O16_KeepingAfterAFailure(t *testing.T) {
	p := open(t)
	things(t, p)
	add := func(id string) pipeline.Statement {
		return pipeline.Statement{Query: "INSERT INTO things (id, n) VALUES ($1, 0)", Values: []any{id}}
	}
	require.NoError(t, keep(t.Context(), p, add("a")))
	require.ErrorContains(t, keep(t.Context(), p, add("b"), add("a")), "23505")
	require.NoError(t, keep(t.Context(), p, add("c")))
	require.Error(t, keep(t.Context(), p, add("d"), pipeline.Statement{Query: "SELECT pg_terminate_backend(pg_backend_pid())"}))
	require.NoError(t, keep(t.Context(), p, add("e")))
	require.Equal(t, []string{"a", "c", "e"}, ids(t, p))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, keep(ctx, p, add("f")), context.Canceled)
}

// O16: what the server ended while nobody used it, as its idle_session_timeout does, or an
// operator, costs no renewal.
func TestServers_O16_KeepingAfterTheServerEndedTheConnection(t *testing.T) {
	p := open(t)
	things(t, p)
	pid, _ := whoKeeps(t, p)
	exec(t, p, "SELECT pg_terminate_backend("+pid+")")
	waittest.Until(t, func() bool {
		var gone bool
		err := p.DB().NewRaw("SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = ?)", pid).Scan(t.Context(), &gone)
		return err == nil && gone
	})
	again, _ := whoKeeps(t, p)
	require.NotEqual(t, pid, again)
}

// O16: watchers come and go while others listen; each begins by hearing that anything
// may have been committed, also the second of a schema.
func TestServers_O16_WatchersComeAndGo(t *testing.T) {
	with := sharing(t, postgres.NewServers(), "uow_watched")
	p, other := migrated(t, with), migrated(t, with)
	stays := watch(t, p)
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			at := []uow.Provider{p, other}[i%2]
			if err := at.Watch(ctx, func([]outbox.Poke) { cancel() }); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	p.Signal([]outbox.Poke{{Target: "default", Partition: 1}})
	waittest.Until(t, func() bool { return stays.distinct() == 1 })
	_, err := p.DB().ExecContext(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'uow_watched' AND query LIKE '%LISTEN%' AND pid <> pg_backend_pid()")
	require.NoError(t, err)
	require.ErrorContains(t, <-stays.ended, "doesn't listen any more")
	again := watch(t, other)
	other.Signal([]outbox.Poke{{Target: "default", Partition: 2}})
	waittest.Until(t, func() bool { return again.distinct() == 1 })
}
