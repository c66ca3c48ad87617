package postgres_test

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
)

// heard collects what a provider hears.
type heard struct {
	mu    sync.Mutex
	times int // what it was called with, also with nil
	pokes map[outbox.Poke]int
	ended chan error
	stop  func()
}

func watch(t *testing.T, p uow.Provider) *heard {
	w := &heard{pokes: map[outbox.Poke]int{}, ended: make(chan error, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() {
		w.ended <- p.Watch(ctx, func(pokes []outbox.Poke) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.times++
			for _, p := range pokes {
				w.pokes[p]++
			}
		})
	})
	w.stop = func() { cancel(); done.Wait() }
	t.Cleanup(w.stop)
	waittest.Until(t, func() bool { return w.heard() > 0 })
	return w
}

func (w *heard) heard() int { w.mu.Lock(); defer w.mu.Unlock(); return w.times }

func (w *heard) distinct() int { w.mu.Lock(); defer w.mu.Unlock(); return len(w.pokes) }

func migrated(t *testing.T, change ...func(*postgres.Config)) uow.Provider {
	p := open(t, change...)
	require.NoError(t, outboxdb.Migrate(t.Context(), p.DB(), 0))
	return p
}

// Signals that come close together leave together, and none is lost.
func TestSignal_IsDebounced(t *testing.T) {
	p := migrated(t)
	w := watch(t, p)
	for i := range 1000 {
		p.Signal([]outbox.Poke{{Target: "default", Partition: i % 64}, {Target: "partner", Partition: i % 64}})
	}
	waittest.Until(t, func() bool { return w.distinct() == 128 })
	require.Less(t, w.heard(), 50)
}

// What is more than PostgreSQL takes says that anything may have been committed.
func TestSignal_TooMuchToSay(t *testing.T) {
	p := migrated(t)
	w := watch(t, p)
	var pokes []outbox.Poke
	for i := range 3000 {
		pokes = append(pokes, outbox.Poke{Target: "default", Partition: i})
	}
	p.Signal(pokes)
	waittest.Until(t, func() bool { return w.heard() == 2 })
	require.Zero(t, w.distinct())
}

// F-53: a notification that fails concerns nobody, and later ones are heard.
// Conformance: U-10.
func TestSignal_F53_FailureIsNobodysConcern(t *testing.T) {
	p := open(t)
	p.Signal([]outbox.Poke{{Target: "default", Partition: 1}}) // there is no table
	require.NoError(t, outboxdb.Migrate(t.Context(), p.DB(), 0))
	w := watch(t, p)
	waittest.Until(t, func() bool {
		p.Signal([]outbox.Poke{{Target: "default", Partition: 2}})
		return w.distinct() > 0
	})
}

// Schemas of one database don't hear each other.
func TestSignal_StaysInItsSchema(t *testing.T) {
	p, other := migrated(t), migrated(t)
	w, stranger := watch(t, p), watch(t, other)
	p.Signal([]outbox.Poke{{Target: "default", Partition: 1}})
	waittest.Until(t, func() bool { return w.distinct() == 1 })
	other.Signal([]outbox.Poke{{Target: "default", Partition: 2}})
	waittest.Until(t, func() bool { return stranger.distinct() == 1 })
	require.Equal(t, 1, w.distinct())
}

// A connection that breaks ends the watch; the next one begins by saying that
// anything may have been missed.
func TestWatch_EndsWithItsConnection(t *testing.T) {
	p := open(t)
	require.NoError(t, outboxdb.Migrate(t.Context(), p.DB(), 0))
	w := watch(t, p)
	_, err := p.DB().ExecContext(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%waybill_outbox_' || 'outbox_settings'::regclass::oid || '%'")
	require.NoError(t, err)
	require.ErrorContains(t, <-w.ended, "doesn't listen any more")
	again := watch(t, p)
	require.Equal(t, 1, again.heard())
}

// A timeout of idle sessions doesn't end what waits for others to commit.
func TestWatch_OutlastsATimeoutOfIdleSessions(t *testing.T) {
	var version int
	require.NoError(t, open(t).DB().NewRaw("SELECT current_setting('server_version_num')::int").Scan(t.Context(), &version))
	listen, err := url.Parse(dsn(t))
	require.NoError(t, err)
	if version >= 140000 { // before, there is none
		listen.RawQuery = "idle_session_timeout=100"
	}
	p := migrated(t, func(c *postgres.Config) { c.ListenDSN = listen.String() })
	w := watch(t, p)
	_, err = p.DB().ExecContext(t.Context(), "SELECT pg_sleep(0.5)")
	require.NoError(t, err)
	require.Empty(t, w.ended)
	p.Signal([]outbox.Poke{{Target: "default", Partition: 1}})
	waittest.Until(t, func() bool { return w.distinct() == 1 })
}

// A server that lets sessions write no temporary files tells of commits all the same.
func TestWatch_NeedsNoTemporaryFiles(t *testing.T) {
	listen, err := url.Parse(dsn(t))
	require.NoError(t, err)
	listen.RawQuery = "work_mem=64kB&temp_file_limit=64kB"
	p := migrated(t, func(c *postgres.Config) { c.ListenDSN = listen.String() })
	w := watch(t, p)
	p.Signal([]outbox.Poke{{Target: "default", Partition: 1}})
	waittest.Until(t, func() bool { return w.distinct() == 1 })
}

// F-52: behind a pooler nobody would ever hear anything: the error says so, and
// listen_dsn leads past it.
func TestWatch_F52_Pooler(t *testing.T) {
	through := poolerLike(t)
	p := migrated(t, func(c *postgres.Config) { c.DSN = through })
	err := p.Watch(t.Context(), func([]outbox.Poke) { t.Error("heard something") })
	require.ErrorContains(t, err, "pooler")
	require.ErrorContains(t, err, "listen_dsn")

	past := migrated(t, func(c *postgres.Config) { c.DSN, c.ListenDSN = through, dsn(t) })
	w := watch(t, past)
	past.Signal([]outbox.Poke{{Target: "default", Partition: 1}})
	waittest.Until(t, func() bool { return w.distinct() == 1 })
}

// poolerLike passes everything on, but like a pooler it gives its clients process
// numbers of its own.
func poolerLike(t *testing.T) string {
	u, err := url.Parse(dsn(t))
	require.NoError(t, err)
	server := u.Host
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", server)
			if err != nil {
				_ = client.Close()
				continue
			}
			conns.Go(func() { _, _ = io.Copy(to, client); _ = to.Close() })
			conns.Go(func() { renumber(client, to); _ = client.Close() })
		}
	})
	t.Cleanup(func() { _ = l.Close(); conns.Wait() })
	u.Host = l.Addr().String()
	q := u.Query()
	q.Set("sslmode", "disable")
	u.RawQuery = q.Encode()
	return u.String()
}

// renumber copies messages and changes the process number in BackendKeyData.
func renumber(to io.Writer, from io.Reader) {
	head := make([]byte, 5)
	for {
		if _, err := io.ReadFull(from, head); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint32(head[1:])-4)
		if _, err := io.ReadFull(from, body); err != nil {
			return
		}
		if head[0] == 'K' {
			binary.BigEndian.PutUint32(body, binary.BigEndian.Uint32(body)+1)
		}
		if _, err := to.Write(append(head[:5:5], body...)); err != nil {
			return
		}
	}
}
