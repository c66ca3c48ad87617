package projection

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/liveness"
	"github.com/waybill-go/waybill/internal/writer"
)

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

// feed takes the leases of a build that nobody has, and begins to feed it. A process of this host
// that is dead has none: it gives back nothing, and the fence refuses what it may have begun.
func (r *Runner) feed(ctx context.Context, g *program, b *build) error {
	for _, s := range b.shards {
		at := place{b.projection, b.build, s.shard}
		r.mu.Lock()
		_, mine := r.workers[at]
		rests := time.Now().Before(r.given[at].until)
		r.mu.Unlock()
		dead := ""
		if s.leased && r.host.State(s.owner) == liveness.Dead {
			dead = s.owner
		}
		if mine || rests || s.leased && dead == "" {
			continue
		}
		l, position, failure, ok, err := take(ctx, r.provider, b.projection, b.build, s.shard, r.owner, dead, r.wait.lease)
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
	r.log.Info("projection has caught up", "projection", b.projection, "version", b.version, "build", b.build, "after", b.age.Round(time.Millisecond))
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
	return live != nil && b.version < live.version && live.build > b.build && b.age > keep
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

// rest has this process leave a lease to others for a while.
func (r *Runner) rest(at place, position int64, length time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.given[at] = given{position, time.Now().Add(length)}
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
	w.told = failure.Tries > 0 && r.given[at].position == position
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
