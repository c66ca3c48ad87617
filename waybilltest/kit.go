// Package waybilltest runs whole services in a test: each context on a SQLite file that
// goes with the test, a broker in memory for every name, and a clock that the test
// moves.
//
//	k := waybilltest.New(t)
//	lib := library.New(k.Units(library.Domain))
//	k.Start(lib.Context())
//	…
//	k.Settle()
//
// If the environment variable WAYBILL_TEST_POSTGRES holds a DSN, contexts are on
// PostgreSQL instead, each in a schema that goes with the test.
package waybilltest

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/internal/testclock"
	"github.com/waybill-go/waybill/outbox"
	processes "github.com/waybill-go/waybill/process"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

// postgresVar is the environment variable with the DSN of a PostgreSQL server.
const postgresVar = "WAYBILL_TEST_POSTGRES"

// poll is how soon an engine of the kit finds what nothing woke it for.
const poll = 20 * time.Millisecond

// Kit is a service under test. Its mistakes fail the test. It is safe for concurrent
// use, but for Start.
type Kit struct {
	t        testing.TB
	clock    *testclock.Clock
	dir      string // of the SQLite files
	dsn      string // of PostgreSQL; "": SQLite
	run      string // names the kit's schemas
	points   *points
	migrated *templates // nil: each database is migrated
	// patience is how long a service may take to settle.
	patience time.Duration

	mu           sync.Mutex
	brokers      map[string]*memory.Broker
	schemas      map[string]bool
	now          *process // what runs; nil: nothing yet
	next         *process // what the next Start runs
	published    map[string]int64
	expectParked bool
}

// New makes a kit, which ends with the test.
func New(t testing.TB) *Kit {
	t.Helper()
	k := &Kit{
		t: t, clock: testclock.New(), dir: t.TempDir(), dsn: os.Getenv(postgresVar), run: "waybilltest_" + rand.Text()[:10],
		brokers: map[string]*memory.Broker{}, schemas: map[string]bool{}, published: map[string]int64{},
		patience: patience,
	}
	k.next = k.newProcess()
	t.Cleanup(k.end)
	return k
}

func (k *Kit) fatal(format string, args ...any) {
	k.t.Helper()
	k.t.Fatalf("waybilltest: "+format, args...)
}

// Units are a context's units of work, on a database that is new at the first call for
// the context, and the same at each further one, such as after a restart. Its tables
// are there. change may adjust the configuration: external targets, whose brokers are
// made by their names, or another provider, which is then not the kit's to close, to
// kill and to give a clock to.
func (k *Kit) Units(d *domain.Domain, change ...func(*uow.Config)) *uow.Manager {
	k.t.Helper()
	if d == nil {
		k.fatal("Units: the domain is nil")
	}
	k.mu.Lock()
	p := k.next
	k.mu.Unlock()
	db := &database{k: k, context: d.Name()}
	err := k.migrated.copyTo(db)
	if err == nil {
		err = db.open(p)
	}
	if err != nil {
		k.fatal("Units(%s): %v", d.Name(), err)
	}
	cfg := uow.Config{Domain: d, Partitions: 4, Providers: []uow.Provider{db}, Logger: p.log}
	for _, c := range change {
		c(&cfg)
	}
	units, err := uow.New(cfg)
	if err == nil {
		err = engine.Migrate(k.t.Context(), units)
	}
	if err == nil {
		err = k.migrated.keep(k.t.Context(), db)
	}
	if err != nil {
		k.fatal("Units(%s): %v", d.Name(), err)
	}
	return units
}

// Context is the test's context with an origin and the kit's clock. What k.Units runs
// goes by that clock under any other context, too, unless it has another one.
func (k *Kit) Context(o domain.Origin) context.Context {
	return k.clock.Context(domain.WithOrigin(k.t.Context(), o))
}

// Broker is the one in memory that stands for a name, for its outages and lost
// acknowledgements.
func (k *Kit) Broker(name string) *memory.Broker {
	k.mu.Lock()
	defer k.mu.Unlock()
	b := k.brokers[name]
	if b == nil {
		b = memory.New(memory.Config{})
		k.brokers[name] = b
	}
	return b
}

// Start runs contexts until the test ends. A second Start is a restart: what ran is
// killed, as kill -9 would. Its connections are cut, transactions that were open are
// rolled back, and handlers have their ctx cancelled; databases and brokers stay. Of
// the units from before, only those that are started again are of further use.
func (k *Kit) Start(contexts ...engine.Context) {
	k.t.Helper()
	k.mu.Lock()
	before, p := k.now, k.next
	k.now, k.next = p, k.newProcess()
	k.mu.Unlock()

	p.use(contexts)
	if before != nil {
		before.end()
	}
	err := p.reopen()
	if err == nil {
		err = p.start(k.t.Context(), contexts)
	}
	if err != nil {
		k.fatal("Start: %v", err)
	}
}

// Now is the time, by the clock that [Kit.Advance] moves.
func (k *Kit) Now() time.Time { return k.clock.Now().UTC() }

