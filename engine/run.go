package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/process"
)

const (
	// startTimeout bounds what the start waits for one database or broker.
	startTimeout = 10 * time.Second
	// startsAtOnce is how many databases are started side by side. Hundreds of schemas in
	// one server would otherwise wait for each other until none is started in time.
	startsAtOnce = 16
	// turnTimeout bounds what the engine's start waits until it is a database's turn.
	turnTimeout = time.Minute
	firstWait   = time.Second
	lastWait    = 8 * time.Second
	listenWait  = time.Minute
)

// Run starts the engine, unless it runs already, and runs until ctx is done.
// Then it stops cleanly within Config.StopTimeout and returns nil. It returns an
// error if the start fails, or the clean stop, or an HTTP server while running;
// a database or a broker that is down for a while ends nothing. It installs no
// signal handlers: use signal.NotifyContext.
func (e *Engine) Run(ctx context.Context) error {
	if failure, unclean := e.launch(ctx); failure != nil {
		if ctx.Err() != nil {
			return unclean
		}
		return errors.Join(failure, unclean)
	}
	var failure error
	select {
	case <-ctx.Done():
	case <-e.failed:
		failure = e.failure
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.cfg.StopTimeout)
	defer cancel()
	return errors.Join(failure, e.Stop(stop))
}

// Start checks the tables, creates missing topics, and starts the HTTP server,
// the processors, the subscriptions and the application's server. It returns when they
// run; they go on after ctx is done, until [Engine.Stop]. After an error nothing runs.
//
// A wrong configuration, such as missing tables, is an error. A database or
// broker that doesn't answer for ten seconds is not: what needs it starts as
// soon as it does, and /readyz tells.
//
// Starting a running engine does nothing. One that has stopped can't be started
// again.
func (e *Engine) Start(ctx context.Context) error {
	return errors.Join(e.launch(ctx))
}

// launch returns why the start failed, and why what ran by then was not stopped cleanly.
func (e *Engine) launch(ctx context.Context) (failure, unclean error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch e.phase.Load() {
	case running:
		return nil, nil
	case stopped:
		return errors.New("engine: it has stopped, and an engine runs once: make another with engine.New"), nil
	}
	e.phase.Store(starting)
	if err := e.start(ctx); err != nil {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.cfg.StopTimeout)
		defer cancel()
		return err, e.stop(stop)
	}
	e.phase.Store(running)
	about := []any{"providers", len(e.databases), "brokers", len(e.links), "subscriptions", len(e.streams)}
	if e.server != nil {
		about = append(about, "addr", e.Addr())
	}
	if e.app != nil {
		about = append(about, "app", e.AppAddr())
	}
	e.log.Info("engine is running", about...)
	return nil, nil
}

func (e *Engine) start(ctx context.Context) error {
	if e.server != nil {
		if err := e.server.start(ctx, e.fail); err != nil {
			return err
		}
	}
	if err := e.meter(); err != nil {
		return err
	}
	e.warnOfHomelessEvents()
	e.lookouts.start(e.watch)
	waiting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	e.giveUp = cancel
	e.listen()
	unreached, err := e.startParts(ctx)
	if err != nil {
		return err
	}
	e.tellOfBrokers(ctx)
	for i, d := range e.databases {
		err := unreached[i]
		if err == nil {
			err = e.consume(ctx, d)
		}
		switch {
		case err == nil:
			e.warnOfUndeclared(ctx, d)
		case d.unreachable(err):
			e.log.Warn("the database can't be used yet; what needs it starts when it can", "provider", d.provider.Name(), "error", err)
			d.reason.Store(&err)
			e.pending.Go(func() { e.await(waiting, d, unreached[i] == nil) })
		default:
			return d.wrap(err)
		}
	}
	if e.app != nil {
		return e.app.start(ctx, e.fail)
	}
	return nil
}

// listen has units of work say what they commit.
func (e *Engine) listen() {
	byName := map[string]*database{}
	for _, d := range e.databases {
		byName[d.provider.Name()] = d
	}
	for _, m := range e.cfg.Units {
		e.unwire = append(e.unwire, m.OnCommit(func(provider string, pokes []outbox.Poke) []outbox.Poke {
			return byName[provider].wake(pokes)
		}), m.OnTimer(func(provider string, at time.Time) { byName[provider].timerSet(at) }))
	}
}

// startParts starts databases and makes topics, side by side, so that a few that don't
// answer cost their time once. It returns for each database why it can't be reached, if
// so; anything else that is wrong is an error.
func (e *Engine) startParts(ctx context.Context) (unreached []error, err error) {
	errs := make([]error, len(e.databases))
	topics := make(chan error, len(e.links))
	var all sync.WaitGroup
	for i, d := range e.databases {
		all.Go(func() {
			turn, cancel := context.WithTimeout(ctx, turnTimeout)
			defer cancel()
			errs[i] = e.inTurn(turn, ctx, d.start)
		})
	}
	for _, l := range e.links {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, startTimeout)
			defer cancel()
			topics <- e.prepare(ctx, l)
		})
	}
	all.Wait()
	close(topics)
	var wrong []error
	for err := range topics {
		wrong = append(wrong, err)
	}
	for i, d := range e.databases {
		if errs[i] != nil && !d.unreachable(errs[i]) {
			wrong = append(wrong, d.wrap(errs[i]))
		}
	}
	return errs, errors.Join(append(wrong, ctx.Err())...)
}

