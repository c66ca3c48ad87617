package postgres_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/waybill-go/waybill/internal/pipeline"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
)

const secret = "s3cr3t-pässword"

// at is the servers' address with a password in it.
func at(t *testing.T, change func(*url.URL)) string {
	u, err := url.Parse(dsn(t))
	require.NoError(t, err)
	u.User = url.UserPassword(u.User.Username(), secret)
	change(u)
	return u.String()
}

// refusing is a server that answers everybody with an error.
func refusing(t *testing.T, code, message string) (address string) {
	return serve(t, func(c net.Conn) {
		b := pgproto3.NewBackend(c, c)
		if m, err := b.ReceiveStartupMessage(); err == nil {
			if _, ssl := m.(*pgproto3.SSLRequest); ssl {
				_, _ = c.Write([]byte{'N'})
				_, _ = b.ReceiveStartupMessage()
			}
		}
		b.Send(&pgproto3.ErrorResponse{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: code, Message: message})
		_ = b.Flush()
		_ = c.Close()
	})
}

// serve takes connections, each in a goroutine that the test waits for.
func serve(t *testing.T, f func(net.Conn)) (address string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { f(c) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return l.Addr().String()
}

// untrusted is a server whose certificate nobody knows.
func untrusted(t *testing.T) (address string) {
	t.Helper()
	known := httptest.NewTLSServer(nil)
	t.Cleanup(known.Close)
	return serve(t, func(c net.Conn) {
		defer c.Close()
		if _, err := io.ReadFull(c, make([]byte, 8)); err != nil { // that TLS is asked for
			return
		}
		_, _ = c.Write([]byte("S"))
		_ = tls.Server(c, known.TLS).HandshakeContext(t.Context())
	})
}

func TestOpenExplains(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	mute, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and says nothing
	require.NoError(t, err)
	t.Cleanup(func() { _ = mute.Close() })
	refused := refusing(t, "28P01", "password authentication failed")
	full := refusing(t, "53300", "sorry, too many clients already")
	fullRole := refusing(t, "53300", `too many connections for role "u"`)
	fullDatabase := refusing(t, "53300", `too many connections for database "db"`)

	for name, test := range map[string]struct {
		cfg  postgres.Config
		says []string
	}{
		"nothing":        {postgres.Config{MaxConns: -1}, []string{"DSN is missing", "MaxConns is -1"}},
		"nonsense":       {postgres.Config{DSN: "postgres://u:" + secret + "@host:port/db"}, []string{"DSN can't be understood", "postgres://"}},
		"pairs":          {postgres.Config{DSN: "host=h password=" + secret + " port"}, []string{"DSN can't be understood"}},
		"pool parameter": {postgres.Config{DSN: at(t, func(u *url.URL) { u.RawQuery = "pool_max_conns=many" })}, []string{"pool_"}},
		"no server":      {postgres.Config{DSN: at(t, func(u *url.URL) { u.Host = closed.Addr().String() })}, []string{closed.Addr().String(), "start it"}},
		"mute server": {postgres.Config{DSN: at(t, func(u *url.URL) {
			u.Host = mute.Addr().String()
			u.RawQuery = "connect_timeout=1"
		})}, []string{mute.Addr().String(), "start it"}},
		"another's certificate": {
			postgres.Config{DSN: at(t, func(u *url.URL) { u.Host, u.RawQuery = untrusted(t), "sslmode=verify-full" })},
			[]string{"shows a certificate that the DSN doesn't trust", "sslrootcert"},
		},
		"no such parameter": {postgres.Config{DSN: at(t, func(u *url.URL) { u.RawQuery = "ssl_mode=disable" })}, []string{"ssl_mode", "correct its name, as in sslmode"}},
		"no TLS":            {postgres.Config{DSN: at(t, func(u *url.URL) { u.RawQuery = "sslmode=require" })}, []string{"has no TLS", "sslmode"}},
		"no database":       {postgres.Config{DSN: at(t, func(u *url.URL) { u.Path = "/nowhere" })}, []string{`"nowhere"`, "CREATE DATABASE"}},
		"no role":           {postgres.Config{DSN: at(t, func(u *url.URL) { u.User = url.UserPassword("nobody", secret) })}, []string{`"nobody"`, "pg_hba.conf"}},
		"wrong password":    {postgres.Config{DSN: at(t, func(u *url.URL) { u.Host = refused })}, []string{refused, "user or password"}},
		"too many clients":  {postgres.Config{DSN: at(t, func(u *url.URL) { u.Host = full })}, []string{full, "max_connections"}},
		"of a role":         {postgres.Config{DSN: at(t, func(u *url.URL) { u.Host = fullRole })}, []string{fullRole, "ALTER ROLE … CONNECTION LIMIT"}},
		"of a database":     {postgres.Config{DSN: at(t, func(u *url.URL) { u.Host = fullDatabase })}, []string{fullDatabase, "ALTER DATABASE … CONNECTION LIMIT"}},
		"quoting": {
			postgres.Config{DSN: at(t, func(u *url.URL) { u.RawQuery = "standard_conforming_strings=off" })},
			[]string{"standard_conforming_strings", "ALTER ROLE"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			test.cfg.Name = "books"
			_, err := postgres.Open(t.Context(), test.cfg)
			require.ErrorContains(t, err, `provider "books"`)
			for _, s := range test.says {
				require.ErrorContains(t, err, s)
			}
			if name != "no TLS" {
				require.NotContains(t, err.Error(), "refused TLS connection", "the second attempt is without TLS, and says what is wrong")
			}
			require.LessOrEqual(t, strings.Count(err.Error(), "connection refused"), 1, "both attempts failed alike")
			for e := err; e != nil; e = errors.Unwrap(e) {
				require.NotContains(t, e.Error(), secret)
				require.NotContains(t, e.Error(), url.PathEscape(secret))
			}
		})
	}
}

func TestOpen_WaitsAsLongAsTheDSNSays(t *testing.T) {
	for _, test := range []struct {
		query, environment string
		want               time.Duration
	}{
		{"", "", 10 * time.Second},
		{"connect_timeout=1", "", time.Second},
		{"connect_timeout=90", "", 90 * time.Second},
		{"", "30", 30 * time.Second},
	} {
		t.Setenv("PGCONNECT_TIMEOUT", test.environment)
		got, err := postgres.ConnectTimeout(postgres.Config{DSN: at(t, func(u *url.URL) { u.RawQuery = test.query })})
		require.NoError(t, err)
		require.Equal(t, test.want, got, "%+v", test)
	}
}

// Of errors of many lines, health and lists show the first.
func TestNoConnectionIsExplainedInOneLine(t *testing.T) {
	p, x := openThrough(t)
	things(t, p)
	x.Cut()
	t.Cleanup(x.Mend)
	var n int
	for name, ask := range map[string]func() error{
		"a query":  func() error { return p.Reader().NewRaw("SELECT 1").Scan(t.Context(), &n) },
		"a unit":   func() error { return p.Session().Commit(t.Context(), []uow.Statement{insert("a")}) },
		"a step":   func() error { return p.Session().Send(t.Context(), []uow.Statement{insert("a")}) },
		"a keeper": func() error { return p.DB().Driver().(pipeline.Keeper).Keep(t.Context()) },
	} {
		waittest.Until(t, func() bool { // one of the pool's may be cut only now
			err := ask()
			require.Error(t, err, name)
			return strings.Contains(err.Error(), "no PostgreSQL answers at "+x.Address) && !strings.Contains(err.Error(), "\n")
		}, name)
	}
}

func TestOpenCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := postgres.Open(ctx, postgres.Config{DSN: dsn(t)})
	require.ErrorIs(t, err, context.Canceled)
}

