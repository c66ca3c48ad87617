package subscription

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/internal/testclock"
	"github.com/waybill-go/waybill/internal/tracing"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

const (
	firstReconnect = 100 * time.Millisecond
	lastReconnect  = 5 * time.Second
	maxBackoff     = 30 * time.Second
	// doubtful is for how long an answer doesn't end an outage, as it may be from before.
	// It is shorter than the pause before the next try.
	doubtful = firstReconnect / 2
)

// RunnerConfig is what a runner is made of.
type RunnerConfig struct {
	Stream Stream
	Broker broker.Broker // The one that Stream.Broker names. Required.
	Logger *slog.Logger  // Defaults to slog.Default().
	// TracerProvider gets a span for each attempt at a message. Defaults to
	// OpenTelemetry's global one.
	TracerProvider trace.TracerProvider
}

// Runner is a running [Stream]. The engine makes it. It is safe for concurrent
// use.
type Runner struct {
	stream   Stream
	broker   broker.Broker
	provider uow.Provider
	handlers map[*domain.EventType]Handler
	assumed  bool // Nobody said that its messages are not trusted.
	log      *slog.Logger
	tracer   *tracing.Tracer

	mu      sync.Mutex
	started bool
	done    chan struct{}
	intake  context.Context // Done when Stop begins.
	close   context.CancelFunc
	work    context.Context // Done when Stop's time is up.
	abort   context.CancelFunc

	arrivals intake
	incoming incoming
	letters  letters
	hands    hands
	room     room
	presence *presence
	evictor  *evictor
	valve    *valve
	calls    calls
	alone    sync.RWMutex  // Held for writing: by the only handler that is called now.
	woken    chan struct{} // There may be dead letters to handle.

	session                               atomic.Pointer[session] // Nil while it isn't in its group.
	running, interrupted                  atomic.Bool
	over                                  atomic.Bool // It has stopped: nothing more is written.
	handled, duplicates, ignored, dropped atomic.Int64
	parked, replayed, retries, postponed  atomic.Int64
	inFlight, left                        atomic.Int64
	standing                              standing
	lastError                             atomic.Pointer[string]
	brokerOutage, databaseOutage          outage
	private                               sync.Map // Types of private events that the log has told of.
	unknown                               struct { // Types that the log has told of as nobody declares them.
		sync.Mutex
		types map[string]bool
	}

	refused atomic.Pointer[outbox.Trouble] // What it asks for messages; nil: the database answers.
	aside   dberr.Outage                   // Of what goes on beside handling messages, and of writes.
	unfit   atomic.Pointer[time.Time]      // when a handler's database last took no writes
}

// NewRunner resolves the handlers of a stream against the domain of its units,
// and returns all mistakes together. It opens nothing.
func NewRunner(cfg RunnerConfig) (*Runner, error) {
	s := cfg.Stream.WithDefaults()
	handlers, err := s.check()
	if cfg.Broker == nil {
		err = errors.Join(err, errors.New("RunnerConfig.Broker is missing: open the broker that the stream is read from"))
	}
	if err != nil {
		return nil, fmt.Errorf("subscription %q: %w", s.Name, err)
	}
	provider, err := s.Units.Provider(s.Provider)
	if err != nil {
		return nil, err
	}
	s.Backoff = testclock.Of(provider).Backoff(s.Backoff)
	s.prefix = cfg.Broker.Capabilities().TopicPrefix
	log := cfg.Logger
	if log == nil {
		log = slog.Default()
	}
	r := &Runner{
		stream: s, broker: cfg.Broker, provider: provider, handlers: handlers,
		assumed: cfg.Stream.Inbound.Trust.isZero() && s.Inbound.Trust.kind == untrusted,
		log:     log.With("subscription", s.Name), tracer: tracing.New(cfg.TracerProvider),
		done: make(chan struct{}), woken: make(chan struct{}, 1), valve: newValve(),
	}
	r.aside.Log, r.aside.Told = r.log, r.databaseOutage.on
	r.presence = newPresence(provider, s.Units.Domain().Name(), s.Name, r.consuming, r.beat)
	r.evictor = newEvictor(provider, s.Name, r.presence.run, s.InboxRetention, s.RedeliveryHorizon, r.log, func(err error) { r.asked(evicting, err) })
	r.incoming = incoming{provider, s, r.presence.run}
	r.arrivals = intake{s.Inbound}
	r.letters = letters{provider, s, r.arrivals, r.presence.run, takenFor, new(atomic.Pointer[[]string])}
	r.hands.have = map[string]*message{}
	r.room = room{provider: provider, subscription: s.Letters(), limit: int64(s.WaitLimit)}
	r.intake, r.close = context.WithCancel(context.Background())
	r.work, r.abort = context.WithCancel(context.Background())
	return r, nil
}

