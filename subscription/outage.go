package subscription

import (
	"sync"
	"sync/atomic"
	"time"
)

// tellAgain is for how long the log has no second line of something that answers now and fails
// then, as a server does that has no connection left for some.
const tellAgain = 30 * time.Second

// outage remembers when something stopped to answer, so that one line tells of
// its begin and one of its end.
type outage struct {
	since   atomic.Pointer[time.Time]
	changes atomic.Int64 // Begins and ends.

	mu   sync.Mutex
	told time.Time // When the log had the last line of a begin.
	said bool      // It has one of the present outage.
}

func (o *outage) on() bool { return o.since.Load() != nil }

// begin is called with each failure. It says whether the log is to have a line of it: of a begin,
// but where one was told of shortly before only if it still fails later.
func (o *outage) begin() (tell bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	if !o.on() {
		o.since.Store(&now)
		o.changes.Add(1)
		o.said = false
	}
	if o.said || !o.told.IsZero() && now.Sub(o.told) < tellAgain {
		return false
	}
	o.told, o.said = now, true
	return true
}

// end does nothing within doubtful of the begin: the answer may be from before. It says whether
// the log, which has a line of the begin, is to have one of the end.
func (o *outage) end() (lasted time.Duration, tell bool) {
	if !o.on() {
		return 0, false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	since := o.since.Load()
	if since == nil || time.Since(*since) < doubtful {
		return 0, false
	}
	o.since.Store(nil)
	o.changes.Add(1)
	return time.Since(*since).Round(time.Millisecond), o.said
}
