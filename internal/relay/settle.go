package relay

import (
	"errors"
	"fmt"
	"time"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/outbox"
)

// errUnsent is the answer to a row that was not handed over.
var errUnsent = errors.New("relay: not sent")

// errCrash is the answer to a row that ended too many processes.
var errCrash = fmt.Errorf("relay: %d claims in a row with this row were never settled: it is taken to end the processes that publish it; mend what it meets, then retry it", crashLosses)

// panicError is the answer to the rows of a call that panicked.
type panicError struct{ value any }

func (e *panicError) Error() string {
	return fmt.Sprintf("relay: the broker's adapter panicked: %v", e.value)
}

// verdict is what answers are judged by.
type verdict struct {
	retry  outbox.RetryPolicy
	hold   bool           // what is given up stays, and its key waits
	random func() float64 // from [0, 1)
}

// outcome is what a call's answers mean.
type outcome struct {
	settlement Settlement
	fates      []fate // of the choice's keys
	changes    []change
	stays      []stay
	breaks     int   // acknowledged rows behind one of their key that wasn't
	first      error // the first failure, but errUnsent
}

// change is a breaker's: the lane's if topic is 0.
type change struct {
	topic int64
	open  bool
}

// stay is of a topic that was away before, and says that it still is, while its broker is there.
type stay struct {
	topic int64
	words error
}

// reading is what an answer says.
type reading int

const (
	unsent      reading = iota // nothing
	undone                     // taken, and taken back with its transaction
	panicked                   // a loss
	crashed                    // too many losses
	stored                     // acknowledged
	refused                    // the row, by who answers
	unfit                      // the row, by what it is: perhaps nobody was asked
	elsewhere                  // not the row: its topic
	unreachable                // not the row: the broker
	quiet                      // nobody knows
)

func read(err error) reading {
	if err == nil {
		return stored
	}
	var panicking *panicError
	class, scope := broker.ClassOf(err), broker.ScopeOf(err)
	switch {
	case errors.Is(err, broker.ErrTakenBack):
		return undone
	case errors.Is(err, errUnsent), class == broker.Unavailable && scope == broker.ScopeRow: // one before it of its key failed
		return unsent
	case errors.Is(err, errCrash):
		return crashed
	case errors.As(err, &panicking):
		return panicked
	case scope == broker.ScopeTopic:
		return elsewhere
	case scope == broker.ScopeBroker, class == broker.Unavailable:
		return unreachable
	case class == broker.Permanent:
		return unfit
	case scope == broker.ScopeRow && class == broker.Transient:
		return refused
	}
	return quiet
}

// judged is a row with its answer. Of a key, what is said of rows behind the
// first that wasn't acknowledged only repeats that one.
type judged struct {
	*Claimed

	key    int // in the choice
	err    error
	means  reading
	behind bool
}

// judge decides what becomes of a call's rows, by their index in rows, and lets
// the breakers know. Acknowledged rows leave wherever they stand. The first of
// a key that wasn't takes the failure; those behind it aren't written [NOCUT].
//
// Only what is a row's own costs it an attempt: that it was refused, or that it
// wasn't answered where another row of its topic was, or went alone.
func (t *track) judge(now time.Time, v verdict, c *choice, rows []Claimed, errs map[int]error) outcome {
	all := t.match(c, rows, errs)
	o := outcome{fates: make([]fate, len(c.keys))}
	t.breakers.landed(c)
	topics := t.listen(now, c, all, &o)
	for _, row := range all {
		o.add(v, row, c.keys[row.key], topics[c.keys[row.key].of.topic], breakerMost)
	}
	return o
}

// match finds the keys of rows, and the first that fails of each.
func (t *track) match(c *choice, rows []Claimed, errs map[int]error) []judged {
	keys := make(map[int64]int, len(rows))
	for i, ch := range c.keys {
		for _, e := range ch.entries {
			keys[e.seq] = i
		}
	}
	broken := make([]bool, len(c.keys))
	all := make([]judged, len(rows))
	for i := range rows {
		key := keys[rows[i].Seq]
		all[i] = judged{&rows[i], key, errs[i], read(errs[i]), broken[key]}
		broken[key] = broken[key] || errs[i] != nil
	}
	return all
}

// heard is what a topic said in a call.
type heard struct {
	answered bool // a row was acknowledged or refused
	said     bool // it answered that it can't
	words    error
	called   bool
	answers  []int64 // keys that were answered
	silent   []int64 // keys that were not
	excused  bool    // no row was without an answer that says what it is
	convicts bool
}

// listen finds out who answered, and has the breakers open and close.
func (t *track) listen(now time.Time, c *choice, all []judged, o *outcome) map[int64]*heard {
	topics := map[int64]*heard{}
	var order []int64
	for _, row := range all {
		k := c.keys[row.key].of
		h := topics[k.topic]
		if h == nil {
			h = &heard{excused: true}
			topics[k.topic], order = h, append(order, k.topic)
		}
		h.note(row, k.key)
		if o.first == nil && row.err != nil && row.means != unsent && row.means != undone {
			o.first = row.err
		}
	}
	lane := false
	for _, topic := range order {
		lane = lane || topics[topic].answered || topics[topic].said
	}
	was, open := t.breakers.lane.open(), t.breakers.open()
	called := t.hear(now, c, topics, order)
	if lane {
		t.breakers.lane = breaker{}
	} else if called {
		t.breakers.quietLane(now, c)
	}
	t.follow(o, was, open)
	if was || t.breakers.lane.open() {
		return topics
	}
	for _, topic := range open {
		if h := topics[topic]; h != nil && h.said && t.breakers.topic(topic).open() {
			o.stays = append(o.stays, stay{topic, h.words})
		}
	}
	return topics
}

