package engine

import (
	"bufio"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

// listening is a client of /api/stream.
type listening struct {
	t        *testing.T
	response *http.Response
	lines    *bufio.Scanner
}

func listen(t *testing.T, e *Engine) *listening {
	t.Helper()
	return listenAs(t, e, "")
}

func listenAs(t *testing.T, e *Engine, token string) *listening {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+e.Addr()+"/api/stream", nil)
	require.NoError(t, err)
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	require.NoError(t, err)
	t.Cleanup(func() { _ = response.Body.Close() })
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	return &listening{t, response, lines}
}

// next is the next event; ok is false if the stream has ended.
func (l *listening) next() (s state, ok bool) {
	l.t.Helper()
	for event := ""; l.lines.Scan(); {
		name, value, _ := strings.Cut(l.lines.Text(), ": ")
		switch name {
		case "event":
			event = value
		case "data":
			require.Equal(l.t, "state", event)
			require.NoError(l.t, json.Unmarshal([]byte(value), &s))
			return s, true
		}
	}
	return s, false
}

// Events come each second, past the server's limits for other requests, and show
// what /api/outbox and /api/health show.
func TestStream_StateEachSecond(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := b.make(b.config())
	e.server.http.ReadTimeout, e.server.http.WriteTimeout = 500*time.Millisecond, 500*time.Millisecond
	require.NoError(t, e.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, e.Stop(context.Background())) })
	l := listen(t, e)
	require.Equal(t, 200, l.response.StatusCode)
	require.Equal(t, "text/event-stream", l.response.Header.Get("Content-Type"))
	require.Equal(t, "no-store", l.response.Header.Get("Cache-Control"))
	require.True(t, l.lines.Scan())
	require.Equal(t, "retry: 2000", l.lines.Text())
	b.sell(1)
	var last state
	for range 4 {
		s, ok := l.next()
		require.True(t, ok)
		require.True(t, s.At.After(last.At))
		last = s
	}
	for last.Outbox.Providers["default"]["partner"].Counts[outbox.Published] != 1 {
		var ok bool
		last, ok = l.next()
		require.True(t, ok)
	}
	require.Equal(t, healthy, last.Health.State)
	require.Equal(t, "closed", *last.Outbox.Providers["default"]["default"].Breaker)
}

// However many listen, the rows are counted once a second, and not at all when
// nobody listens any more.
func TestStream_LoadsTheDatabaseOnceForAll(t *testing.T) {
	t.Parallel()
	b := setup(t)
	db := &watched{Provider: b.db}
	db.reader = b.db.Reader().WithQueryHook(db)
	cfg := b.config()
	cfg.Units = []*uow.Manager{units(t, uow.Config{Domain: sales, Providers: []uow.Provider{db}, External: []outbox.Target{{Broker: "partner"}}})}
	e := b.start(cfg)
	began := time.Now()
	var all []*listening
	for range 8 {
		all = append(all, listen(t, e))
	}
	for range 3 {
		for _, l := range all {
			_, ok := l.next()
			require.True(t, ok)
		}
	}
	require.LessOrEqual(t, db.counts.Load(), int64(time.Since(began)/freshFor)+1)
	for _, l := range all {
		require.NoError(t, l.response.Body.Close())
	}
	eventually(t, func() bool {
		e.feed.mu.Lock()
		defer e.feed.mu.Unlock()
		return !e.feed.looking && len(e.feed.listeners) == 0
	})
	_, ok := listen(t, e).next()
	require.True(t, ok, "whoever comes next starts it anew")
}

// The end of the engine ends the streams, also of who reads nothing.
func TestStream_EndsWithTheEngine(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := b.make(b.config())
	require.NoError(t, e.Start(t.Context()))
	l := listen(t, e)
	_, ok := l.next()
	require.True(t, ok)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, e.Stop(ctx))
	for ok {
		_, ok = l.next()
	}
	w := ask(e.Handler(), "GET", "/api/stream", "localhost", "127.0.0.1:1", "")
	require.Equal(t, http.StatusServiceUnavailable, w.Code)
	require.JSONEq(t, `{"error": "the engine has stopped"}`, w.Body.String())
}

// unhurried gives a client an hour more for an event: whoever waits for that shows.
type unhurried struct{ http.ResponseWriter }

