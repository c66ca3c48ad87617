package postgres_test

import (
	"bytes"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
)

// fault is what a proxy does to the next request.
type fault int32

const (
	none       fault = iota
	cutBefore        // the server never gets it
	cutAfter         // the server has answered it, the client never hears
	hangBefore       // the server never gets it, and nobody is told
)

// proxy stands between a pool and the server, counts round trips and breaks them.
type proxy struct {
	listener net.Listener
	server   string
	fault    atomic.Int32
	trips    atomic.Int64
	wg       sync.WaitGroup
}

// openThrough opens a provider through a proxy.
func openThrough(t *testing.T, change ...func(*postgres.Config)) (uow.Provider, *proxy) {
	u, err := url.Parse(dsn(t))
	require.NoError(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	x := &proxy{listener: listener, server: u.Host}
	x.wg.Go(x.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		x.wg.Wait()
	})
	u.Host = listener.Addr().String()
	p := open(t, append([]func(*postgres.Config){func(c *postgres.Config) { c.DSN = u.String() }}, change...)...)
	return p, x
}

func (x *proxy) set(f fault) { x.fault.Store(int32(f)) }

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
		c := &proxied{x: x, client: client, server: server}
		x.wg.Go(c.requests)
		x.wg.Go(c.answers)
	}
}

type proxied struct {
	x              *proxy
	client, server net.Conn
	requested      atomic.Bool // since the last answer
	deaf           atomic.Bool // the client hears no more
	hung           atomic.Bool // nor does the server
}

func (c *proxied) close() {
	_ = c.client.Close()
	_ = c.server.Close()
}

func (c *proxied) requests() {
	defer c.close()
	buf := make([]byte, 1<<16)
	for {
		n, err := c.client.Read(buf)
		if err != nil {
			return
		}
		if !c.requested.Swap(true) {
			c.x.trips.Add(1)
		}
		switch fault(c.x.fault.Swap(int32(none))) {
		case cutBefore:
			return
		case hangBefore:
			c.hung.Store(true)
		case cutAfter:
			c.deaf.Store(true)
		}
		if c.hung.Load() {
			if bytes.HasSuffix(buf[:n], []byte{'X', 0, 0, 0, 4}) { // Terminate: nobody waits any more
				return
			}
			continue
		}
		if _, err := c.server.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (c *proxied) answers() {
	defer c.close()
	buf := make([]byte, 1<<16)
	for {
		n, err := c.server.Read(buf)
		if err != nil || c.deaf.Load() {
			return
		}
		c.requested.Store(false)
		if _, err := c.client.Write(buf[:n]); err != nil {
			return
		}
	}
}
