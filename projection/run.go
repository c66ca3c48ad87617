package projection

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/internal/liveness"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

// waits are the times of a runner. Tests have shorter ones.
type waits struct {
	look  time.Duration // How often it looks for builds without an owner.
	soon  time.Duration // The same while something is about to change over.
	lease time.Duration
	renew time.Duration
	poll  time.Duration // How often a build that is up to date looks for events, at least.
	retry time.Duration // Behind the first failure of an event. It doubles, to longest.
	held  time.Duration // How long it waits for open transactions before the log names them.
}

const (
	// longestLease is above every lease, and above the time for which an import holds projections.
	longestLease = time.Minute
	longestRetry = time.Minute
	// stepTime is how long one batch may take. Handlers wait for nobody.
	stepTime = time.Minute
)

func usual() waits {
	return waits{look: time.Second, soon: 100 * time.Millisecond, lease: 10 * time.Second, renew: 2 * time.Second, poll: 100 * time.Millisecond, retry: time.Second, held: 5 * time.Second}
}

// Runner runs the projections of a context that have their tables in one provider. An
// engine has one for each. It is safe for concurrent use.
type Runner struct {
	ps       *Projections
	provider uow.Provider
	all      []*projection
	log      *slog.Logger
	host     liveness.Host
	owner    string // Its name there, by which others see whether this process lives.
	outage   *dberr.Outage
	wait     waits
	building bool // It builds, and changes nothing over; see Build.

	stop    chan struct{}   // Closed: nothing is looked after any more.
	ctx     context.Context //nolint:containedctx // of all batches
	stopped context.CancelFunc
	unwire  func()
	main    sync.WaitGroup
	feeders sync.WaitGroup
	changed chan struct{}

	mu      sync.Mutex
	workers map[place]*worker
	refused map[string]string // Why a build isn't live yet, by projection.
	given   map[place]given
}

// given is a lease that was given back because of an event that a newer build has written.
type given struct {
	position int64
	until    time.Time
}

// place is a shard of a build.
type place struct {
	projection   string
	build, shard int
}

// Runner returns what runs the projections of a provider; nil: there are none. told says
// whether another line of the log tells that the database is away; nil: there is no other.
func (ps *Projections) Runner(provider string, told func() bool) *Runner {
	r := &Runner{
		ps: ps, log: ps.log, wait: ps.wait, stop: make(chan struct{}), changed: make(chan struct{}, 1),
		workers: map[place]*worker{}, refused: map[string]string{}, given: map[place]given{}, outage: &dberr.Outage{Log: ps.log, Told: told},
	}
	for _, p := range ps.all {
		if p.current().Provider == provider {
			r.provider, r.all = p.current().provider, append(r.all, p)
		}
	}
	if r.provider == nil {
		return nil
	}
	r.host = liveness.Here()
	r.owner = r.host.Name()
	return r
}

// Provider is where the tables are.
func (r *Runner) Provider() string { return r.provider.Name() }

// Start checks what is in the database against the projections, makes what is missing, and
// begins to feed them. They go on after ctx is done, until Stop. Its errors are mistakes,
// or a database that doesn't answer; then nothing runs, and it can be called again.
// Starting one that runs does nothing.
func (r *Runner) Start(ctx context.Context) error {
	if r.stopped != nil {
		return nil
	}
	if err := r.prepare(ctx); err != nil {
		return err
	}
	r.ctx, r.stopped = context.WithCancel(context.WithoutCancel(ctx))
	r.unwire = r.ps.units.OnCommit(func(provider string, pokes []outbox.Poke) []outbox.Poke {
		if provider == r.provider.Name() {
			r.wakeAll()
		}
		return pokes
	})
	r.main.Go(func() { r.supervise(r.ctx) })
	return nil
}

// Stop lets the batches end that have begun, and gives the leases back. When ctx is done it
// ends them hard; leases run out by themselves then.
func (r *Runner) Stop(ctx context.Context) error {
	if r.stopped == nil {
		return nil
	}
	r.unwire()
	close(r.stop)
	hard := context.AfterFunc(ctx, r.stopped)
	r.main.Wait()
	r.end(func(place) bool { return true })
	r.feeders.Wait()
	defer r.stopped()
	if !hard() {
		return fmt.Errorf("projection: provider %q: ended before the current batch did: %w", r.provider.Name(), ctx.Err())
	}
	return nil
}

func (r *Runner) wakeAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.workers {
		poke(w.woken)
	}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (r *Runner) names() (names []string) {
	for _, p := range r.all {
		names = append(names, p.name())
	}
	return names
}

// Trouble is what the database doesn't let it do. It is nil if all goes well.
func (r *Runner) Trouble() *dberr.Trouble { return r.outage.Worst() }

// Refused is why builds that have caught up are not in use yet, by projection.
func (r *Runner) Refused() map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := map[string]string{}
	for name, why := range r.refused {
		if why != "" {
			all[name] = why
		}
	}
	return all
}

// Feeding are the builds that this process feeds, each once.
func (r *Runner) Feeding() (builds []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for at := range r.workers {
		if name := physical(at.projection, at.build); !slices.Contains(builds, name) {
			builds = append(builds, name)
		}
	}
	slices.Sort(builds)
	return builds
}
