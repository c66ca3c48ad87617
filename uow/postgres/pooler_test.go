package postgres_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
)

func pooler(t *testing.T) string {
	dsn := os.Getenv("WAYBILL_PGBOUNCER")
	require.NotEmpty(t, dsn, "run scripts/test, or eval \"$(scripts/services up pgbouncer)\"")
	return dsn
}

// F-52: units of work behind a pooler in transaction mode, those of one trip and
// those that begin, from more connections than it has.
func TestPooler_F_52_Units(t *testing.T) {
	direct, name := open(t), fmt.Sprintf("uow_pooler_%d", os.Getpid())
	exec(t, direct, "CREATE DATABASE "+name)
	t.Cleanup(func() {
		_, err := direct.DB().ExecContext(context.Background(), "DROP DATABASE "+name+" WITH (FORCE)")
		require.NoError(t, err)
	})
	u, err := url.Parse(pooler(t))
	require.NoError(t, err)
	u.Path = "/" + name
	p, err := postgres.Open(t.Context(), postgres.Config{DSN: u.String(), MaxConns: 40})
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

// F-52: a schema of one's own, which a pooler refuses, or ignores.
func TestPooler_F_52_Schema(t *testing.T) {
	_, err := postgres.Open(t.Context(), postgres.Config{DSN: pooler(t), Schema: "elsewhere"})
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
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { relay(c, server, parameter) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	u.Host, u.RawQuery = l.Addr().String(), "sslmode=disable"
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
