package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/internal/tracing"
	"github.com/waybill-go/waybill/outbox"
)

// fly calls the broker, and writes back what became of the rows.
func (f *flight) fly(hard context.Context) {
	l := f.l
	defer l.wake.ring()
	rows := len(f.rows)
	defer func() {
		l.inFlight.Add(-int64(rows))
		if f.slot != nil {
			l.leaveSlot(f.slot)
		}
		l.mu.Lock()
		l.out--
		l.mu.Unlock()
	}()
	defer func() {
		if v := recover(); v != nil {
			l.crashed("settling", v)
			l.doubts() // what is in hand is no longer known for sure
		}
	}()
	begin := time.Now()
	errs := f.call() //nolint:contextcheck // the call ends with the membership
	switch {
	case hard.Err() != nil:
		return // what was called to an end is left to the next owner
	case f.life.ctx.Err() != nil: // what the broker said of a call that was cut off, says nothing of it
		f.late()
		return
	}
	took := time.Since(begin)
	o := f.judge(errs)
	s := o.settlement
	s.Member, s.Lane, s.N, s.Delete = f.life.id, l.id, f.n, l.r.cfg.Outbox.Retention.Delete
	s.Durable = f.durable()
	known, again, err := l.settle(hard, s)
	switch {
	case hard.Err() != nil:
	case err != nil:
		l.failed(err)
		l.log.Error("the result of a call can't be recorded; the lane rejoins, and its rows are delivered again",
			"rows", rows, "error", err)
		l.doubts()
	case !known && !again:
		f.late()
	default:
		f.settled(hard, o, took)
	}
}

// call publishes the rows, but one that has ended too many processes.
func (f *flight) call() map[int]error {
	left := false
	leave := func() {
		if !left {
			left = true
			f.leave()
		}
	}
	defer leave()
	if len(f.rows) == 0 {
		return nil
	}
	if f.c.alone && condemned(f.rows[0]) {
		return map[int]error{0: errCrash}
	}
	if f.c.unsent {
		errs := map[int]error{}
		for i := range f.rows {
			errs[i] = errUnsent
		}
		return errs
	}
	c := &call{l: f.l, life: f.life, rows: f.rows, f: f}
	c.publish()
	leave()
	f.note(c)
	if len(c.undecided) > 0 {
		f.decide(c)
	}
	return c.errs
}

// durable: a token with a row that has a loss must survive the server, and so must one of
// a transaction; what settles that, too: with the next one its mark is gone [UNSAVED].
func (f *flight) durable() bool { return f.c.durable || f.slot != nil }

// note has people and other members know how the broker is, as far as it can be told
// without judging: a call that panicked, or was walked away from.
func (f *flight) note(c *call) {
	l := f.l
	l.mu.Lock()
	if c.panic != nil {
		l.careful = time.Now().Add(min(restartFirst<<min(l.panics, 10), restartMax))
		l.panics++
	} else {
		l.panics = 0
	}
	l.mu.Unlock()
	if c.panic != nil {
		l.crash(c.panic)
		l.log.Error("a call of the broker crashed; its rows are tried again", "member", l.r.name, "error", c.panic)
	}
	if c.hanging {
		l.health.unanswered(time.Now(), true, errHanging.Error())
		l.log.Warn("a call to the broker does not return; the lane continues without it", "rows", len(c.rows), "timeout", l.r.cfg.Outbox.PublishTimeout)
	}
}

// judge decides what the answers mean, and says what has changed.
func (f *flight) judge(errs map[int]error) outcome {
	l, cfg := f.l, f.l.r.cfg.Outbox
	sent, hanging := 0, false
	for i := range f.rows {
		if !errors.Is(errs[i], errUnsent) && !errors.Is(errs[i], errCrash) {
			sent++
		}
		hanging = hanging || errors.Is(errs[i], errHanging)
	}
	now := time.Now()
	l.mu.Lock()
	o := f.track.judge(now, verdict{retry: cfg.Retry, hold: cfg.OnAbandoned == outbox.Hold, random: l.random}, f.c, f.rows, errs)
	open := l.breakers.lane.open()
	if o.first != nil {
		l.failed(o.first) // before anybody sees a breaker that it opened
	}
	if l.track != f.track { // another life began meanwhile: the breakers are the same
		for _, change := range o.changes {
			if change.topic != 0 && change.open {
				l.track.shut(change.topic)
			} else if change.topic != 0 {
				l.track.back(change.topic)
			}
		}
	}
	l.mu.Unlock()
	switch {
	case sent == 0 || hanging:
	case open && o.first != nil:
		l.health.unanswered(now, false, dberr.Clip(o.first.Error()))
	case !open && l.health.answered():
		l.r.keeper.hurry()
		l.r.hint()
	}
	l.tell(o, sent)
	return o
}