// inTurn runs a step that starts a database, with a deadline of its own, when it is its turn.
func (e *Engine) inTurn(turn, ctx context.Context, step func(context.Context) error) error {
	select {
	case e.turns <- struct{}{}:
		defer func() { <-e.turns }()
	case <-turn.Done():
		return fmt.Errorf("it waited for its turn, as %d databases start at a time: %w", startsAtOnce, turn.Err())
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return step(ctx)
}

// fail ends Run.
func (e *Engine) fail(err error) {
	e.failing.Do(func() {
		e.failure = err
		close(e.failed)
	})
}

// prepare creates a broker's topics. That it can't be reached is no error.
func (e *Engine) prepare(ctx context.Context, l *link) error {
	err := l.ensure(ctx)
	switch {
	case err == nil:
	case broker.ClassOf(err) == broker.Permanent:
		return fmt.Errorf("engine: broker %q: %w", l.name, err)
	case ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded):
		e.log.Warn("the broker doesn't answer; rows wait until it does", "broker", l.name, "error", err)
	}
	return nil
}

// consume starts the subscriptions whose inbox is in d.
func (e *Engine) consume(ctx context.Context, d *database) error {
	for _, s := range e.streams {
		if s.provider != d.provider.Name() || s.started.Load() {
			continue
		}
		if err := s.runner.Start(ctx); err != nil {
			return err
		}
		s.started.Store(true)
	}
	if err := d.startFeeders(ctx); err != nil {
		return err
	}
	d.ready.Store(true)
	e.lookouts.start(func(ctx context.Context) { d.housekeeping(ctx, e.cfg.DeadLetters) })
	if len(e.handlers) > 0 {
		e.lookouts.start(func(ctx context.Context) { d.forget(ctx, "idempotency keys", command.PurgeKeys) })
	}
	if len(e.processes) > 0 {
		e.lookouts.start(func(ctx context.Context) { d.forget(ctx, "processes that have ended", process.Purge) })
	}
	return nil
}

// await tries to start what runs on a database until it answers or ctx is done.
// Tables that turn out to be missing are no reason to end, now that the rest
// runs: somebody may create them.
func (e *Engine) await(ctx context.Context, d *database, started bool) {
	for wait := firstWait; ; wait = min(2*wait, lastWait) {
		select {
		case <-time.After(time.Duration(float64(wait) * (0.75 + rand.Float64()/2))):
		case <-ctx.Done():
			return
		}
		err := e.inTurn(ctx, ctx, func(ctx context.Context) error {
			if !started {
				if err := d.start(ctx); err != nil {
					return err
				}
				started = true
			}
			return e.consume(ctx, d)
		})
		if err == nil {
			e.log.Info("the database can be used; what needs it runs now", "provider", d.provider.Name())
			return
		}
		if before := d.reason.Swap(&err); (*before).Error() != err.Error() && ctx.Err() == nil {
			e.log.Warn("the database can't be used yet", "provider", d.provider.Name(), "error", err)
		}
	}
}

// Stop ends what Start started: the application's server answers its last requests; no
// more messages are taken and running handlers finish, then the calls that are out are
// settled and partitions released, then the engine's HTTP server ends, which reports
// draining meanwhile. A done ctx ends the rest hard, and is an error; leases then run out
// by themselves.
//
// Stopping an engine that doesn't run does nothing.
func (e *Engine) Stop(ctx context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.phase.Load() != running {
		return nil
	}
	return e.stop(ctx)
}

func (e *Engine) stop(ctx context.Context) error {
	e.phase.Store(draining)
	defer e.phase.Store(stopped)
	errs := []error{e.stopApp(ctx)}
	for _, cancel := range e.unwire {
		cancel()
	}
	if e.giveUp != nil {
		e.giveUp()
		e.pending.Wait()
	}

	// Handlers that don't end must leave time for projections to end, for which handlers may
	// wait, and for the processors to release their partitions: a partition that isn't released
	// waits for its lease to run out.
	handlers, cancel := before(ctx, 2.0/3)
	errs = append(errs, together(e.streams, func(s stream) error { return s.runner.Stop(handlers) })...)
	cancel()
	feeders, cancel := before(ctx, 1.0/2)
	errs = append(errs, e.stopFeeders(feeders)...)
	cancel()
	errs = append(errs, together(e.databases, func(d *database) error { return d.stop(ctx) })...)
	e.lookouts.stop()
	if e.server != nil {
		errs = append(errs, e.server.stop(ctx))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("engine: %w", err)
	}
	e.log.Info("engine has stopped")
	return nil
}

// before ends after a share of the time that ctx has left.
func before(ctx context.Context, share float64) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Duration(share*float64(time.Until(deadline))))
}

// together stops parts at the same time.
func together[T any](parts []T, stop func(T) error) []error {
	errs := make([]error, len(parts))
	var all sync.WaitGroup
	for i, p := range parts {
		all.Go(func() { errs[i] = stop(p) })
	}
	all.Wait()
	return errs
}

// warnOfHomelessEvents says which events are declared as published and go to
// nobody outside, nor to another context here: most likely an external broker was forgotten.
func (e *Engine) warnOfHomelessEvents() {
	for _, m := range e.cfg.Units {
		if names := homeless(m, e.cfg.Units); len(names) > 0 && !m.OutboxDisabled() {
			e.log.Warn("published events go to no external broker: add a target for them, or don't declare them domain.Published()",
				"context", m.Domain().Name(), "events", strings.Join(names, ", "))
		}
	}
}
