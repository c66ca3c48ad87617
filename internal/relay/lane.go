package relay

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/outbox"
)

const (
	storeTimeout = 15 * time.Second // of one step
	retryFirst   = 20 * time.Millisecond
	retryMax     = 2 * time.Second
	retryLater   = 100 * time.Millisecond
	restartFirst = 100 * time.Millisecond
	restartMax   = 30 * time.Second
	// lookAnyway is how often a lane looks at all of its partitions, poked or not.
	lookAnyway = time.Minute
	// manyRows is after how many rows of a turn new ones are looked at, which may be of a
	// higher class.
	manyRows = 128
)

// lane publishes the rows for one target broker. One goroutine, its loop, reads and
// claims; each claim has one that calls the broker and settles.
type lane struct {
	Lane
	meters

	r          *Relay
	random     random
	id         LaneID
	name       string
	log        *slog.Logger
	partitions int
	wake       *wake
	member     member
	health     health
	watched    watched
	view       atomic.Pointer[view]

	transactional broker.Transactional // nil: the broker has none
	exact         bool                 // it publishes in transactions
	concluding    atomic.Bool          // somebody's transactions are being decided
	toldOfReap    time.Time            // when the log was told that this waits

	promised atomic.Pointer[outbox.Promise] // nil: none, as to partners

	last    atomic.Int64 // of the sequence, at the last poll
	reached atomic.Int64 // seq up to which all partitions were looked at
	unsure  atomic.Bool  // somebody has said that there may be something
	// born is when it was made. due is counted from there, by the monotonic clock, as the other one
	// may be set.
	born   time.Time
	due    atomic.Int64 // when a row is due, in nanoseconds since born; 0: not known
	looked time.Time    // when all partitions were looked at, of the loop
	short  time.Time    // since when partitions have been missing, of the poll; zero: none are

	// Of the loop, and of the goroutines of its calls: guarded by mu.
	mu       sync.Mutex
	breakers *breakers
	track    *track
	life     *membership // that the track is of; nil: none
	knows    int         // changes of what is the member's own, that the track has; 0: none
	doubt    bool        // the membership has to end, once nothing is out
	out      int         // calls that are not settled
	most     int         // rows in hand

	unanswered     int // of these, the ones that the broker has not answered
	mostUnanswered int

	slots   slots            // of transactions
	names   map[int64]string // of topics
	told    map[int64]string // topics of whose outage the log has a line, and the broker's last words of it
	panics  int              // of the adapter, in a row
	careful time.Time        // no claim before, after a panic

	n       int64   // of the last claim
	forget  []int64 // claims that were not answered
	first   time.Time
	said    said
	dueNot  time.Time // before this it doesn't ask again what is due
	claimed int       // rows that were claimed in this turn
	pace    pace
	rested  time.Time // no turn before

	flights sync.WaitGroup
}

func newLane(r *Relay, cfg Lane) *lane {
	l := &lane{Lane: cfg, r: r, born: time.Now(), random: r.random, wake: newWake(), names: map[int64]string{}, told: map[int64]string{}}
	if cfg.Random != nil {
		l.random = cfg.Random
	}
	l.breakers = newBreakers(l.random)
	l.transactional, _ = cfg.Broker.(broker.Transactional)
	l.exact = l.transactional != nil && l.transactional.ExactlyOnce()
	l.most, l.mostUnanswered = mostInHand(r.cfg.Outbox)
	l.name = fmt.Sprintf("outbox-processor-%s-to-%s", r.cfg.Provider, cfg.Target)
	if cfg.External {
		l.name += "-external"
	}
	l.log = r.log.With("lane", l.name)
	l.database = dberr.Outage{Log: l.log}
	l.watched = watched{host: r.host, lease: r.cfg.Outbox.Lease}
	return l
}

// run works until the relay stops, and starts again after a panic of its own. Then it
// waits for what is out.
func (l *lane) run(hard context.Context) {
	for pause := restartFirst; ; pause = min(2*pause, restartMax) {
		err := l.work(hard)
		if err == nil {
			break
		}
		l.crash(err)
		l.log.Error("a lane crashed and starts again", "member", l.r.name, "after", pause, "error", err)
		l.doubts()
		if !l.r.sleep(pause) {
			break
		}
	}
	l.drain(hard)
	l.flights.Wait()
	if l.exact {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.newSlots(nil)
	}
}

// drain waits until nothing is out.
func (l *lane) drain(hard context.Context) {
	for hard.Err() == nil {
		l.mu.Lock()
		out := l.out
		l.mu.Unlock()
		if out == 0 {
			return
		}
		select {
		case <-l.wake.c:
		case <-hard.Done():
		}
	}
}

func (l *lane) work(hard context.Context) (crash error) {
	defer func() {
		if v := recover(); v != nil {
			crash = fmt.Errorf("outbox: lane %s: %v\n%s", l.name, v, debug.Stack())
		}
	}()
	for !l.r.stopping() {
		if wait := time.Until(l.rested); wait > 0 && !l.r.sleep(wait) {
			break
		}
		parts, all := l.wake.take()
		again, err := l.turn(hard, parts, all)
		if l.claimed > 0 && l.keepsUp() {
			l.rested = time.Now().Add(l.pace.rest(l.claimed))
		}
		l.claimed = 0
		switch {
		case err != nil:
			l.r.sleep(l.pauseAfter(err))
			l.wake.everywhere()
		case !again:
			l.rest()
		}
	}
	return nil
}

