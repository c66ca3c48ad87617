package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/internal/liveness"
	"github.com/waybill-go/waybill/internal/tracing"
)

// Lane is one target broker of a processor.
type Lane struct {
	Target   string // The broker's name, as rows have it. Required.
	Broker   broker.Broker
	External bool
}

// ProcessorConfig is what a processor is made of.
type ProcessorConfig struct {
	Provider string // Names the processor, its lanes and its logs. Required.
	Store    *Store // Required.
	Lanes    []Lane // At least one.
	Outbox   Config
	Logger   *slog.Logger // Defaults to slog.Default().
	// TracerProvider gets a span for each publish of a row that was written in a
	// sampled trace. Defaults to OpenTelemetry's global one.
	TracerProvider trace.TracerProvider
	// Gate is shared by the processors of a process. Nil: this one has its own.
	Gate *Gate
	// Private are the wire names of events that their context doesn't publish. Their
	// messages on its own broker say so, see [IsPrivate].
	Private []string
}

// Processor publishes the rows of one provider: a lane per target broker, each
// with as many workers as configured, in as many processes as are started. It is
// safe for concurrent use.
type Processor struct {
	cfg    ProcessorConfig
	log    *slog.Logger
	tracer *tracing.Tracer
	host   liveness.Host
	lanes  map[string]*lane

	mu      sync.Mutex // held by Start, and for the first of several Stops
	started bool
	running atomic.Bool
	stop    chan struct{} // closed: take no more rows
	hint    chan struct{} // holds one: there may be something to find
	gate    *Gate
	stopped chan struct{} // closed: nothing runs any more
	hard    context.CancelFunc
	done    sync.WaitGroup
}

// NewProcessor checks cfg and returns all its mistakes together.
func NewProcessor(cfg ProcessorConfig) (*Processor, error) {
	errs := []error{cfg.Outbox.Check()}
	if cfg.Provider == "" {
		errs = append(errs, errors.New("the provider's name is missing"))
	}
	if cfg.Store == nil {
		errs = append(errs, errors.New("the store is missing; make one with outbox.NewStore"))
	}
	if len(cfg.Lanes) == 0 {
		errs = append(errs, errors.New("there is no lane; name at least one target broker"))
	}
	p := &Processor{
		log: cmp.Or(cfg.Logger, slog.Default()), tracer: tracing.New(cfg.TracerProvider), host: liveness.Here(), lanes: map[string]*lane{},
		stop: make(chan struct{}), stopped: make(chan struct{}), hint: make(chan struct{}, 1),
		gate: cmp.Or(cfg.Gate, NewGate()),
	}
	cfg.Outbox = cfg.Outbox.WithDefaults()
	p.cfg = cfg
	incarnation := p.host.Name()
	for _, l := range cfg.Lanes {
		switch {
		case l.Target == "" || l.Broker == nil:
			errs = append(errs, fmt.Errorf("lane %q needs the name of a target and its broker", l.Target))
		case p.lanes[l.Target] != nil:
			errs = append(errs, fmt.Errorf("lane %q is named twice", l.Target))
		default:
			p.lanes[l.Target] = newLane(p, l, incarnation)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("outbox: processor %q: %w", cfg.Provider, err)
	}
	return p, nil
}

// Start returns when all lanes run. They go on after ctx is done; Stop ends
// them. A processor that runs, or has run, can't be started again.
func (p *Processor) Start(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.started {
		return fmt.Errorf("outbox: processor %q was started before", p.cfg.Provider)
	}
	for _, l := range p.lanes {
		n, err := p.cfg.Store.EnsurePartitions(ctx, l.target)
		if err != nil {
			return fmt.Errorf("outbox: processor %q can't start: %w", p.cfg.Provider, err)
		}
		l.partitions = n
	}
	hard, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p.hard, p.started = cancel, true
	p.running.Store(true)
	for _, l := range p.lanes {
		l.start(hard)
	}
	p.done.Go(func() { p.watch(hard) })
	p.done.Go(func() { p.housekeeping(hard) })
	go func() {
		p.done.Wait()
		cancel()
		close(p.stopped)
	}()
	return nil
}

// Stop takes no more rows, waits for the calls that are out, settles them and
// releases the partitions. When ctx is done it ends the rest hard and returns
// ctx's error; those leases then run out by themselves.
func (p *Processor) Stop(ctx context.Context) error {
	p.mu.Lock()
	if !p.started {
		p.mu.Unlock()
		return nil
	}
	if p.running.CompareAndSwap(true, false) {
		close(p.stop)
	}
	p.mu.Unlock()
	select {
	case <-p.stopped:
		return nil
	case <-ctx.Done():
		p.hard()
		<-p.stopped
		return fmt.Errorf("outbox: processor %q was stopped in the middle of its work: %w", p.cfg.Provider, ctx.Err())
	}
}

// Wake tells the workers that hold these partitions that rows were committed,
// and returns the pokes for partitions that no worker of this processor holds. It
// never waits. What nobody is told of is found by the next poll.
func (p *Processor) Wake(pokes []Poke) (elsewhere []Poke) {
	for _, poke := range pokes {
		var w *worker
		if l := p.lanes[poke.Target]; l != nil {
			w = l.worker(poke.Partition)
		}
		if w == nil {
			elsewhere = append(elsewhere, poke)
			continue
		}
		w.poke(poke.Partition)
	}
	return elsewhere
}

// Hint says that rows may have been committed anywhere: the next poll comes at
// once. It never waits.
func (p *Processor) Hint() {
	select {
	case p.hint <- struct{}{}:
	default:
	}
}

// Status is the state of every lane, by target broker.
func (p *Processor) Status() map[string]LaneStatus {
	status := map[string]LaneStatus{}
	for t, l := range p.lanes {
		s := l.status()
		s.Running = p.running.Load()
		status[t] = s
	}
	return status
}

// sleep waits for d, and says false if the processor is stopping.
func (p *Processor) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-p.stop:
		return false
	}
}

func (p *Processor) stopping() bool {
	select {
	case <-p.stop:
		return true
	default:
		return false
	}
}
