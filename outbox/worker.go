package outbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/waybill-go/waybill/broker"
)

const (
	storeTimeout = 15 * time.Second // of one transaction of a worker
	retryFirst   = 20 * time.Millisecond
	retryMax     = 2 * time.Second
	restartFirst = 100 * time.Millisecond
	restartMax   = 30 * time.Second
)

// worker claims, publishes and settles, one claim at a time. So a key has at
// most one unsettled call: the next claim comes after the settle.
type worker struct {
	lane *lane
	id   string
	own  ownership
	// bell holds one ring. A worker takes it, and what it was rung for, before it
	// claims: what is committed while it claims rings for the next time.
	bell chan struct{}
	mu   sync.Mutex
	// poked are the partitions that it was rung for; all says that it was rung for
	// any.
	poked map[int]bool
	all   bool
	// doubt: a claim ended without an answer. If it committed, rows are in this
	// worker's hand without its knowledge, and no claim takes what is in a hand.
	doubt bool
}

// poke says that rows of a partition were committed.
func (w *worker) poke(partition int) {
	w.mu.Lock()
	w.poked[partition] = true
	w.mu.Unlock()
	w.ring()
}

// look says that there is something to see anywhere.
func (w *worker) look() {
	w.mu.Lock()
	w.all = true
	w.mu.Unlock()
	w.ring()
}

