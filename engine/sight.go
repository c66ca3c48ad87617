package engine

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/waybill-go/waybill/internal/dblocks"
	"github.com/waybill-go/waybill/internal/senders"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/subscription"
)

// sight is what an engine sees of itself at one moment.
type sight struct {
	status        string // of /readyz
	parts         components
	outboxes      map[string]outboxSight // by provider
	subscriptions map[string]subscriptionSight
	letters       map[lane]int64                     // dead letters that need somebody, by provider and subscription
	idle          map[lane]int64                     // running processes that nothing will end, by provider and name
	unheard       map[lane]int64                     // running processes that no build has any more
	projections   map[string]projectionsSight        // by provider
	early         map[lane]subscription.EarlyLetters // of letters, those whose process has not begun
	newer         map[lane]subscription.NewerLetters // of letters, those that need a newer build
	heard         map[string]senders.Heard           // by provider: whose messages its subscriptions have got
	own           []string                           // the names of this engine's outboxes
	unnamed       bool                               // of one it isn't known
	clocks        map[string]time.Duration           // how far this process's is ahead of a provider's database; 0: it doesn't matter
	moved         map[string]*outbox.MovedError      // databases that are others than their outboxes were written in
}

type outboxSight struct {
	err    string // why its rows can't be counted; "": they were
	lanes  map[string]laneSight
	timers timersSight
	misfit *outbox.TargetsError // the database has another list of brokers than this process
	unkept map[string]string    // contexts whose history is yet to begin, and what it waits for
	locks  []dblocks.Wait       // tables that sessions wait for
}

// timersSight is what a process knows of timers.
type timersSight struct {
	trouble *outbox.Trouble // what the database doesn't let it do
	late    time.Duration   // since when the earliest is due that waits; 0: none is, or it isn't known
	of      string          // the broker of that one's message
	broken  int64           // set aside: their messages can't be sent
}

type laneSight struct {
	stats  *outbox.Stats // nil: not known
	held   outbox.Held
	status *outbox.LaneStatus // nil: this process does not publish for it
	still  time.Duration      // since when nobody has published anything
	crash  *time.Duration     // since a part of this process crashed
}

type subscriptionSight struct {
	provider string
	status   subscription.Status
	lag      *subscription.Lag // nil: not known
	still    time.Duration     // since when it has neither handled nor caught up anything
	// sinceMissed is how long ago messages were missed; nil: none were.
	sinceMissed *time.Duration
}

// lane is a target broker of a provider, or a subscription of one.
type lane struct{ provider, name string }

// looking is a sight that comes together: parts of it are asked for at once.
type looking struct {
	sync.WaitGroup
	mu sync.Mutex
	s  sight
}

// add has the sight to itself.
func (l *looking) add(to func(*sight)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	to(&l.s)
}

// look asks what the caches have, for a second at most.
func (e *Engine) look(ctx context.Context) sight {
	l := &looking{s: sight{
		outboxes: map[string]outboxSight{}, subscriptions: map[string]subscriptionSight{}, projections: map[string]projectionsSight{},
		letters: map[lane]int64{}, early: map[lane]subscription.EarlyLetters{}, newer: map[lane]subscription.NewerLetters{}, idle: map[lane]int64{}, unheard: map[lane]int64{},
		heard: map[string]senders.Heard{}, moved: map[string]*outbox.MovedError{}, clocks: map[string]time.Duration{},
	}}
	l.Go(func() {
		h := e.health(ctx)
		l.add(func(s *sight) { s.status, s.parts = h.Status, h.Components })
	})
	for _, d := range e.databases {
		e.lookAtDatabase(ctx, d, l)
	}
	for _, stream := range e.streams {
		l.Go(func() {
			o := subscriptionSight{provider: stream.provider, status: stream.runner.Status()}
			if lag, known := stream.lag.recent(ctx); known && lag.err == nil {
				o.lag = &lag.value
			}
			if at := o.status.MissedAt; !at.IsZero() {
				ago := time.Since(at)
				o.sinceMissed = &ago
			}
			l.add(func(s *sight) { s.subscriptions[stream.name] = o })
		})
	}
	l.Wait()
	for _, d := range e.databases {
		if !d.observed { // nothing is set or handled here
			l.s.clocks[d.provider.Name()] = d.clock.off()
		}
	}
	return l.s
}

