package kafka

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// errCut is what a connection fails with after it was cut. kgo tries again after
// one that was closed.
var errCut = fmt.Errorf("kafka: connection cut: %w", net.ErrClosed)

// wire is the dialer of a kgo client. It cuts all of its connections at once, which
// kgo can't, and knows what became of produce requests.
type wire struct {
	conf Config

	mu    sync.Mutex
	shut  bool // Nothing connects until it is opened.
	cuts  int
	conns map[*conn]struct{}
	last  error     // Of connecting; nil after a success.
	asked time.Time // The first request since anybody answered; zero: none.
	dials int       // Under way.
	dial  time.Time // The last one began.
	ends  int       // Requests that end a transaction.

	account account
	used    map[place]numbers // Of the last batch that is stored, or may be.
	giveUp  func(error)       // Of the round that is out.
	began   time.Time         // The round.
	alarm   *time.Timer       // Runs while connecting fails.
	unsent  *time.Timer       // Runs while a round is out.
}

var _ kgo.HookBrokerConnect = (*wire)(nil)

func (c Config) wire() *wire {
	return &wire{conf: c, conns: map[*conn]struct{}{}, used: map[place]numbers{}}
}

// Dial is called by kgo.
func (w *wire) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	w.mu.Lock()
	cuts, shut := w.cuts, w.shut
	if !shut {
		w.dials++
		w.dial = time.Now()
	}
	w.mu.Unlock()
	if shut {
		return nil, errCut
	}
	defer w.dialed()
	raw, err := w.conf.Dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: raw, raw: raw, wire: w}
	if c.Conn, err = w.encrypt(ctx, raw, addr); err != nil {
		raw.Close()
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cuts != cuts || w.shut {
		raw.Close()
		return nil, errCut
	}
	w.conns[c] = struct{}{}
	return c, nil
}

func (w *wire) dialed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dials--
}

// encrypt is raw itself without TLS.
func (w *wire) encrypt(ctx context.Context, raw net.Conn, addr string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	conf, err := w.conf.TLS.config(host)
	if err != nil {
		return nil, fmt.Errorf("kafka: tls.%w", err)
	}
	if conf == nil {
		return raw, nil
	}
	encrypted := tls.Client(raw, conf)
	return encrypted, encrypted.HandshakeContext(ctx)
}

// OnBrokerConnect is called by kgo when a connection is made and logged in, or
// can't be.
func (w *wire) OnBrokerConnect(meta kgo.BrokerMetadata, took time.Duration, made net.Conn, err error) {
	if errors.Is(err, errCut) || errors.Is(err, context.Canceled) || errors.Is(err, kgo.ErrClientClosed) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		if c, ok := made.(*conn); ok {
			c.ready = true
		}
		w.last = nil
		w.calm()
		return
	}
	if time.Since(w.began) < took {
		return // It was begun in the round before, and kgo may wait as long as outageIn for its next attempt.
	}
	w.last = fmt.Errorf("no connection to %s:%d: %w", meta.Host, meta.Port, err)
	if w.alarm == nil && w.giveUp != nil {
		w.alarm = time.AfterFunc(outageIn, w.outage)
	}
}

func (w *wire) calm() {
	if w.alarm != nil {
		w.alarm.Stop()
		w.alarm = nil
	}
}

// outage ends the round that is out if nobody can be reached and nothing of it
// has left.
func (w *wire) outage() {
	w.mu.Lock()
	giveUp := w.giveUp
	if len(w.conns) > 0 || w.account.left() {
		giveUp, w.alarm = nil, nil // The next failure sets it again.
	}
	err := w.last
	w.mu.Unlock()
	if giveUp != nil {
		giveUp(fmt.Errorf("kafka: no server is reached: %w", err))
	}
}

// begin starts to keep account of a round. giveUp is called if there is nobody to
// send it to.
func (w *wire) begin(giveUp func(error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = nil
	w.account, w.giveUp, w.began = account{number: w.account.number + 1}, giveUp, time.Now()
	w.unsent = time.AfterFunc(patience, w.impatient)
}

// impatient ends the round that is out if nothing of it has left, and nobody is waited for who
// may only be slow: a new connection and a producer's id take some answers one after the other,
// and a round that is ended begins with the first of them again, so it would never be sent.
func (w *wire) impatient() {
	w.mu.Lock()
	giveUp := w.giveUp
	if giveUp == nil || w.account.left() {
		w.mu.Unlock()
		return
	}
	since := w.asked
	if w.dials > 0 && w.dial.After(since) {
		since = w.dial
	}
	left, after := patience-time.Since(since), time.Since(w.began).Round(time.Second)
	if left > 0 {
		w.unsent.Reset(left)
	}
	w.mu.Unlock()
	if left <= 0 {
		giveUp(fmt.Errorf("kafka: no server takes it, given up after %v: %w", after, w.trouble()))
	}
}

// end is what became of the round's requests.
func (w *wire) end() (account, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for at, f := range w.account.places {
		earlier, ok := w.used[at]
		f.reused = ok && f.numbers.reach(earlier)
		if f.doubt() || f.last == nil {
			w.used[at] = f.numbers
		}
	}
	w.giveUp = nil
	w.unsent.Stop()
	w.calm()
	return w.account, w.last
}

// trouble is what keeps from connecting.
func (w *wire) trouble() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last == nil {
		return errors.New("no answer")
	}
	return w.last
}

// silent is for how long nobody has answered, although somebody was asked.
func (w *wire) silent() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.asked.IsZero() {
		return 0
	}
	return time.Since(w.asked)
}

// ended is how many requests that end a transaction were handed over.
func (w *wire) ended() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ends
}

// cut ends every connection; new ones may be made. Afterwards nothing that was
// handed to them is sent any more.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cuts++
	for c := range w.conns {
		c.dead.Store(true)
		// Without this the kernel goes on sending what it has buffered.
		if tcp, ok := c.raw.(interface{ SetLinger(int) error }); ok {
			_ = tcp.SetLinger(0)
		}
		c.raw.Close()
	}
	clear(w.conns)
}

// close cuts, and has new connections fail until it is opened.
func (w *wire) close() {
	w.mu.Lock()
	w.shut = true
	w.mu.Unlock()
	w.cut()
}

func (w *wire) open() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.shut = false
}

// conn is a connection that keeps account.
type conn struct {
	net.Conn
	raw  net.Conn
	wire *wire
	dead atomic.Bool
	reader

	ready bool // It is logged in.
}

// Write is called once for each request.
func (c *conn) Write(b []byte) (int, error) {
	if c.dead.Load() {
		return 0, errCut
	}
	w := c.wire
	w.mu.Lock()
	request := w.account.asked(b) // Before, as cut may be waited for.
	c.expect(request)
	if keyOf(b) == endKey {
		w.ends++
	}
	if w.asked.IsZero() && !waitsForOthers(b) {
		w.asked = time.Now()
	}
	w.mu.Unlock()
	n, err := c.Conn.Write(b)
	if n == 0 && err != nil {
		w.mu.Lock()
		w.account.unasked(request)
		w.mu.Unlock()
	}
	return n, err
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.wire.mu.Lock()
		c.wire.account.heard = c.wire.account.heard || c.ready
		c.wire.asked = time.Time{}
		c.feed(b[:n], &c.wire.account)
		c.wire.mu.Unlock()
	}
	return n, err
}

func (c *conn) Close() error {
	c.wire.mu.Lock()
	delete(c.wire.conns, c)
	c.wire.mu.Unlock()
	return c.Conn.Close()
}

// sleep waits, and returns ctx's cause when ctx is done first.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
