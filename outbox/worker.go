package outbox

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill/internal/dberr"
)

const (
	storeTimeout = 15 * time.Second // of one transaction of a worker
	retryFirst   = 20 * time.Millisecond
	retryMax     = 2 * time.Second
	restartFirst = 100 * time.Millisecond
	restartMax   = 30 * time.Second

	// pipelined is how many claims a worker has out at most: a call that takes
	// long keeps its keys waiting and not the others of the worker.
	pipelined = 4
	// crowd is how long a worker whose partitions hold little but followers of
	// what is out waits for that to land, before it searches among them again.
	crowd = time.Second
	// caution is how long a worker leaves out what others have locked, after it has
	// met a lock that lasted.
	caution = 30 * time.Second
	// forever is when a worker looks that waits for nothing. The processor polls for
	// all of them.
	forever = 24 * time.Hour
	// restTimes is for how many times the time of a claim a worker takes no other, unless it
	// left something. Where the database has little to do, a claim is short, and so is
	// the rest. Where writers keep it busy, claims are long, and the longer the rest,
	// the more is in the next: one of a hundred rows costs little more than one of two.
	restTimes = 2
	restMax   = 100 * time.Millisecond
	// turn is how long a worker takes row after row from quarantine.
	turn = 250 * time.Millisecond
)

// worker claims, publishes and settles what is in its partitions. One goroutine
// claims; each claim has one that calls the broker and settles. A key has at most
// one unsettled call, because a claim takes nothing of a key that has a row in
// hand.
type worker struct {
	lane   *lane
	id     string
	own    ownership
	memory Memory
	// bell holds one ring. A worker takes it, and what it was rung for, before it
	// claims: what is committed while it claims rings for the next time.
	bell chan struct{}
	// slots holds one value for each claim that is out.
	slots chan struct{}
	full  atomic.Bool // there is more than its last claim took

	mu sync.Mutex
	// poked are the partitions that it was rung for, and whether there is surely
	// something; all says that it was rung for any.
	poked map[int]bool
	all   bool
	known map[int]past // what is remembered of partitions where keys can't go on
	next  time.Time    // when something that was settled is due again; zero: nothing is
	// out counts claims by partition. waiting are those of them where a key was
	// left because of a row that is out: when it lands, they are looked at again.
	out     map[int]int
	waiting map[int]bool
	flights map[int64][]Claimed // by the claim's id
	spilled bool                // a row has landed that was not published
	doubt   doubt
	crashes int // in a row

	// Of the claiming goroutine.
	quarantined bool      // there is, or was at the last look, a row in quarantine
	turned      time.Time // when it last took rows from there
	careful     time.Time // until then it leaves locked rows out
	crowded     time.Time // until then it leaves out partitions of which something is out
	rested      time.Time // when it has rested from its last claim
}

// doubt says that rows may be in a worker's hand without its knowledge: no claim
// takes what is in a hand.
type doubt int

const (
	sure       doubt = iota
	unanswered       // a claim ended without an answer
	crashed          // a call panicked
)

func newWorker(l *lane, id string) *worker {
	return &worker{
		lane: l, id: id, own: ownership{leases: map[int]held{}},
		bell: make(chan struct{}, 1), slots: make(chan struct{}, pipelined),
		poked: map[int]bool{}, out: map[int]int{}, waiting: map[int]bool{}, flights: map[int64][]Claimed{},
	}
}

// run works until the processor stops, and starts again after a panic of its own.
func (w *worker) run(hard context.Context) {
	for pause := restartFirst; ; pause = min(2*pause, restartMax) {
		err := w.work(hard)
		if err == nil {
			break
		}
		w.lane.failed(err)
		w.lane.crashes.Add(1)
		w.lane.log.Error("a worker crashed and starts again", "worker", w.id, "after", pause, "error", err)
		w.doubting(unanswered)
		if !w.lane.p.sleep(pause) {
			break
		}
	}
	w.quiet(hard.Done())
	if hard.Err() != nil {
		return // something may still be out: the leases run out
	}
	ctx, cancel := context.WithTimeout(hard, storeTimeout)
	defer cancel()
	w.resolve(ctx)
	w.release(ctx)
}

// release gives up its partitions, of which nothing is out.
func (w *worker) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	if err := w.lane.p.cfg.Store.Release(ctx, w.lane.target, w.own.clear(w.id)); err != nil {
		w.lane.log.Warn("leases could not be released and will run out", "worker", w.id, "error", err)
	}
}

// quiet waits until nothing is out, and keeps it so until loud.
func (w *worker) quiet(stop <-chan struct{}) (ok bool) {
	for n := range pipelined {
		select {
		case w.slots <- struct{}{}:
		case <-stop:
			w.loud(n)
			return false
		}
	}
	return true
}

func (w *worker) loud(slots int) {
	for range slots {
		<-w.slots
	}
}

