package outbox

import (
	"strconv"
	"time"
)

const (
	// LongestCall is for how long a call of the broker may be on its way, at most, after
	// its member has lost the row. A member gives up long before; but a process that was
	// suspended in the middle sends the rest when it goes on, as long as the broker has
	// kept its connection: ten minutes, with Kafka's defaults.
	LongestCall = time.Hour

	sourceHeader  = "waybill-source"
	settledHeader = "waybill-low"
	asOfHeader    = "waybill-at"
	maxSource     = 255
)

// Promise is what an outbox says with each message to the context's own broker:
// what it had stored before Settled is settled, as of AsOf, and is never sent
// again, except by calls that were on their way then. Both are times of its
// database.
type Promise struct {
	Source        string // The outbox, and the target.
	Settled, AsOf time.Time
}

// PromiseOf reads a message's headers. ok is false if they name no source. Of times
// that can't be a database's nothing is believed: p then only says that its source
// has sent something.
func PromiseOf(headers map[string]string) (p Promise, ok bool) {
	p.Source = headers[sourceHeader]
	if p.Source == "" || len(p.Source) > maxSource {
		return Promise{}, false
	}
	settled, isTime := milliseconds(headers[settledHeader])
	asOf, also := milliseconds(headers[asOfHeader])
	if isTime && also {
		if p.AsOf, p.Settled = asOf, settled; settled.After(asOf) {
			p.Settled = asOf // nobody settles what is to come; and less is never wrong
		}
	}
	return p, true
}

// milliseconds reads a time of years that both databases can hold.
func milliseconds(text string) (t time.Time, ok bool) {
	ms, err := strconv.ParseInt(text, 10, 64)
	t = time.UnixMilli(ms).UTC()
	return t, err == nil && ms > 0 && t.Year() < 10000
}

// WriteHeaders writes p into a message's headers.
func (p Promise) WriteHeaders(into map[string]string) {
	into[sourceHeader] = p.Source
	into[settledHeader] = strconv.FormatInt(p.Settled.UnixMilli(), 10)
	into[asOfHeader] = strconv.FormatInt(p.AsOf.UnixMilli(), 10)
}
