package correlation

import (
	"slices"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/subscription"
)

// The states of a message, the worst first: of several rows, timers, subscriptions and
// dead letters the worst counts.
const (
	Abandoned = "abandoned" // a row was given up
	Parked    = "parked"    // a subscription has set it aside, and somebody or something is waited for
	Failed    = "failed"    // a row is tried again
	Waiting   = "waiting"   // for its time, or to be published
	Discarded = "discarded" // a subscription will not handle it
	Done      = "handled"   // by all that is known of
	Published = "published" // and no subscription of these databases is known to have handled it
	Unknown   = "unknown"   // there is nothing of it here but what it caused
)

func (m *Message) state() string {
	row := func(statuses ...outbox.Status) bool {
		return slices.ContainsFunc(m.Rows, func(r Row) bool { return slices.Contains(statuses, r.Status) })
	}
	letter := func(is func(subscription.DeadLetter) bool) bool {
		return slices.ContainsFunc(m.DeadLetters, func(l Letter) bool { return is(l.DeadLetter) })
	}
	switch {
	case row(outbox.Abandoned):
		return Abandoned
	case letter(subscription.DeadLetter.Open):
		return Parked
	case row(outbox.Failed):
		return Failed
	case row(outbox.Pending, outbox.Processing), m.Timer != nil:
		return Waiting
	case letter(func(l subscription.DeadLetter) bool { return l.Status == subscription.DeadLetterDiscarded }):
		return Discarded
	case len(m.Handled) > 0:
		return Done
	case len(m.Rows) > 0:
		return Published
	case len(m.DeadLetters) > 0: // It was replayed, and what the inbox had of it was removed.
		return Done
	}
	return Unknown
}