func (e *Engine) lookAtDatabase(ctx context.Context, d *database, l *looking) {
	name := d.provider.Name()
	if moved := d.moved.Load(); moved != nil {
		l.add(func(s *sight) { s.moved[name] = moved })
	}
	if d.hasOutbox() {
		l.Go(func() {
			o := d.look(ctx)
			l.add(func(s *sight) { s.outboxes[name] = o })
		})
		l.Go(func() {
			f, known := d.name.recent(ctx)
			l.add(func(s *sight) { s.own, s.unnamed = append(s.own, f.value), s.unnamed || !known || f.err != nil })
		})
	}
	if e.hasProcesses(d) {
		l.Go(func() {
			processes, _ := d.running.recent(ctx)
			unheard := e.lookForUnheard(ctx, d, processes.value)
			l.add(func(s *sight) {
				for process, n := range processes.value {
					s.idle[lane{name, process}] = n.Idle
				}
				for process, n := range unheard {
					s.unheard[lane{name, process}] = n
				}
			})
		})
	}
	if e.hasProjections(d) {
		l.Go(func() {
			seen := d.lookAtProjections(ctx)
			l.add(func(s *sight) { s.projections[name] = seen })
		})
	}
	if e.consumes(name) || d.observed { // otherwise there may be no table
		l.Go(func() {
			f, _ := d.heard.recent(ctx)
			l.add(func(s *sight) { s.heard[name] = f.value })
		})
		l.Go(func() {
			letters, _ := d.dead.recent(ctx)
			l.add(func(s *sight) {
				for subscription, n := range letters.value.open {
					s.letters[lane{name, subscription}] = n
				}
				for process, n := range letters.value.early {
					s.early[lane{name, process}] = n
				}
				for subscription, n := range letters.value.newer {
					s.newer[lane{name, subscription}] = n
				}
			})
		})
	}
}

// consumes says whether a subscription of this engine has its inbox there.
func (e *Engine) consumes(provider string) bool {
	return slices.ContainsFunc(e.streams, func(s stream) bool { return s.provider == provider })
}

// look sees the outbox of a database.
func (d *database) look(ctx context.Context) outboxSight {
	o := outboxSight{lanes: map[string]laneSight{}, unkept: d.waitingHistories()}
	if d.promoter != nil {
		o.timers.trouble = d.promoter.Trouble()
	}
	var beside sync.WaitGroup
	beside.Go(func() {
		if f, known := d.late.recent(ctx); known && f.err == nil {
			o.timers.late, o.timers.of, o.timers.broken = f.value.Late, f.value.Of, f.value.Broken
		}
	})
	beside.Go(func() { o.misfit, _ = d.misfit.recent(ctx) })
	beside.Go(func() {
		f, _ := d.locks.recent(ctx)
		o.locks = f.value
	})
	counted, known := d.stats.recent(ctx)
	beside.Wait()
	switch {
	case !known:
		o.err = noAnswer
	case counted.err != nil:
		o.err = counted.err.Error()
	}
	status := d.status()
	for _, l := range d.lanes {
		var seen laneSight
		if s, ok := status[l.Target]; ok {
			seen.status = &s
		}
		o.lanes[l.Target] = seen
	}
	if o.err != "" {
		return o
	}
	held, _ := d.heldRows(ctx, counted.value)
	for target, stats := range counted.value {
		seen := o.lanes[target]
		seen.stats, seen.held = &stats, held[target]
		o.lanes[target] = seen
	}
	return o
}

// heldRows asks for them only if there can be any.
func (d *database) heldRows(ctx context.Context, stats map[string]outbox.Stats) (held map[string]outbox.Held, known bool) {
	for _, s := range stats {
		if s.Counts[outbox.Abandoned] > 0 {
			f, ok := d.held.recent(ctx)
			return f.value, ok && f.err == nil
		}
	}
	return nil, true
}