func (w *worker) work(hard context.Context) (crash error) {
	defer func() {
		if r := recover(); r != nil {
			crash = fmt.Errorf("outbox: worker %s: %v\n%s", w.id, r, debug.Stack())
		}
	}()
	l, cfg := w.lane, w.lane.p.cfg.Outbox
	due := time.Now() // when to look at all partitions, rung for or not
	defer w.full.Store(false)
	for !l.p.stopping() {
		if !w.resolve(hard) {
			l.p.sleep(retryMax)
			continue
		}
		w.releaseSurplus(hard)
		full := w.full.Load()
		if !full && !l.p.sleep(time.Until(w.rested)) {
			return nil
		}
		select {
		case w.slots <- struct{}{}:
		case <-l.p.stop:
			return nil
		}
		permit := l.circuit.enter()
		if permit.wait > 0 {
			<-w.slots
			w.asked(hard, nil) // nothing, until the broker answers
			l.p.sleep(permit.wait)
			due = time.Now()
			continue
		}
		poked, all, next := w.rung()
		if !next.IsZero() {
			due = earlier(due, next)
		}
		all = all || permit.probe || full || !time.Now().Before(due)
		leases := w.own.live(w.id)
		surely := full
		if !all {
			leases = slices.DeleteFunc(leases, func(l Lease) bool { _, ok := poked[l.Partition]; return !ok })
			surely = surely || slices.ContainsFunc(leases, func(l Lease) bool { return poked[l.Partition] })
		}
		if time.Now().Before(w.crowded) && !permit.probe {
			leases = w.uncrowded(leases)
		}
		// An idle worker takes no lock: it looks first, unless there is likely work.
		n, claim, err := w.round(hard, permit, leases, surely && !permit.probe)
		w.asked(hard, err)
		w.quarantined = w.quarantined || claim.Quarantined
		full = claim.More && !permit.probe
		w.full.Store(full)
		if claim.Crowded {
			w.crowded = time.Now().Add(crowd)
		}
		switch {
		case err != nil:
			l.p.sleep(again(err))
			due = time.Now()
		case permit.probe && n == 0:
			due = time.Now().Add(breakerFirst / 10)
		case all:
			due = time.Now().Add(forever) // whatever comes is rung for
		}
		if claim.Next > 0 {
			due = earlier(due, time.Now().Add(claim.Next))
		}
		if l.circuit.troubled() {
			w.special(hard)
			due = earlier(due, time.Now().Add(breakerFirst/10))
		}
		if w.quarantined && err == nil && !permit.probe && (all && n == 0 || time.Since(w.turned) >= cfg.MaxPollInterval) {
			w.isolate(hard)
			due = earlier(due, time.Now().Add(l.p.gate.resting()))
		}
		if full {
			continue
		}
		timer := time.NewTimer(time.Until(due))
		select {
		case <-w.bell:
			w.ring() // for rung
		case <-timer.C:
		case <-l.p.stop:
		}
		timer.Stop()
	}
	return nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func (w *worker) releaseSurplus(ctx context.Context) {
	gone := w.own.leave(w.id, func(partition int) bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.out[partition] > 0
	})
	if len(gone) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	if err := w.lane.p.cfg.Store.Release(ctx, w.lane.target, gone); err != nil {
		w.lane.log.Warn("partitions could not be released to other workers, and will run out", "worker", w.id, "error", err)
	}
}

// round makes one claim and lets it fly. It has a slot, which goes to the claim
// or is given back. n is how many rows were claimed.
func (w *worker) round(hard context.Context, p permit, leases []Lease, likely bool) (n int, c Claim, err error) {
	l := w.lane
	flying := false
	defer func() {
		if !flying {
			l.circuit.cancel(p, nil)
			<-w.slots
		}
	}()
	if !likely {
		found, c, err := w.peek(hard, p, leases)
		if err != nil || !found {
			if err == nil {
				l.circuit.pass(p, w.own.holds)
			}
			return 0, c, err
		}
	}
	enter := l.p.gate.enter
	if p.alone {
		enter = l.p.gate.enterAlone
	}
	leave, err := enter(hard)
	if err != nil {
		return 0, c, err
	}
	defer func() {
		if !flying {
			leave()
		}
	}()
	c, err = w.claim(hard, p, leases)
	if err != nil || len(c.Rows) == 0 {
		return 0, c, err
	}
	flying = true
	go func() {
		defer func() {
			leave()
			<-w.slots
		}()
		w.fly(hard, p, c)
	}()
	return len(c.Rows), c, nil
}

func (w *worker) request(p permit, leases []Lease) ClaimRequest {
	cfg := w.lane.p.cfg.Outbox
	hand := w.hand()
	r := ClaimRequest{
		Target: w.lane.target, Worker: w.id, Leases: leases, Limit: cfg.BatchSize, MaxAttempts: cfg.Retry.MaxAttempts,
		May: p.may, Alone: p.alone, Memory: &w.memory,
		Wait: patience(cfg.Lease), Silence: silence(cfg.Lease), Careful: time.Now().Before(w.careful), Near: len(w.slots) > 1, Hand: hand,
	}
	if p.single() {
		r.Limit = 1
	}
	return r
}