func (u *unhurried) Unwrap() http.ResponseWriter { return u.ResponseWriter }

func (u *unhurried) SetWriteDeadline(at time.Time) error {
	if at.After(time.Now()) {
		at = at.Add(time.Hour)
	}
	return http.NewResponseController(u.ResponseWriter).SetWriteDeadline(at)
}

// A client that reads nothing keeps neither the others from their events nor the
// server from its end.
func TestStream_ASlowClient(t *testing.T) {
	t.Parallel()
	lookouts := newLookouts()
	var looks atomic.Int64
	large := strings.Repeat("x", 4<<20)
	e := &Engine{keys: &keyring{}, feed: newFeed(func(context.Context) (full, plain any) { looks.Add(1); return large, large }, lookouts)}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { e.stream(&unhurried{w}, r) }), ReadHeaderTimeout: time.Minute}
	socket, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- server.Serve(socket) }()

	slow, err := new(net.Dialer).DialContext(t.Context(), "tcp", socket.Addr().String())
	require.NoError(t, err)
	defer slow.Close()
	_, err = slow.Write([]byte("GET /api/stream HTTP/1.1\r\nHost: localhost\r\n\r\n"))
	require.NoError(t, err)
	listeners := func() int {
		e.feed.mu.Lock()
		defer e.feed.mu.Unlock()
		return len(e.feed.listeners)
	}
	eventually(t, func() bool { return listeners() == 1 && looks.Load() > 0 })
	// It is written to, and can't take it; meanwhile another one gets all.
	quick, err := e.feed.join(true)
	require.NoError(t, err)
	for range 3 {
		require.Len(t, <-quick.events, len(large)+2)
	}
	require.Equal(t, 2, listeners(), "it has its time")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	lookouts.stop()
	require.NoError(t, server.Shutdown(ctx))
	require.ErrorIs(t, <-served, http.ErrServerClosed)
	<-quick.ended
	require.Zero(t, listeners())
}

// One too many is told to come later; who leaves makes room.
func TestStream_NotMoreThanSoMany(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := b.start(b.config())
	var all []*listener
	for range streamClients {
		l, err := e.feed.join(true)
		require.NoError(t, err)
		all = append(all, l)
	}
	w := ask(e.Handler(), "GET", "/api/stream", "localhost", "127.0.0.1:1", "")
	require.Equal(t, http.StatusServiceUnavailable, w.Code)
	require.NotEmpty(t, w.Header().Get("Retry-After"))
	require.Contains(t, w.Body.String(), "try again later")
	e.feed.leave(all[0])
	require.Equal(t, 200, ask(e.Handler(), "HEAD", "/api/stream", "localhost", "127.0.0.1:1", "").Code)
	_, ok := listen(t, e).next()
	require.True(t, ok)
	for _, l := range all[1:] {
		e.feed.leave(l)
	}
}

// While counting hangs, events go on.
func TestStream_GoesOnWithoutNumbers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	db, units := newStalling(b)
	cfg := b.config()
	cfg.Units = units
	e := b.start(cfg)
	l := listen(t, e)
	_, ok := l.next()
	require.True(t, ok)
	db.stall.Store(true)
	defer db.stall.Store(false)
	for began, s := time.Now(), (state{}); s.Outbox.Providers["default"]["partner"].Error == ""; {
		s, ok = l.next()
		require.True(t, ok)
		require.Less(t, time.Since(began), time.Minute)
	}
}

// Health and stream are for those who may read.
func TestStream_WhoMayRead(t *testing.T) {
	t.Parallel()
	b := setup(t)
	cfg := b.config()
	cfg.Server = Server{Addr: "127.0.0.1:0", Token: token}
	h := b.make(cfg).Handler()
	for _, path := range []string{"/api/health", "/api/stream"} {
		require.Equal(t, http.StatusUnauthorized, ask(h, "GET", path, "host", "10.1.2.3:9000", "").Code)
		require.Equal(t, http.StatusOK, ask(h, "HEAD", path, "host", "10.1.2.3:9000", "Bearer "+token).Code)
		require.Equal(t, http.StatusMethodNotAllowed, ask(h, "POST", path, "host", "10.1.2.3:9000", "Bearer "+token).Code)
	}
}
