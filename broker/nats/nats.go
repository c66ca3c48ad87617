// Package nats is the broker port on NATS JetStream.
//
// A topic is a stream with one subject, which is the topic's name, so that any
// NATS client can read it. A consumer group is a durable consumer. One member of
// a group receives at a time and the others stand by, because JetStream has no
// partitions: two members at work would overtake each other within a key. The
// next member starts again behind the last message before which everything was
// acknowledged, so that the order of a key survives the change.
//
// Consuming needs a server of version 2.14 or later; publishing doesn't.
package nats

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/internal/liveness"
	"github.com/waybill-go/waybill/internal/secret"
)

// DedupWindow is for how long a stream that EnsureTopics made remembers message
// ids: a message that comes again within it is stored once.
const DedupWindow = 2 * time.Minute

// connectIn is how long a new connection may take: from a server that is slow, and not away,
// it needs two answers and with TLS three.
const connectIn = 5 * time.Second

// Config says where NATS is, and how streams are made.
type Config struct {
	// URL is one address or several with commas between, such as
	// nats://user:password@host:4222 or tls://host:4222. Required.
	URL string `yaml:"url"`
	// Credentials is the path of a credentials file. Defaults to none.
	Credentials string `yaml:"credentials"`
	// NKey is the path of a file with the seed of an nkey. Defaults to none.
	NKey string `yaml:"nkey"`
	// Replicas is the number of servers that keep each new stream. Defaults to 1.
	Replicas int `yaml:"replicas"`
	// MaxAge is for how long new streams keep messages, read or not. Defaults to
	// for ever.
	MaxAge time.Duration `yaml:"max_age"`
	// Options are further options of the connection, such as a TLS
	// configuration. Those that the adapter's promises rest on can't be changed.
	Options []nats.Option `yaml:"-"`
}

func (c Config) validate() error {
	var errs []error
	if c.URL == "" {
		errs = append(errs, errors.New("nats: url is missing: set it to the server's address, such as nats://127.0.0.1:4222"))
	}
	if c.Replicas < 0 || c.Replicas > 5 {
		errs = append(errs, fmt.Errorf("nats: replicas is %d: set it to a number from 1 to 5", c.Replicas))
	}
	if c.MaxAge < 0 && c.MaxAge != -1 {
		errs = append(errs, fmt.Errorf("nats: max_age is %v: set it to a positive duration, or leave it out to keep messages for ever", c.MaxAge))
	}
	return errors.Join(errs...)
}

// Broker is a connection to NATS. A connection that breaks comes back by itself;
// until then calls fail as Unavailable.
type Broker struct {
	cfg      Config
	timing   timing
	process  string // Its name.
	nc       *nats.Conn
	js       jetstream.JetStream
	requests *requests

	mu          sync.Mutex
	consumers   map[*consumer]struct{}
	reconnected chan struct{} // Closed, and replaced, on every reconnect.
	outage      *outage       // Not nil while there is no connection.
	back        time.Time     // When the last outage was over.
	closed      bool
}

var (
	_ broker.Broker   = (*Broker)(nil)
	_ broker.Limiting = (*Broker)(nil)
)

// FromSettings opens a broker from a configuration file: kind "nats" with the
// keys of [Config]. The key embedded is for the package embedded.
func FromSettings(ctx context.Context, s broker.Settings) (broker.Broker, error) {
	cfg, err := ConfigFrom(s)
	if err != nil {
		return nil, err
	}
	b, err := Open(ctx, cfg)
	if err != nil {
		return nil, err // Not a nil *Broker, which would be a broker.
	}
	return b, nil
}

var _ broker.Opener = FromSettings

// ErrNoTransactions is why exactly_once can't be set.
var ErrNoTransactions = errors.New("nats: exactly_once is for kafka, whose transactions it uses: remove it; messages come at least once, and inboxes absorb what comes again")

// Open connects. A server that can't be reached is an outage like a later one:
// the broker connects by itself when the server is there, and until then calls fail
// as Unavailable. Whoever opened a broker closes it.
func Open(ctx context.Context, cfg Config) (*Broker, error) {
	return open(ctx, cfg, usual)
}

