// Package uow is the unit of work: one transaction in which aggregates are
// saved and their events put into the outbox, both or neither.
//
//	err := units.Do(ctx, func(ctx context.Context) error {
//		o, err := orders.Get(ctx, id)
//		if err != nil {
//			return err
//		}
//		if err := o.Cancel("changed my mind"); err != nil {
//			return err
//		}
//		return orders.Save(ctx, o)
//	})
//
// Use the context that Do hands to its function: the outer one knows of no
// transaction.
package uow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/uptrace/bun"
	"go.opentelemetry.io/otel/trace"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/testclock"
	"github.com/waybill-go/waybill/internal/tracing"
	"github.com/waybill-go/waybill/outbox"
)

const (
	defaultMaxRetries = 200
	rollbackTimeout   = 5 * time.Second
	firstRetryPause   = 5 * time.Millisecond
	longestRetryPause = 50 * time.Millisecond
	warnEvery         = time.Minute
)

// Config is what a context's units of work need to know.
type Config struct {
	// Domain is the context. Required.
	Domain *domain.Domain
	// Providers are its databases. The first is the default. At least one.
	Providers []Provider
	// Broker is the context's own broker. Defaults to "default".
	Broker string
	// External are the partners' brokers, for events that are published.
	External []outbox.Target
	// Partitions is how many partitions the outbox is expected to have; a
	// database with another count is refused. 0 takes the database's count, and
	// 64 when it is migrated for the first time.
	Partitions int
	// MaxMessageBytes limits a message's body: a larger one fails the commit with
	// an [*outbox.TooLargeError]. Defaults to 1 MiB; -1 is no limit.
	MaxMessageBytes int
	// Enrich completes the origin of what a unit raises, sends and sets: with a tenant,
	// a user, a build. Do calls it once, before the function runs for the first time, with
	// the origin of its context, whose Extensions may be changed; the function's context has
	// what it returns. A Do within a unit doesn't call it again. A subscription that handles
	// several messages in one unit calls it for each of them; what a message said of itself
	// stays in domain.MetadataFrom. What the function sets with domain.WithOrigin stands as
	// it is. It can't fail, and must not block: what it doesn't know it leaves out. It is
	// called from several goroutines.
	Enrich func(ctx context.Context, o domain.Origin) domain.Origin
	// NoOutbox puts no events into the outbox.
	NoOutbox bool
	// History keeps every event of an aggregate in the table history, with the state and
	// in the same round trip, for projections and package history. Commands, and messages
	// between processes, aren't events and aren't kept. Those of event-sourced aggregates
	// are in the table events anyway, and no second time.
	//
	// It begins for all programs of the context at once, when engine.Migrate or the engine
	// of the first one that has it has written so into the database: from then on every unit
	// of work keeps its events, also in programs that don't have it. Without an outbox each
	// program goes by its own.
	//
	// Off by default: a save with one event writes about 1 KB more, half as much again to
	// the database's log, and nothing is ever removed. See docs/performance.md.
	History bool
	// Lease is the engine's, in outbox.Config. Where a database has one writer, as
	// SQLite has, a unit that holds it for longer than a third of the lease keeps
	// leases from being renewed; Do then warns, once a minute at most. Defaults to
	// [outbox.DefaultLease], 30 s.
	Lease time.Duration
	// Logger defaults to slog.Default().
	Logger *slog.Logger
	// MaxRetries is how often Do runs its function again after a conflict, a
	// serialization failure or a deadlock, with random pauses that grow to 50 ms:
	// enough for some dozens of clients that all change one aggregate, also where a
	// commit takes long: of n that meet, one gets through. See also [Retries].
	// Defaults to 200; -1 is never.
	MaxRetries int
	// TracerProvider gets a span for each unit of work. Defaults to OpenTelemetry's
	// global one, otel.GetTracerProvider(); noop.NewTracerProvider() is none.
	TracerProvider trace.TracerProvider
}