// Start checks that the tables are there and returns; the runner then joins its
// group, handles messages, and outlasts outages of broker and database until
// [Runner.Stop]. It doesn't end with ctx. A runner runs once.
func (r *Runner) Start(ctx context.Context) error {
	if err := Migrations().Check(ctx, r.provider.Reader()); err != nil {
		return fmt.Errorf("subscription %q: provider %s: %w", r.stream.Name, r.provider.Name(), err)
	}
	if err := r.presence.unshared(ctx); err != nil {
		return fmt.Errorf("subscription %q: %w", r.stream.Name, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.started || r.intake.Err() != nil {
		return fmt.Errorf("subscription %q: a runner runs once; make another with NewRunner", r.stream.Name)
	}
	r.started = true
	r.standing.begin()
	if r.assumed {
		r.log.Info("what messages of this stream say of themselves is not believed, as its broker isn't the context's own: no tenant, priority, extensions, correlation or trace is taken over; Stream.Inbound.Trust names what is", "broker", r.stream.Broker)
	}
	go func() { //nolint:contextcheck // it goes on after Start
		defer close(r.done)
		defer r.over.Store(true)
		defer r.bounded("the row of its run", r.presence.start(r.intake))
		defer r.bounded("the eviction from the inbox", r.evictor.start(r.intake))
		if in := r.stream.Instances; in != nil {
			in.add(r)
			defer in.remove(r)
		}
		replayed := make(chan struct{})
		go func() {
			defer close(replayed)
			r.replay()
		}()
		r.run()
		r.endReplays(replayed)
	}()
	return nil
}

// Pause stops handling: what runs ends, and nothing more is taken. The runner
// stays in its group, and what others of the group have goes on.
func (r *Runner) Pause() { r.valve.pause(true) }

// Resume ends a Pause.
func (r *Runner) Resume() { r.valve.pause(false) }

// Stop takes no more messages, waits for the handlers that run, acknowledges
// what is done, gives the rest back and leaves the group. When ctx is done it
// ends the context of the handlers that still run, whose transactions then roll
// back, and returns ctx's error within seconds; their messages come again.
func (r *Runner) Stop(ctx context.Context) error {
	r.mu.Lock()
	r.close()
	started := r.started
	r.mu.Unlock()
	if !started {
		return nil
	}
	defer context.AfterFunc(ctx, r.abort)()
	<-r.done
	defer r.abort()
	if r.interrupted.Load() {
		return fmt.Errorf("subscription %q: stopped before its handlers had ended: %w", r.stream.Name, context.Cause(ctx))
	}
	return nil
}

// run joins the group, and joins it again whenever the broker has failed.
func (r *Runner) run() {
	for tries := 1; ; tries++ {
		consumer, err := r.join()
		if err == nil {
			err = r.serve(consumer)
			if !r.brokerOutage.on() { // it was well in between
				tries = 1
			}
		}
		if r.intake.Err() != nil {
			return
		}
		r.standing.fail(err)
		r.brokerDown(err)
		if !sleep(r.intake, delay(firstReconnect, lastReconnect, tries)) {
			return
		}
	}
}

func (r *Runner) join() (broker.Consumer, error) {
	topic := r.stream.Topic()
	// Whoever may only read goes on: somebody else has made the topic, or will.
	_, err := call(r.intake, "making topics", func() (struct{}, error) { return struct{}{}, r.broker.EnsureTopics(r.intake, topic) }, nil)
	if err != nil && broker.ClassOf(err) != broker.Permanent {
		return nil, fmt.Errorf("subscription: make topic %s: %w", topic, err)
	}
	consumer, err := call(r.intake, "joining the group", func() (broker.Consumer, error) { return r.broker.Consume(r.intake, topic, r.stream.Name) },
		func(late broker.Consumer) { _ = late.Close(r.intake) })
	if err != nil {
		return nil, fmt.Errorf("subscription: join group %s of topic %s: %w", r.stream.Name, topic, err)
	}
	return consumer, nil
}

// consuming says whether all that comes is handled. What doesn't come isn't: time in
// which the broker lets it have nothing is no time in which a message would have come.
func (r *Runner) consuming() bool {
	state, _ := r.standing.now()
	return r.running.Load() && state.Well() && !r.brokerOutage.on() && !r.databaseOutage.on()
}

func (r *Runner) brokerDown(err error) {
	r.note(err)
	if r.brokerOutage.begin() {
		r.log.Warn("the broker fails; it is tried until it answers", "broker", r.stream.Broker, "error", err)
	}
}

// brokerUp doesn't believe an answer while the consumer says that it gets nothing, or
// not all.
func (r *Runner) brokerUp() {
	if state, _ := r.standing.now(); !state.Well() {
		return
	}
	if d, over := r.brokerOutage.end(); over {
		r.log.Info("the broker answers again", "broker", r.stream.Broker, "after", d)
	}
}

func (r *Runner) databaseDown(err error) {
	r.note(err)
	if r.databaseOutage.begin() {
		r.log.Warn("the database fails; messages wait until it answers", "provider", r.provider.Name(), "error", err)
	}
	t := outbox.Trouble{What: "look messages up in its inbox", Error: err.Error(), Code: dberr.CodeOf(err), Since: time.Now()}
	if before := r.refused.Load(); before != nil {
		t.Since = before.Since
	}
	r.refused.Store(&t)
}

func (r *Runner) databaseUp() {
	r.refused.Store(nil)
	if d, over := r.databaseOutage.end(); over {
		r.log.Info("the database answers again", "provider", r.provider.Name(), "after", d)
	}
}

// databaseUnfit notes what a handler's database said of its own state. No attempt of the
// message is used up for it.
func (r *Runner) databaseUnfit(err error) {
	now := time.Now()
	r.unfit.Store(&now)
	r.note(err)
	r.aside.Note(r.intake, writing, err)
}

// beat notes how a sign of life ended, and whether handlers' writes fail no more: what
// failed is tried again every unfitWait. That others succeed says nothing, as on a full disk
// some do, where there is room in a page.
func (r *Runner) beat(err error) {
	r.asked(beating, err)
	if at := r.unfit.Load(); at != nil && time.Since(*at) > 3*unfitWait && r.unfit.CompareAndSwap(at, nil) {
		r.aside.Note(r.intake, writing, nil)
	}
}

var writing = dberr.Task{What: "store what handlers do"}

// What goes on beside handling messages.
var (
	beating   = dberr.Task{What: "say that it runs", Aside: true}
	evicting  = dberr.Task{What: "remove old entries from its inbox", Aside: true}
	replaying = dberr.Task{What: "look for dead letters to replay", Aside: true}
)

// asked notes how something beside handling messages ended.
func (r *Runner) asked(t dberr.Task, err error) {
	if err != nil && r.intake.Err() == nil {
		r.note(err)
	}
	r.aside.Note(r.intake, t, err)
}

func (r *Runner) note(err error) {
	text := dberr.Clip(err.Error())
	r.lastError.Store(&text)
}

// delay is the wait after the n-th failure: first, doubling up to last, a
// quarter more or less.
func delay(first, last time.Duration, n int) time.Duration {
	d := first
	for i := 1; i < n && d < last; i++ {
		d *= 2
	}
	return time.Duration(float64(min(d, last)) * (0.75 + rand.Float64()/2))
}
