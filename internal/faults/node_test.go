package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/kafka"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/internal/chaos"
	"github.com/waybill-go/waybill/internal/verdict"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
)

// nodeVar is set for this package's test binary when it shall be a node instead:
// a process to be killed.
const nodeVar = "WAYBILL_FAULTS_NODE"

// nodeConfig is what a node is told.
type nodeConfig struct {
	Role   string // "engine" or "writer"
	DSN    string
	Kafka  string // addresses
	Prefix string // of topics

	External []outbox.Target // partners
	Branches bool            // it has branches

	// An engine's.
	Outbox          outbox.Config
	MaxMessageBytes int // of Kafka's adapter
	PublishTimeout  time.Duration
	Trap            trap
	Exact           bool    // it publishes in transactions
	Detour          string  // where its own Kafka is reached
	Partners        string  // where partners' Kafka is reached
	Consume         bool    // its own events, into the table effects
	Serve           bool    // over HTTP
	Redelivered     float64 // the part of what is acknowledged that its broker delivers again

	// That of somebody who sells, and has a projection of the sales.
	Version  int    // of the projection
	Orders   string // a file of them
	From, To int    // which of them it places

	// A writer's, or an engine's that also writes.
	Accounts int
	Writers  int
	Backlog  int           // how many rows may wait before writers do; 0: any number
	Pause    time.Duration // between two units of one writer, at most
	Timed    bool          // each says when it began and how long it took
}

// trap is what an engine's broker does besides publishing. A gate opens when the
// node reads a line; before, a call that comes to it says so and waits,
// whatever its context says.
type trap struct {
	KillAt   string        // Whoever publishes this message dies.
	KillNext string        // Whoever has published dies, unless this file exists.
	KillFrom int64         // Whoever has published, or projected, so many messages dies.
	Gate     string        // "before" the call, or "after" it, or before the "start" of the engine.
	Detached bool          // The call goes on whatever its context says: its bytes were on the wire.
	Delay    time.Duration // before and after each call, at most.
	Exact    string        // Whoever publishes in a transaction now and then dies there.
	Forgets  bool          // What the marks of transactions say isn't known to the engine.
}

func runNode(text string) error {
	var cfg nodeConfig
	if err := json.Unmarshal([]byte(text), &cfg); err != nil {
		return err
	}
	//nolint:forbidigo // This is a program.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	n := node{cfg: cfg, gate: make(chan struct{}), log: slog.New(slog.NewJSONHandler(os.Stderr, nil))}
	go n.listen()
	dsn, err := url.Parse(cfg.DSN)
	if err != nil {
		return err
	}
	named := dsn.Query()
	named.Set("application_name", verdict.Session(os.Getpid()))
	dsn.RawQuery = named.Encode()
	p, err := postgres.Open(ctx, postgres.Config{DSN: dsn.String()})
	if err != nil {
		return err
	}
	defer p.Close()
	switch cfg.Role {
	case "purchases":
		return n.purchases(ctx, p)
	case "sales":
		return n.sales(ctx, p)
	}
	of := chaos.Accounts
	if cfg.Branches {
		of = branches
	}
	units, err := uow.New(uow.Config{Domain: of, Providers: []uow.Provider{p}, External: cfg.External, MaxRetries: 20})
	if err != nil {
		return err
	}
	if cfg.Role == "writer" {
		return n.write(ctx, units)
	}
	return n.serve(ctx, units)
}

type node struct {
	cfg  nodeConfig
	gate chan struct{}
	log  *slog.Logger
	mu   sync.Mutex
}

// say tells the test.
func (n *node) say(what string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	fmt.Println(what)
}

// listen opens the gate with the first line, and ends the process with the test.
func (n *node) listen() {
	in := bufio.NewReader(os.Stdin)
	for opened := false; ; opened = true {
		if _, err := in.ReadString('\n'); err != nil {
			os.Exit(3)
		}
		if !opened {
			close(n.gate)
		}
	}
}

func (n *node) serve(ctx context.Context, units *uow.Manager) (err error) {
	k, err := kafka.Open(ctx, kafka.Config{
		Addresses: strings.Split(n.cfg.Kafka, ","), Logger: n.log, MaxMessageBytes: n.cfg.MaxMessageBytes, PublishTimeout: n.cfg.PublishTimeout,
		ExactlyOnce: n.cfg.Exact, Dial: through(n.cfg.Detour),
	})
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		err = errors.Join(err, k.Close(ctx))
	}()
	own := broker.Prefixed(k, n.cfg.Prefix)
	var trap broker.Broker = &trapped{Broker: &forgetful{own, n.cfg.Redelivered}, node: n}
	if n.cfg.Exact {
		trap = exactlyTrapped{trap, own.(broker.Transactional), n, new(atomic.Int64)}
	}
	brokers := map[string]broker.Broker{"default": trap}
	if n.cfg.Partners != "" {
		partners, failure := n.partners(ctx)
		if failure != nil {
			return failure
		}
		defer func() { err = errors.Join(err, partners.Close(ctx)) }()
		for _, t := range n.cfg.External {
			brokers[t.Broker] = broker.Prefixed(partners, n.cfg.Prefix+t.Broker+".")
		}
	}
	cfg := engine.Config{
		Units:   []*uow.Manager{units},
		Brokers: brokers,
		Outbox:  n.cfg.Outbox,
		Logger:  n.log,
	}
	if n.cfg.Serve {
		cfg.Server.Addr = "127.0.0.1:0"
	}
	if n.cfg.Consume {
		cfg.Subscriptions = []subscription.Stream{effects}
	}
	eng, err := engine.New(cfg)
	if err != nil {
		return err
	}
	if n.cfg.Trap.Gate == "start" {
		n.wait()
	}
	if err := eng.Start(ctx); err != nil {
		return err
	}
	n.say(serves + eng.Addr())
	n.say("running")
	var writing sync.WaitGroup
	if n.cfg.Writers > 0 {
		writing.Go(func() { _ = n.write(ctx, units) }) // it returns none
	}
	defer writing.Wait()
	err = eng.Run(ctx)
	for name, s := range eng.Subscriptions() {
		n.say(fmt.Sprintf("%s: %d handled, %d duplicates", name, s.Handled, s.Duplicates))
	}
	return err
}