// Manager runs units of work. It is safe for concurrent use.
type Manager struct {
	cfg      Config
	tracer   *tracing.Tracer
	writer   outbox.Writer
	outboxes map[string]*outboxOf      // by provider
	clock    *testclock.Clock          // nil: it is no test
	warned   atomic.Pointer[time.Time] // of a unit that held a writer for too long
	unkept   atomic.Pointer[time.Time] // of events that aren't kept

	mu        sync.Mutex
	listeners map[int]func(provider string, pokes []outbox.Poke) (elsewhere []outbox.Poke)
	onTimer   map[int]func(provider string, at time.Time)
	nextID    int
	kept      map[any]any
}

// New checks cfg and returns all its mistakes together. It opens nothing.
func New(cfg Config) (*Manager, error) {
	cfg.Broker = cmp.Or(cfg.Broker, "default")
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("uow: %w", err)
	}
	cfg.Lease = cmp.Or(cfg.Lease, outbox.DefaultLease)
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	cfg.MaxRetries = cmp.Or(cfg.MaxRetries, defaultMaxRetries)
	cfg.MaxMessageBytes = max(cmp.Or(cfg.MaxMessageBytes, outbox.DefaultMaxMessageBytes), 0)
	m := &Manager{
		cfg: cfg, tracer: tracing.New(cfg.TracerProvider),
		writer: outbox.Writer{
			Domain: cfg.Domain, Internal: cfg.Broker, External: cfg.External, MaxMessageBytes: cfg.MaxMessageBytes,
		},
		outboxes:  map[string]*outboxOf{},
		listeners: map[int]func(string, []outbox.Poke) []outbox.Poke{},
		onTimer:   map[int]func(string, time.Time){},
	}
	m.clock = testclock.Of(cfg.Providers[0])
	for _, p := range cfg.Providers {
		m.outboxes[p.Name()] = &outboxOf{want: cfg.Partitions, context: cfg.Domain.Name(), targets: m.Targets(), history: cfg.History}
	}
	return m, nil
}

// check returns all that is wrong with cfg, or nil.
func (cfg Config) check() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if cfg.Domain == nil {
		fail("uow.Config.Domain is missing: name the context, as in ordering.Domain")
	}
	if len(cfg.Providers) == 0 {
		fail("uow.Config.Providers is empty: open one with postgres.Open or sqlite.Open")
	}
	names := map[string]bool{}
	for i, p := range cfg.Providers {
		if p == nil {
			fail("uow.Config.Providers[%d] is nil: did postgres.Open or sqlite.Open return an error?", i)
			continue
		}
		if names[p.Name()] {
			fail("uow.Config.Providers: two are called %q; give one of them another Config.Name", p.Name())
		}
		names[p.Name()] = true
	}
	targets := map[string]bool{cfg.Broker: true}
	for _, t := range cfg.External {
		if t.Broker != "" && targets[t.Broker] {
			fail("uow.Config.External: broker %q is named twice, or is the context's own", t.Broker)
		}
		targets[t.Broker] = true
		if cfg.Domain != nil {
			errs = append(errs, t.Check(cfg.Domain))
		}
	}
	if cfg.Partitions < 0 {
		fail("uow.Config.Partitions is %d: leave it 0 for the database's count, or give a positive one", cfg.Partitions)
	}
	if cfg.MaxMessageBytes < -1 {
		fail("uow.Config.MaxMessageBytes is %d: give a positive size, 0 for 1 MiB, or -1 for no limit", cfg.MaxMessageBytes)
	}
	if cfg.Lease < 0 {
		fail("uow.Config.Lease is %v: give the lease of outbox.Config, or 0 for %v", cfg.Lease, outbox.DefaultLease)
	}
	if cfg.MaxRetries < -1 {
		fail("uow.Config.MaxRetries is %d: give a positive number, 0 for %d, or -1 for never", cfg.MaxRetries, defaultMaxRetries)
	}
	return errors.Join(errs...)
}

// Domain is the context whose events these units publish.
func (m *Manager) Domain() *domain.Domain { return m.cfg.Domain }

