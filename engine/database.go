package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/internal/dblocks"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/processdb"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/internal/senders"
	"github.com/waybill-go/waybill/internal/testclock"
	"github.com/waybill-go/waybill/internal/timerdb"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/projection"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

// database is a provider with everything that the engine runs on it.
type database struct {
	provider  uow.Provider
	store     *outboxdb.Store
	schema    schema
	lanes     []relay.Lane
	private   []string     // events that their contexts don't publish, by wire name
	processor *relay.Relay // nil: no context of it has an outbox, or it is observed
	observed  bool         // nothing runs on it; it is only looked at
	timers    *timerdb.Store
	instances *processdb.Store  // of processes
	promoter  *timerdb.Promoter // of timers; nil where processor is
	log       *slog.Logger

	turns chan struct{} // of requests to the API

	// publishing says that the processor runs. Before and after it may be asked
	// for nothing: it answers only when it has started or stopped.
	publishing atomic.Bool
	listening  sync.WaitGroup
	deaf       context.CancelFunc // ends listening, and the promoter

	onFailover outbox.OnFailover
	moved      atomic.Pointer[outbox.MovedError] // it isn't the one that its outbox was written in

	ready  atomic.Bool           // its tables were checked, and its parts run
	reason atomic.Pointer[error] // why it isn't
	clock  clock
	alive  *cached[error]
	stats  *cached[found[map[string]outbox.Stats]]
	held   *cached[found[map[string]outbox.Held]]
	late   *cached[found[timerdb.Stats]]
	dead   *cached[found[letters]]
	locks  *cached[found[[]dblocks.Wait]]
	heard  *cached[found[senders.Heard]]
	name   *cached[found[string]] // of its outbox
	misfit *cached[*outbox.TargetsError]

	running *cached[found[map[string]processdb.Stats]] // and other processes
	unheard *cached[found[[]string]]                   // kinds of processes that run, and for which nobody hears

	notes   sync.Mutex
	noted   map[string]outbox.BrokerIdentity // which brokers this process has said it publishes to
	unnoted bool                             // the log has a line that it couldn't say so

	unkept    sync.Map // contexts whose history is yet to begin, and what it waits for
	feeders   []*projection.Runner
	owners    *cached[found[[]outbox.Owned]]        // of partitions
	projected *cached[found[[]projection.Progress]] // and those of other programs
}

func newDatabase(p uow.Provider, log *slog.Logger) *database {
	return &database{
		provider: p, store: outboxdb.New(p.DB(), p.Reader()), timers: timerdb.New(p.DB(), p.Reader()).By(testclock.Of(p)), instances: processdb.New(p),
		schema: schema{provider: p}, log: log, clock: clock{now: time.Now}, turns: make(chan struct{}, maxTurns),
	}
}

// add takes in one more context that uses the database.
func (d *database) add(m *uow.Manager) error {
	d.private = append(d.private, private(m)...)
	return d.schema.add(m)
}

// lane adds a target. It is an external one unless some context publishes to it
// as its own.
func (d *database) lane(l *link, external bool) {
	i := slices.IndexFunc(d.lanes, func(have relay.Lane) bool { return have.Target == l.name })
	if i < 0 {
		d.lanes = append(d.lanes, relay.Lane{Target: l.name, Broker: l.lane(), External: external})
		return
	}
	d.lanes[i].External = d.lanes[i].External && external
}

// start checks the tables and starts the processor.
func (d *database) start(ctx context.Context) error {
	if err := d.schema.start(ctx); err != nil {
		return err
	}
	if d.processor == nil {
		return nil
	}
	if err := d.lookAtClock(ctx); err != nil {
		return err
	}
	if err := d.tellOfTargets(ctx); err != nil {
		return err
	}
	if _, err := d.here(ctx); err != nil {
		return err
	}
	if err := d.processor.Start(ctx); err != nil {
		return err
	}
	d.publishing.Store(true)
	listening, cancel := context.WithCancel(context.WithoutCancel(ctx))
	d.deaf = cancel
	d.listening.Go(func() { d.listen(listening) })
	d.listening.Go(func() { d.promoter.Run(listening) })
	for name, wanted := range d.schema.history {
		d.listening.Go(func() { d.keepHistory(listening, name, wanted) })
	}
	return nil
}

// here says which database it is, and returns an [*outbox.MovedError] unless that is the one
// that its outbox was written in.
func (d *database) here(ctx context.Context) (is string, err error) {
	is, promoted, err := d.store.CheckIdentity(ctx, d.onFailover)
	if promoted {
		d.log.Warn("a standby was promoted, or the database was restored to a point in time; publishing continues, as outbox.on_failover says", "provider", d.provider.Name())
	}
	moved, has := errors.AsType[*outbox.MovedError](err)
	if err == nil || has {
		d.tellOfMove(d.moved.Swap(moved), moved)
	}
	return is, err
}

