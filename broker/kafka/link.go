package kafka

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
)

// errCut is what a connection fails with after it was cut.
var errCut = errors.New("kafka: connection cut")

// cutter is the dialer of a sarama client, and cuts all of its connections at
// once. sarama's own Close waits for the request under way; this doesn't.
type cutter struct {
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
	ctx  context.Context // Done when cut.
	stop context.CancelFunc

	mu    sync.Mutex
	conns map[*cutConn]struct{}

	written atomic.Int64 // Bytes, over all connections.
}

func newCutter(conf *sarama.Config) *cutter {
	c := &cutter{conns: map[*cutConn]struct{}{}}
	c.ctx, c.stop = context.WithCancel(context.Background())
	plain := &net.Dialer{Timeout: conf.Net.DialTimeout, KeepAlive: conf.Net.KeepAlive, LocalAddr: conf.Net.LocalAddr}
	c.dial = plain.DialContext
	if conf.Net.Proxy.Enable {
		c.dial = contextDial(conf.Net.Proxy.Dialer)
	}
	return c
}

// contextDial gives a dialer without a context one. What it still connects after
// the context's end is closed.
func contextDial(d interface {
	Dial(network, addr string) (net.Conn, error)
},
) func(context.Context, string, string) (net.Conn, error) {
	if d, ok := d.(interface {
		DialContext(ctx context.Context, network, addr string) (net.Conn, error)
	}); ok {
		return d.DialContext
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		type result struct {
			conn net.Conn
			err  error
		}
		done := make(chan result)
		go func() {
			conn, err := d.Dial(network, addr)
			select {
			case done <- result{conn, err}:
			case <-ctx.Done():
				if err == nil {
					conn.Close()
				}
			}
		}()
		select {
		case r := <-done:
			return r.conn, r.err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// config is conf with c as its dialer.
func (c *cutter) config(conf *sarama.Config) *sarama.Config {
	mine := *conf
	mine.Net.Proxy.Enable = true
	mine.Net.Proxy.Dialer = c
	return &mine
}

// Dial is called by sarama.
func (c *cutter) Dial(network, addr string) (net.Conn, error) {
	conn, err := c.dial(c.ctx, network, addr)
	if err != nil {
		return nil, err
	}
	cc := &cutConn{Conn: conn, cutter: c}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		conn.Close()
		return nil, errCut
	}
	c.conns[cc] = struct{}{}
	return cc, nil
}

// cut ends every connection and refuses new ones.
func (c *cutter) cut() {
	c.stop()
	c.drop()
}

// drop ends every connection; new ones may be made.
func (c *cutter) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for cc := range c.conns {
		// Without this the kernel goes on sending what it has buffered.
		if tcp, ok := cc.Conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		cc.Conn.Close()
	}
	clear(c.conns)
}

type cutConn struct {
	net.Conn
	cutter *cutter
}

func (cc *cutConn) Write(b []byte) (int, error) {
	n, err := cc.Conn.Write(b)
	cc.cutter.written.Add(int64(n))
	return n, err
}

func (cc *cutConn) Close() error {
	cc.cutter.mu.Lock()
	delete(cc.cutter.conns, cc)
	cc.cutter.mu.Unlock()
	return cc.Conn.Close()
}

// link is one connection to one server, used by one goroutine at a time.
type link struct {
	addr   string
	broker *sarama.Broker
	cutter *cutter
	used   time.Time // Last answer.
	quiet  time.Time // The server wants no request before.
}

// connect returns when the connection is made and authenticated.
func connect(ctx context.Context, conf *sarama.Config, addr string) (*link, error) {
	l := &link{addr: addr, broker: sarama.NewBroker(addr), cutter: newCutter(conf)}
	err := l.do(ctx, func() error {
		if err := l.broker.Open(l.cutter.config(conf)); err != nil {
			return err
		}
		connected, err := l.broker.Connected()
		if err == nil && !connected {
			err = sarama.ErrNotConnected
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return l, nil
}

// ask is do for a request that is answered.
func ask[R any](ctx context.Context, l *link, request func() (R, error)) (answer R, err error) {
	err = l.do(ctx, func() (err error) {
		answer, err = request()
		return err
	})
	return answer, err
}

// do calls fn and cuts the connection when ctx is done, which ends fn. After an
// error the link is closed and nothing more of fn's request is sent.
func (l *link) do(ctx context.Context, fn func() error) error {
	if wait := time.Until(l.quiet); wait > 0 {
		// sarama would wait too, but not for ctx.
		if err := sleep(ctx, wait); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	stop := context.AfterFunc(ctx, l.cutter.cut)
	err := fn()
	if !stop() && err == nil {
		// ctx ended just after the answer: the answer counts, the link doesn't.
		l.close()
		return nil
	}
	if err != nil {
		l.cutter.cut()
		l.close()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	l.used = time.Now()
	return nil
}

// rested says that the link may have died unnoticed.
func (l *link) rested() bool { return time.Since(l.used) > time.Second }

// closed says that the link can't be used any more.
func (l *link) closed() bool { return l.cutter.ctx.Err() != nil }

// close ends what sarama has running for the link.
func (l *link) close() {
	_ = l.broker.Close() // "Not connected" at worst.
	l.cutter.cut()
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