// Providers are the databases, the default first.
func (m *Manager) Providers() []Provider { return slices.Clone(m.cfg.Providers) }

// Provider finds a database by its name; "" is the default.
func (m *Manager) Provider(name string) (Provider, error) {
	for _, p := range m.cfg.Providers {
		if name == "" || p.Name() == name {
			return p, nil
		}
	}
	return nil, fmt.Errorf("uow: context %s has no provider %q; it has %s", m.cfg.Domain.Name(), name, m.providerNames())
}

func (m *Manager) providerNames() string {
	var names []string
	for _, p := range m.cfg.Providers {
		names = append(names, fmt.Sprintf("%q", p.Name()))
	}
	return fmt.Sprint(names)
}

// Broker is the name of the context's own broker.
func (m *Manager) Broker() string { return m.cfg.Broker }

// MaxMessageBytes is the limit of a message's body; 0: there is none.
func (m *Manager) MaxMessageBytes() int { return m.cfg.MaxMessageBytes }

// External are the partners' brokers.
func (m *Manager) External() []outbox.Target { return slices.Clone(m.cfg.External) }

// Targets are the names of all its brokers.
func (m *Manager) Targets() outbox.Targets { return outbox.TargetsOf(m.cfg.Broker, m.cfg.External) }

// KeepsHistory says whether events are kept, see Config.History.
func (m *Manager) KeepsHistory() bool { return m.cfg.History }

// Partitions is the expected partition count; 0 is the database's.
func (m *Manager) Partitions() int { return m.cfg.Partitions }

// OutboxDisabled says whether events are stored at all.
func (m *Manager) OutboxDisabled() bool { return m.cfg.NoOutbox }

// Keep returns what a package keeps beside m under its key, and makes it when it is asked
// for the first time.
//
// For authors of packages.
func (m *Manager) Keep(key any, first func() any) any {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.kept[key]; !ok {
		if m.kept == nil {
			m.kept = map[any]any{}
		}
		m.kept[key] = first()
	}
	return m.kept[key]
}

// OnCommit calls wake after every commit that stored events, with the provider
// and the partitions of the rows, until cancel is called. It returns those that
// are for somebody else: what nobody in this process takes, others are told of.
// wake must not block: the committing goroutine calls it. The engine wakes its
// processors so.
func (m *Manager) OnCommit(wake func(provider string, pokes []outbox.Poke) (elsewhere []outbox.Poke)) (cancel func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	id := m.nextID
	m.nextID++
	m.listeners[id] = wake
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.listeners, id)
	}
}

func (m *Manager) wake(p Provider, pokes []outbox.Poke) {
	m.mu.Lock()
	listeners := slices.Collect(maps.Values(m.listeners))
	m.mu.Unlock()
	for _, l := range listeners {
		pokes = l(p.Name(), pokes)
	}
	if len(pokes) > 0 {
		p.Signal(pokes)
	}
}

// held warns of a unit that held a provider's one writer for too long.
func (m *Manager) held(provider string, d time.Duration) {
	if d <= m.cfg.Lease/3 || !seldom(&m.warned) {
		return
	}
	m.cfg.Logger.Warn("a unit of work held the database's one writer for longer than a third of the lease, and no lease could be renewed meanwhile; do less in one unit, wait for nothing in it, or raise outbox.lease",
		"context", m.cfg.Domain.Name(), "provider", provider, "held", d.Round(time.Millisecond), "lease", m.cfg.Lease)
}

// withoutHistory warns of events that aren't kept although the configuration says so.
func (m *Manager) withoutHistory(provider string) {
	if m.cfg.History && seldom(&m.unkept) {
		m.cfg.Logger.Warn("events are not kept in the history, as the database doesn't say so: it begins with engine.Migrate, or with the start of an engine, of a program that has uow.Config.History",
			"context", m.cfg.Domain.Name(), "provider", provider)
	}
}

