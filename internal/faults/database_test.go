package faults

import (
	"bytes"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/verdict"
)

// S3-26: while calls of the broker take five seconds, no session of the database
// is in a transaction that nobody works on.
func TestPublish_S3_26_NoTransactionIsOpenDuringACall(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 40)
	e := w.engine(lease(20*time.Second), func(c *nodeConfig) { c.Trap.Gate = "before" })
	e.until("waiting", 1)
	eventually(t, func() bool { return w.inHand(e) == 40 }, "all rows are claimed")
	open := func(since string) []string {
		return w.strings(`SELECT query FROM pg_stat_activity WHERE datname = $1 AND state LIKE 'idle in transaction%'
			AND xact_start <= $2::timestamptz`, w.database, since)
	}
	<-time.After(5 * time.Second)
	// What is open for a moment ends. What is open for a call doesn't.
	since := w.now()
	eventually(t, func() bool { return len(open(since)) == 0 }, "no transaction is open: %v", says(func() string { return fmt.Sprint(open(since)) }))
	require.Equal(t, 40, w.inHand(e), "the calls are still out")

	tx, err := w.db.Begin()
	require.NoError(t, err)
	_, err = tx.Exec("SELECT 1")
	require.NoError(t, err)
	since = w.now()
	eventually(t, func() bool { return len(open(since)) == 1 }, "one that is there is seen")
	require.NoError(t, tx.Rollback())
	e.open()
	w.drain()
	w.check()
}

// S2-44: the database doesn't answer when the engine starts, and goes away in the
// middle of the work of engines and writers, again and again: they wait and go
// on, no row pays, and nothing is lost.
func TestDatabase_S2_44_AwayAtTheStartAndInTheMiddle(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 30)
	x := newProxy(t, &w.dsn)
	late := w.node(func(c *nodeConfig) { c.Trap.Gate = "start" })
	late.until("waiting", 1)
	x.cut()
	late.open()
	late.until("running", 1)
	require.Contains(t, late.logged(), "the database can't be used yet")
	require.Zero(t, w.count("outbox_members"))
	x.mend()
	w.drain()

	w.engine()
	w.writer(30, 4, 20*time.Millisecond).until("running", 1)
	rounds := 2
	if long() {
		rounds = 15
	}
	for range rounds {
		w.publishes(100)
		fault := verdict.Incident{Kind: "cut", From: time.Now()}
		x.cut()
		eventually(t, func() bool { return w.lapsed(0) }, "the leases run out")
		x.mend()
		fault.Until = time.Now().Add(time.Second) // a settle may still be tried again
		w.note(fault)
	}
	w.nodes[len(w.nodes)-1].terminate()
	w.drain()
	require.Zero(t, w.check().Paid)
}

// S2-51: statements that hang are ended after a while and tried again: neither is
// a row lost, nor does an engine need a restart.
func TestDatabase_S2_51_StatementsThatHangAreEnded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 20)
	w.engine(lease(6 * time.Second))
	w.drain()
	tx, err := w.db.Begin()
	require.NoError(t, err)
	_, err = tx.Exec("LOCK TABLE outbox_members IN ACCESS EXCLUSIVE MODE")
	require.NoError(t, err)
	w.move(20, 5)
	// A statement that waits is known by its session and its start.
	hanging := func(what string) []string {
		return w.strings(`SELECT pid || ' ' || query_start FROM pg_stat_activity
			WHERE datname = $1 AND wait_event_type = 'Lock' AND query `+what, w.database)
	}
	for _, what := range []string{
		"LIKE '%outbox_members AS m%FOR SHARE%'", // a claim, or a look that claims
		"LIKE 'UPDATE outbox_members%'",          // a renewal
	} {
		var first []string
		eventually(t, func() bool { first = hanging(what); return len(first) > 0 }, "a statement %s hangs", what)
		eventually(t, func() bool { return !slices.Contains(hanging(what), first[0]) }, "a statement %s is ended", what)
	}
	require.NoError(t, tx.Rollback())
	w.drain()
	require.Zero(t, w.check().Odd())
}

// proxy stands in front of the database.
type proxy struct {
	t        *testing.T
	server   string
	listener net.Listener
	all      sync.WaitGroup

	mu    sync.Mutex
	down  bool
	conns map[net.Conn]bool
	sent  map[net.Conn]*bytes.Buffer // by clients
}

// newProxy makes dsn one that leads through it.
func newProxy(t *testing.T, dsn *string) *proxy {
	t.Helper()
	u, err := url.Parse(*dsn)
	require.NoError(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	x := &proxy{t: t, server: u.Host, listener: listener, conns: map[net.Conn]bool{}, sent: map[net.Conn]*bytes.Buffer{}}
	u.Host = listener.Addr().String()
	*dsn = u.String()
	x.all.Go(x.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		x.cut()
		x.all.Wait()
	})
	return x
}

func (x *proxy) accept() {
	for {
		client, err := x.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", x.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		if !x.keep(client, server) {
			continue
		}
		x.all.Go(func() { x.copy(client, server, func([]byte) {}) })
		x.all.Go(func() { x.copy(server, client, func(sent []byte) { x.keepWhat(client, sent) }) })
	}
}

// keep says no while the proxy is cut.
func (x *proxy) keep(client, server net.Conn) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.down {
		_ = client.Close()
		_ = server.Close()
		return false
	}
	x.conns[client], x.conns[server] = true, true
	return true
}

// keepWhat keeps what a client sent.
func (x *proxy) keepWhat(client net.Conn, sent []byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.sent[client] == nil {
		x.sent[client] = &bytes.Buffer{}
	}
	x.sent[client].Write(sent)
}

// received is all that the server was sent, connection by connection.
func (x *proxy) received() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	var all strings.Builder
	for _, sent := range x.sent {
		all.Write(sent.Bytes())
	}
	return all.String()
}

func (x *proxy) copy(to, from net.Conn, passes func([]byte)) {
	buf := make([]byte, 1<<16)
	for {
		n, err := from.Read(buf)
		passes(buf[:n])
		if err == nil {
			_, err = to.Write(buf[:n])
		}
		if err != nil {
			break
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, c := range []net.Conn{to, from} {
		_ = c.Close()
		delete(x.conns, c)
	}
}

// cut ends all connections and lets none through until mend.
func (x *proxy) cut() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.down = true
	for c := range x.conns {
		_ = c.Close()
	}
}

func (x *proxy) mend() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.down = false
}
