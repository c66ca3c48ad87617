// Package engine runs a service: outbox processors and subscriptions, started in
// order, stopped in the reverse order, with health and numbers to look at.
//
//	eng, err := engine.New(engine.Config{
//		Units:         []*uow.Manager{units},
//		Brokers:       map[string]broker.Broker{"default": nats},
//		Subscriptions: []subscription.Stream{shipping.Orders(units)},
//	})
//	…
//	err = eng.Run(ctx) // until ctx is done
//
// It opens and closes neither databases nor brokers: whoever opened them closes
// them, after the engine has stopped.
package engine

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	otelmetric "go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/process"
	"github.com/waybill-go/waybill/projection"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

const defaultStopTimeout = 30 * time.Second

// Config is what an engine runs.
type Config struct {
	// Contexts are the contexts of this process with all that they run.
	Contexts []Context
	// Units are contexts that handle no commands: the same as Context{Units: …} each. A
	// context's units may stand here and in Contexts. One of both must have some.
	Units []*uow.Manager
	// Brokers are the brokers that units and subscriptions name. One broker can
	// stand under two names only with different prefixes: see broker.Prefixed.
	Brokers map[string]broker.Broker
	// Subscriptions are the streams to consume. One without Units belongs to the
	// only one of the engine.
	Subscriptions []subscription.Stream
	// Outbox tunes the processors, one per provider.
	Outbox outbox.Config
	// DeadLetters says how long dead letters stay that are over.
	DeadLetters subscription.DeadLetterRetention
	// Server is the engine's HTTP server. None by default.
	Server Server
	// App is the application's own HTTP server. None by default.
	App App
	// Logger defaults to slog.Default().
	Logger *slog.Logger
	// TracerProvider gets the spans of publishing and handling; those of units of work
	// go where uow.Config says. Defaults to OpenTelemetry's global one.
	TracerProvider trace.TracerProvider
	// MeterProvider can collect what /metrics shows, from Start to Stop. Defaults to
	// OpenTelemetry's global one.
	MeterProvider otelmetric.MeterProvider
	// StopTimeout is how long the clean stop at the end of Run may take. Defaults
	// to 30 s.
	StopTimeout time.Duration
}

// Server is the engine's own HTTP server: /livez and /readyz for probes, /metrics
// for Prometheus, an API, which it describes itself at /openapi.json, and at / a
// page for people, the observatory.
type Server struct {
	// Addr is host:port to listen on; port 0 picks a free one, see
	// [Engine.Addr]. Empty: no server.
	Addr string
	// Token is short for one of Tokens: of role operate, and with the name "token".
	Token string
	// Tokens let whoever sends one of them as "Authorization: Bearer …" read, or read
	// and act, as its role says. With any, reading needs one, too. Without, a loopback
	// address can be read freely by requests that no proxy passed on, no other is
	// listened on, and nobody can act or sees what messages brought.
	Tokens []Token
	// ShowPayloads shows what messages carry, bodies and headers, to tokens of role
	// operate. Otherwise nobody sees it.
	ShowPayloads bool
	// Redact are fields whose values are replaced by "[redacted]" in the bodies and
	// headers that are shown: names such as "email", wherever they stand, or the last
	// names of a path, such as "customer.email". Capitals, "-" and "_" make no
	// difference, and places in lists don't count. With it, a body that is not JSON
	// isn't shown.
	Redact []string
}

// Engine is a service that can run, once. It is safe for concurrent use.
type Engine struct {
	cfg       Config
	log       *slog.Logger
	databases []*database
	links     map[string]*link
	streams   []stream
	handlers  []*command.Handlers
	processes []*process.Processes
	// projections are those of its contexts; databases have what runs them.
	projections []*projection.Projections
	server      *server // nil: none
	app         *server // the application's; nil: none
	metrics     http.HandlerFunc
	watchdog    *watchdog
	feed        *feed
	redaction   redaction
	keys        *keyring
	refusals    *refusals

	phase phase

	mu       sync.Mutex // held by Start and Stop
	unwire   []func()
	pending  sync.WaitGroup // databases that didn't answer at the start
	turns    chan struct{}  // of databases that are started
	giveUp   context.CancelFunc
	failing  sync.Once
	failed   chan struct{} // closed when a part failed for good
	failure  error
	lookouts *lookouts
}

// phase is where the engine is in its life.
type phase struct{ atomic.Int32 }

const (
	idle int32 = iota
	starting
	running
	draining
	stopped
)

