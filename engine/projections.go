package engine

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/projection"
	"github.com/waybill-go/waybill/uow"
)

// projectionBehind is how old the first event may be that a projection doesn't show yet;
// deploy/prometheus/waybill-alerts.yaml has the same number.
const projectionBehind = time.Minute

var (
	projectionPosition = projectionMetric("position", "The position up to which all events have taken effect.", func(p projection.Progress) float64 { return float64(p.Position) })
	projectionHead     = projectionMetric("head", "The highest position that is stored.", func(p projection.Progress) float64 { return float64(p.Head) })
	projectionLate     = projectionMetric("behind_seconds", "Age of the first event that hasn't taken effect; 0 if there is none.", func(p projection.Progress) float64 { return p.BehindSeconds })
	projectionStopped  = projectionMetric("stopped", "1 if it has stopped at an event that can't be handled.", func(p projection.Progress) float64 { return one(p.Failure != nil) })
	projectionLive     = projectionMetric("live", "1 if the view shows it.", func(p projection.Progress) float64 { return one(p.Status == projection.Live) })
	projectionFed      = projectionMetric("fed", "1 if a process feeds it.", func(p projection.Progress) float64 { return one(p.Fed) })
	projectionEvents   = counter("waybill_projection_events_total", "Events that have taken effect in it, by all processes.",
		func(p projection.Progress) float64 { return float64(p.Events) }, "provider", "projection", "build")
)

func projectionMetric(name, help string, value func(projection.Progress) float64) metric[projection.Progress] {
	return gauge("waybill_projection_"+name, help, value, "provider", "projection", "build")
}