func open(ctx context.Context, cfg Config, timing timing) (*Broker, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	b := &Broker{cfg: cfg, timing: timing, process: liveness.Here().Name(), requests: newRequests(), consumers: map[*consumer]struct{}{}, reconnected: make(chan struct{})}
	options, err := cfg.options()
	if err != nil {
		return nil, err
	}
	options = append(options,
		// For ever, also when the server refuses the credentials for a while.
		nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort(),
		nats.ReconnectWait(250*time.Millisecond), nats.ReconnectJitter(250*time.Millisecond, 250*time.Millisecond),
		// Nothing is kept for later: a call during an outage fails at once, and
		// its messages aren't sent behind the caller's back.
		nats.ReconnectBufSize(-1),
		// A server that hangs is found within 15 s.
		nats.PingInterval(5*time.Second), nats.MaxPingsOutstanding(2), nats.FlusherTimeout(10*time.Second),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { b.disconnected(err) }),
		nats.ReconnectHandler(func(*nats.Conn) { b.announce() }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { b.requests.deny(err) }),
	)
	nc, err := connect(ctx, cfg.URL, options)
	if unreachable(err) {
		b.outage = &outage{time.Now(), noConnection(err, cfg)}
		nc, err = connect(ctx, cfg.URL, append(options, nats.RetryOnFailedConnect(true), nats.ConnectHandler(func(*nats.Conn) { b.announce() })))
	}
	if err != nil {
		return nil, classify(noConnection(err, cfg))
	}
	b.nc = nc
	if b.js, err = jetstream.New(nc); err == nil {
		err = b.requests.listen(nc)
	}
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("nats: connect: %w", err)
	}
	return b, nil
}

// unreachable says whether a server couldn't be reached. What it refuses, and what
// is wrong in the configuration, doesn't mend itself.
func unreachable(err error) bool {
	return errors.Is(err, nats.ErrNoServers) || errors.Is(err, nats.ErrTimeout) || errors.Is(err, io.EOF) || errors.As(err, new(*net.OpError))
}

// noConnection is err without the passwords in the URL.
func noConnection(err error, cfg Config) error {
	return fmt.Errorf("nats: no connection: %w", secret.Error(err, cfg.URL))
}