// seldom says whether it is time for the next warning of a kind.
func seldom(last *atomic.Pointer[time.Time]) bool {
	now, before := time.Now(), last.Load()
	return (before == nil || now.Sub(*before) >= warnEvery) && last.CompareAndSwap(before, &now)
}

// Option adjusts one call of Do.
type Option interface{ apply(*options) }

type options struct {
	outer   context.Context //nolint:containedctx // the one that Do was given, to tell it from others
	across  bool
	retries int           // 0: Config.MaxRetries
	within  time.Duration // 0: without an end
}

type optionFunc func(*options)

func (f optionFunc) apply(o *options) { f(o) }

// AcrossProviders lets one unit commit to several databases, one after the
// other. There is no atomicity over them: a failure between two commits is a
// [*PartialCommitError]. See docs/guarantees.md.
func AcrossProviders() Option { return optionFunc(func(o *options) { o.across = true }) }

// Retries is how often this Do runs its function again, instead of
// Config.MaxRetries: more where many want to change one aggregate, fewer where
// somebody waits for the answer. 0 is Config.MaxRetries, -1 is never.
func Retries(n int) Option { return optionFunc(func(o *options) { o.retries = n }) }

// Within ends the retries of this Do after a time, however many there were: no run of
// its function begins later. It doesn't end a run; give ctx a deadline for that. 0 is no
// end.
func Within(d time.Duration) Option { return optionFunc(func(o *options) { o.within = d }) }

// Do runs fn in a unit of work and commits it if fn returns nil. If ctx already
// carries a unit of m, fn joins it, and an error from fn dooms the whole; opts are
// those of the outer one then.
//
// fn runs again, in a fresh unit, after a serialization failure, a deadlock, or
// a conflict on an aggregate that it loaded itself (see Config.MaxRetries): let
// it load what it changes, and set outer variables by assignment, not by
// appending. A conflict on an aggregate from outside is returned at once, as a
// [*ConflictError]: running fn again could not help.
//
// A panic in fn rolls back and goes on. An error after which the outcome is
// unknown is a [*CommitUnknownError]; such a unit is never run again.
func (m *Manager) Do(ctx context.Context, fn func(ctx context.Context) error, opts ...Option) error {
	if fn == nil { // as any error of fn, it dooms an outer unit
		fn = func(context.Context) error { return errNoFunction }
	}
	if i := slices.Index(opts, nil); i >= 0 {
		fn, opts = func(context.Context) error { return fmt.Errorf("uow: Do: option %d is nil: take it out", i+1) }, nil
	}
	if outer, ok := ctx.Value(unitKey{}).(*Unit); ok {
		return outer.join(ctx, m, fn)
	}
	ctx = m.clock.Context(ctx)
	o := options{outer: ctx}
	for _, opt := range opts {
		opt.apply(&o)
	}
	ctx = m.Enrich(ctx)
	tracer := m.tracer.Get()
	if tracer == nil {
		_, _, err := m.do(ctx, fn, o)
		return err
	}
	return m.traced(ctx, tracer, fn, o)
}

// Enrich returns ctx with its origin completed by Config.Enrich.
//
// For authors of subscriptions, where several messages share a unit.
func (m *Manager) Enrich(ctx context.Context) context.Context {
	if m.cfg.Enrich == nil {
		return ctx
	}
	o := domain.OriginFrom(ctx)
	if o.Extensions = maps.Clone(o.Extensions); o.Extensions == nil {
		o.Extensions = map[string]string{}
	}
	if o = m.cfg.Enrich(ctx, o); len(o.Extensions) == 0 {
		o.Extensions = nil
	}
	return domain.WithOrigin(ctx, o)
}