// New checks cfg against itself and returns all mistakes together. It starts
// nothing.
func New(cfg Config) (*Engine, error) {
	e := newEngine(cfg)
	if err := e.wire(); err != nil {
		return nil, err
	}
	e.equip()
	return e, nil
}

func newEngine(cfg Config) *Engine {
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	cfg.StopTimeout = cmp.Or(cfg.StopTimeout, defaultStopTimeout)
	if cfg.MeterProvider == nil {
		cfg.MeterProvider = otel.GetMeterProvider()
	}
	return &Engine{cfg: cfg, log: cfg.Logger, links: map[string]*link{}, lookouts: newLookouts(), failed: make(chan struct{}), turns: make(chan struct{}, startsAtOnce)}
}

// equip adds what looks at the parts, and the server that shows it.
func (e *Engine) equip() {
	for _, d := range e.databases {
		d.alive = newCached(d.ping, e.lookouts, slowTimeout, pingTimeout/2)
		d.stats = newCount(d.report, e.lookouts)
		d.held = newCount(d.waitForOperators, e.lookouts)
		d.owners = newCount(d.partitionOwners, e.lookouts)
		d.late = newCount(d.lateTimers, e.lookouts)
		d.running = newCount(d.countProcesses, e.lookouts)
		d.unheard = newCount(d.unheardProcesses, e.lookouts)
		d.projected = newCount(d.countProjections, e.lookouts)
		d.dead = newCount(d.deadLetters, e.lookouts)
		d.locks = newCount(d.waits, e.lookouts)
		d.heard = newCount(d.senders, e.lookouts)
		d.name = newCount(d.outboxName, e.lookouts)
		d.misfit = newCached(d.compareTargets, e.lookouts, pingTimeout, pingTimeout/2)
	}
	for i, s := range e.streams {
		e.streams[i].lag = newCached(s.behind, e.lookouts, pingTimeout, pingTimeout/2)
	}
	for _, l := range e.links {
		l.usable = newCached(l.ensure, e.lookouts, pingTimeout, pingTimeout/2)
	}
	e.watchdog = newWatchdog(e.log)
	e.feed = newFeed(func(ctx context.Context) (full, plain any) {
		s := e.state(ctx)
		return s, s.withoutContent()
	}, e.lookouts)
	e.refusals = newRefusals(e.log)
	e.metrics = newMetrics(e)
	e.redaction = newRedaction(e.cfg.Server.Redact)
	if addr := e.cfg.Server.Addr; addr != "" {
		e.server = newServer("server.addr", addr, e.handler(bound(addr)), e.log)
	}
	if app := e.cfg.App; app.Addr != "" {
		e.app = newServer("App.Addr", app.Addr, app.Handler, e.log)
	}
}

// Handler serves what the engine's own server serves, for a mux of your own. It
// lets read who sends one of the Server's tokens or, where it has none, who
// connects to a loopback address and not through a proxy.
func (e *Engine) Handler() http.Handler { return e.handler(connected) }

// Addr is where the HTTP server listens: Server.Addr with the port that was
// picked. It is empty before the start, and without a server.
func (e *Engine) Addr() string {
	if e.server == nil {
		return ""
	}
	return e.server.addr()
}

// Pause stops the handling of a subscription in this process, which stays in its
// group; Resume ends that. See [subscription.Runner.Pause]. Both fail if the
// engine has no subscription of that name.
func (e *Engine) Pause(subscription string) error {
	r, err := e.runner(subscription)
	if err == nil {
		r.Pause()
	}
	return err
}

// Resume ends a Pause.
func (e *Engine) Resume(subscription string) error {
	r, err := e.runner(subscription)
	if err == nil {
		r.Resume()
	}
	return err
}

// Lag is how far a subscription is behind, as far as this process knows.
func (e *Engine) Lag(ctx context.Context, name string) (subscription.Lag, error) {
	r, err := e.runner(name)
	if err != nil {
		return subscription.Lag{}, err
	}
	return r.Lag(ctx)
}

func (e *Engine) runner(name string) (*subscription.Runner, error) {
	for _, s := range e.streams {
		if s.name == name {
			return s.runner, nil
		}
	}
	return nil, fmt.Errorf("engine: there is no subscription %q; there are %q", name, slices.Sorted(maps.Keys(e.Subscriptions())))
}

// Subscriptions is the state of every subscription in this process, by name.
func (e *Engine) Subscriptions() map[string]subscription.Status {
	all := map[string]subscription.Status{}
	for _, s := range e.streams {
		all[s.name] = s.runner.Status()
	}
	return all
}