// connect is bounded by ctx, which nats.Connect isn't.
func connect(ctx context.Context, url string, options []nats.Option) (*nats.Conn, error) {
	type result struct {
		nc  *nats.Conn
		err error
	}
	done := make(chan result, 1)
	go func() {
		nc, err := nats.Connect(url, options...)
		done <- result{nc, err}
	}()
	select {
	case r := <-done:
		return r.nc, r.err
	case <-ctx.Done():
		go func() {
			if r := <-done; r.nc != nil {
				r.nc.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

// outage is a time without a connection.
type outage struct {
	since time.Time
	err   error
}

func (b *Broker) disconnected(err error) {
	b.requests.abort()
	if err == nil {
		err = errors.New("the server ended the connection")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.outage = &outage{time.Now(), noConnection(err, b.cfg)}
}

// away is nil while there is a connection; back is when the last outage was over.
func (b *Broker) away() (now *outage, back time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.outage, b.back
}

// reach is why there is no connection. Without one the client's own error is that its buffer,
// of which it has none here, is full; and before the first connection it takes the server for
// one that knows no headers.
func (b *Broker) reach() error {
	if away, _ := b.away(); away != nil {
		return broker.Scoped(broker.Unavailable, broker.ScopeBroker, away.err)
	}
	return nil
}

// announce tells the consumers of a new connection.
func (b *Broker) announce() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.outage, b.back = nil, time.Now()
	close(b.reconnected)
	b.reconnected = make(chan struct{})
}

// connection is closed when the present connection has been replaced, and differs
// from one to the next.
func (b *Broker) connection() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.reconnected
}

// until is ctx, done also when event is closed, and when a request would long
// have been answered.
func until(ctx context.Context, event <-chan struct{}, patience time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	go func() {
		select {
		case <-event:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// EnsureTopics creates a stream for each topic that no stream holds yet: on
// disk, without a limit but MaxAge, with a [DedupWindow].
func (b *Broker) EnsureTopics(ctx context.Context, topics ...string) error {
	ctx, cancel := b.watch(ctx, "$JS.API.STREAM.")
	defer cancel()
	for _, topic := range topics {
		if err := b.ensureTopic(ctx, topic); err != nil {
			err = cause(ctx, err)
			if errors.Is(err, nats.ErrPermissionViolation) {
				err = fmt.Errorf("%w: give the user that right, or have somebody make the stream that has the topic as its subject", err)
			}
			return classify(fmt.Errorf("nats: topic %q: %w", topic, err))
		}
	}
	return nil
}

func (b *Broker) ensureTopic(ctx context.Context, topic string) error {
	if err := checkTopic(topic); err != nil {
		return err
	}
	if err := b.reach(); err != nil {
		return err
	}
	_, err := b.js.StreamNameBySubject(ctx, topic)
	if !errors.Is(err, jetstream.ErrStreamNotFound) {
		return err
	}
	name := strings.ReplaceAll(topic, ".", "_")
	_, err = b.js.CreateStream(ctx, jetstream.StreamConfig{
		Name:       name,
		Subjects:   []string{topic},
		Storage:    jetstream.FileStorage,
		Retention:  jetstream.LimitsPolicy,
		Replicas:   max(b.cfg.Replicas, 1),
		MaxAge:     max(b.cfg.MaxAge, 0),
		Duplicates: b.dedupWindow(),
	})
	if err == nil {
		return nil
	}
	// Another process may have made it meanwhile, with settings of its own.
	if _, lookup := b.js.StreamNameBySubject(ctx, topic); lookup == nil {
		return nil
	}
	if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		return fmt.Errorf("a stream named %s exists but doesn't hold this subject: rename the topic, or add the subject to the stream: %w", name, err)
	}
	return err
}

// dedupWindow is at most the age of a message, as the server demands.
func (b *Broker) dedupWindow() time.Duration {
	if b.cfg.MaxAge > 0 {
		return min(DedupWindow, b.cfg.MaxAge)
	}
	return DedupWindow
}

// checkTopic says whether a topic can be a subject and, with its dots replaced,
// a stream's name.
func checkTopic(topic string) error {
	if topic == "" || strings.HasPrefix(topic, "$") || strings.ContainsAny(topic, " \t\r\n*>/\\") ||
		strings.HasPrefix(topic, ".") || strings.HasSuffix(topic, ".") || strings.Contains(topic, "..") {
		return broker.Classify(broker.Permanent, errors.New("is no NATS subject: use words with single dots between, without white space, slashes, * or >, and no $ in front"))
	}
	return nil
}

// Capabilities implements [broker.Broker].
func (b *Broker) Capabilities() broker.Capabilities {
	return broker.Capabilities{System: "nats", KeyOrder: true, Groups: true, Redelivery: true, Dedup: true, Durable: true}
}

// MaxMessage implements [broker.Limiting]: the server's max_payload.
func (b *Broker) MaxMessage() int { return int(b.nc.MaxPayload()) }

// Close closes the consumers that are still open, and the connection.
func (b *Broker) Close(ctx context.Context) error {
	b.mu.Lock()
	b.closed = true
	var open []*consumer
	for c := range b.consumers {
		open = append(open, c)
	}
	b.mu.Unlock()
	var errs []error
	for _, c := range open {
		errs = append(errs, c.Close(ctx))
	}
	b.nc.Close()
	b.requests.abort()
	return errors.Join(errs...)
}

// classify gives the errors of connections, and those that JetStream answers
// while it can't serve, the class Unavailable.
func classify(err error) error {
	api, answered := errors.AsType[*jetstream.APIError](err)
	switch {
	case err == nil, errors.As(err, new(interface{ Class() broker.Class })):
		return err
	case answered && api.Code == 503,
		errors.Is(err, nats.ErrReconnectBufExceeded), errors.Is(err, nats.ErrConnectionClosed),
		errors.Is(err, nats.ErrConnectionDraining), errors.Is(err, nats.ErrConnectionReconnecting),
		errors.Is(err, nats.ErrNoServers), errors.Is(err, nats.ErrNoResponders),
		errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, jetstream.ErrNoStreamResponse):
		return broker.Scoped(broker.Unavailable, broker.ScopeBroker, err)
	case errors.Is(err, nats.ErrPermissionViolation):
		return broker.Classify(broker.Permanent, err)
	}
	return err
}