// rung takes what the bell was rung for.
func (w *worker) rung() (partitions map[int]bool, all bool) {
	select {
	case <-w.bell:
	default:
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	partitions, all = w.poked, w.all
	w.poked, w.all = map[int]bool{}, false
	return partitions, all
}

func (w *worker) ring() {
	select {
	case w.bell <- struct{}{}:
	default:
	}
}

// run works until the processor stops, and starts again after a panic, which
// can only come from a broker's adapter or from here.
func (w *worker) run(hard context.Context) {
	pause := restartFirst
	for {
		err := w.work(hard)
		if err == nil {
			break
		}
		w.lane.failed(err)
		w.lane.log.Error("a worker crashed and starts again", "worker", w.id, "after", pause, "error", err)
		if !w.lane.p.sleep(hard, pause) {
			break
		}
		pause = min(2*pause, restartMax)
		w.doubt = true
	}
	if hard.Err() != nil {
		return // something may still be out: the leases run out
	}
	ctx, cancel := context.WithTimeout(hard, storeTimeout)
	defer cancel()
	if err := w.lane.p.cfg.Store.Release(ctx, w.lane.target, w.own.releaseAll(w.id)); err != nil {
		w.lane.log.Warn("leases could not be released and will run out", "worker", w.id, "error", err)
	}
}

func (w *worker) work(hard context.Context) (crash error) {
	defer func() {
		if r := recover(); r != nil {
			crash = fmt.Errorf("outbox: worker %s: %v\n%s", w.id, r, debug.Stack())
			w.lane.breaker.release() // the probe, if this was it
		}
	}()
	l, cfg := w.lane, w.lane.p.cfg.Outbox
	idle := cfg.PollInterval
	full := false     // the last claim took a whole batch: there is more
	due := time.Now() // when to look at all partitions, rung for or not
	for !l.p.stopping() && hard.Err() == nil {
		if w.doubt {
			if err := w.refence(hard); err != nil {
				l.p.sleep(hard, retryMax)
				continue
			}
		}
		w.releaseSurplus(hard)
		wait, probe := l.breaker.enter()
		if wait > 0 {
			l.p.sleep(hard, wait)
			due = time.Now()
			continue
		}
		poked, all := w.rung()
		all = all || probe || full || !time.Now().Before(due)
		leases := w.own.live(w.id)
		if !all {
			leases = slices.DeleteFunc(leases, func(l Lease) bool { return !poked[l.Partition] })
		}
		limit := cfg.BatchSize
		if probe {
			limit = 1
		}
		// An idle worker takes no lock: it looks first, unless there is likely work.
		n, next, err := w.round(hard, leases, limit, full || !all, probe)
		if probe && n == 0 {
			l.breaker.release()
		}
		full = n == limit
		switch {
		case err != nil:
			l.p.sleep(hard, retryFirst+rand.N(retryFirst))
			due = time.Now()
		case all && n > 0:
			// Other processes don't ring: there may be more, until a look finds none.
			idle, due = cfg.PollInterval, time.Now()
		case all:
			due = time.Now().Add(idle)
			idle = min(2*idle, cfg.MaxPollInterval)
		}
		if next > 0 {
			due = earlier(due, time.Now().Add(next))
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
		case <-hard.Done():
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
	surplus := w.own.releaseSurplus(w.id)
	if len(surplus) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	err := w.lane.p.cfg.Store.Release(ctx, w.lane.target, surplus)
	w.lane.database.note(ctx, err) // not released, they run out
}

// round is one claim, its calls and its settle. n is how many rows were
// claimed; next is the time until another one is due, 0 if none is known.
func (w *worker) round(hard context.Context, leases []Lease, limit int, likely, probe bool) (n int, next time.Duration, err error) {
	l := w.lane
	claim, err := w.claim(hard, leases, limit, likely)
	l.database.note(hard, err)
	if err != nil {
		return 0, 0, err
	}
	if len(claim.Rows) == 0 {
		next = claim.Next
		if claim.Incomplete {
			next = retryFirst
		}
		return 0, next, nil
	}
	errs := w.publish(hard, claim.Rows)
	if hard.Err() != nil {
		return len(claim.Rows), 0, nil //nolint:nilerr // what was called to an end is left to the next owner
	}
	v := verdict{cfg: l.p.cfg.Outbox, random: rand.Float64, outage: l.breaker.next()}
	outcomes, unanswered, first := v.judge(claim.Rows, errs)
	next = claim.Next
	for i, o := range outcomes {
		switch {
		case o.Status == Failed && (next == 0 || o.After < next):
			next = max(o.After, time.Millisecond)
		case o.Status == Pending && !unanswered && next == 0:
			next = retryFirst // handed back, as its lease was about to end
		}
		if !o.Unspent {
			l.attempts.Add(1)
			if claim.Rows[i].Attempts-claim.Rows[i].Losses > 1 {
				l.retries.Add(1)
			}
		}
	}
	w.noteAnswer(unanswered, probe, first)
	w.settle(hard, Settlement{Claim: claim.ID, Target: l.target, Outcomes: outcomes, Retention: l.p.cfg.Outbox.Retention})
	return len(claim.Rows), next, nil
}

// claim looks first without a lock, unless it is likely that there is work.
func (w *worker) claim(hard context.Context, leases []Lease, limit int, likely bool) (Claim, error) {
	l := w.lane
	ctx, cancel := context.WithTimeout(hard, storeTimeout)
	defer cancel()
	if !likely {
		found, next, err := l.p.cfg.Store.Peek(ctx, l.target, leases)
		if err != nil || !found {
			return Claim{Next: next}, err
		}
	}
	claim, err := l.p.cfg.Store.Claim(ctx, ClaimRequest{
		Target: l.target, Worker: w.id, Leases: leases, Limit: limit, MaxAttempts: l.p.cfg.Outbox.Retry.MaxAttempts,
	})
	w.doubt = err != nil
	return claim, err
}

// refence ends whatever this worker may have claimed without knowing.
func (w *worker) refence(hard context.Context) error {
	l, lease := w.lane, w.lane.p.cfg.Outbox.Lease
	ctx, cancel := context.WithTimeout(hard, storeTimeout)
	defer cancel()
	begin := time.Now()
	leases, err := l.p.cfg.Store.Refence(ctx, l.target, w.id, lease)
	l.database.note(hard, err)
	if err != nil {
		return err
	}
	w.own.releaseAll(w.id)
	w.own.add(leases, begin.Add(lease-margin(lease)))
	w.doubt = false
	return nil
}

// publish hands rows to the broker and returns what it answered, by index. A
// row that is absent from the answer is stored.
func (w *worker) publish(hard context.Context, rows []Claimed) map[int]error {
	w.lane.inFlight.Add(int64(len(rows)))
	defer w.lane.inFlight.Add(-int64(len(rows)))
	errs := map[int]error{}
	sendable, deadline := w.sendable(rows, errs)
	ctx, cancel := context.WithDeadline(hard, deadline)
	defer cancel()
	if w.lane.Broker.Capabilities().Prefix {
		w.call(ctx, rows, sendable, errs)
		return errs
	}
	// Without prefix a call may hold one row of a key: the first rows of all
	// keys, then the second ones, and none of a key after one that failed.
	broken := map[string]bool{}
	for len(sendable) > 0 {
		var wave, rest []int
		in := map[string]bool{}
		for _, i := range sendable {
			key := rows[i].Message.Key
			switch {
			case broken[key]:
				errs[i] = errUnsent
			case in[key]:
				rest = append(rest, i)
			default:
				in[key] = true
				wave = append(wave, i)
			}
		}
		w.call(ctx, rows, wave, errs)
		for _, i := range wave {
			if errs[i] != nil {
				broken[rows[i].Message.Key] = true
			}
		}
		sendable = rest
	}
	return errs
}

// sendable are the rows, by index, whose lease may be relied on, and until when
// their calls must have ended: before the first of the leases may end.
func (w *worker) sendable(rows []Claimed, errs map[int]error) (indexes []int, deadline time.Time) {
	now := time.Now()
	deadline = now.Add(w.lane.p.cfg.Outbox.PublishTimeout)
	indexes = make([]int, 0, len(rows))
	for i, row := range rows {
		until, ok := w.own.deadline(row.Partition)
		if !ok || !now.Before(until) {
			errs[i] = errUnsent
			continue
		}
		if until.Before(deadline) {
			deadline = until
		}
		indexes = append(indexes, i)
	}
	return indexes, deadline
}

// call is one call of the broker.
func (w *worker) call(ctx context.Context, rows []Claimed, indexes []int, errs map[int]error) {
	if len(indexes) == 0 {
		return
	}
	messages := make([]broker.Message, len(indexes))
	for n, i := range indexes {
		messages[n] = rows[i].Message
	}
	err := w.lane.Broker.Publish(ctx, messages)
	if err == nil {
		return
	}
	partial, ok := errors.AsType[*broker.PublishError](err)
	for n, i := range indexes {
		if !ok {
			errs[i] = err
		} else if e := partial.Failed[n]; e != nil {
			errs[i] = e
		}
	}
}

// noteAnswer opens or closes the lane's breaker.
func (w *worker) noteAnswer(unanswered, probe bool, first error) {
	l := w.lane
	if first != nil {
		l.failed(first)
	} else {
		l.lastError.Store(nil)
	}
	if unanswered {
		if errors.Is(first, errUnsent) {
			if probe {
				l.breaker.release()
			}
			return // our own doing: the lease was about to end
		}
		if l.breaker.unanswered(probe) {
			l.log.Warn("the broker does not answer; rows wait until it does", "error", first)
		}
		return
	}
	if l.breaker.answered() {
		l.log.Info("the broker answers again")
	}
}

// settle writes back until the database takes it: the rows stay in this
// worker's hand until then, and nobody else can take them while its lease runs.
func (w *worker) settle(hard context.Context, s Settlement) {
	l := w.lane
	for try, pause := 0, retryFirst; hard.Err() == nil; try, pause = try+1, min(2*pause, retryMax) {
		ctx, cancel := context.WithTimeout(hard, storeTimeout)
		stale, err := l.p.cfg.Store.Settle(ctx, s)
		cancel()
		l.database.note(hard, err)
		if err == nil {
			w.count(s.Outcomes, stale, try)
			return
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-hard.Done():
			timer.Stop()
		}
	}
}

func (w *worker) count(outcomes []Outcome, stale, try int) {
	l := w.lane
	published := 0
	for _, o := range outcomes {
		switch o.Status {
		case Published:
			published++
		case Abandoned:
			l.log.Error("a row was abandoned", "seq", o.Seq, "class", o.Class, "error", o.Error)
		}
	}
	l.published.add(published)
	// After a try without an answer, rows that are no longer in this claim's hand
	// were most likely settled by that try.
	if stale > 0 && try == 0 {
		l.stale.Add(int64(stale))
		l.log.Warn("rows were not written back: they are in another worker's hand since this one's lease ended", "rows", stale)
	}
}
