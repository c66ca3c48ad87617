package subscription

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	// Replays are looked for at growing intervals.
	replayPoll    = 500 * time.Millisecond
	replayPollMax = 4 * time.Second
	// replayWave is how many keys are replayed at a time.
	replayWave = 8
	// replayRun is how many of a key are replayed in a row, before another's turn.
	replayRun = 64
	// headsRest is how many times as long as it took the search for the heads of held
	// keys rests: with many keys it takes its time.
	headsRest = 20
)

// hands are the dead letters that a runner has in hand.
type hands struct {
	mu   sync.Mutex
	have map[string]*message // By the row's id.
}

// put says whether m is not in hand already: after an outage of the database this run
// may find what it has itself.
func (h *hands) put(m *message) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.have[m.parked.id] != nil {
		return false
	}
	h.have[m.parked.id] = m
	return true
}

func (h *hands) drop(m *message) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.have, m.parked.id)
}

func (h *hands) all() (messages []*message, ids []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, m := range h.have {
		messages, ids = append(messages, m), append(ids, id)
	}
	return messages, ids
}

// replay handles dead letters whose time has come: those that wait, those that
// operators want handled again, and those behind them; until the runner stops. It
// needs no broker.
func (r *Runner) replay() {
	defer r.keep()()
	var all sync.WaitGroup
	defer all.Wait()
	slots := make(chan struct{}, replayWave)
	var heads time.Time // When to search for them.
	for wait := replayPoll; ; wait = min(max(2*wait, replayPoll), replayPollMax) {
		for _, m := range r.replayable(&heads) {
			select {
			case slots <- struct{}{}:
			case <-r.intake.Done():
				return
			}
			p, ok := r.take(m)
			if !ok {
				<-slots
				continue
			}
			wait = 0 // There may be more.
			all.Go(func() {
				defer func() { <-slots }()
				r.again(p, m)
			})
		}
		if woken, ok := r.rest(wait); !ok {
			return
		} else if woken {
			heads, wait = time.Time{}, 0
		}
	}
}

// rest sleeps, unless there is a reason to look at once.
func (r *Runner) rest(d time.Duration) (woken, ok bool) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		select { // of the two, if both are so
		case <-r.woken:
			return true, true
		default:
			return false, true
		}
	case <-r.woken:
		return true, true
	case <-r.intake.Done():
		return false, false
	}
}

// keep renews what is in hand.
func (r *Runner) keep() (stop func()) {
	ctx, cancel := context.WithCancel(r.work)
	var renewing sync.WaitGroup
	renewing.Go(func() {
		for sleep(ctx, r.letters.lease/3) {
			_, ids := r.hands.all()
			if len(ids) == 0 {
				continue
			}
			if err := r.letters.renew(ctx, ids); err != nil && ctx.Err() == nil {
				r.note(err)
			}
		}
	})
	return func() {
		cancel()
		renewing.Wait()
	}
}

func (r *Runner) replayable(heads *time.Time) []*message {
	found, err := r.letters.due(r.intake, replayWave)
	if begin := time.Now(); err == nil && !begin.Before(*heads) {
		var more []*message
		if err = r.awaken(r.intake); err != nil {
			r.asked(replaying, err)
			return found
		}
		more, err = r.letters.heads(r.intake, replayWave)
		found = append(found, more...)
		*heads = time.Now().Add(min(headsRest*time.Since(begin), time.Minute))
	}
	r.asked(replaying, err)
	return found
}

// take waits until a handler may be called, and then takes m.
func (r *Runner) take(m *message) (p pass, ok bool) {
	p, ok = r.valve.enter(r.intake.Done())
	if !ok {
		return 0, false
	}
	if !r.hands.put(m) {
		r.valve.done(p)
		return 0, false
	}
	ok, err := r.letters.take(r.work, m)
	if ok && r.intake.Err() == nil {
		return p, true
	}
	r.hands.drop(m)
	r.valve.done(p)
	if ok || err != nil { // it may be taken although that failed
		err = errors.Join(err, r.letters.release(r.work, m, 0))
	}
	if err != nil && r.intake.Err() == nil {
		r.note(err)
	}
	return 0, false
}

// again handles a dead letter that is taken, and then those behind it. What fails
// waits in the table, unless that is short.
func (r *Runner) again(p pass, m *message) {
	for n := 1; ; n++ {
		wait, over := r.once(p, m)
		switch {
		case over:
			next, err := r.letters.following(r.intake, m)
			if err != nil || next == nil {
				if r.stream.Instances != nil {
					r.stream.Instances.Wake() // The next one came by another stream, perhaps.
				}
				return // the search for heads finds it
			}
			m = next
		case wait > replayPoll || !sleep(r.intake, wait):
			return
		}
		if n == replayRun {
			return
		}
		var ok bool
		if p, ok = r.take(m); !ok {
			return
		}
	}
}

// once makes one attempt, and says whether m is over, or when it is to be tried again.
func (r *Runner) once(p pass, m *message) (wait time.Duration, over bool) {
	defer r.hands.drop(m)
	result, wait := r.attempt(r.work, p, m)
	switch result {
	case handled:
		r.replayed.Add(1)
		return 0, true
	case ignored:
		why, cause := parked, fmt.Errorf("subscription: %q is not for this build", m.meta.Type)
		if !r.handles(m.meta.Type) { // The build that set it aside does: one that runs beside this, or did.
			why, cause = newerVersion, &unhandledError{m.meta.Type}
		}
		if _, err := r.park(r.work, m, why, cause); err == nil {
			return 0, true
		}
		wait = r.backoff(1)
	case dropped, duplicate, setAside, postponed:
		return 0, true
	case aborted:
		wait = 0
	}
	if r.over.Load() {
		return 0, true
	}
	if err := r.letters.release(r.work, m, wait); err != nil {
		r.note(err)
	}
	return wait, false
}
