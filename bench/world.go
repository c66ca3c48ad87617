package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/kafka"
	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
)

// internal is the broker of a unit's row.
const internal = "default"

// world is what scenarios share: a database of its own and a Kafka.
type world struct {
	out   io.Writer
	name  string // of the database, and prefix of every topic
	admin string // URL of the server's own database
	dsn   string
	kafka string
	sql   *pgx.Conn

	provider uow.Provider
	units    *uow.Manager
	commands *command.Handlers // nil: the context has none
	papers   *repository.Repository[*Paper]
	topics   int
	consumed int // messages that scenarios of consumers have
	// acknowledged is how many messages the last broker of brokerOn has stored.
	acknowledged *atomic.Int64
}

func open(ctx context.Context, log io.Writer) (_ *world, err error) {
	w := &world{out: log, acknowledged: new(atomic.Int64), consumed: toConsume}
	if err := w.services(ctx); err != nil {
		return nil, err
	}
	var random [4]byte
	_, _ = rand.Read(random[:])
	w.name = "bench_" + hex.EncodeToString(random[:])
	at, err := url.Parse(w.admin)
	if err != nil {
		return nil, errors.New("WAYBILL_POSTGRES is not a URL such as postgres://user@127.0.0.1:5432/database")
	}
	at.Path = "/" + w.name
	w.dsn = at.String()
	if err := w.administer(ctx, "CREATE DATABASE "+w.name); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close(context.WithoutCancel(ctx)))
		}
	}()
	if w.sql, err = pgx.Connect(ctx, w.dsn); err != nil {
		return nil, err
	}
	if err := w.connect(ctx, w.dsn); err != nil {
		return nil, err
	}
	if err := engine.Migrate(ctx, w.units); err != nil {
		return nil, err
	}
	return w, w.each(ctx, first.create, second.create)
}

func (w *world) connect(ctx context.Context, dsn string) (err error) {
	if w.provider, err = postgres.Open(ctx, postgres.Config{DSN: dsn}); err != nil {
		return err
	}
	if err := w.over([]uow.Provider{w.provider}); err != nil {
		return errors.Join(err, w.provider.Close())
	}
	return nil
}

// over makes the context with these databases, of which the first is used.
func (w *world) over(providers []uow.Provider) (err error) {
	if w.units, err = uow.New(uow.Config{Domain: desk, Providers: providers}); err == nil {
		w.papers = repository.New[*Paper](w.units)
	}
	return err
}

// apart is w with connections to the database of its own, and their end. Topics
// are made by w.
func (w *world) apart(ctx context.Context, dsn string) (*world, func(), error) {
	other := *w
	if err := other.connect(ctx, dsn); err != nil {
		return nil, nil, err
	}
	return &other, func() { _ = other.provider.Close() }, nil
}

func (w *world) close(ctx context.Context) error {
	var errs []error
	if w.provider != nil {
		errs = append(errs, w.provider.Close())
	}
	if w.sql != nil {
		errs = append(errs, w.sql.Close(ctx))
	}
	return errors.Join(append(errs, w.administer(ctx, "DROP DATABASE "+w.name+" WITH (FORCE)"), w.deleteTopics(ctx))...)
}

// services finds the servers, or starts those that the environment doesn't name.
func (w *world) services(ctx context.Context) error {
	w.admin, w.kafka = os.Getenv("WAYBILL_POSTGRES"), os.Getenv("WAYBILL_KAFKA")
	if w.admin != "" && w.kafka != "" {
		return nil
	}
	up := exec.CommandContext(ctx, "../scripts/services", "up")
	up.Stderr = w.out
	exports, err := up.Output()
	if err != nil {
		return fmt.Errorf("../scripts/services up: %w; run this in the folder bench, or set WAYBILL_POSTGRES and WAYBILL_KAFKA", err)
	}
	for export := range strings.Lines(string(exports)) {
		name, value, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(export), "export "), "=")
		switch {
		case name == "WAYBILL_POSTGRES" && w.admin == "":
			w.admin = value
		case name == "WAYBILL_KAFKA" && w.kafka == "":
			w.kafka = value
		}
	}
	if w.admin == "" || w.kafka == "" {
		return errors.New("../scripts/services up names no PostgreSQL or no Kafka; set WAYBILL_POSTGRES and WAYBILL_KAFKA")
	}
	return nil
}

