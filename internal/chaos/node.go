package chaos

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/kafka"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/internal/verdict"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
)

// NodeVar is set for a program that shall be a node: a process to be killed.
const NodeVar = "WAYBILL_CHAOS_NODE"

// The roles of nodes.
const (
	engineRole   = "engine"   // publishes what is in the outbox
	writerRole   = "writer"   // changes accounts
	consumerRole = "consumer" // handles the events, in a database schema of its own
)

// nodeConfig is what a node is told.
type nodeConfig struct {
	Role   string
	DSN    string
	Schema string
	Kafka  []string
	Detour map[string]string // where each of Kafka's servers is reached
	Prefix string            // of topics and groups

	OnFailover outbox.OnFailover
}

const (
	accounts   = 60
	writers    = 4 // of a process
	pause      = 400 * time.Millisecond
	lease      = 5 * time.Second
	dawdle     = 60 * time.Millisecond // before and after a call, at most, so that faults meet some that are out
	nodeConns  = 4
	running    = "running"
	savedWords = "saved "
	didWords   = "did "
	ackedWords = "acknowledges "
)

// RunNode is the program as a node, until ctx is done. It ends with whoever has its standard
// input.
func RunNode(ctx context.Context, config string, in io.Reader, out, log io.Writer) error {
	n := node{out: out, log: slog.New(slog.NewJSONHandler(log, nil))}
	if err := json.Unmarshal([]byte(config), &n.cfg); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = bufio.NewReader(in).ReadString('\n') // nothing is said: it ends with the other side
		cancel()
	}()
	dsn, err := named(n.cfg.DSN)
	if err != nil {
		return err
	}
	p, err := postgres.Open(ctx, postgres.Config{DSN: dsn, Schema: n.cfg.Schema, NoCreate: true, MaxConns: nodeConns, Logger: n.log})
	if err != nil {
		return err
	}
	defer func() { _ = p.Close() }()
	units, err := uow.New(uow.Config{Domain: Accounts, Providers: []uow.Provider{p}, MaxRetries: 20})
	if err != nil {
		return err
	}
	if n.cfg.Role == writerRole {
		return n.write(ctx, units)
	}
	return n.serve(ctx, units)
}

// named is a DSN whose sessions have the name of this process.
func named(dsn string) (string, error) {
	u, err := url.Parse(dsn)
	if err != nil {
		return "", err
	}
	q := u.Query()
	q.Set("application_name", verdict.Session(os.Getpid()))
	u.RawQuery = q.Encode()
	return u.String(), nil
}

type node struct {
	cfg nodeConfig
	log *slog.Logger

	mu  sync.Mutex
	out io.Writer
}

func (n *node) say(what string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	fmt.Fprintln(n.out, what)
}

// write changes accounts, and says what was committed.
func (n *node) write(ctx context.Context, units *uow.Manager) error {
	repo := repository.New[*Account](units)
	n.say(running)
	var all sync.WaitGroup
	for range writers {
		all.Go(func() {
			for ctx.Err() == nil {
				rest := rand.N(pause)
				saved, err := Change(ctx, units, repo, accounts)
				switch {
				case err == nil:
					text, _ := json.Marshal(saved) // of words and numbers
					n.say(savedWords + string(text))
				case ctx.Err() == nil:
					n.log.Warn("a unit failed", "error", err)
					rest = time.Second
				}
				select {
				case <-time.After(rest):
				case <-ctx.Done():
				}
			}
		})
	}
	all.Wait()
	return nil
}