// tellOfMove logs that a database in use has become another one. That comes with an outage, of
// which the log has a line with the reason that it began with.
func (d *database) tellOfMove(before, now *outbox.MovedError) {
	switch {
	case !d.ready.Load(): // The start says so.
	case before == nil && now != nil:
		d.log.Error("nothing is published from the database any more", "provider", d.provider.Name(), "error", now)
	case before != nil && now == nil:
		d.log.Info("the database was accepted, and is published from again", "provider", d.provider.Name())
	}
}

// tellOfTargets says which rows of other contexts this engine leaves to theirs,
// and which brokers wait for their back-fill: somebody may have forgotten it.
func (d *database) tellOfTargets(ctx context.Context) error {
	all, err := outboxdb.ReadTargets(ctx, d.provider.Reader())
	if err != nil {
		return err
	}
	for _, context := range slices.Sorted(maps.Keys(all)) {
		t := all[context]
		for _, target := range append([]string{t.Broker}, t.External...) {
			if !slices.ContainsFunc(d.lanes, func(l relay.Lane) bool { return l.Target == target }) {
				d.log.Info("another context of the database sends to a broker that this engine doesn't have; an engine that has it must run too",
					"provider", d.provider.Name(), "context", context, "broker", target)
			}
		}
		if len(t.Joining) > 0 {
			d.log.Warn("external brokers are joining: they get no event, and nothing new is removed from the outbox, before `waybill outbox backfill` or engine.Backfill has ended",
				"provider", d.provider.Name(), "context", context, "brokers", strings.Join(t.Joining, ", "))
		}
	}
	return nil
}

// tellOfBrokers says which brokers are others than those that were last published to by the
// same names: nothing else tells of what is left there and nobody reads any more. Where that
// can't be noted, as on a standby, the engine runs all the same. It is asked again and again, as
// a cluster is known once it was reached, and another one may take its place meanwhile.
func (d *database) tellOfBrokers(ctx context.Context) {
	if !d.publishing.Load() || d.moved.Load() != nil {
		return
	}
	are := map[string]outbox.BrokerIdentity{}
	for _, l := range d.lanes {
		are[l.Target] = relay.IdentityOf(l.Broker)
	}
	d.notes.Lock()
	defer d.notes.Unlock()
	if maps.Equal(are, d.noted) {
		return
	}
	were, err := d.store.NoteBrokers(ctx, are)
	for target, was := range were {
		d.log.Warn("the broker of this name is another one than before: what was published to the former one, and its subscriptions have not handled, stays there, and nobody reads it; unless they had handled all, start with the former one again until they have, or publish from the history (`waybill history republish`)",
			"provider", d.provider.Name(), "broker", target, "was", was.String(), "is", are[target].String())
	}
	if err == nil {
		d.noted, d.unnoted = are, false
	} else if !d.unnoted {
		d.unnoted = true
		d.log.Warn("which brokers this database publishes to can't be noted: until they are, if a name gets another one, nobody will say so", "provider", d.provider.Name(), "error", err)
	}
}

func (e *Engine) tellOfBrokers(ctx context.Context) {
	for _, d := range e.databases {
		ctx, cancel := context.WithTimeout(ctx, statsTimeout)
		d.tellOfBrokers(ctx)
		cancel()
	}
}

func (d *database) stop(ctx context.Context) error {
	if d.processor == nil {
		return nil
	}
	if d.publishing.Swap(false) {
		d.deaf()
		d.listening.Wait()
	}
	return d.processor.Stop(ctx)
}

// wake tells the processor that rows were committed, and returns what is not for
// it. When it starts, it looks for itself.
func (d *database) wake(pokes []outbox.Poke) (elsewhere []outbox.Poke) {
	if !d.publishing.Load() {
		return pokes
	}
	return d.processor.Wake(pokes)
}

// promoted tells of messages that the promoter has put into the outbox.
func (d *database) promoted(pokes []outbox.Poke) {
	if elsewhere := d.wake(pokes); len(elsewhere) > 0 {
		d.provider.Signal(elsewhere)
	}
}

// lanesTell says whether a lane tells that the database doesn't let it work.
func (d *database) lanesTell() bool {
	for _, s := range d.status() {
		if s.Database != nil {
			return true
		}
	}
	return false
}

// timerSet tells the promoter that a timer was committed which is due at a time.
func (d *database) timerSet(at time.Time) {
	if d.promoter != nil {
		d.promoter.Set(at)
	}
}