func one(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// projections checks those of a context, and gives them to its databases.
func (w *wiring) projectionsOf(c Context) {
	if len(c.Projections) == 0 {
		return
	}
	all, err := projection.New(c.Units, c.Projections, w.log)
	if err != nil {
		w.errs = append(w.errs, fmt.Errorf("context %s: %w", c.Units.Domain().Name(), err))
		return
	}
	w.projections = append(w.projections, all)
	w.keepForeign(all)
}

// feeders are what runs projections, by database.
func (w *wiring) feeders() {
	for _, all := range w.projections {
		for _, d := range w.databases {
			if !slices.ContainsFunc(all.Units().Providers(), func(p uow.Provider) bool { return same(p, d.provider) }) {
				continue
			}
			if r := all.Runner(d.provider.Name(), d.lanesTell); r != nil {
				d.feeders = append(d.feeders, r)
			}
		}
	}
}

// countProjections also finds those of other programs.
func (d *database) countProjections(ctx context.Context) (f found[[]projection.Progress]) {
	f.value, f.err = projection.List(ctx, d.provider)
	return f
}

// hasProjections says whether the database is asked for projections: an observed one may
// not have their tables.
func (e *Engine) hasProjections(d *database) bool { return !d.observed }

// projectionsSight is what is known of a database's projections.
type projectionsSight struct {
	builds  []projection.Progress
	refused map[string]string // why a build that has caught up is not in use, by projection
	trouble *outbox.Trouble
}

func (d *database) lookAtProjections(ctx context.Context) (s projectionsSight) {
	if f, known := d.projected.recent(ctx); known && f.err == nil {
		s.builds = f.value
	}
	s.refused = map[string]string{}
	for _, r := range d.feeders {
		maps.Copy(s.refused, r.Refused())
		if t := r.Trouble(); t != nil {
			s.trouble = t
		}
	}
	return s
}

// withoutContent hides what handlers have said.
func (s projectionsSight) withoutContent() projectionsSight {
	s.builds = slices.Clone(s.builds)
	for i, b := range s.builds {
		if b.Failure != nil {
			f := *b.Failure
			f.Error = *hide(&f.Error)
			s.builds[i].Failure = &f
		}
	}
	return s
}

// reasons are those of a database's projections.
func (s projectionsSight) reasons() (all []reason) {
	if s.trouble != nil {
		all = append(all, withheld(*s.trouble))
	}
	for _, p := range s.builds {
		add := func(r reason) {
			r.State, r.Projection = degraded, fmt.Sprintf("%s, build %d", p.Name, p.Build)
			all = append(all, r)
		}
		live := p.Status == projection.Live
		switch {
		case p.Failure != nil && p.Fed:
			shown := "it has stopped"
			if live {
				shown = "it is in use and has stopped"
			}
			add(reason{
				Code: "projection_stopped",
				what: fmt.Sprintf("%s at position %d since %s: %s can't be handled, tried %s%s", shown, p.Failure.Position, p.Failure.Since.UTC().Format(time.RFC3339), p.Failure.Event,
					number(int64(p.Failure.Tries), "time"), because(&p.Failure.Error)),
				remedy: fmt.Sprintf("It is retried, and continues once the event can be handled: fix the handler or, if a newer build has written the event, deploy one that reads it, which takes over. `waybill projections skip %s --build %d --position %d` continues without the event.", p.Name, p.Build, p.Failure.Position),
			})
		case live && !p.Fed:
			add(reason{
				Code: "projection_not_fed", lasting: settling,
				what:   "no engine feeds it, so it shows an old state" + s.successor(p),
				remedy: fmt.Sprintf("Start an engine whose build has version %d of it, or set Previous; if no build has it any more, %s.", p.Version, projection.Instead(s.builds, p)),
			})
		case live && p.BehindSeconds > projectionBehind.Seconds() && p.Held != nil:
			add(reason{
				Code:   "projection_behind",
				what:   fmt.Sprintf("what it shows is %v old: it waits %s, a transaction that has written events, and what was committed behind it can't be read before it ends", brief(time.Duration(p.BehindSeconds*float64(time.Second))), p.Held),
				remedy: "End the transaction: " + p.Held.By[0].Remedy() + "; and bound such sessions with idle_in_transaction_session_timeout.",
			})
		case live && p.BehindSeconds > projectionBehind.Seconds():
			add(reason{
				Code:   "projection_behind",
				what:   fmt.Sprintf("what it shows is %v old: it handles %.0f events per second%s", brief(time.Duration(p.BehindSeconds*float64(time.Second))), p.PerSecond, eta(p)),
				remedy: "`waybill projections list` says how far it is. If it doesn't come closer, its statements are slow: an index, or Shards, may help.",
			})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.refused)) {
		all = append(all, reason{
			Code: "projection_waits", State: degraded, lasting: settling, Projection: name,
			what:   "its new build is ready, and can't take the place of the one in use: " + s.refused[name],
			remedy: "It is retried. `waybill projections list` says how far both are.",
		})
	}
	return all
}

func eta(p projection.Progress) string {
	if p.ETA < 0 {
		return ", and doesn't come closer"
	}
	return fmt.Sprintf(", and has caught up in about %v", brief(p.ETA))
}

// successor is the build that is to take the place of one.
func (s projectionsSight) successor(of projection.Progress) string {
	i := slices.IndexFunc(s.builds, func(p projection.Progress) bool {
		return p.Name == of.Name && p.Build > of.Build && p.Status == projection.Building
	})
	if i < 0 {
		return ""
	}
	return fmt.Sprintf("; build %d takes its place when it has caught up%s", s.builds[i].Build, eta(s.builds[i]))
}

func (c *collector) projectionsOf(d *database, to chan<- prometheus.Metric) {
	if !c.hasProjections(d) {
		return
	}
	result, known := d.projected.get(c.lookouts.ctx)
	if !known || result.err != nil {
		return
	}
	for _, p := range result.value {
		for _, m := range []metric[projection.Progress]{projectionPosition, projectionHead, projectionLate, projectionStopped, projectionLive, projectionFed, projectionEvents} {
			m.send(to, p, d.provider.Name(), p.Name, fmt.Sprint(p.Build))
		}
	}
}

// startFeeders starts those of a database that don't run yet.
func (d *database) startFeeders(ctx context.Context) error {
	for _, r := range d.feeders {
		if err := r.Start(ctx); err != nil {
			return err
		}
	}
	return nil
}

// stopFeeders lets them finish what they have in hand.
func (e *Engine) stopFeeders(ctx context.Context) (errs []error) {
	for _, d := range e.databases {
		errs = append(errs, together(d.feeders, func(r *projection.Runner) error { return r.Stop(ctx) })...)
	}
	return errs
}

// projectionReport is a build in the answer of /api/projections.
type projectionReport struct {
	Provider string `json:"provider"`
	projection.Progress
	Refused string `json:"refused,omitempty"` // Why its build that has caught up isn't in use.
}

// withoutContent hides what a handler has said.
func (r projectionReport) withoutContent() projectionReport {
	if r.Failure != nil {
		f := *r.Failure
		f.Error = *hide(&f.Error)
		r.Failure = &f
	}
	return r
}

// order is that of the page: by name, then build.
func (r projectionReport) order(o projectionReport) int {
	return cmp.Or(cmp.Compare(r.Name, o.Name), cmp.Compare(r.Provider, o.Provider), cmp.Compare(r.Build, o.Build))
}
