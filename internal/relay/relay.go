package relay

import (
	"cmp"
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
	"github.com/waybill-go/waybill/internal/liveness"
	"github.com/waybill-go/waybill/internal/tracing"
	"github.com/waybill-go/waybill/internal/writer"
	"github.com/waybill-go/waybill/outbox"
)

// Lane is one target broker of a relay.
type Lane struct {
	Target   string // The broker's name, as rows have it. Required.
	Broker   broker.Broker
	External bool
	// Random is as the relay's, which it defaults to: in a simulation several lanes' chances
	// don't depend on which of them asks first.
	Random func() float64
}

// Config is what a relay is made of.
type Config struct {
	Provider string // Names the relay, its lanes and its logs. Required.
	Store    interface {
		Store
		Housekeeping
	} // Required.
	Lanes  []Lane // At least one.
	Outbox outbox.Config
	Logger *slog.Logger // Defaults to slog.Default().
	// TracerProvider gets a span for each publish of a row that was written in a
	// sampled trace. Defaults to OpenTelemetry's global one.
	TracerProvider trace.TracerProvider
	// Gate is shared by the relays of a process. Nil: this one has its own.
	Gate *Gate
	// Private are the wire names of events that their context doesn't publish. Their
	// messages on its own broker say so, see [outbox.IsPrivate].
	Private []string
	// Random are numbers from [0, 1), for waits and for what is shared out. It is safe
	// for concurrent use. Defaults to [rand.Float64].
	Random func() float64
	// Here says in words of its own which database this is, "" if that isn't known, and
	// whether it is still the one that its outbox was written in. While it returns an
	// [*outbox.MovedError] the relay has no membership, and publishes nothing; after any other
	// error it does what it does after a renewal that failed. Where the words are others than
	// before the relay begins anew, as this database may lack what it has seen, and give the
	// same numbers to other rows. Nil: nobody asks.
	Here func(context.Context) (is string, err error)
}

// Relay publishes the rows of one provider's outbox: a lane per target broker, in as
// many processes as are started. It is safe for concurrent use.
type Relay struct {
	cfg    Config
	log    *slog.Logger
	tracer *tracing.Tracer
	host   liveness.Host
	name   string // of its members
	gate   *Gate
	random random
	keeper *keeper
	lanes  map[string]*lane // by target
	each   []*lane          // in the order of the configuration

	horizon atomic.Pointer[horizon] // a new one for each database
	highest atomic.Int64            // seq that was seen
	asking  sync.Mutex              // for the horizon
	behind  standstill

	mu      sync.Mutex // held by Start, and for the first of several Stops
	started bool
	running atomic.Bool
	stop    chan struct{} // closed: claim nothing more
	hinted  chan struct{} // holds one: there may be something to find
	stopped chan struct{} // closed: nothing runs any more
	hard    context.Context
	end     context.CancelFunc
	done    sync.WaitGroup
}

