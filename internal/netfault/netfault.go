// Package netfault is a relay between a program and a server, for tests: it
// counts round trips and breaks connections where it is told to.
package netfault

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Fault is what a relay does to the next request.
type Fault int32

// The faults. Of all but Hang the client sees that its connection is lost.
const (
	None      Fault = iota
	CutBefore       // The server never gets it.
	CutAfter        // The server has answered it, and the client never hears.
	CutWhile        // The server gets it, and nobody waits for the answer, nor can cancel it.
	Late            // The server gets it when [Relay.Deliver] is called.
	Hang            // The server never gets it, and nobody is told.
)

func (f Fault) String() string {
	return [...]string{"none", "cut before", "cut after", "cut while", "late", "hang"}[f]
}

// terminate is PostgreSQL's message that ends a connection.
var terminate = []byte{'X', 0, 0, 0, 4}

// Relay stands between a pool of connections and a server.
type Relay struct {
	Address string // where it listens

	listener  net.Listener
	server    string
	fault     atomic.Int32
	trips     atomic.Int64
	apart     atomic.Bool // since CutWhile: cancel requests are lost
	rate      atomic.Int64
	wg        sync.WaitGroup
	late      chan struct{}
	delivered chan struct{}
	closed    chan struct{}

	through sync.RWMutex // held for writing while nothing gets through
	stalled bool

	mu    sync.Mutex
	down  bool
	conns map[*relayed]bool
}

// New relays to a server until Close.
func New(ctx context.Context, server string) (*Relay, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &Relay{
		Address: listener.Addr().String(), listener: listener, server: server,
		late: make(chan struct{}), delivered: make(chan struct{}), closed: make(chan struct{}),
		conns: map[*relayed]bool{},
	}
	r.wg.Go(r.accept)
	return r, nil
}

// Close waits for the end of all connections: whoever has them closes them
// before. What is stalled goes on, lest a test that failed meanwhile never ends.
func (r *Relay) Close() {
	_ = r.listener.Close()
	close(r.closed)
	r.Mend()
	r.wg.Wait()
}

// Set says what happens to the next request.
func (r *Relay) Set(f Fault) { r.fault.Store(int32(f)) }

// Slow lets answers pass at so many bytes per second and connection.
func (r *Relay) Slow(bytesPerSecond int64) { r.rate.Store(bytesPerSecond) }

// pace waits as long as n bytes take on a slow link.
func (r *Relay) pace(n int) {
	rate := r.rate.Load()
	if rate == 0 {
		return
	}
	select {
	case <-time.After(time.Duration(n) * time.Second / time.Duration(rate)):
	case <-r.closed:
	}
}

// Cut ends all connections and lets none be made, until Mend.
func (r *Relay) Cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = true
	for c := range r.conns {
		c.close()
	}
}

// Stall lets connections be made and no request through, until Mend.
func (r *Relay) Stall() {
	r.through.Lock()
	r.stalled = true
}

// Mend ends Cut or Stall. What was stalled goes on.
func (r *Relay) Mend() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = false
	if r.stalled {
		r.stalled = false
		r.through.Unlock()
	}
}

// keep says no while all is cut.
func (r *Relay) keep(c *relayed) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down {
		c.close()
		return false
	}
	r.conns[c] = true
	return true
}

func (r *Relay) forget(c *relayed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, c)
}

// Trips counts requests that began after an answer.
func (r *Relay) Trips() int64 { return r.trips.Load() }

// Deliver hands the server the late request and waits until it has done it.
func (r *Relay) Deliver() {
	r.late <- struct{}{}
	<-r.delivered
}

func (r *Relay) accept() {
	for {
		client, err := r.listener.Accept()
		if err != nil {
			return
		}
		server, err := new(net.Dialer).DialContext(context.Background(), "tcp", r.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		c := &relayed{r: r, client: client, server: server.(*net.TCPConn), answered: make(chan struct{})}
		if !r.keep(c) {
			continue
		}
		r.wg.Go(c.requests)
		r.wg.Go(c.answers)
	}
}

// cancelRequest begins PostgreSQL's. pgx sends one when it loses a connection.
var cancelRequest = []byte{0, 0, 0, 16, 4, 210, 22, 46}

type relayed struct {
	r         *Relay
	client    net.Conn
	server    *net.TCPConn
	requested atomic.Bool // since the last answer
	deaf      atomic.Bool // the client hears no more
	left      atomic.Bool // nor does it wait
	answered  chan struct{}
}

func (c *relayed) close() {
	_ = c.client.Close()
	_ = c.server.Close()
}

func (c *relayed) requests() {
	defer c.r.forget(c)
	defer c.close()
	buf := make([]byte, 1<<16)
	hung := false
	for {
		n, err := c.client.Read(buf)
		if err != nil {
			return
		}
		c.r.through.RLock()   // until nothing is stalled
		c.r.through.RUnlock() //nolint:staticcheck // That is all.
		if buf[0] == 0 {      // what PostgreSQL's connections begin with is no request
			if c.r.apart.Load() && bytes.HasPrefix(buf[:n], cancelRequest) {
				return
			}
			if _, err := c.server.Write(buf[:n]); err != nil {
				return
			}
			continue
		}
		if bytes.Equal(buf[:n], terminate) && !hung { // a pool ends a connection when it likes: the fault is another's
			_, _ = c.server.Write(buf[:n])
			return
		}
		if !c.requested.Swap(true) {
			c.r.trips.Add(1)
		}
		switch f := Fault(c.r.fault.Swap(int32(None))); f {
		case CutBefore:
			return
		case Hang:
			hung = true
		case CutAfter:
			c.deaf.Store(true)
		case CutWhile, Late:
			c.leave(buf[:n], f == Late)
			return
		case None:
		}
		if hung {
			if bytes.HasSuffix(buf[:n], terminate) { // nobody waits any more
				return
			}
			continue
		}
		if _, err := c.server.Write(buf[:n]); err != nil {
			return
		}
	}
}

// leave lets the client go, and the server answer to nobody.
func (c *relayed) leave(request []byte, late bool) {
	c.left.Store(true)
	c.r.apart.Store(true)
	_ = c.client.Close()
	if late {
		select {
		case <-c.r.late:
		case <-c.r.closed:
			return
		}
	}
	_, _ = c.server.Write(request)
	_ = c.server.CloseWrite()
	<-c.answered
	if late {
		c.r.delivered <- struct{}{}
	}
}

func (c *relayed) answers() {
	defer close(c.answered)
	buf := make([]byte, 1<<16)
	for {
		n, err := c.server.Read(buf)
		if c.left.Load() {
			_, _ = io.Copy(io.Discard, c.server)
			return
		}
		if err != nil || c.deaf.Load() {
			c.close()
			return
		}
		c.requested.Store(false)
		c.r.pace(n)
		if _, err := c.client.Write(buf[:n]); err != nil && !c.left.Load() {
			c.close()
			return
		}
	}
}