// Parked are the open dead letters in the databases of a context.
func (k *Kit) Parked(units *uow.Manager) (all []subscription.DeadLetter) {
	k.t.Helper()
	for _, p := range units.Providers() {
		list, err := lettersOf(k.t.Context(), p)
		if err != nil {
			k.fatal("Parked: %v", err)
		}
		all = append(all, list...)
	}
	return all
}

func lettersOf(ctx context.Context, p uow.Provider) ([]subscription.DeadLetter, error) {
	list, err := subscription.NewDeadLetters(p).List(ctx, subscription.DeadLetterFilter{}, subscription.DeadLetterPage{Limit: 1000})
	return list.Letters, err
}

// ExpectParked says that parked messages are what the test is about: [Kit.Settle] then
// passes with them, and with what waits behind them.
func (k *Kit) ExpectParked() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.expectParked = true
}

// end ends all with the test.
func (k *Kit) end() {
	k.mu.Lock()
	now, next := k.now, k.next
	k.mu.Unlock()
	if now != nil {
		now.end()
	}
	next.end()
	if err := k.dropSchemas(); err != nil {
		k.t.Errorf("waybilltest: %v", err)
	}
}

// process is what one Start runs.
type process struct {
	k   *Kit
	log *slog.Logger

	dying sync.Once
	cut   atomic.Bool   // its connections are, or are about to be
	dead  chan struct{} // closed when it was killed

	handed handed

	mu        sync.Mutex
	databases []*opened
	conns     map[string]*connection
	engine    *engine.Engine
	units     []*uow.Manager
	streams   []subscription.Stream
}

func (k *Kit) newProcess() *process {
	p := &process{k: k, dead: make(chan struct{}), conns: map[string]*connection{}}
	p.log = slog.New(slog.NewTextHandler(p, &slog.HandlerOptions{Level: slog.LevelWarn}))
	return p
}

// Write logs into the test's output, as long as it lives.
func (p *process) Write(line []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.killed() {
		return len(line), nil
	}
	return p.k.t.Output().Write(line)
}

func (p *process) killed() bool {
	select {
	case <-p.dead:
		return true
	default:
		return false
	}
}

// dies is killed for whoever has seen an error of it: while it is being killed, that comes before.
func (p *process) dies() bool {
	if p.cut.Load() {
		<-p.dead
	}
	return p.killed()
}

// use takes in what contexts have.
func (p *process) use(contexts []engine.Context) {
	for _, c := range contexts {
		if c.Units == nil && c.Commands != nil {
			c.Units = c.Commands.Units()
		}
		if c.Units == nil {
			continue // engine.New says so
		}
		p.units = append(p.units, c.Units)
		streams := slices.Clone(c.Subscriptions)
		if c.Commands != nil {
			if s, ok := c.Commands.Stream(); ok {
				streams = append(streams, s)
			}
		}
		if all, err := processes.New(c.Units, c.Processes, p.log); err == nil { // engine.New says it otherwise
			streams = append(streams, all.Streams()...)
		}
		for _, s := range streams {
			if s.Units == nil {
				s.Units = c.Units
			}
			p.streams = append(p.streams, s.WithDefaults())
		}
	}
}

// start makes the engine and starts it.
func (p *process) start(ctx context.Context, contexts []engine.Context) error {
	brokers := map[string]broker.Broker{}
	for _, name := range p.brokerNames() {
		c := &connection{Broker: p.k.Broker(name).Connect(), process: p}
		p.conns[name] = c
		brokers[name] = c
	}
	e, err := engine.New(engine.Config{
		Contexts: contexts, Brokers: brokers, Logger: p.log,
		Outbox: outbox.Config{
			PollInterval: poll, MaxPollInterval: poll,
			Retry: outbox.RetryPolicy{BaseDelay: poll, MaxBackoff: time.Second},
		},
	})
	if err != nil {
		return err
	}
	p.engine = e
	return e.Start(ctx)
}

func (p *process) brokerNames() (names []string) {
	for _, m := range p.units {
		names = append(names, m.Broker())
		for _, t := range m.External() {
			names = append(names, t.Broker)
		}
	}
	for _, s := range p.streams {
		names = append(names, s.Broker)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// kill ends what the process does to databases and brokers, at once. It doesn't wait.
func (p *process) kill(ctx context.Context) {
	p.dying.Do(func() {
		p.cut.Store(true)
		p.mu.Lock()
		databases := slices.Clone(p.databases)
		p.mu.Unlock()
		for _, db := range databases {
			db.line.Cut()
		}
		for _, c := range p.conns {
			_ = c.Broker.Close(ctx) // what it had on loan comes again
		}
		close(p.dead) // last: nobody is to note in a database that it was killed
	})
}

// end kills the process, waits until it has noticed and closes what it had open.
func (p *process) end() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	p.kill(ctx)
	if p.engine != nil {
		_ = p.engine.Stop(ctx) // that it was killed is no news
	}
	for _, db := range p.databases {
		_ = db.Close() // its connections are cut
	}
}

var errKilled = errors.New("waybilltest: the process was killed")