// hand is what the worker has in hand. What has left it and is not published has to
// be found again. It is one step with the look at what is there: between the two, a
// row might leave the hand unseen.
func (w *worker) hand() (rows []Claimed) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.spilled {
		w.spilled = false
		w.memory.Spilled()
	}
	for _, flight := range w.flights {
		rows = append(rows, flight...)
	}
	return rows
}

func (w *worker) peek(hard context.Context, p permit, leases []Lease) (bool, Claim, error) {
	ctx, cancel := context.WithTimeout(hard, storeTimeout)
	defer cancel()
	found, c, err := w.lane.p.cfg.Store.Peek(ctx, w.request(p, leases))
	w.remember()
	w.await(c.InHand)
	return found, c, err
}

func (w *worker) claim(hard context.Context, p permit, leases []Lease) (Claim, error) {
	ctx, cancel := context.WithTimeout(hard, storeTimeout)
	defer cancel()
	begin := time.Now()
	c, err := w.lane.p.cfg.Store.Claim(ctx, w.request(p, leases))
	w.rested = time.Now().Add(min(restTimes*time.Since(begin), restMax))
	if lockTimeout(err) {
		if time.Now().After(w.careful) {
			w.lane.log.Warn("another session has rows of the outbox locked; their keys wait until it ends (see pg_locks)", "worker", w.id)
		}
		w.careful = time.Now().Add(caution)
		return Claim{Next: retryFirst}, nil
	}
	if err != nil {
		w.doubting(unanswered)
		return c, err
	}
	if c.Incomplete && (c.Next == 0 || c.Next > retryFirst) {
		c.Next = retryFirst
	}
	w.mu.Lock()
	for p := range partitionsOf(c.Rows) {
		w.out[p]++
	}
	if len(c.Rows) > 0 {
		w.flights[c.ID] = c.Rows
	}
	w.mu.Unlock()
	w.remember()
	w.await(c.InHand)
	return c, nil
}

// asked notes what the database said when the worker looked for something to do.
func (w *worker) asked(hard context.Context, err error) {
	w.lane.database.Note(hard, by(claiming, w.id), err)
}

// again is when to ask the database again that has refused something: soon, unless
// somebody has to do something about it first.
func again(err error) time.Duration {
	pause := retryFirst
	if dberr.Lasts(dberr.CodeOf(err)) {
		pause = retryMax / 2
	}
	return pause + rand.N(pause)
}

func partitionsOf(rows []Claimed) map[int]bool {
	set := map[int]bool{}
	for _, row := range rows {
		set[row.Partition] = true
	}
	return set
}

// special does what there is to do besides, while something is wrong.
func (w *worker) special(hard context.Context) {
	p, ok := w.lane.circuit.special(w.own.holds)
	if !ok {
		return
	}
	select {
	case w.slots <- struct{}{}:
		_, _, _ = w.round(hard, p, w.own.live(w.id), false) // errors show in the next round
	default:
		w.lane.circuit.cancel(p, nil)
	}
}

// isolate calls for rows in quarantine, one after the other, with nothing else in
// flight in this process.
func (w *worker) isolate(hard context.Context) {
	l := w.lane
	if l.p.gate.resting() > 0 {
		return
	}
	defer func() { w.turned = time.Now() }()
	leave, err := l.p.gate.enterAlone(hard)
	if err != nil {
		return
	}
	defer leave()
	for begin := time.Now(); time.Since(begin) < turn && !l.p.stopping(); {
		p, ok := l.circuit.enterAlone()
		if !ok {
			return
		}
		c, err := w.claim(hard, p, w.own.live(w.id))
		l.database.Note(hard, by(claiming, w.id+", quarantine"), err)
		if err != nil {
			return
		}
		if len(c.Rows) == 0 {
			w.quarantined = false
			return
		}
		w.fly(hard, p, c)
	}
}

func (w *worker) doubting(d doubt) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.doubt = max(w.doubt, d)
}

// resolve ends whatever this worker may have in its hand without knowing, once
// nothing that it knows of is out.
func (w *worker) resolve(ctx context.Context) (ok bool) {
	w.mu.Lock()
	d, crashes := w.doubt, w.crashes
	w.mu.Unlock()
	if d == sure {
		return true
	}
	l := w.lane
	if !l.p.stopping() {
		if !w.quiet(l.p.stop) {
			return true // the processor is stopping: run comes here again
		}
		defer w.loud(pipelined)
		if d == crashed {
			l.p.sleep(min(restartFirst<<min(crashes, 10), restartMax))
		}
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	begin := time.Now()
	leases, taken, err := l.p.cfg.Store.Refence(ctx, l.owner(w), d == crashed)
	if err != nil {
		w.asked(ctx, err)
		return false
	}
	l.took(taken)
	w.own.clear(w.id)
	w.own.add(leases, l.until(begin))
	w.mu.Lock()
	w.doubt = sure
	w.mu.Unlock()
	return true
}
