// Package lifeline cuts a process's connections to its databases, for tests that kill
// a service without ending their own process. A provider that was opened under a
// context with a [Line] makes its connections through it.
package lifeline

import (
	"context"
	"errors"
	"net"
	"sync"
)

// ErrCut is what a connection answers that was cut.
var ErrCut = errors.New("lifeline: the process that had this connection was killed")

// Line is what the connections of a process hang on. It is safe for concurrent use.
type Line struct {
	mu    sync.Mutex
	cut   bool
	conns map[*netConn]struct{}
}

// New returns a line that is not cut.
func New() *Line { return &Line{conns: map[*netConn]struct{}{}} }

// Cut ends all connections: what they haven't committed never will be. None can be made
// any more.
func (l *Line) Cut() {
	l.mu.Lock()
	conns := l.conns
	l.cut, l.conns = true, nil
	l.mu.Unlock()
	for c := range conns {
		_ = c.Conn.Close()
	}
}

func (l *Line) check() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		return ErrCut
	}
	return nil
}

type lineKey struct{}

// With returns a context under which providers are opened on l.
func With(ctx context.Context, l *Line) context.Context { return context.WithValue(ctx, lineKey{}, l) }

// Dial is dial, through the line of ctx if it has one.
func Dial(ctx context.Context, dial func(ctx context.Context, network, addr string) (net.Conn, error)) func(ctx context.Context, network, addr string) (net.Conn, error) {
	l, ok := ctx.Value(lineKey{}).(*Line)
	if !ok {
		return dial
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if err := l.check(); err != nil {
			return nil, err
		}
		raw, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		c := &netConn{Conn: raw, line: l}
		if !l.hold(c) {
			_ = raw.Close()
			return nil, ErrCut
		}
		return c, nil
	}
}

func (l *Line) hold(c *netConn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		return false
	}
	l.conns[c] = struct{}{}
	return true
}

// netConn is a connection to a server.
type netConn struct {
	net.Conn
	line *Line
}

func (c *netConn) Close() error {
	c.line.mu.Lock()
	delete(c.line.conns, c)
	c.line.mu.Unlock()
	return c.Conn.Close()
}