func TestOpenSettings(t *testing.T) {
	p := open(t)
	require.Equal(t, "default", p.Name())
	require.EqualValues(t, 20, postgres.Pool(p).Config().MaxConns)
	p = open(t, func(c *postgres.Config) { c.DSN += "?pool_max_conns=3" })
	require.EqualValues(t, 3, postgres.Pool(p).Config().MaxConns)
	p = open(t, func(c *postgres.Config) { c.DSN += "?pool_max_conns=3"; c.MaxConns = 5; c.Name = "books" })
	require.EqualValues(t, 5, postgres.Pool(p).Config().MaxConns)
	require.Equal(t, "books", p.Name())
}

// Several processes start at once on a schema that doesn't exist yet.
func TestOpenCreatesTheSchema(t *testing.T) {
	const schema = `Uow "odd" schema`
	var wg sync.WaitGroup
	errs := make(chan error, 6)
	cfg := postgres.Config{DSN: dsn(t), Schema: schema}
	for range cap(errs) {
		wg.Go(func() {
			p, err := postgres.Open(context.Background(), cfg)
			if err == nil {
				err = p.Close()
			}
			errs <- err
		})
	}
	wg.Wait()
	for range cap(errs) {
		require.NoError(t, <-errs)
	}
	p := open(t, func(c *postgres.Config) { c.Schema = schema })
	things(t, p)
	var found string
	require.NoError(t, p.DB().NewRaw("SELECT table_schema FROM information_schema.tables WHERE table_name = 'things' AND table_schema = ?", schema).Scan(t.Context(), &found))
	require.Equal(t, schema, found)
}

