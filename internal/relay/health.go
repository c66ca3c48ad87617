package relay

import (
	"sync"
	"time"
)

const (
	// sickAfter is for how long a lane's breaker is open before its member says so: what
	// is away for everybody comes back for everybody.
	sickAfter  = 5 * time.Second
	trialFirst = 30 * time.Second
	trialMax   = 5 * time.Minute
	// trialTurn is how long a trial waits for something to send, and trialPause for others
	// to have its partition, before it goes on with another one.
	trialTurn  = 20 * time.Second
	trialPause = 5 * time.Second
)

// health is whether a lane's member reaches its broker. It is safe for concurrent use.
type health struct {
	mu      sync.Mutex
	open    time.Time // since when the lane's breaker is open
	hanging bool      // a call was walked away from, and none was answered since
	words   string    // what the broker, or the call, said last
	// While it is sick: when it may try again with one partition, the wait before that,
	// and whether it is trying.
	sick  bool
	next  time.Time
	wait  time.Duration
	trial bool
	tried time.Time // since when it tries
}

// state is what the member's row says.
func (h *health) state() (healthy bool, trouble string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch h.look(time.Now()); {
	case !h.sick:
		return true, ""
	case h.trial:
		return false, "" // so that others leave it a partition
	}
	return false, h.words
}

// look finds out whether it is sick by now.
func (h *health) look(now time.Time) {
	if h.sick || !h.hanging && (h.open.IsZero() || now.Sub(h.open) < sickAfter) {
		return
	}
	h.sick, h.trial, h.tried, h.wait, h.next = true, false, time.Time{}, trialFirst, now.Add(trialFirst)
}

// answered: the broker has answered a call, whatever it said.
func (h *health) answered() (healed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	healed = h.sick
	h.open, h.hanging, h.words, h.sick, h.trial = time.Time{}, false, "", false, false
	return healed
}

// unanswered: nothing of a call was answered; hanging, if it has not even returned.
func (h *health) unanswered(now time.Time, hanging bool, words string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open.IsZero() {
		h.open = now
	}
	h.hanging, h.words = h.hanging || hanging, words
	h.look(now)
	if h.trial || h.sick && now.Sub(h.tried) < trialTurn+trialPause { // its call may end after its turn
		h.trial, h.tried, h.wait = false, time.Time{}, min(2*h.wait, trialMax)
		h.next = now.Add(h.wait)
	}
}

// share is how many partitions the member should have. others are the members of other
// processes that live, healthy those of them that say so, and trials those that have one
// partition to try.
func (h *health) share(now time.Time, partitions, others, healthy, trials int) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.look(now)
	switch {
	case !h.sick:
		return portion(partitions-trials, healthy+1)
	case healthy == 0:
		return portion(partitions, others+1)
	case h.trial && now.Sub(h.tried) >= trialTurn:
		// Nothing was there to send: of a partition without rows it would learn nothing,
		// however long it had it.
		h.trial, h.next = false, now.Add(trialPause)
		return 0
	case h.trial:
		return 1
	case !now.Before(h.next):
		h.trial, h.tried = true, now
		return 1
	}
	return 0
}

func portion(partitions, members int) int { return (partitions + members - 1) / members }

// wakes is when it is to be looked at again: it may be sick then, or try.
func (h *health) wakes() (at time.Time, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.trial:
		return h.tried.Add(trialTurn), true
	case h.sick:
		return h.next, true
	case !h.open.IsZero():
		return h.open.Add(sickAfter), true
	}
	return at, false
}
