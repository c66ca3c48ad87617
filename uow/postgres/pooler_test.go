package postgres_test

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/dbtest"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
)

// F-52: units of work behind a pooler in transaction mode, those of one trip and
// those that begin, from more connections than it has.
func TestPooler_F_52_Units(t *testing.T) {
	_, behind := dbtest.Pooled(t)
	p, err := postgres.Open(t.Context(), postgres.Config{DSN: behind, MaxConns: 40})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	things(t, p)
	require.NoError(t, p.Session().Commit(t.Context(), []uow.Statement{insertPrepared("a")}))
	var all sync.WaitGroup
	for range 40 {
		all.Go(func() {
			for range 10 {
				if err := p.Session().Commit(t.Context(), []uow.Statement{incrementPrepared("a")}); err != nil {
					t.Error(err)
				}
				s := p.Session()
				_, err := s.DB(t.Context())
				if err == nil {
					err = s.Commit(t.Context(), []uow.Statement{incrementPrepared("a")})
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	var n int
	require.NoError(t, p.Reader().NewRaw("SELECT n FROM things WHERE id = 'a'").Scan(t.Context(), &n))
	require.Equal(t, 800, n)
}

// F-52, F-53: through a pooler nothing can be heard, which is noticed; past it
// what was told through it can.
// Conformance: U-10.
func TestPooler_F_52_F_53_Listening(t *testing.T) {
	past, through := dbtest.Pooled(t)
	open := func(listen string) uow.Provider {
		p, err := postgres.Open(t.Context(), postgres.Config{DSN: through, ListenDSN: listen})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, p.Close()) })
		return p
	}
	p := open("")
	require.NoError(t, outboxdb.Migrate(t.Context(), p.DB(), 0))
	require.ErrorContains(t, p.Watch(t.Context(), func([]outbox.Poke) { t.Error("it can't hear") }), "let listen_dsn lead to the server itself")
	w := watch(t, open(past))
	p.Signal([]outbox.Poke{{Target: "default", Partition: 7}})
	waittest.Until(t, func() bool { return w.distinct() == 1 })
}

// F-52: a schema of one's own, which a pooler refuses, or ignores.
func TestPooler_F_52_Schema(t *testing.T) {
	_, err := postgres.Open(t.Context(), postgres.Config{DSN: dbtest.Environment(t, "WAYBILL_PGBOUNCER"), Schema: "elsewhere"})
	require.ErrorContains(t, err, "unsupported startup parameter: search_path")
	require.ErrorContains(t, err, "ALTER ROLE")

	_, err = postgres.Open(t.Context(), postgres.Config{DSN: ignoring(t, "search_path"), Schema: "elsewhere"})
	require.ErrorContains(t, err, `Config.Schema is "elsewhere", and the server or a pooler in between ignores search_path: leave Config.Schema out`)
	var exists bool
	require.NoError(t, open(t).Reader().NewRaw("SELECT to_regnamespace('elsewhere') IS NOT NULL").Scan(t.Context(), &exists))
	require.False(t, exists)
}

// ignoring is a server that hears nothing of a start-up parameter.
func ignoring(t *testing.T, parameter string) string {
	u, err := url.Parse(dsn(t))
	require.NoError(t, err)
	server := u.Host
	u.Host, u.RawQuery = serve(t, func(c net.Conn) { relay(c, server, parameter) }), "sslmode=disable"
	return u.String()
}

func relay(client net.Conn, address, parameter string) {
	defer client.Close()
	m, err := pgproto3.NewBackend(client, client).ReceiveStartupMessage()
	start, ok := m.(*pgproto3.StartupMessage)
	if err != nil || !ok {
		return
	}
	delete(start.Parameters, parameter)
	text, err := start.Encode(nil)
	if err != nil {
		return
	}
	server, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer server.Close()
	if _, err := server.Write(text); err != nil {
		return
	}
	go func() {
		_, _ = io.Copy(server, client)
		_ = server.Close()
	}()
	_, _ = io.Copy(client, server)
}
