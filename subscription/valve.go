package subscription

import (
	"sync"
	"time"
)

const (
	// tripAt is how many messages in a row have failed, each for the first time,
	// when the breaker opens. As many are tried, one after the other, before it
	// waits again: these may happen to be poisonous.
	tripAt     = 5
	firstProbe = time.Second
	lastProbe  = 30 * time.Second
)

// valve lets messages through to the handlers. An operator can close it. And it is
// a circuit breaker: when whatever the handlers need is away, every message would
// use up its attempts and be parked. So when new messages have failed one after the
// other and none succeeded, it lets a few through, one at a time, at growing
// intervals, until one succeeds. A poisonous message fails again and again, and
// doesn't open the breaker.
//
// The breaker is the one of M. Nygard, Release It! (2007).
type valve struct {
	mu      sync.Mutex
	changed chan struct{} // Closed and replaced when something below changes.
	shut    bool          // By an operator.

	failing int // Messages that failed for the first time, since the last success.
	open    bool
	tried   int // Probes that failed since the last wait.
	wait    time.Duration
	next    time.Time // Of the next probe.
	probes  int64
	probing int64 // Which one is out; 0: none.
}

func newValve() *valve {
	return &valve{changed: make(chan struct{})}
}

// pass is leave to call a handler: for a probe, if it is not 0.
type pass int64

// enter waits for leave, until stop is closed.
func (v *valve) enter(stop <-chan struct{}) (p pass, ok bool) {
	for {
		v.mu.Lock()
		changed := v.changed
		var due <-chan time.Time
		if !v.shut {
			switch now := time.Now(); {
			case !v.open:
				v.mu.Unlock()
				return 0, true
			case v.probing > 0:
			case !now.Before(v.next):
				v.probes++
				v.probing = v.probes
				p = pass(v.probes)
				v.mu.Unlock()
				return p, true
			default:
				due = time.After(v.next.Sub(now))
			}
		}
		v.mu.Unlock()
		select {
		case <-changed:
		case <-due:
		case <-stop:
			return 0, false
		}
	}
}

// succeeded ends the breaker's doubts.
func (v *valve) succeeded() (closed bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.failing = 0
	closed = v.open
	if v.open {
		v.open, v.probing = false, 0
		v.change()
	}
	return closed
}

// failed notes the failure of a message, its first or not. opened says that it is
// the one that opened the breaker. free says that it costs the message no attempt:
// while the breaker is open only a probe's failure does.
func (v *valve) failed(p pass, first bool) (opened, free bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.open {
		if v.isOut(p) {
			v.probing = 0
			if v.tried++; v.tried == tripAt {
				v.tried, v.wait = 0, min(2*v.wait, lastProbe)
				v.next = time.Now().Add(v.wait)
			}
			v.change()
		}
		return false, p == 0
	}
	if first {
		v.failing++
	}
	if !first || v.failing < tripAt {
		return false, false
	}
	v.open, v.tried, v.wait = true, 0, firstProbe
	v.next = time.Now().Add(v.wait)
	return true, false
}

// done ends a pass that says nothing of the handlers' health.
func (v *valve) done(p pass) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.isOut(p) {
		v.probing = 0
		v.change()
	}
}

func (v *valve) isOut(p pass) bool { return p > 0 && int64(p) == v.probing }

func (v *valve) pause(shut bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.shut = shut
	v.change()
}

// paused says whether an operator has closed it; changed is closed when that, or
// anything else, changes.
func (v *valve) paused() (shut bool, changed <-chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.shut, v.changed
}

// tripped says whether the breaker is open.
func (v *valve) tripped() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.open
}

func (v *valve) change() {
	close(v.changed)
	v.changed = make(chan struct{})
}
