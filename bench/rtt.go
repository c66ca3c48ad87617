package main

import (
	"context"
	"net"
	"net/url"
	"sync"
	"time"

	"github.com/waybill-go/waybill/broker/kafka"
	"github.com/waybill-go/waybill/outbox"
)

const (
	roundTrip  = 2 * time.Millisecond
	farWriters = 8
)

var farMetrics = []string{"drained events", "units of 8 writers"}

// far is a drain, and units of work, with every round trip to both servers taking
// longer by so much.
func far(d drainage, longer, lasts time.Duration) work {
	return func(ctx context.Context, w *world) (map[string]float64, error) {
		database, err := url.Parse(w.dsn)
		if err != nil {
			return nil, err
		}
		toDatabase, err := newDistance(ctx, database.Host, longer/2)
		if err != nil {
			return nil, err
		}
		defer toDatabase.close()
		toKafka, err := newDistance(ctx, w.kafka, longer/2)
		if err != nil {
			return nil, err
		}
		defer toKafka.close()
		b, end, err := w.brokerOn(ctx, w.behind(toKafka.address()))
		if err != nil {
			return nil, err
		}
		defer end()
		database.Host = toDatabase.address()
		away, end, err := w.apart(ctx, database.String())
		if err != nil {
			return nil, err
		}
		defer end()

		units, err := save(farWriters, lasts)(ctx, away)
		if err != nil {
			return nil, err
		}
		filled, err := w.fill(ctx, d)
		if err != nil {
			return nil, err
		}
		begin := time.Now()
		var took time.Duration
		err = away.running(ctx, b, outbox.Config{}, func(ctx context.Context) error {
			defer func() { took = time.Since(begin) }()
			return w.drained(ctx, d.events)
		})
		if err != nil {
			return nil, err
		}
		return map[string]float64{farMetrics[0]: float64(d.events) / took.Seconds(), farMetrics[1]: units["rate"]}, w.verify(ctx, d, filled)
	}
}

// behind is Kafka behind another address.
func (w *world) behind(address string) kafka.Config {
	return kafka.Config{Addresses: []string{w.kafka}, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}}
}

// distance stands before a server: each byte that passes, either way, is late by
// the same time, however many pass.
type distance struct {
	listener net.Listener
	server   string
	delay    time.Duration
	working  sync.WaitGroup

	mu    sync.Mutex
	ended bool
	conns []net.Conn
}

func newDistance(ctx context.Context, server string, delay time.Duration) (*distance, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	d := &distance{listener: listener, server: server, delay: delay}
	d.working.Go(d.accept)
	return d, nil
}

func (d *distance) address() string { return d.listener.Addr().String() }

// close ends all connections.
func (d *distance) close() {
	_ = d.listener.Close()
	d.mu.Lock()
	d.ended = true
	for _, c := range d.conns {
		_ = c.Close()
	}
	d.mu.Unlock()
	d.working.Wait()
}

func (d *distance) accept() {
	for {
		client, err := d.listener.Accept()
		if err != nil {
			return
		}
		server, err := new(net.Dialer).DialContext(context.Background(), "tcp", d.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		d.mu.Lock()
		d.conns = append(d.conns, client, server)
		if d.ended {
			_, _ = client.Close(), server.Close()
		}
		d.mu.Unlock()
		d.working.Go(func() { d.carry(server, client) })
		d.working.Go(func() { d.carry(client, server) })
	}
}

// carry passes on what comes, each piece when it is due, and the end after it.
func (d *distance) carry(to, from net.Conn) {
	type piece struct {
		due   time.Time
		bytes []byte
	}
	pieces := make(chan piece, 1024)
	d.working.Go(func() {
		defer to.Close()
		lost := false
		for p := range pieces {
			if lost {
				continue
			}
			<-time.After(time.Until(p.due))
			_, err := to.Write(p.bytes)
			lost = err != nil
		}
	})
	defer close(pieces)
	buf := make([]byte, 1<<16)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		pieces <- piece{time.Now().Add(d.delay), append([]byte(nil), buf[:n]...)}
	}
}