// Whichever text of it a role or database has the server send.
func TestBytesAreRead(t *testing.T) {
	all := []byte(`\x41 \\ \101`)
	for b := range 256 {
		all = append(all, byte(b))
	}
	for _, settings := range []string{"", "?options=-cbytea_output%3Descape"} {
		p := open(t, func(c *postgres.Config) { c.DSN += settings })
		for _, want := range [][]byte{{}, all} {
			var got []byte
			require.NoError(t, p.Reader().NewRaw("SELECT ?::bytea", want).Scan(t.Context(), &got))
			require.Equal(t, want, got)
		}
		var none []byte
		require.NoError(t, p.Reader().NewRaw("SELECT NULL::bytea").Scan(t.Context(), &none))
		require.Nil(t, none)
	}
}

func TestTimesAreUTC(t *testing.T) {
	// Options are set before all else, as a role's settings are.
	for _, settings := range []string{"", "?timezone=Asia/Kolkata", "?options=-cDateStyle%3DGerman"} {
		p := open(t, func(c *postgres.Config) { c.DSN += settings })
		var now time.Time
		require.NoError(t, p.Reader().NewRaw("SELECT '2026-01-02T03:04:05.678912Z'::timestamptz").Scan(t.Context(), &now))
		require.Equal(t, time.Date(2026, 1, 2, 3, 4, 5, 678912000, time.UTC), now)
		require.Equal(t, time.UTC, now.Location())
	}
}

// A column that a newer build has added doesn't disturb an older one.
func TestUnknownColumns(t *testing.T) {
	p := open(t)
	exec(t, p, "CREATE TABLE things (id text, added text)")
	exec(t, p, "INSERT INTO things VALUES ('a', 'b')")
	var rows []struct{ ID string }
	require.NoError(t, p.Reader().NewRaw("SELECT * FROM things").Scan(t.Context(), &rows))
	require.Equal(t, "a", rows[0].ID)
}

type settings string

func (s settings) Decode(into any) error { return yaml.Unmarshal([]byte(s), into) }

func TestFromSettings(t *testing.T) {
	p, err := postgres.FromSettings(t.Context(), "books", settings("dsn: "+dsn(t)+"\nmax_conns: 2\n"))
	require.NoError(t, err)
	require.Equal(t, "books", p.Name())
	require.EqualValues(t, 2, postgres.Pool(p).Config().MaxConns)
	require.NoError(t, p.Close())
	_, err = postgres.FromSettings(t.Context(), "books", settings("dsn: [1]"))
	require.Error(t, err)
	_, err = postgres.FromSettings(t.Context(), "books", settings("dsn: "+dsn(t)+"\nlisten_dsn: \":\""))
	require.ErrorContains(t, err, "Config.ListenDSN can't be understood")
}

func TestCloseWaitsForUnits(t *testing.T) {
	p, err := postgres.Open(t.Context(), postgres.Config{DSN: dsn(t)})
	require.NoError(t, err)
	s := p.Session()
	_, err = s.DB(t.Context())
	require.NoError(t, err)
	closed := make(chan error, 1)
	go func() { closed <- p.Close() }()
	select {
	case err := <-closed:
		require.Fail(t, "it did not wait", "%v", err)
	case <-time.After(50 * time.Millisecond):
	}
	require.NoError(t, s.Rollback(t.Context()))
	require.NoError(t, <-closed)
}