// New checks cfg and returns all its mistakes together.
func New(cfg Config) (*Relay, error) {
	errs := []error{cfg.Outbox.Check()}
	if cfg.Provider == "" {
		errs = append(errs, errors.New("the provider's name is missing"))
	}
	if cfg.Store == nil {
		errs = append(errs, errors.New("the store is missing; make one with outboxdb.New"))
	}
	if len(cfg.Lanes) == 0 {
		errs = append(errs, errors.New("there is no lane; name at least one target broker"))
	}
	host := liveness.Here()
	r := &Relay{
		log: cmp.Or(cfg.Logger, slog.Default()), tracer: tracing.New(cfg.TracerProvider), host: host, name: host.Name(), lanes: map[string]*lane{},
		stop: make(chan struct{}), stopped: make(chan struct{}), hinted: make(chan struct{}, 1), gate: cmp.Or(cfg.Gate, NewGate()),
	}
	cfg.Outbox = cfg.Outbox.WithDefaults()
	r.cfg = cfg
	r.horizon.Store(new(horizon))
	if r.random = cfg.Random; r.random == nil {
		r.random = rand.Float64
	}
	r.keeper = newKeeper(r)
	for _, l := range cfg.Lanes {
		switch {
		case l.Target == "" || l.Broker == nil:
			errs = append(errs, fmt.Errorf("lane %q needs the name of a target and its broker", l.Target))
		case r.lanes[l.Target] != nil:
			errs = append(errs, fmt.Errorf("lane %q is named twice", l.Target))
		default:
			r.each = append(r.each, newLane(r, l))
			r.lanes[l.Target] = r.each[len(r.each)-1]
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("outbox: relay %q: %w", cfg.Provider, err)
	}
	return r, nil
}

// Start returns when all lanes run. They go on after ctx is done; Stop ends them. If it
// fails, because the database doesn't answer, it may be called again. A relay that runs,
// or has run, can't be started again.
func (r *Relay) Start(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.started {
		return fmt.Errorf("outbox: relay %q was started before", r.cfg.Provider)
	}
	ids, partitions, err := r.cfg.Store.Lanes(ctx, r.targets())
	if err != nil {
		return fmt.Errorf("outbox: relay %q can't start: %w", r.cfg.Provider, err)
	}
	for i, l := range r.each {
		l.id, l.partitions = ids[i], partitions
	}
	r.hard, r.end = context.WithCancel(context.WithoutCancel(ctx))
	r.started = true
	r.running.Store(true)
	r.run() //nolint:contextcheck // it goes on after ctx
	return nil
}

func (r *Relay) targets() (targets []string) {
	for _, l := range r.each {
		targets = append(targets, l.Target)
	}
	return targets
}

// run starts the goroutines. The memberships are kept until the lanes have finished: what
// is out at a stop is still theirs. What is done beside the work begins once the lanes have
// tried to join: each needs a connection to the database, and rows wait.
func (r *Relay) run() {
	var lanes sync.WaitGroup
	for _, l := range r.each {
		lanes.Go(func() { l.run(r.hard) })
		if !l.External {
			r.done.Go(func() {
				<-r.keeper.tried
				l.promise(r.hard)
			})
		}
	}
	finished := make(chan struct{})
	go func() {
		lanes.Wait()
		close(finished)
	}()
	r.done.Go(func() {
		r.keeper.run(r.hard, finished)
		r.leave()
	})
	r.done.Go(func() { r.poll(r.hard) })
	r.done.Go(func() {
		<-r.keeper.tried
		r.housekeeping(r.hard)
	})
	go func() {
		r.done.Wait()
		r.end()
		close(r.stopped)
	}()
}

// leave ends the memberships, so that others have the partitions at once. After a hard
// stop something may still be out: the leases run out then.
func (r *Relay) leave() {
	ctx, cancel := context.WithTimeout(urgent(r.hard), storeTimeout)
	defer cancel()
	var members []MemberID
	var errs []error
	for _, l := range r.each {
		life := l.member.life()
		switch {
		case life == nil:
			continue
		case l.exact && r.hard.Err() == nil:
			errs = append(errs, l.leaves(ctx, life))
		default:
			members = append(members, life.id)
		}
		defer l.member.ended(life.id)
	}
	if r.hard.Err() != nil {
		return
	}
	if len(members) > 0 {
		errs = append(errs, r.cfg.Store.Leave(ctx, members))
	}
	if err := errors.Join(errs...); err != nil {
		r.log.Warn("leases could not be released and will run out", "provider", r.cfg.Provider, "error", err)
	}
}

// Stop claims nothing more, waits for the calls that are out, settles them and gives the
// partitions back. When ctx is done it ends the rest hard and returns ctx's error; those
// leases then run out by themselves.
func (r *Relay) Stop(ctx context.Context) error {
	r.mu.Lock()
	if !r.started {
		r.mu.Unlock()
		return nil
	}
	if r.running.CompareAndSwap(true, false) {
		close(r.stop)
	}
	r.mu.Unlock()
	select {
	case <-r.stopped:
		return nil
	case <-ctx.Done():
		r.end()
		<-r.stopped
		return fmt.Errorf("outbox: relay %q was stopped in the middle of its work: %w", r.cfg.Provider, ctx.Err())
	}
}

// Wake tells the lanes that own these partitions that rows were committed, and returns
// the pokes for partitions that are not this process's. It never waits. What nobody is
// told of is found by the next poll.
func (r *Relay) Wake(pokes []outbox.Poke) (elsewhere []outbox.Poke) {
	for _, poke := range pokes {
		l := r.lanes[poke.Target]
		if l == nil || !l.member.owns(poke.Partition) {
			elsewhere = append(elsewhere, poke)
			continue
		}
		l.wake.poke(poke.Partition)
	}
	return elsewhere
}

// Hint says that rows may have been committed anywhere: the next poll comes at
// once. It never waits.
func (r *Relay) Hint() {
	for _, l := range r.each {
		l.unsure.Store(true)
	}
	r.hint()
}

func (r *Relay) hint() {
	select {
	case r.hinted <- struct{}{}:
	default:
	}
}

// Status is the state of every lane, by target broker.
func (r *Relay) Status() map[string]outbox.LaneStatus {
	status := map[string]outbox.LaneStatus{}
	for t, l := range r.lanes {
		s := l.status()
		s.Running = r.running.Load()
		status[t] = s
	}
	return status
}

// sleep waits for d, and says false if the relay is stopping.
func (r *Relay) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-r.stop:
		return false
	}
}

func (r *Relay) stopping() bool {
	select {
	case <-r.stop:
		return true
	default:
		return false
	}
}

// ended is closed when the relay is stopped hard, or has stopped.
func (r *Relay) ended() <-chan struct{} { return r.hard.Done() }

// untilStop returns a context that ends when the relay is told to stop.
func (r *Relay) untilStop(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	r.done.Go(func() {
		select {
		case <-r.stop:
			cancel()
		case <-ctx.Done():
		}
	})
	return ctx, cancel
}

// urgent marks what must not wait behind writers where a database has only one.
func urgent(ctx context.Context) context.Context { return writer.Urgent(ctx) }