// turn is one round of the loop: it says whether there is more to do at once.
func (l *lane) turn(hard context.Context, parts []int, all bool) (again bool, err error) {
	life := l.adopt(hard)
	if life == nil {
		return false, nil
	}
	if err := l.share(hard, life); err != nil {
		return false, err
	}
	all = all || time.Since(l.looked) >= lookAnyway
	more, err := l.read(hard, life, parts, all)
	if err == nil {
		again, err = l.claims(hard, life)
	}
	l.database.Note(hard, claiming, err)
	return again || more, err
}

// keepsUp says that nothing which was read waits for its claim.
func (l *lane) keepsUp() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.track != nil && l.track.listed == 0
}

// pauseAfter is when to ask the database again that has refused something: soon, unless
// somebody has to do something about it first.
func (l *lane) pauseAfter(err error) time.Duration {
	pause := retryFirst
	if dberr.Lasts(dberr.CodeOf(err)) {
		pause = retryMax / 2
	}
	return l.random.around(pause)
}

// rest waits until there is something to do.
func (l *lane) rest() {
	now := time.Now()
	at := l.looked.Add(lookAnyway)
	earlier := func(t time.Time, ok bool) {
		if ok && t.Before(at) {
			at = t
		}
	}
	due := l.due.Load()
	dueAt := l.born.Add(time.Duration(due))
	if dueAt.Before(l.dueNot) {
		dueAt = l.dueNot
	}
	earlier(dueAt, due != 0)
	earlier(l.health.wakes())
	l.mu.Lock()
	if l.track != nil {
		earlier(l.breakers.wakeAt())
		earlier(l.track.checkAt())
		earlier(l.r.gate.opensAt(), l.track.quarantined() > 0)
		earlier(l.careful, l.careful.After(now))
	}
	l.mu.Unlock()
	wait := at.Sub(now)
	if wait <= 0 { // its time has come, and there was nothing for it
		wait = retryLater
	}
	if len(l.r.each) > 1 { // that may wait for the same instant, such as for the gate: chance decides which comes first
		wait += time.Duration(l.random() * float64(time.Millisecond))
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-l.wake.c:
		l.wake.ring() // take takes it
	case <-timer.C:
	case <-l.r.stop:
	}
}

// dueIn says that a row is due after d.
func (l *lane) dueIn(d time.Duration) {
	at := int64(max(time.Since(l.born)+min(d, math.MaxInt64/2), 1))
	for {
		have := l.due.Load()
		if have != 0 && have <= at {
			return
		}
		if l.due.CompareAndSwap(have, at) {
			l.wake.ring()
			return
		}
	}
}

// adopt is the life of the member that the lane may work with; nil: there is none. It
// sees to it that the track is of that life and knows what is its own.
func (l *lane) adopt(hard context.Context) *membership {
	l.mu.Lock()
	ending := l.doubt && l.out == 0
	waiting := l.doubt
	l.mu.Unlock()
	if ending {
		l.rejoin(hard)
		return nil
	}
	life := l.member.current(time.Now())
	if life == nil || waiting {
		return nil
	}
	if l.life != life {
		l.knows = 0
	}
	owned, changes, changed := l.member.owned(l.knows)
	if !changed {
		return life
	}
	l.knows = changes
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.life != life {
		// What is still out is of the one before: its settles will match nothing.
		l.life, l.track, l.looked, l.forget = life, newTrack(l.breakers), time.Time{}, nil
		l.reached.Store(0)
		if l.exact {
			l.newSlots(life)
		}
		for _, topic := range l.breakers.open() {
			l.track.shut(topic)
		}
	}
	own := map[int]bool{}
	for _, part := range owned {
		own[part] = true
		l.track.take(part)
	}
	for _, part := range l.track.owned() {
		if !own[part] {
			l.track.drop(part)
		}
	}
	return life
}

// doubts has the lane end its membership and join anew: something may be its own, or
// in its hand, without its knowledge.
func (l *lane) doubts() {
	l.mu.Lock()
	l.doubt = true
	l.mu.Unlock()
	l.wake.ring()
}

// rejoin ends the membership, of which nothing is out. If the database doesn't answer, it
// is tried until its lease is over; then others will reap it.
func (l *lane) rejoin(hard context.Context) {
	if life := l.member.life(); life != nil {
		ctx, cancel := context.WithTimeout(hard, storeTimeout)
		defer cancel()
		err := l.leaves(ctx, life)
		l.database.Note(hard, by(keeping, "leave"), err)
		if err != nil && l.member.relies(life, time.Now()) {
			l.r.sleep(l.pauseAfter(err))
			l.wake.ring()
			return
		}
		l.member.ended(life.id)
	}
	l.mu.Lock()
	l.doubt = false
	l.mu.Unlock()
	l.r.keeper.hurry()
}

// lost says that a member is dead: others have ended it. Its calls run to their end.
func (l *lane) lost(id MemberID) {
	parts := l.member.ended(id)
	if parts > 0 {
		l.log.Warn("leases had run out and others have taken the partitions, or the database server crashed; the lane joins anew", "partitions", parts)
	}
	l.wake.ring()
	l.r.keeper.hurry()
}