func (n *node) serve(ctx context.Context, units *uow.Manager) (err error) {
	k, err := kafka.Open(ctx, kafka.Config{Addresses: n.cfg.Kafka, Logger: n.log, Dial: Detour(n.cfg.Detour)})
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		err = errors.Join(err, k.Close(ctx))
	}()
	cfg := engine.Config{
		Units:   []*uow.Manager{units},
		Brokers: map[string]broker.Broker{"default": slow{broker.Prefixed(k, n.cfg.Prefix), n.log, n.say}},
		Outbox: outbox.Config{
			BatchSize: 50, PollInterval: 50 * time.Millisecond, MaxPollInterval: 200 * time.Millisecond,
			Lease: lease, PublishTimeout: lease * 4 / 5, Retry: outbox.RetryPolicy{BaseDelay: 200 * time.Millisecond},
			Retention: outbox.Retention{Published: -1}, OnFailover: n.cfg.OnFailover,
		},
		Logger: n.log,
	}
	if n.cfg.Role == consumerRole {
		cfg.Subscriptions = []subscription.Stream{n.effects()}
	}
	eng, err := engine.New(cfg)
	if err != nil {
		return err
	}
	if err := eng.Start(ctx); err != nil {
		return err
	}
	n.say(running)
	return eng.Run(ctx)
}

// Detour reaches servers at other addresses, and those that it doesn't know not at all; nil
// reaches all where they are.
func Detour(by map[string]string) func(ctx context.Context, network, addr string) (net.Conn, error) {
	if by == nil {
		return nil
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		to, ok := by[addr]
		if !ok {
			return nil, fmt.Errorf("%s was no server of this Kafka when the run began", addr)
		}
		return new(net.Dialer).DialContext(ctx, network, to)
	}
}

const effectsName = "effects" // of the subscription

// did is an effect as a consumer says that it is committed.
type did struct {
	Message string    `json:"message"`
	At      time.Time `json:"at"` // by the database's clock
	Key     string    `json:"key"`
	Number  int64     `json:"number"`
}

// effects notes each event in the unit of work of its inbox row, and says so once that is
// committed: before anything else of its account is handled, and before Kafka hears of it. No
// fault is a message's own, so none uses up its attempts, however long a disk is full.
func (n *node) effects() subscription.Stream {
	return subscription.Stream{
		Name: effectsName, Category: "faults::account", Backoff: 50 * time.Millisecond,
		Handlers: []subscription.Handler{subscription.On(func(ctx context.Context, e Moved) error {
			of, _ := domain.MetadataFrom(ctx)
			unit, err := uow.From(ctx)
			if err != nil {
				return err
			}
			db, err := unit.DB(ctx, "")
			if err != nil {
				return err
			}
			said := did{Message: of.ID, Key: of.AggregateID, Number: e.Number}
			err = db.NewRaw("INSERT INTO effects (account, number, message) VALUES (?, ?, ?) RETURNING at", said.Key, said.Number, said.Message).Scan(ctx, &said.At)
			if err != nil {
				return err
			}
			unit.AfterCommit(func(context.Context) {
				text, _ := json.Marshal(said) // of words, a number and a time
				n.say(didWords + string(text))
			})
			return nil
		})},
	}
}

// slow is a broker whose calls take a while, and that logs which were not answered. Its consumers
// say what they acknowledge, before they do.
type slow struct {
	broker.Broker
	log *slog.Logger
	say func(what string)
}

func (b slow) Publish(ctx context.Context, messages []broker.Message) error {
	<-time.After(rand.N(dawdle))
	since := time.Now()
	err := b.Broker.Publish(ctx, messages)
	Tell(b.log, since, err)
	<-time.After(rand.N(dawdle))
	return err
}

// consumer is one of Kafka.
type consumer interface {
	broker.Consumer
	broker.Lagging
	broker.Stateful
}

type acknowledging struct {
	consumer
	say func(what string)
}

func (b slow) Consume(ctx context.Context, topic, group string) (broker.Consumer, error) {
	c, err := b.Broker.Consume(ctx, topic, group)
	if err != nil {
		return nil, err
	}
	of, ok := c.(consumer)
	if !ok {
		return nil, fmt.Errorf("%T doesn't say how it fares", c)
	}
	return acknowledging{of, b.say}, nil
}

func (a acknowledging) Ack(ctx context.Context, deliveries ...broker.Delivery) error {
	var line strings.Builder
	for _, d := range deliveries {
		line.WriteString(" " + d.ID)
	}
	a.say(ackedWords + line.String())
	return a.consumer.Ack(ctx, deliveries...)
}
