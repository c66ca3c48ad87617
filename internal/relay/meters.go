package relay

import (
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/internal/durations"
	"github.com/waybill-go/waybill/outbox"
)

// meters are what people see of a lane. They are safe for concurrent use.
type meters struct {
	inFlight  atomic.Int64
	attempts  atomic.Int64
	retries   atomic.Int64
	stale     atomic.Int64
	taken     atomic.Int64
	breaks    atomic.Int64
	crashes   atomic.Int64
	published rate
	latency   durations.Counter
	lastError atomic.Pointer[string]
	lastCrash atomic.Pointer[string]
	silent    atomic.Pointer[outbox.Silence]
	database  dberr.Outage
}

func (l *lane) status() outbox.LaneStatus {
	s := outbox.LaneStatus{
		Name:               l.name,
		Partitions:         l.member.count(),
		InFlight:           int(l.inFlight.Load()),
		Published:          l.published.total.Load(),
		PublishedPerSecond: l.published.perSecond(),
		Attempts:           l.attempts.Load(),
		Retries:            l.retries.Load(),
		Stale:              l.stale.Load(),
		TakenOver:          l.taken.Load(),
		OrderBreaks:        l.breaks.Load(),
		Crashes:            l.crashes.Load(),
		Latency:            l.latency.Lately(time.Now()),
		Latencies:          l.latency.Total(),
		Silent:             l.silent.Load(),
	}
	l.circuit(&s)
	s.Healthy, s.Trouble = l.health.state()
	if s.Attempts > 0 {
		s.RetryRate = float64(s.Retries) / float64(s.Attempts)
	}
	if e := l.lastError.Load(); e != nil {
		s.LastError = *e
	}
	if e := l.lastCrash.Load(); e != nil {
		s.LastCrash = *e
	}
	if s.Database = l.database.Worst(); s.Database != nil {
		s.LastError = dberr.Clip(s.Database.Subject() + ": " + s.Database.Error)
	}
	return s
}

// circuit notes the state of the lane's breakers: the topics that are open while it isn't,
// the keys that are sent in small calls, and what makes the lane slow on purpose.
func (l *lane) circuit(s *outbox.LaneStatus) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.Breaker = l.breakers.lane.state(time.Now())
	if l.track != nil {
		s.Suspects = l.track.suspected()
	}
	if l.breakers.lane.open() {
		s.Doing = "probing"
		return
	}
	words := map[string]string{}
	for _, topic := range l.breakers.open() {
		words[l.topicName(topic)] = l.told[topic]
	}
	if len(words) > 0 {
		s.OpenTopics = slices.Sorted(maps.Keys(words))
		s.TopicError = words[s.OpenTopics[0]]
	}
	switch {
	case s.Suspects > 0:
		s.Doing = fmt.Sprintf("checking rows of unanswered calls, %d keys left", s.Suspects)
	case l.track != nil && l.track.quarantined() > 0:
		s.Doing = fmt.Sprintf("sending rows alone that may end the process, %d keys left", l.track.quarantined())
	}
}

// topicName is a topic's name. The lane has claimed of each that it knows.
func (l *lane) topicName(topic int64) string {
	if name, ok := l.names[topic]; ok {
		return name
	}
	return fmt.Sprintf("%x", uint64(topic))
}

// crashed notes that a part of the lane panicked. It goes on.
func (l *lane) crashed(part string, v any) {
	err := fmt.Errorf("outbox: %s: %v\n%s", part, v, debug.Stack())
	l.crash(err)
	l.log.Error("a part of the lane crashed and was restarted", "part", part, "error", err)
}

// crash counts one, and notes its words for people to see.
func (l *lane) crash(err error) {
	text := dberr.Clip(err.Error())
	l.lastCrash.Store(&text)
	l.crashes.Add(1)
	l.failed(err)
}

// failed notes an error for people to see.
func (l *lane) failed(err error) {
	text := dberr.Clip(err.Error())
	l.lastError.Store(&text)
}