// do also returns the last unit, and how many there were.
func (m *Manager) do(ctx context.Context, fn func(ctx context.Context) error, o options) (u *Unit, tries int, err error) {
	seen := map[domain.AggregateRoot]int{} // events of aggregates from outside, at the end of the last try
	retries := cmp.Or(o.retries, m.cfg.MaxRetries)
	began := time.Now()
	for attempt := 0; ; attempt++ {
		u = newUnit(m, o, seen)
		err = u.run(ctx, fn)
		if err == nil || !u.retryable(ctx, err) || attempt >= retries {
			return u, attempt + 1, err
		}
		u.remember(seen)
		wait := retryPause(attempt)
		if o.within > 0 && time.Since(began)+wait >= o.within {
			return u, attempt + 1, err
		}
		pause := time.NewTimer(wait)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return u, attempt + 1, errors.Join(err, ctx.Err())
		}
	}
}

// retryPause is how long to wait before the next try. Whoever was in the way is
// about to end, so the first is short; the longer many meet on one aggregate, the
// wider they spread. It is random from zero on, so that no two keep meeting.
func retryPause(attempt int) time.Duration {
	longest := longestRetryPause
	if attempt < 4 {
		longest = min(longest, firstRetryPause<<attempt)
	}
	return rand.N(longest)
}

// DB is the transaction of the unit that ctx carries, on the default provider,
// for the application's own SQL. What was saved before is visible to it. It
// fails with [ErrNone] outside a unit; it never falls back to a connection
// outside the transaction. A unit that uses it takes several round trips to
// commit instead of one.
func DB(ctx context.Context) (bun.IDB, error) {
	u, err := From(ctx)
	if err != nil {
		return nil, err
	}
	return u.DB(ctx, "")
}

// Flush sends what the unit has saved so far, so that a conflict shows now and
// not at the end of Do. It is seldom needed: DB does it, and so does the commit.
func Flush(ctx context.Context) error {
	u, err := From(ctx)
	if err != nil {
		return err
	}
	return u.flush(ctx)
}

// outboxOf is what units know of a database's outbox: the partition count, and
// that the context's targets are the database's. It is looked at again every few
// seconds: a process whose list of targets was changed behind its back must not go
// on.
type outboxOf struct {
	want    int
	context string
	targets outbox.Targets
	history bool // of the configuration
	known   atomic.Pointer[knownOutbox]
}

type knownOutbox struct {
	partitions int
	joining    []string // targets for which no rows are written
	keeps      bool     // events go into the history
	moving     bool     // what is said of targets and of the history is about to change
	until      time.Time
}

// fresh is what is known without a look. When its time has come, one has to look
// again, and the others go on meanwhile.
func (o *outboxOf) fresh() *knownOutbox {
	k := o.known.Load()
	if k == nil || time.Now().Before(k.until) {
		return k
	}
	again := &knownOutbox{partitions: k.partitions, keeps: k.keeps, until: time.Now().Add(outbox.TargetsFresh)}
	if o.known.CompareAndSwap(k, again) {
		return nil
	}
	return again
}

// look reads the outbox's properties by means of outboxdb.ConfirmTargets or, in a
// transaction, outboxdb.HoldTargets. While a target is joining, or the history is about
// to begin, every unit does.
func (o *outboxOf) look(ctx context.Context, db bun.IDB, targets func(context.Context, bun.IDB, string, outbox.Targets) (outbox.Targets, error)) (*knownOutbox, error) {
	until := time.Now().Add(outbox.TargetsFresh)
	n, err := outboxdb.Partitions(ctx, db)
	if err == nil && o.want > 0 && n != o.want {
		err = &outbox.PartitionsError{Have: n, Want: o.want}
	}
	var have outbox.Targets
	if err == nil {
		have, err = targets(ctx, db, o.context, o.targets)
	}
	known := &knownOutbox{
		partitions: n, joining: have.Joining, keeps: have.History == outbox.HistoryOn,
		moving: len(have.Joining) > 0 || have.History == outbox.HistoryStarting, until: until,
	}
	if mismatch, ok := errors.AsType[*outbox.TargetsError](err); ok && mismatch.Have == nil {
		known.keeps = o.history
		return known, nil // No engine has come with this context yet: look again next time.
	}
	if err != nil || known.moving {
		o.known.Store(nil)
		return known, err
	}
	o.known.Store(known)
	return known, nil
}
