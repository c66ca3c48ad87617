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
	// room is how many of their messages may be unpublished. More would stand before
	// what is written meanwhile, as they have no priority of their own.
	room = 50_000
	// least is how much of it must be free before it goes on, so that counting is worth it.
	least = room / 10
	// again is when it looks at what somebody had locked, or another process was at.
	again = 100 * time.Millisecond
	// crowded is when it counts again while there is no room.
	crowded = time.Second
	// longest bounds one step, and the wait behind failures.
	longest = 30 * time.Second
)

// Steps is what a promoter needs: a [Store].
type Steps interface {
	Next(ctx context.Context) (at time.Time, in time.Duration, ok bool, err error)
	Unpublished(ctx context.Context, limit int) (int, error)
	Promote(ctx context.Context, limit int) (Promoted, error)
}

// Promoter sends the timers of a database when they are due. One process at a time
// does, and each is ready to.
type Promoter struct {
	steps  Steps
	every  time.Duration
	wake   func([]outbox.Poke)
	outage *dberr.Outage
	free   int // so many may be sent before it counts again

	woken chan struct{}
	mu    sync.Mutex
	next  time.Time // the earliest that it knows of, by the database; zero: it looks
}

// NewPromoter returns a promoter that looks at least every so often, and says where it
// has put messages. told says whether another line of the log tells that the database is
// away: then it has none of its own; nil: there is no other.
func NewPromoter(steps Steps, every time.Duration, wake func([]outbox.Poke), told func() bool, log *slog.Logger) *Promoter {
	return &Promoter{steps: steps, every: every, wake: wake, outage: &dberr.Outage{Log: log, Told: told}, woken: make(chan struct{}, 1)}
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

var sending = dberr.Task{What: "send timers that are due", Aside: true}

// Run sends what is due until ctx is done.
func (p *Promoter) Run(ctx context.Context) {
	failed := time.Duration(0)
	for ctx.Err() == nil {
		wait, err := p.round(ctx)
		p.outage.Note(ctx, sending, err)
		woken := p.woken
		if err == nil {
			failed = 0
		} else {
			failed = min(max(2*failed, p.every), longest)
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

// round sends all that is due, and returns how long there is nothing to do.
func (p *Promoter) round(ctx context.Context) (wait time.Duration, err error) {
	defer func() {
		if crash := recover(); crash != nil {
			err = fmt.Errorf("timers: %v\n%s", crash, debug.Stack())
		}
	}()
	p.know(time.Time{})
	for {
		at, in, ok, err := p.look(ctx)
		switch {
		case err != nil:
			return 0, err
		case !ok:
			p.know(never)
			return p.every, nil
		case in > 0:
			p.know(at)
			return min(in+time.Millisecond, p.every), nil
		}
		if wait, err := p.send(ctx); err != nil || wait > 0 {
			return wait, err
		}
	}
}

var never = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// know notes the earliest time: what is set for an earlier one wakes it.
func (p *Promoter) know(at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next = at
}

func (p *Promoter) look(ctx context.Context) (at time.Time, in time.Duration, ok bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	return p.steps.Next(ctx)
}

// send is one batch. wait is for how long the next one has no point; 0: none.
func (p *Promoter) send(ctx context.Context) (wait time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	if p.free < batch {
		n, err := p.steps.Unpublished(ctx, room)
		if err != nil {
			return 0, err
		}
		if p.free = room - n; p.free < least {
			p.free = 0
			return crowded, nil
		}
	}
	began := time.Now()
	done, err := p.steps.Promote(ctx, batch)
	if err != nil {
		return 0, err
	}
	if len(done.Pokes) > 0 {
		p.wake(done.Pokes)
	}
	p.free -= done.Sent
	if done.Busy {
		p.free = 0 // it counts anew when it is this process's turn
	}
	switch done.Sent {
	case 0:
		return again, nil
	case batch: // there may be many: others have the database for as long
		p.rest(ctx, time.Since(began))
	}
	return 0, nil
}

func (p *Promoter) rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