func (h *heard) note(row judged, key int64) {
	switch {
	case row.means == stored, row.means == undone, row.means == refused && !row.behind:
		h.answered, h.answers = true, append(h.answers, key)
	case row.behind:
	case row.means == elsewhere:
		h.said, h.called, h.silent = true, true, append(h.silent, key)
		if h.words == nil {
			h.words = row.err
		}
	case row.means == unreachable:
		h.called, h.silent = true, append(h.silent, key)
	case row.means == quiet:
		h.called, h.silent, h.excused = true, append(h.silent, key), false
	}
}

// hear tells the topics' breakers. called says that some topic was silent and
// nobody is to blame for it.
func (t *track) hear(now time.Time, c *choice, topics map[int64]*heard, order []int64) (called bool) {
	for _, topic := range order {
		switch h := topics[topic]; {
		case h.answered:
			t.breakers.answered(c, topic, h.answers)
		case !h.called:
		case !h.excused && t.breakers.convicts(c, topic):
			h.convicts = true
			t.breakers.paid(topic)
		default:
			t.breakers.quiet(now, c, topic, h.silent, !h.excused)
			called = true
		}
	}
	return called
}

// follow has the track pass topics that are shut by now, and go back for those
// that answer again.
func (t *track) follow(o *outcome, lane bool, topics []int64) {
	if open := t.breakers.lane.open(); open != lane {
		o.changes = append(o.changes, change{0, open})
	}
	was := map[int64]bool{}
	for _, topic := range topics {
		if was[topic] = true; !t.breakers.topic(topic).open() {
			o.changes = append(o.changes, change{topic, false})
			t.back(topic)
		}
	}
	for _, topic := range t.breakers.open() {
		if !was[topic] {
			o.changes = append(o.changes, change{topic, true})
			t.shut(topic)
		}
	}
}

// add decides about a row. rest is how long one waits whose part of a topic is
// away while others are answered.
func (o *outcome) add(v verdict, row judged, ch *chosen, h *heard, rest time.Duration) {
	f, s := &o.fates[row.key], &o.settlement
	switch {
	case row.means == stored:
		s.Published = append(s.Published, row.Ref())
		if row.behind {
			o.breaks++
		}
	case row.behind:
		f.back = append(f.back, ch.entry(row.Seq))
		return
	case row.means == panicked:
		s.Lost = append(s.Lost, row.Ref())
		e := ch.entry(row.Seq)
		e.losses++
		f.back = append(f.back, e)
		return
	case row.means == crashed, row.means == unfit, row.means == refused, row.means == quiet && (h.answered || h.convicts):
		o.pay(v, row, f)
	case (row.means == elsewhere || row.means == unreachable) && h.answered:
		o.fail(row, f, row.Attempts, jitter(rest, v.random()))
	default: // nobody's fault, so nothing is written
		f.back = append(f.back, ch.entry(row.Seq))
		return
	}
	if row.Attempts > 0 {
		s.Retries++
	}
}

func (ch *chosen) entry(seq int64) entry {
	at, _ := find(ch.entries, seq)
	return ch.entries[at]
}

// pay costs the row an attempt, or gives it up.
func (o *outcome) pay(v verdict, row judged, f *fate) {
	attempts := row.Attempts + 1
	if row.means == crashed {
		attempts = row.Attempts
	}
	gone := row.means == crashed || row.means == unfit || attempts >= v.retry.MaxAttempts
	switch {
	case !gone:
		o.fail(row, f, attempts, v.retry.Delay(attempts, v.random()))
	case v.hold:
		o.fail(row, f, attempts, 0)
		o.settlement.Failed[len(o.settlement.Failed)-1].Held = true
	default: // those behind it go on
		o.settlement.Abandoned = append(o.settlement.Abandoned, Abandonment{
			RowRef: row.Ref(), Class: row.class(), Error: row.err.Error(), Attempts: attempts, Losses: row.Losses,
			MaybeDelivered: row.means == crashed || broker.ClassOf(row.err) == broker.Unknown,
		})
	}
}

func (o *outcome) fail(row judged, f *fate, attempts int, in time.Duration) {
	o.settlement.Failed = append(o.settlement.Failed, Failure{RowRef: row.Ref(), Attempts: attempts, DueIn: in, Class: row.class(), Error: row.err.Error()})
	f.waits = row.Seq
}

func (j judged) class() string {
	if j.means == crashed {
		return "crash"
	}
	return broker.ClassOf(j.err).String()
}

// jitter is d, give or take a quarter of it.
func jitter(d time.Duration, r float64) time.Duration {
	return time.Duration((0.75 + 0.5*r) * float64(d))
}