// forgetful is a broker that delivers a part of what was acknowledged again.
type forgetful struct {
	broker.Broker
	part float64
}

func (b *forgetful) Consume(ctx context.Context, topic, group string) (broker.Consumer, error) {
	c, err := b.Broker.Consume(ctx, topic, group)
	if err != nil || b.part == 0 {
		return c, err
	}
	return &forgetfulConsumer{Consumer: c, part: b.part}, nil
}

type forgetfulConsumer struct {
	broker.Consumer
	part float64
}

func (c *forgetfulConsumer) Ack(ctx context.Context, deliveries ...broker.Delivery) error {
	var kept, forgotten []broker.Delivery
	for _, d := range deliveries {
		if rand.Float64() < c.part {
			forgotten = append(forgotten, d)
		} else {
			kept = append(kept, d)
		}
	}
	return errors.Join(c.Consumer.Ack(ctx, kept...), c.Release(ctx, forgotten...))
}

// partners is their Kafka, all of whose servers are reached at one address.
func (n *node) partners(ctx context.Context) (*kafka.Broker, error) {
	return kafka.Open(ctx, kafka.Config{Addresses: strings.Split(n.cfg.Kafka, ","), Logger: n.log, Dial: through(n.cfg.Partners)})
}

// through has all servers of a Kafka be reached at one address, unless it is none.
func through(address string) func(ctx context.Context, network, addr string) (net.Conn, error) {
	if address == "" {
		return nil
	}
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}
}

// effects notes each event in the unit of work of its inbox row, by what its note
// says.
var effects = subscription.Stream{
	Name: "effects", Category: "faults::account", Backoff: 50 * time.Millisecond, MaxAttempts: 4, Timeout: 5 * time.Minute,
	Handlers: []subscription.Handler{subscription.On(func(ctx context.Context, e chaos.Moved) error {
		of, _ := domain.MetadataFrom(ctx)
		if text, ok := strings.CutPrefix(e.Note, takes); ok {
			text, file, _ := strings.Cut(text, andUntil)
			d, err := time.ParseDuration(text)
			if err != nil {
				return err
			}
			fmt.Println("slow", of.AggregateID)
			for wait := d; ; wait = tick {
				select {
				case <-time.After(wait):
				case <-ctx.Done():
					return ctx.Err()
				}
				if _, err := os.Stat(file); file == "" || err == nil {
					break
				}
			}
		}
		db, err := uow.DB(ctx)
		if err != nil {
			return err
		}
		if e.Note == poison || e.Note == deadly {
			var mended bool
			if err := db.NewRaw("SELECT count(*) > 0 FROM mended").Scan(ctx, &mended); err != nil {
				return err
			}
			switch {
			case mended:
			case e.Note == deadly:
				die()
			default:
				return errors.New("poison")
			}
		}
		_, err = db.ExecContext(ctx, "INSERT INTO effects (account, number) VALUES (?, ?)", of.AggregateID, e.Number)
		return err
	})},
}

// serves is what a node says before its address.
const serves = "serves "

const (
	takes    = "takes "
	andUntil = " and until there is "
	poison   = "poison"
	deadly   = "deadly"
)

func (n *node) wait() {
	n.say("waiting")
	<-n.gate
}

// trapped is a broker with a trap.
type trapped struct {
	broker.Broker
	node      *node
	published atomic.Int64
}

func (b *trapped) Publish(ctx context.Context, messages []broker.Message) error {
	t := b.node.cfg.Trap
	if slices.ContainsFunc(messages, func(m broker.Message) bool { return m.ID == t.KillAt }) {
		die()
	}
	if t.Gate == "before" {
		b.node.wait()
	}
	t.dawdle()
	if t.Detached {
		ctx = context.WithoutCancel(ctx)
	}
	since := time.Now()
	err := b.Broker.Publish(ctx, messages)
	chaos.Tell(b.node.log, since, err)
	if err == nil && t.KillFrom > 0 && b.published.Add(int64(len(messages))) >= t.KillFrom {
		die()
	}
	t.dawdle()
	if t.Gate == "after" {
		b.node.wait()
	}
	if err == nil && t.KillNext != "" {
		if f, err := os.OpenFile(t.KillNext, os.O_CREATE|os.O_EXCL, 0o600); err == nil {
			f.Close()
			die()
		}
	}
	return err
}

func (t trap) dawdle() {
	if t.Delay > 0 {
		<-time.After(rand.N(t.Delay))
	}
}

// die is kill -9.
func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}
