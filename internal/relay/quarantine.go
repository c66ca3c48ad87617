package relay

import (
	"sync"
	"time"
)

const (
	// quarantineFrom is how many losses send a row into quarantine.
	quarantineFrom = 2
	// crashLosses end it. The last three of them it was alone [EARLY].
	crashLosses = 5
	// quarantineShare is how much longer than in it a process is out of it.
	quarantineShare = 3
)

// condemned says that the row ended too many processes to be called for again:
// its answer is errCrash.
func condemned(row Claimed) bool { return row.Losses >= crashLosses }

// quarantine is a process's gate: from the claim of a row that may kill until
// its call returns nothing else is claimed or called, in whatever lane or
// database: what it takes along would have a loss that isn't its own
// [OTHERSGO]. Who settles is behind it, so an absent database holds up nobody.
//
// It has a quarter of the time at most. It is safe for concurrent use.
type quarantine struct {
	mu      sync.Mutex
	others  int  // claims and calls that are out
	waits   bool // somebody wants to enter: nobody else begins
	inside  bool
	since   time.Time
	not     time.Time // before this nobody enters
	changed chan struct{}
}

func newQuarantine() *quarantine { return &quarantine{changed: make(chan struct{})} }

// open says that a row in quarantine may be chosen.
func (q *quarantine) open(now time.Time) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return !q.inside && !q.waits && !now.Before(q.not)
}

// begin lets a claim with its call go on, unless a row is in quarantine or waits
// for it. After it comes end.
func (q *quarantine) begin() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.inside || q.waits {
		return false
	}
	q.others++
	return true
}

// end says that the call of a claim has returned, or that there won't be one.
func (q *quarantine) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.others--
	q.wake()
}

// want keeps others from beginning, so that those that are out come to an end.
// One at a time: it is false if another wants to, is inside, or it is too early.
// After it come enter, as often as it takes, and leave.
func (q *quarantine) want(now time.Time) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.inside || q.waits || now.Before(q.not) {
		return false
	}
	q.waits, q.since = true, now
	return true
}

// enter says that nothing else is out any more.
func (q *quarantine) enter() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.waits || q.others > 0 {
		return false
	}
	q.waits, q.inside = false, true
	return true
}

// leave ends it, entered or not. All the time that others were kept from
// beginning counts.
func (q *quarantine) leave(now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waits, q.inside = false, false
	q.not = now.Add(quarantineShare * now.Sub(q.since))
	q.wake()
}

// change is closed when begin, want or enter may say something else.
func (q *quarantine) change() <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.changed
}

func (q *quarantine) wake() {
	close(q.changed)
	q.changed = make(chan struct{})
}

// opensAt is when rows in quarantine may be chosen again.
func (q *quarantine) opensAt() time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.not
}