// listen hears of what other processes commit, until ctx is done. While it can't,
// the processor's polls find it.
func (d *database) listen(ctx context.Context) {
	deaf := false
	for wait := firstWait; ; wait = min(2*wait, listenWait) {
		err := d.provider.Watch(ctx, func(pokes []outbox.Poke) {
			wait = firstWait
			if deaf {
				deaf = false
				d.log.Info("commits of other processes are heard of again", "provider", d.provider.Name())
			}
			if pokes == nil {
				d.processor.Hint()
			}
			d.processor.Wake(pokes)
		})
		if ctx.Err() != nil {
			return
		}
		if !deaf {
			deaf = true
			d.log.Info("commits of other processes are found by polling for now", "provider", d.provider.Name(), "reason", err)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// status is the state of every lane by its target, as far as it is known.
func (d *database) status() map[string]outbox.LaneStatus {
	if d.publishing.Load() {
		return d.processor.Status()
	}
	return nil
}

// report counts the rows for every target. One without rows has no stats, and that
// is known: they are zero.
func (d *database) report(ctx context.Context) (f found[map[string]outbox.Stats]) {
	if f.value, f.err = d.store.Stats(ctx); f.err != nil {
		return f
	}
	for _, l := range d.lanes {
		if _, ok := f.value[l.Target]; !ok {
			f.value[l.Target] = outbox.NoStats()
		}
	}
	return f
}

func (d *database) waitForOperators(ctx context.Context) (f found[map[string]outbox.Held]) {
	f.value, f.err = d.store.Held(ctx)
	return f
}

func (d *database) lateTimers(ctx context.Context) (f found[timerdb.Stats]) {
	f.value, f.err = d.timers.Stats(ctx)
	return f
}

// lockedFor is for how long a session waits for a table until health says so: a relay's own steps
// have given up by then.
const lockedFor = 5 * time.Second

// rowsFor is for how long a transaction has been open whose rows others wait for: those that change one
// aggregate wait for each other, and for a handler that takes its time.
const rowsFor = 30 * time.Second

// waits are tables and rows that sessions have waited for long.
func (d *database) waits(ctx context.Context) (f found[[]dblocks.Wait]) {
	f.value, f.err = dblocks.Of(ctx, d.provider.Reader(), lockedFor, rowsFor)
	return f
}

// heardFor is for how long what a subscription has heard of another outbox counts: marks are to a
// minute.
const heardFor = 10 * time.Minute

// senders are the outboxes whose messages the subscriptions have got.
func (d *database) senders(ctx context.Context) (f found[senders.Heard]) {
	f.value, f.err = senders.Of(ctx, d.provider.Reader(), heardFor)
	return f
}

// outboxName is what messages say that are from here.
func (d *database) outboxName(ctx context.Context) (f found[string]) {
	f.value, f.err = outboxdb.Name(ctx, d.provider.Reader())
	return f
}

// compareTargets returns a context's list of brokers that was changed since the start; nil: as far
// as is known, none was. Saves of its events are refused then.
func (d *database) compareTargets(ctx context.Context) *outbox.TargetsError {
	for _, context := range slices.Sorted(maps.Keys(d.schema.targets)) {
		err := outboxdb.CheckTargets(ctx, d.provider.Reader(), context, d.schema.targets[context])
		if misfit, ok := errors.AsType[*outbox.TargetsError](err); ok && misfit.Have != nil {
			return misfit
		}
	}
	return nil
}

// letters are how many dead letters there are, by subscription.
type letters struct {
	open    map[string]int64                     // that need somebody
	waiting map[string]int64                     // that continue by themselves
	early   map[string]subscription.EarlyLetters // of open, those whose process has not begun
	newer   map[string]subscription.NewerLetters // of open, those that need a newer build
}

func (d *database) deadLetters(ctx context.Context) (f found[letters]) {
	if f.value.open, f.err = subscription.CountDeadLetters(ctx, d.provider.Reader()); f.err == nil {
		f.value.waiting, f.err = subscription.CountWaiting(ctx, d.provider.Reader())
	}
	if f.err == nil {
		f.value.early, f.err = subscription.CountEarly(ctx, d.provider.Reader())
	}
	if f.err == nil {
		f.value.newer, f.err = subscription.CountNewer(ctx, d.provider.Reader())
	}
	return f
}

// unreachable says whether err means that the database may answer later, or be accepted by
// an operator, as against an answer that says what is wrong.
func (d *database) unreachable(err error) bool {
	_, moved := errors.AsType[*outbox.MovedError](err)
	return moved || dberr.Away(err) || d.provider.Retryable(err)
}

func (d *database) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("engine: provider %q: %w", d.provider.Name(), err)
}