func (w *world) administer(ctx context.Context, statement string) error {
	c, err := pgx.Connect(ctx, w.admin)
	if err != nil {
		return err
	}
	_, err = c.Exec(ctx, statement)
	return errors.Join(err, c.Close(ctx))
}

func (w *world) log(format string, args ...any) {
	fmt.Fprintf(w.out, format+"\n", args...)
}

// empty leaves the tables as new, and takes the checkpoint that the last run has
// earned, so that the next one doesn't pay for it.
func (w *world) empty(ctx context.Context) error {
	all := strings.Join(slices.Concat(product.names, first.names, second.names, []string{"documents"}), ", ")
	return w.each(ctx, "TRUNCATE "+all, "VACUUM (ANALYZE) "+all, "CHECKPOINT")
}

// each executes statements one after the other.
func (w *world) each(ctx context.Context, statements ...string) error {
	for _, statement := range statements {
		if _, err := w.sql.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

// broker is the internal one, under a new topic, and the end of its connection. Nothing waits in the former one.
func (w *world) broker(ctx context.Context) (broker.Broker, func(), error) {
	return w.brokerOn(ctx, kafka.Config{Addresses: []string{w.kafka}})
}

func (w *world) brokerOn(ctx context.Context, cfg kafka.Config) (broker.Broker, func(), error) {
	k, err := kafka.Open(ctx, cfg)
	if err != nil {
		return nil, nil, err
	}
	w.topics++
	w.acknowledged = new(atomic.Int64)
	b := broker.Prefixed(tallied{k, w.acknowledged}, w.prefix())
	if err := b.EnsureTopics(ctx, topic); err != nil {
		return nil, nil, errors.Join(err, k.Close(ctx))
	}
	if err := w.each(ctx, "DELETE FROM outbox_settings WHERE name LIKE 'broker:%'"); err != nil {
		return nil, nil, errors.Join(err, k.Close(ctx))
	}
	return b, func() { _ = k.Close(context.WithoutCancel(ctx)) }, nil
}

// tallied counts what Kafka has stored: asking the database how far an engine is takes
// the processors that the engine needs.
type tallied struct {
	*kafka.Broker
	messages *atomic.Int64
}

func (c tallied) Publish(ctx context.Context, messages []broker.Message) error {
	return c.of(messages, c.Broker.Publish(ctx, messages))
}

func (c tallied) Transact(ctx context.Context, id string) (broker.Transactor, broker.Mark, error) {
	t, mark, err := c.Broker.Transact(ctx, id)
	return talliedTransactor{t, c}, mark, err
}

func (c tallied) of(messages []broker.Message, err error) error {
	if err == nil {
		c.messages.Add(int64(len(messages)))
	}
	return err
}

type talliedTransactor struct {
	broker.Transactor
	by tallied
}

func (t talliedTransactor) Publish(ctx context.Context, mark broker.Mark, messages []broker.Message) error {
	return t.by.of(messages, t.Transactor.Publish(ctx, mark, messages))
}

// anew empties the tables and makes a new topic.
func (w *world) anew(ctx context.Context) error {
	_, end, err := w.broker(ctx)
	if err != nil {
		return err
	}
	end()
	return w.empty(ctx)
}

// prefix of the topic of this run.
func (w *world) prefix() string {
	return fmt.Sprintf("%s.%d.", w.name, w.topics)
}

// running runs an engine while do works.
func (w *world) running(ctx context.Context, b broker.Broker, cfg outbox.Config, do func(context.Context) error) (err error) {
	e, err := engine.New(engine.Config{
		Contexts: []engine.Context{{Units: w.units, Commands: w.commands}},
		Brokers:  map[string]broker.Broker{internal: b},
		Outbox:   cfg,
		Logger:   slog.New(slog.NewTextHandler(w.out, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return err
	}
	if err := e.Start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Stop(context.WithoutCancel(ctx))) }()
	return do(ctx)
}

func (w *world) deleteTopics(ctx context.Context) error {
	if w.topics == 0 {
		return nil
	}
	c, err := kgo.NewClient(kgo.SeedBrokers(w.kafka))
	if err != nil {
		return err
	}
	defer c.Close()
	admin := kadm.NewClient(c)
	all, err := admin.ListTopics(ctx)
	if err != nil {
		return err
	}
	ours := slices.DeleteFunc(all.Names(), func(name string) bool { return !strings.HasPrefix(name, w.name+".") })
	_, err = admin.DeleteTopics(ctx, ours...)
	return err
}
