package outbox

import (
	"errors"
	"time"

	"github.com/waybill-go/waybill/broker"
)

// errUnsent is the answer to a row that was not handed over, because an earlier
// one of its key failed or its lease was about to end.
var errUnsent = broker.Classify(broker.Unavailable, errors.New("not sent"))

// finding is what a call's answers say.
type finding struct {
	outcomes []Outcome
	topics   map[string]bool // of which a row was answered
	silent   map[string]bool // to which rows were sent, and none was answered
	answered map[string]bool // keys
	unknown  map[string]int  // keys that may be why a topic was silent, with their partitions
	breaks   int             // rows that were stored although one before them in their key was not
	first    error
}

// sent says that something was called at all.
func (f finding) sent() bool { return len(f.topics)+len(f.silent) > 0 }

// verdict decides what a call's answers mean for its rows.
type verdict struct {
	cfg    Config
	random func() float64
	// outage is how long a destination rests if none of its rows was answered.
	outage func(topic string) time.Duration
	// blame: the call held one row, and the broker was known to answer: if it
	// isn't answered, that is its own doing.
	blame bool
}

// judge decides the outcome of each row of a claim, key by key in the order of
// seq. Acknowledged rows are published wherever they stand. The first of a key
// that wasn't acknowledged takes the failure; those behind it go back unspent,
// due at once: the head holds them.
//
// Where no row of a topic was answered nobody pays, and one row shows the
// outage: an outcome spends an attempt only if the broker is known to answer.
func (v verdict) judge(rows []Claimed, errs map[int]error) finding {
	f := read(rows, errs)
	broken := map[string]bool{}
	shown := map[string]bool{}
	for i, row := range rows {
		m, err := row.Message, errs[i]
		o := Outcome{Seq: row.Seq, Status: Published}
		switch {
		case err == nil:
			if broken[m.Key] {
				f.breaks++
			}
		case broken[m.Key], errors.Is(err, errUnsent), f.silent[m.Topic] && shown[m.Topic]:
			o = Outcome{Seq: row.Seq, Status: Pending, Unspent: true}
		case f.silent[m.Topic] && (!v.blame || away(err)):
			shown[m.Topic] = true
			o = Outcome{Seq: row.Seq, Status: Failed, Class: broker.ClassOf(err).String(), Error: err.Error(), After: v.outage(m.Topic), Unspent: true}
		default:
			o = v.failure(row, err)
		}
		if err != nil {
			broken[m.Key] = true
			if f.first == nil && !errors.Is(err, errUnsent) {
				f.first = err
			}
		}
		f.outcomes = append(f.outcomes, o)
	}
	return f
}

// read finds out who was answered. What is said of a row behind the first
// failure of its key only repeats that one.
func read(rows []Claimed, errs map[int]error) finding {
	f := finding{topics: map[string]bool{}, silent: map[string]bool{}, answered: map[string]bool{}, unknown: map[string]int{}}
	broken := map[string]bool{}
	for i, row := range rows {
		m, err := row.Message, errs[i]
		class := broker.ClassOf(err)
		switch {
		case errors.Is(err, errUnsent), err != nil && broken[m.Key]:
		case err == nil, !away(err) && class != broker.Unknown:
			f.topics[m.Topic], f.answered[m.Key] = true, true
		default:
			f.silent[m.Topic] = true
			if !away(err) {
				f.unknown[m.Key] = row.Partition
			}
		}
		if err != nil {
			broken[m.Key] = true
		}
	}
	for _, row := range rows {
		if f.topics[row.Message.Topic] {
			delete(f.silent, row.Message.Topic)
			delete(f.unknown, row.Message.Key)
		}
	}
	return f
}

// away says that err is about the broker or the topic, as they are now: any other
// row would have met it, too. What the broker said of the row itself is not.
func away(err error) bool {
	scope := broker.ScopeOf(err)
	return broker.ClassOf(err) == broker.Unavailable || scope == broker.ScopeTopic || scope == broker.ScopeBroker
}

// failure is what a row pays for err.
func (v verdict) failure(row Claimed, err error) Outcome {
	class := broker.ClassOf(err)
	attempts := row.Attempts - row.Losses
	o := Outcome{Seq: row.Seq, Class: class.String(), Error: err.Error()}
	switch {
	case away(err):
		// Others of the topic were answered, so the broker is there and only this
		// row's part of it is not.
		o.Status, o.Unspent, o.After = Failed, true, v.outage(row.Message.Topic)
	case class == broker.Permanent || attempts >= v.cfg.Retry.MaxAttempts:
		o.Status, o.Hold = Abandoned, v.cfg.OnAbandoned == Hold
	default:
		o.Status, o.After = Failed, v.cfg.Retry.Delay(attempts, v.random())
	}
	return o
}
