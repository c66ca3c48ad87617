package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strconv"
	"time"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/internal/tracing"
)

// fly calls the broker with a claim's rows and settles them. A panic can only
// come from the broker's adapter; what it was called with counts as lost.
func (w *worker) fly(hard context.Context, p permit, c Claim) {
	l := w.lane
	clean, next := false, time.Duration(0)
	defer func() { w.landed(c, clean, next) }()
	defer func() {
		if r := recover(); r != nil {
			err := fmt.Errorf("outbox: worker %s: %v\n%s", w.id, r, debug.Stack())
			l.failed(err)
			l.crashes.Add(1)
			l.log.Error("a call of the broker crashed; its rows are tried again", "worker", w.id, "error", err)
			l.circuit.cancel(p, c.Rows)
			w.mu.Lock()
			w.crashes++
			w.mu.Unlock()
			w.doubting(crashed)
		}
	}()
	l.circuit.calling(p, c.Rows)
	begin := time.Now()
	errs := w.publish(hard, c.Rows)
	took := time.Since(begin)
	if hard.Err() != nil {
		l.circuit.cancel(p, c.Rows)
		return // what was called to an end is left to the next owner
	}
	v := verdict{cfg: l.p.cfg.Outbox, random: rand.Float64, outage: l.circuit.outage, blame: p.key}
	f := v.judge(c.Rows, errs)
	for i, o := range f.outcomes {
		switch {
		case o.Status == Failed && (next == 0 || o.After < next):
			next = max(o.After, time.Millisecond)
		case o.Status == Pending && len(f.silent) == 0 && next == 0:
			next = retryFirst // handed back, as its lease was about to end
		}
		if !o.Unspent {
			l.attempts.Add(1)
			if c.Rows[i].Attempts-c.Rows[i].Losses > 1 {
				l.retries.Add(1)
			}
		}
	}
	l.latency.add(time.Now(), c.Rows, f.outcomes, took)
	w.note(p, c, f)
	w.tell(hard, c.Rows, f.outcomes)
	clean = w.settle(hard, Settlement{Claim: c.ID, Target: l.target, Outcomes: f.outcomes, Retention: l.p.cfg.Outbox.Retention})
	w.mu.Lock()
	w.crashes = 0
	w.mu.Unlock()
}

// note tells people and the circuit what the broker answered.
func (w *worker) note(p permit, c Claim, f finding) {
	l := w.lane
	if f.breaks > 0 {
		l.breaks.Add(int64(f.breaks))
		l.log.Error("the broker stored rows although it had not stored an earlier one of their key", "rows", f.breaks)
	}
	if !f.sent() {
		l.circuit.cancel(p, c.Rows)
		return
	}
	if f.first != nil {
		l.failed(f.first)
	} else {
		l.lastError.Store(nil)
	}
	for _, change := range l.circuit.report(p, c.Rows, f) {
		log := l.log
		if change.topic != "" {
			log = log.With("topic", change.topic)
		}
		if change.open {
			log.Warn("the broker does not answer; rows wait until it does", "error", f.first)
			continue
		}
		log.Info("the broker answers again")
		for _, other := range l.workers {
			other.look()
		}
	}
}

// tell logs what was published, for whoever wants to follow a message. Bodies and
// what users put into headers are nobody's business in a log.
func (w *worker) tell(ctx context.Context, rows []Claimed, outcomes []Outcome) {
	if !w.lane.log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	for i, o := range outcomes {
		if m := rows[i].Message; o.Status == Published {
			log := w.lane.log
			if id := tracing.TraceID(ctx, m.Headers["traceparent"]); id != "" {
				log = log.With("trace_id", id)
			}
			log.Debug("published", "id", m.ID, "type", m.Headers["type"], "topic", m.Topic, "correlation_id", m.Headers["correlation-id"])
		}
	}
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
	promised := w.lane.promised.Load()
	for n, i := range indexes {
		messages[n] = rows[i].Message
		if promised != nil {
			promised.WriteHeaders(messages[n].Headers)
		}
		if !w.lane.External && slices.Contains(w.lane.p.cfg.Private, messages[n].Headers["type"]) {
			MarkPrivate(messages[n].Headers)
		}
	}
	spans, answered := w.publishing(ctx, rows, indexes, messages), false
	defer func() { spans.end(indexes, errs, answered) }()
	err := w.lane.Broker.Publish(ctx, messages)
	answered = true
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

// settle writes back until the database takes it: the rows stay in this
// worker's hand until then, and nobody else can take them while its lease runs.
// clean says that all are published now.
func (w *worker) settle(hard context.Context, s Settlement) (clean bool) {
	l, task := w.lane, by(settling, strconv.FormatInt(s.Claim, 10))
	for try, pause := 0, retryFirst; hard.Err() == nil; try, pause = try+1, min(2*pause, retryMax) {
		ctx, cancel := context.WithTimeout(hard, storeTimeout)
		stale, err := l.p.cfg.Store.Settle(ctx, s)
		cancel()
		l.database.Note(hard, task, err)
		if err == nil {
			published := w.count(s.Outcomes, stale, try)
			return stale == 0 && published == len(s.Outcomes)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-hard.Done():
			timer.Stop()
		}
	}
	return false
}

func (w *worker) count(outcomes []Outcome, stale, try int) (published int) {
	l := w.lane
	for _, o := range outcomes {
		switch o.Status {
		case Published:
			published++
		case Abandoned:
			l.log.Error("a row was abandoned", "seq", o.Seq, "class", o.Class, "error", o.Error)
		}
	}
	l.published.add(max(published-stale, 0))
	// After a try without an answer, rows that are no longer in this claim's hand
	// were most likely settled by that try.
	if stale > 0 && try == 0 {
		l.stale.Add(int64(stale))
		l.log.Warn("rows were not written back: they are in another worker's hand since this one's lease ended", "rows", stale)
	}
	return published
}
