package relaytest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// Step is one of the store's methods.
type Step string

// The steps that can be told to fail.
const (
	Lanes   Step = "lanes"
	Join    Step = "join"
	Renew   Step = "renew"
	Take    Step = "take"
	Release Step = "release"
	Reap    Step = "reap"
	Finish  Step = "finish"
	Leave   Step = "leave"
	Look    Step = "look"
	Fetch   Step = "fetch"
	Due     Step = "due"
	First   Step = "first"
	Claim   Step = "claim"
	Settle  Step = "settle"
	Poll    Step = "poll"
	Horizon Step = "horizon"
)

// ErrFault is what a step says that was told to fail, unless it was told what to say.
var ErrFault = errors.New("relaytest: the database did not answer")

// Fault is what becomes of one call of a step. The zero value lets it through.
type Fault struct {
	Wait time.Duration // before anything else; a context that ends meanwhile ends it
	// Fail answers with an error. Then the step runs only if Runs says so: at once, or,
	// with Late, as long after the answer.
	Fail bool
	Err  error // instead of ErrFault
	Runs bool
	Late time.Duration
}

// Refused fails and never runs; Unanswered runs, and nobody hears of it.
var (
	Refused    = Fault{Fail: true}
	Unanswered = Fault{Fail: true, Runs: true}
)

// Late fails now and runs after d.
func Late(d time.Duration) Fault { return Fault{Fail: true, Runs: true, Late: d} }

// Slow runs after d.
func Slow(d time.Duration) Fault { return Fault{Wait: d} }

// Faults are what the steps were told to do wrong. It is safe for concurrent use.
type Faults struct {
	lock   sync.Mutex
	out    bool
	next   map[Step][]Fault
	always map[Step]Fault
	calls  map[Step]int
	before func(Step)
}

// Fault tells the next calls of a step what to do wrong, one each.
func (f *Faults) Fault(step Step, each ...Fault) {
	f.lock.Lock()
	defer f.lock.Unlock()
	if f.next == nil {
		f.next = map[Step][]Fault{}
	}
	f.next[step] = append(f.next[step], each...)
}

// Always tells every call of a step what to do wrong; the zero Fault ends it.
func (f *Faults) Always(step Step, fault Fault) {
	f.lock.Lock()
	defer f.lock.Unlock()
	if f.always == nil {
		f.always = map[Step]Fault{}
	}
	f.always[step] = fault
}

// SetOutage takes the database away, or brings it back.
func (f *Faults) SetOutage(out bool) {
	f.lock.Lock()
	defer f.lock.Unlock()
	f.out = out
}

// Before is called at the begin of each step, without a lock.
func (f *Faults) Before(hook func(Step)) {
	f.lock.Lock()
	defer f.lock.Unlock()
	f.before = hook
}

// Calls is how often a step was called.
func (f *Faults) Calls(step Step) int {
	f.lock.Lock()
	defer f.lock.Unlock()
	return f.calls[step]
}

func (f *Faults) instruct(step Step) (Fault, func(Step)) {
	f.lock.Lock()
	defer f.lock.Unlock()
	if f.calls == nil {
		f.calls = map[Step]int{}
	}
	f.calls[step]++
	if f.out {
		return Refused, f.before
	}
	if next := f.next[step]; len(next) > 0 {
		f.next[step] = next[1:]
		return next[0], f.before
	}
	return f.always[step], f.before
}

// do runs a step with what it was told to do wrong.
func do[T any](ctx context.Context, s *Store, step Step, run func() (T, error)) (none T, err error) {
	fault, before := s.instruct(step)
	if before != nil {
		before(step)
	}
	if fault.Wait > 0 {
		timer := time.NewTimer(fault.Wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return none, ctx.Err()
		}
	}
	locked := func() (T, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if slices.Contains(flushes, step) {
			s.keep(true)
		}
		return run()
	}
	if !fault.Fail {
		if err := ctx.Err(); err != nil {
			return none, err
		}
		return locked()
	}
	switch {
	case fault.Late > 0:
		time.AfterFunc(fault.Late, func() { _, _ = locked() })
	case fault.Runs:
		_, _ = locked()
	}
	if fault.Err != nil {
		return none, fault.Err
	}
	return none, ErrFault
}
