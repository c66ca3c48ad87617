package projection

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/historydb"
	"github.com/waybill-go/waybill/internal/migrate"
	"github.com/waybill-go/waybill/internal/writer"
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
	owner    string
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
		workers: map[place]*worker{}, refused: map[string]string{}, outage: &dberr.Outage{Log: ps.log, Told: told},
	}
	for _, p := range ps.all {
		if p.current().Provider == provider {
			r.provider, r.all = p.current().provider, append(r.all, p)
		}
	}
	if r.provider == nil {
		return nil
	}
	host, _ := os.Hostname()
	r.owner = fmt.Sprintf("%s-%d-%s", host, os.Getpid(), uuid.NewString()[:8])
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

// prepare checks and makes what the projections need.
func (r *Runner) prepare(ctx context.Context) error {
	for _, s := range []interface {
		Check(ctx context.Context, db bun.IDB) error
	}{Migrations(), historydb.Migrations()} {
		if err := s.Check(ctx, r.provider.DB()); err != nil {
			return fmt.Errorf("projection: provider %q: %w", r.provider.Name(), err)
		}
	}
	var errs []error
	for _, p := range r.all {
		errs = append(errs, p.current().kept())
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := r.creates(ctx); err != nil {
		return err
	}
	builds, err := r.builds(ctx)
	if err != nil {
		return err
	}
	for _, p := range r.all {
		mine := of(builds, p.name())
		for _, g := range p.programs {
			b := newest(mine, g.Version)
			if b != nil && b.tables != nil {
				errs = append(errs, g.fits(b))
			}
		}
		g := p.current()
		if live := liveOf(mine); live != nil && live.version < g.Version {
			errs = append(errs, g.loses(live))
			if !live.fed() && p.of(live.version) == nil {
				r.log.Warn("the tables in use are not updated while those of the new version are built: run projection.Build before a deployment, or set Previous",
					"projection", g.Name, "in_use", live.version, "new", g.Version)
			}
		}
	}
	return errors.Join(errs...)
}

// creates checks the right to make tables. Who lacks it and has nothing to make now runs,
// and is warned: a rebuild would not begin.
func (r *Runner) creates(ctx context.Context) error {
	grant, err := migrate.LacksCreate(ctx, r.provider.DB(), "")
	if err != nil {
		return fmt.Errorf("projection: provider %q: look for the right to make tables: %w", r.provider.Name(), err)
	}
	if grant == "" {
		return nil
	}
	builds, err := load(ctx, r.provider.Reader(), r.names())
	if err != nil {
		return err
	}
	for _, p := range r.all {
		for _, g := range p.programs {
			if b := newest(of(builds, g.Name), g.Version); b == nil || b.tables == nil {
				return fmt.Errorf("projection %s: provider %q: the role that runs projections makes their tables and views, and may not: as the owner of the schema, %s", g.Name, r.provider.Name(), grant)
			}
		}
	}
	r.log.Warn("the role may not make tables: projections run, and a rebuild or a new version would not begin", "provider", r.provider.Name(), "remedy", "as the owner of the schema: "+grant)
	return nil
}

// kept says whether somebody keeps the events that a projection is made of.
func (g *program) kept() error {
	if g.Units.KeepsHistory() {
		return nil
	}
	for t := range g.byType {
		if !t.Foreign {
			return fmt.Errorf("projection %s reads the history of %s, which isn't kept: set uow.Config.History, or history: true in the configuration file", g.Name, g.domain.Name())
		}
	}
	return nil
}

// builds reads what there is, and sees to it that there is a build of each version, with
// its tables. Where tables can't be made, there is an error beside the builds.
func (r *Runner) builds(ctx context.Context) ([]*build, error) {
	builds, err := load(ctx, r.provider.Reader(), r.names())
	if err != nil {
		return nil, err
	}
	again := false
	for _, p := range r.all {
		for _, g := range p.programs {
			if newest(of(builds, g.Name), g.Version) == nil {
				again = true
				if err := declare(ctx, r.provider.DB(), g); err != nil {
					return nil, err
				}
			}
		}
	}
	if again {
		if builds, err = load(ctx, r.provider.Reader(), r.names()); err != nil {
			return nil, err
		}
	}
	again = false
	var errs []error
	for _, b := range builds {
		if g := r.program(b); g != nil && b.tables == nil {
			again = true
			errs = append(errs, g.begin(ctx, b, liveOf(of(builds, b.projection))))
		}
	}
	if again {
		if builds, err = load(ctx, r.provider.Reader(), r.names()); err != nil {
			return nil, err
		}
	}
	return builds, errors.Join(errs...)
}

// begin makes the tables of a build, if they can take the place of those in use.
func (g *program) begin(ctx context.Context, b, live *build) error {
	if live != nil && live.version < g.Version {
		if err := g.loses(live); err != nil {
			return err
		}
	}
	if err := g.make(ctx, b.build); !errors.Is(err, errGone) {
		return err
	}
	return nil
}

// program is the code of a build's version, if this process has it.
func (r *Runner) program(b *build) *program {
	for _, p := range r.all {
		if p.name() == b.projection {
			return p.of(b.version)
		}
	}
	return nil
}

var looking = dberr.Task{What: "run projections"}

// supervise looks for what has no owner, and changes over, until it is stopped.
func (r *Runner) supervise(ctx context.Context) {
	for {
		again, err := r.look(ctx)
		r.outage.Note(ctx, looking, err)
		wait := r.wait.look
		if again && err == nil {
			wait = r.wait.soon
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-r.changed:
		case <-r.stop:
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

// look does what is to be done now. again says that something is about to change.
func (r *Runner) look(ctx context.Context) (again bool, err error) {
	defer func() {
		if crash := recover(); crash != nil {
			err = fmt.Errorf("projection: %v", crash)
		}
	}()
	ctx, cancel := context.WithTimeout(writer.Urgent(ctx), stepTime)
	defer cancel()
	builds, err := r.builds(ctx)
	if builds == nil {
		return false, err
	}
	errs := []error{err} // of some; the others go on
	feeds := map[place]bool{}
	defer r.end(func(at place) bool { return !feeds[at] })
	for _, p := range r.all {
		mine := of(builds, p.name())
		for _, b := range mine {
			if g := p.of(b.version); g != nil && b.tables != nil && r.feeds(p, g, b, mine) {
				for _, s := range b.shards {
					feeds[place{b.projection, b.build, s.shard}] = true
				}
				errs = append(errs, r.feed(ctx, g, b), r.caughtUp(ctx, b))
			}
		}
		if r.building {
			continue
		}
		soon, err := r.changeOver(ctx, p, mine)
		again = again || soon
		errs = append(errs, err, r.clean(ctx, p, mine))
	}
	return again, errors.Join(errs...)
}

// feeds says whether this process is to keep a build up to date.
func (r *Runner) feeds(p *projection, g *program, b *build, mine []*build) bool {
	switch over := b.status == Old && b.old > p.current().KeepOld; {
	case b.status == Live:
		return true
	case b == newest(mine, b.version):
		return !over || g == p.current()
	default:
		return b.status == Old && !over
	}
}

// feed takes the leases of a build that nobody has, and begins to feed it.
func (r *Runner) feed(ctx context.Context, g *program, b *build) error {
	for _, s := range b.shards {
		at := place{b.projection, b.build, s.shard}
		r.mu.Lock()
		_, mine := r.workers[at]
		r.mu.Unlock()
		if mine || s.leased {
			continue
		}
		l, position, failure, ok, err := take(ctx, r.provider, b.projection, b.build, s.shard, r.owner, r.wait.lease)
		if err != nil {
			return err
		}
		if ok {
			r.begin(g, b, at, l, position, failure)
		}
	}
	return nil
}

// end ends the workers of some places, which give their leases back.
func (r *Runner) end(which func(place) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for at, w := range r.workers {
		if which(at) && !w.ending {
			w.ending = true
			close(w.stop)
		}
	}
}

// caughtUp notes that a build has come up to the head for the first time.
func (r *Runner) caughtUp(ctx context.Context, b *build) error {
	if !b.atHead() || b.ready.Valid {
		return nil
	}
	// By then another build may have the number, which has not.
	of := " projection_positions AS p WHERE p.projection = projections.projection AND p.build = projections.build"
	res, err := r.provider.DB().ExecContext(ctx, "UPDATE projections SET status = CASE status WHEN 'building' THEN 'ready' ELSE status END, ready_at = "+dbtime.Now(r.provider.DB().Dialect())+
		" WHERE projection = ? AND build = ? AND ready_at IS NULL AND EXISTS (SELECT 1 FROM"+of+") AND NOT EXISTS (SELECT 1 FROM"+of+" AND NOT p.at_head)", b.projection, b.build)
	if err != nil {
		return fmt.Errorf("projection %s: note that build %d has caught up: %w", b.projection, b.build, err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return err
	}
	r.log.Info("projection has caught up", "projection", b.projection, "version", b.version, "build", b.build, "after", time.Since(b.began).Round(time.Millisecond))
	poke(r.changed)
	return nil
}

// errNot is a change that somebody else has made, or that isn't due any more.
var errNot = errors.New("projection: nothing to change over")

// changesOver says whether a build takes the place of the live one by itself. An older
// program's never does, nor one that was live before: an operator went back then.
func changesOver(g *program, live, to *build) bool {
	switch {
	case to.status != Ready:
		return false
	case to.version == live.version:
		return to.build > live.build
	}
	return to.version > live.version && !g.Manual
}

// changeOver makes the newest build of this process's version the live one, if it is due.
func (r *Runner) changeOver(ctx context.Context, p *projection, mine []*build) (again bool, err error) {
	g := p.current()
	live, to := liveOf(mine), newest(mine, g.Version)
	if live == nil || to == nil || !changesOver(g, live, to) {
		r.note(p.name(), "")
		return to != nil && to.status == Building, nil
	}
	r.mu.Lock()
	_, mineToDo := r.workers[place{to.projection, to.build, 0}]
	r.mu.Unlock()
	if !mineToDo { // Who feeds it does it.
		return false, nil
	}
	err = change(ctx, r.provider, p.name(), to.build, false, func(live, to *build) error {
		if !changesOver(g, live, to) {
			return errNot
		}
		return g.loses(live)
	})
	behind, isBehind := errors.AsType[*behindError](err)
	switch {
	case err == nil:
		r.note(p.name(), "")
		r.log.Info("projection changed over", "projection", p.name(), "version", to.version, "build", to.build, "before", live.build)
		return true, nil
	case errors.Is(err, errNot), errors.Is(err, errGone):
		return true, nil
	case isBehind:
		r.note(p.name(), behind.Error())
		return true, nil
	case locked(err):
		r.note(p.name(), fmt.Sprintf("build %d is ready, and readers of the view keep it from taking its place for more than %v: look for long transactions", to.build, lockTimeout))
		return true, nil
	}
	r.note(p.name(), err.Error())
	return true, fmt.Errorf("projection %s: change over to build %d: %w", p.name(), to.build, err)
}

// note keeps why a build isn't live yet.
func (r *Runner) note(name, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refused[name] != why && why != "" {
		r.log.Warn("projection can't change over yet; it is tried again", "projection", name, "reason", why)
	}
	r.refused[name] = why
}

// over says that a build may go: it was live, or is of an older version, and nobody has
// fed it for a while.
func over(b *build, keep time.Duration, live *build) bool {
	switch {
	case b.status == Live || b.fed():
		return false
	case b.status == Old:
		return b.old > keep
	}
	return live != nil && b.version < live.version && live.build > b.build && time.Since(b.began) > keep
}

// clean removes builds whose time is over.
func (r *Runner) clean(ctx context.Context, p *projection, mine []*build) error {
	var errs []error
	keep, live := p.current().KeepOld, liveOf(mine)
	for _, b := range mine {
		if !over(b, keep, live) || r.program(b) != nil && r.feeds(p, r.program(b), b, mine) {
			continue
		}
		err := remove(ctx, r.provider, b.projection, b.build, func(b *build) error {
			if !over(b, keep, live) {
				return errGone
			}
			return nil
		})
		switch {
		case err == nil:
			r.log.Info("tables of a projection that were kept are removed", "projection", b.projection, "version", b.version, "build", b.build)
		case !errors.Is(err, errGone) && !locked(err):
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
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

// begin starts a worker.
func (r *Runner) begin(g *program, b *build, at place, l lease, position int64, failure Failure) {
	w := &worker{
		r: r, program: g, lease: l, shards: len(b.shards), woken: make(chan struct{}, 1), stop: make(chan struct{}),
		log:   r.log.With("projection", g.Name, "version", g.Version, "build", b.build),
		shard: shard{shard: at.shard, position: position, Failure: failure},
	}
	if w.shards > 1 {
		w.log = w.log.With("shard", at.shard)
	}
	r.mu.Lock()
	r.workers[at] = w
	r.mu.Unlock()
	r.feeders.Go(func() {
		defer func() {
			r.mu.Lock()
			delete(r.workers, at)
			r.mu.Unlock()
		}()
		w.run(r.ctx)
	})
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
