package outbox

import (
	"errors"
	"time"

	"github.com/waybill-go/waybill/broker"
)

// errUnsent is the answer to a row that was not handed over, because an earlier
// one of its key failed or its lease was about to end.
var errUnsent = broker.Classify(broker.Unavailable, errors.New("not sent"))

// verdict decides what a call's answers mean for its rows.
type verdict struct {
	cfg    Config
	random func() float64
	// outage is how long the lane waits if no row of the call was answered.
	outage time.Duration
}

// judge decides the outcome of each row of a claim, key by key in the order of
// seq. Acknowledged rows are published wherever they stand. The first of a key
// that wasn't acknowledged takes the failure; those behind it go back unspent,
// due at once: the head holds them. unanswered says that no row of the whole
// call was answered: then nobody pays, and one row shows the outage.
func (v verdict) judge(rows []Claimed, errs map[int]error) (outcomes []Outcome, unanswered bool, first error) {
	unanswered = silent(rows, errs)
	broken := map[string]bool{}
	shown := false
	for i, row := range rows {
		err := errs[i]
		o := Outcome{Seq: row.Seq, Status: Published}
		key := row.Message.Key
		switch {
		case err == nil:
		case unanswered && shown, broken[key]:
			o = Outcome{Seq: row.Seq, Status: Pending, Unspent: true}
		case unanswered:
			shown = true
			o = Outcome{Seq: row.Seq, Status: Failed, Class: broker.ClassOf(err).String(), Error: err.Error(), After: v.outage, Unspent: true}
		default:
			o = v.failure(row, err)
		}
		if err != nil {
			broken[key] = true
			if first == nil {
				first = err
			}
		}
		outcomes = append(outcomes, o)
	}
	return outcomes, unanswered, first
}

// silent says that the broker answered no row. What it says of a row behind the
// first failure of a key only repeats that one.
func silent(rows []Claimed, errs map[int]error) bool {
	broken := map[string]bool{}
	for i, row := range rows {
		switch c := broker.ClassOf(errs[i]); {
		case broken[row.Message.Key]:
		case errs[i] == nil, c != broker.Unavailable && c != broker.Unknown:
			return false
		default:
			broken[row.Message.Key] = true
		}
	}
	return len(rows) > 0
}

// failure is what a row pays for err.
func (v verdict) failure(row Claimed, err error) Outcome {
	class := broker.ClassOf(err)
	attempts := row.Attempts - row.Losses
	o := Outcome{Seq: row.Seq, Class: class.String(), Error: err.Error()}
	switch {
	case class == broker.Unavailable:
		// Others of the call were answered, so the broker is there and only this
		// row's part of it is not.
		o.Status, o.Unspent, o.After = Failed, true, v.outage
	case class == broker.Permanent || attempts >= v.cfg.Retry.MaxAttempts:
		o.Status, o.Hold = Abandoned, v.cfg.OnAbandoned == Hold
	default:
		o.Status, o.After = Failed, v.cfg.Retry.Delay(attempts, v.random())
	}
	return o
}
