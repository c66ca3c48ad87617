package timerdb

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/outbox"
)

const (
	// batch is how many timers one transaction sends.
	batch = 500
	// room is how many messages of a target's timers may be unpublished. More would stand
	// before what is written meanwhile, as they have no priority of their own.
	room = 50_000
	// least is how much of it must be free before it goes on, so that counting is worth it.
	least = room / 10
	// again is when it looks at what somebody had locked, or another process was at.
	again = 100 * time.Millisecond
	// crowded is when it counts again while there is no room, and costly how many times as
	// long as the count took, if that is longer.
	crowded, costly = time.Second, 10
	// longest bounds one step, and the wait behind failures.
	longest = 30 * time.Second
)

// Steps is what a promoter needs: a [Store].
type Steps interface {
	Next(ctx context.Context) ([]Earliest, error)
	Unpublished(ctx context.Context, target string, limit int) (int, error)
	Promote(ctx context.Context, target string, limit int) (Promoted, error)
}

// Promoter sends the timers of a database when they are due. One process at a time
// does, and each is ready to. A target that can't be sent to, because its broker
// publishes nothing or its timers can't be read, keeps no other waiting.
type Promoter struct {
	steps   Steps
	every   time.Duration
	wake    func([]outbox.Poke)
	outage  *dberr.Outage
	log     *slog.Logger
	targets map[string]*target // of timers that are due

	woken chan struct{}
	mu    sync.Mutex
	next  time.Time // the earliest that it knows of, by the database; zero: it looks
}

// target is where timers are sent to.
type target struct {
	free   int           // so many may be sent before they are counted again
	until  time.Time     // nothing is sent before
	failed time.Duration // how long the last failure made it wait; 0: none
}

// NewPromoter returns a promoter that looks at least every so often, and says where it
// has put messages. told says whether another line of the log tells that the database is
// away: then it has none of its own; nil: there is no other.
func NewPromoter(steps Steps, every time.Duration, wake func([]outbox.Poke), told func() bool, log *slog.Logger) *Promoter {
	return &Promoter{
		steps: steps, every: every, wake: wake, outage: &dberr.Outage{Log: log, Told: told}, log: log,
		targets: map[string]*target{}, woken: make(chan struct{}, 1),
	}
}

// Set tells it that a timer was set: at is when it is due. It never waits.
func (p *Promoter) Set(at time.Time) {
	p.mu.Lock()
	known := !p.next.IsZero() && !at.Before(p.next)
	p.mu.Unlock()
	if known {
		return
	}
	select {
	case p.woken <- struct{}{}:
	default:
	}
}

// Trouble is what the database doesn't let it do. It is nil if all goes well.
func (p *Promoter) Trouble() *dberr.Trouble { return p.outage.Worst() }

// sending is the task of a target, and that of a look has none.
func sending(target string) dberr.Task {
	return dberr.Task{What: "send timers that are due", Who: target, Aside: true}
}

// Run sends what is due until ctx is done.
func (p *Promoter) Run(ctx context.Context) {
	failed := time.Duration(0)
	for ctx.Err() == nil {
		p.know(time.Time{})
		select {
		case <-p.woken: // by what this look sees
		default:
		}
		earliest, err := p.look(ctx)
		p.outage.Note(ctx, sending(""), err)
		var wait time.Duration
		woken := p.woken
		if err == nil {
			failed, wait = 0, p.round(ctx, earliest)
		} else {
			failed = p.longer(failed)
			wait, woken = failed, nil // whatever is set meanwhile
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-woken:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// longer is how long to wait behind a failure, after which the one before made it wait.
func (p *Promoter) longer(before time.Duration) time.Duration {
	return min(max(2*before, p.every), longest)
}

// round sends a batch of each target's timers that are due, and returns how long there is
// nothing to do.
func (p *Promoter) round(ctx context.Context, earliest []Earliest) (wait time.Duration) {
	wait = p.every
	next, due := never, map[string]*target{}
	for _, e := range earliest {
		if e.In > 0 {
			wait = min(wait, e.In+time.Millisecond)
			next = earlier(next, e.At)
			continue
		}
		t := p.targets[e.Target]
		if t == nil {
			t = &target{}
		}
		due[e.Target] = t
		if time.Until(t.until) <= 0 {
			p.send(ctx, e.Target, t)
		}
		wait = max(min(wait, time.Until(t.until)), 0)
	}
	for name, t := range p.targets {
		if due[name] == nil && t.failed > 0 {
			p.outage.Note(ctx, sending(name), nil) // they were stopped, or others have sent them
		}
	}
	p.targets = due
	p.know(next)
	return wait
}

var never = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// know notes the earliest time: what is set for an earlier one wakes it.
func (p *Promoter) know(at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next = at
}

// look is what waits.
func (p *Promoter) look(ctx context.Context) (earliest []Earliest, err error) {
	err = step(ctx, func(ctx context.Context) error {
		earliest, err = p.steps.Next(ctx)
		return err
	})
	return earliest, err
}

// send sends a batch of a target's timers, or finds out until when that has no point.
func (p *Promoter) send(ctx context.Context, name string, t *target) {
	var pause time.Duration
	err := step(ctx, func(ctx context.Context) (err error) {
		pause, err = p.batch(ctx, name, t)
		return err
	})
	p.outage.Note(ctx, sending(name), err)
	if err == nil {
		t.failed = 0
	} else {
		t.failed = p.longer(t.failed)
		pause = t.failed
	}
	t.until = time.Now().Add(pause)
}

// batch is one transaction. pause is for how long the next one has no point; 0: none.
func (p *Promoter) batch(ctx context.Context, name string, t *target) (pause time.Duration, err error) {
	began := time.Now()
	if t.free < batch {
		n, err := p.steps.Unpublished(ctx, name, room)
		if err != nil {
			return 0, err
		}
		if t.free = room - n; t.free < least {
			t.free = 0
			return max(crowded, costly*time.Since(began)), nil
		}
	}
	began = time.Now()
	done, err := p.steps.Promote(ctx, name, batch)
	if err != nil {
		return 0, err
	}
	if len(done.Pokes) > 0 {
		p.wake(done.Pokes)
	}
	for _, b := range done.Broken {
		p.log.ErrorContext(ctx, "a timer's message can't be sent: the timer is set aside, and the others go on; `waybill timers show` has it, `fire` tries it again, `stop` forgets it", "timer", b.ID, "target", name, "error", b.Error)
	}
	t.free -= done.Sent
	if done.Busy {
		t.free = 0 // it counts anew when it is this process's turn
	}
	switch {
	case done.Sent == batch: // there may be many: others have the database for as long
		rest(ctx, time.Since(began))
	case done.Sent+len(done.Broken) == 0:
		return max(again, time.Since(began)), nil
	}
	return 0, nil
}

func rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// step runs one with its time limit. A panic of it is its failure.
func step(ctx context.Context, do func(ctx context.Context) error) (err error) {
	defer func() {
		if crash := recover(); crash != nil {
			err = fmt.Errorf("timers: %v\n%s", crash, debug.Stack())
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	return do(ctx)
}