// tell is what people see of an outcome.
func (l *lane) tell(o outcome, sent int) {
	if o.breaks > 0 {
		l.breaks.Add(int64(o.breaks))
		l.log.Error("the broker stored rows although it had not stored an earlier one of their key", "rows", o.breaks)
	}
	if o.first == nil && sent > 0 {
		l.lastError.Store(nil)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	away := l.breakers.lane.open() || slices.Contains(o.changes, change{0, false})
	for _, change := range o.changes {
		log := l.log
		if change.topic != 0 {
			log = log.With("topic", l.topicName(change.topic))
		}
		switch {
		case change.topic != 0 && (away || !change.open && l.told[change.topic] == ""):
			// It is away, or comes back, with the whole broker, of which there is a line.
		case change.open:
			l.told[change.topic] = dberr.Clip(fmt.Sprint(o.first))
			log.Warn("the broker does not answer; rows wait until it does", "error", o.first)
		default:
			delete(l.told, change.topic)
			log.Info("the broker answers again")
		}
	}
	for _, s := range o.stays {
		if l.told[s.topic] == "" { // It went away with the whole broker, which came back without it.
			l.log.Warn("the broker does not answer; rows wait until it does", "topic", l.topicName(s.topic), "error", s.words)
		}
		// The last words are of what keeps it away now: a broker that wasn't reached may come back without the topic.
		l.told[s.topic] = dberr.Clip(s.words.Error())
	}
}

// settle writes back until the database takes it, for as long as trying again may help:
// the rows stay in this lane's hand until then, and nobody else can take them while its
// lease runs. known says that the token was there; again, that it was tried before, and
// so may have been settled by that.
func (l *lane) settle(hard context.Context, s Settlement) (known, again bool, err error) {
	task := by(settling, strconv.FormatInt(s.N, 10))
	for pause := retryFirst; hard.Err() == nil; pause = min(2*pause, retryMax) {
		known, err = within(hard, func(ctx context.Context) (bool, error) { return l.r.cfg.Store.Settle(ctx, s) })
		l.database.Note(hard, task, err)
		if err == nil {
			return known, again, nil
		}
		if dberr.Permanent(err) {
			l.database.Note(hard, task, nil)
			return false, again, err
		}
		again = true
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-hard.Done():
			timer.Stop()
		}
	}
	return false, again, hard.Err()
}

// settled has the lane go on with the keys, and counts.
func (f *flight) settled(ctx context.Context, o outcome, took time.Duration) {
	l, s := f.l, o.settlement
	l.mu.Lock()
	f.track.settled(f.c, o)
	l.mu.Unlock()
	for _, failure := range s.Failed {
		if failure.Held {
			l.log.Error("a row was abandoned", "seq", failure.Seq, "class", failure.Class, "error", failure.Error)
		} else {
			l.dueIn(failure.DueIn)
		}
	}
	for _, a := range s.Abandoned {
		l.log.Error("a row was abandoned", "seq", a.Seq, "class", a.Class, "error", a.Error)
		l.dueIn(0) // what is behind it
	}
	l.attempts.Add(int64(len(s.Published) + len(s.Failed) + len(s.Abandoned)))
	l.retries.Add(int64(s.Retries))
	f.published(ctx, s, took)
}

// published counts what was, and logs it for whoever wants to follow a message. Bodies
// and what users put into headers are nobody's business in a log.
func (f *flight) published(ctx context.Context, s Settlement, took time.Duration) {
	l := f.l
	times := make([]time.Duration, 0, len(s.Published))
	for _, ref := range s.Published {
		at, _ := bySeq(f.rows, ref.Seq)
		times = append(times, f.rows[at].Waited+took)
	}
	l.published.add(len(times))
	l.latency.Add(time.Now(), times...)
	if !l.log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	for _, ref := range s.Published {
		at, _ := bySeq(f.rows, ref.Seq)
		row, log := &f.rows[at], l.log
		if id := tracing.TraceID(ctx, row.Traceparent); id != "" {
			log = log.With("trace_id", id)
		}
		log.Debug("published", "id", row.MessageID, "type", row.MessageType, "topic", row.Topic, "correlation_id", row.CorrelationID)
	}
}

// late says that the token is gone: another decides. The keys are looked at again.
func (f *flight) late() {
	l := f.l
	l.stale.Add(int64(len(f.rows)))
	l.log.Warn("rows were not written back: they are in another member's hand since this one's lease ended", "rows", len(f.rows))
	l.mu.Lock()
	defer l.mu.Unlock()
	f.track.handBack(f.c)
	l.r.keeper.hurry()
}
