package relay

import (
	"slices"
	"time"
)

const (
	// Short, and slowly longer: what was away for seconds is found within about one, and
	// what is away for hours costs a row every eight.
	breakerFirst = 250 * time.Millisecond
	breakerMost  = 8 * time.Second
	// reopenAfter is how long a topic is shut until what was passed of it is read
	// once more, if all that stayed listed was tried in vain.
	reopenAfter = time.Minute
	// mostSilent is the count of silent calls from which on a key goes alone.
	mostSilent = 3
	// remembered is how many keys of silent calls are kept in mind.
	remembered = 1 << 16
)

// silentRows are how many rows of keys that were in so many silent calls go
// together. Not alone at once: after an outage that would be a call per key
// [ALONEATONCE].
var silentRows = [mostSilent + 1]int{0, 128, 16, 1}

// breaker keeps from calling what doesn't answer: open, it lets one row through,
// at growing intervals, until one is answered. The zero value is closed.
type breaker struct {
	wait         time.Duration
	since, until time.Time
	out          bool // what it let through
}

func (b *breaker) open() bool { return b.wait > 0 }

// trip opens it, or after a probe in vain has it wait longer. r is from [0, 1).
func (b *breaker) trip(now time.Time, r float64) {
	if b.open() {
		b.wait = min(b.wait*3/2, breakerMost)
	} else {
		b.wait, b.since = breakerFirst, now
	}
	b.rest(now, r)
}

// rest has it wait once more.
func (b *breaker) rest(now time.Time, r float64) {
	b.until, b.out = now.Add(time.Duration((0.75+0.5*r)*float64(b.wait))), false
}

// may says that one may be let through.
func (b *breaker) may(now time.Time) bool { return b.open() && !b.out && !now.Before(b.until) }

// state is "closed", "open" or "half-open".
func (b *breaker) state(now time.Time) string {
	switch {
	case !b.open():
		return "closed"
	case b.out || !now.Before(b.until):
		return "half-open"
	}
	return "open"
}

// breakers are a lane's: its own, and one of each topic. They remember whose
// last silent call was when, and of each key how many there were. model/breaker.pml
// is their rule.
type breakers struct {
	random func() float64
	lane   breaker
	topics map[int64]*topicBreaker
	keys   map[int64]silence
	ticks  uint64 // counts calls that begin and that end
}

type topicBreaker struct {
	breaker

	silent  uint64 // its last silent call; 0: none since its last answer
	unknown uint64 // its last silent call, or the last that its row paid for
	known   uint64 // the end of the first answered call that began after that; 0: none
}

// silence is a key's, since its last answer.
type silence struct {
	last  uint64
	count int
}

func newBreakers(random func() float64) *breakers {
	return &breakers{random: random, topics: map[int64]*topicBreaker{}, keys: map[int64]silence{}}
}

// silentCalls are those that the key was in since its last answer, but not those
// that a breaker let through: in a long outage that would be all keys [PROBESCOUNT].
func (b *breakers) silentCalls(key int64) int { return b.keys[key].count }

func (b *breakers) keySilent(key int64) uint64 { return b.keys[key].last }

func (b *breakers) topicSilent(topic int64) uint64 {
	if t := b.topics[topic]; t != nil {
		return t.silent
	}
	return 0
}

func (b *breakers) topic(topic int64) *topicBreaker {
	t := b.topics[topic]
	if t == nil {
		t = &topicBreaker{}
		b.topics[topic] = t
	}
	return t
}

// open are the topics that don't answer.
func (b *breakers) open() []int64 {
	return b.which(func(t *topicBreaker) bool { return t.open() })
}

// due are the topics of which a row may be let through, who waits longest first.
func (b *breakers) due(now time.Time) []int64 {
	topics := b.which(func(t *topicBreaker) bool { return t.may(now) })
	slices.SortFunc(topics, func(x, y int64) int { return b.topics[x].until.Compare(b.topics[y].until) })
	return topics
}

func (b *breakers) which(is func(*topicBreaker) bool) []int64 {
	var topics []int64
	for topic, t := range b.topics {
		if is(t) {
			topics = append(topics, topic)
		}
	}
	slices.Sort(topics)
	return topics
}

// wakeAt is when the next one may be let through.
func (b *breakers) wakeAt() (at time.Time, ok bool) {
	if b.lane.open() {
		return b.lane.until, !b.lane.out
	}
	for _, t := range b.topics {
		if t.open() && !t.out && (!ok || t.until.Before(at)) {
			at, ok = t.until, true
		}
	}
	return at, ok
}

// began numbers a call.
func (b *breakers) began(c *choice) {
	b.ticks++
	c.began = b.ticks
}

// sent notes that what a breaker lets through is out.
func (b *breakers) sent(c *choice) {
	if c.lane {
		b.lane.out = true
	} else {
		b.topic(c.topic).out = true
	}
}

// landed says that it isn't out any more, without an answer that says anything.
func (b *breakers) landed(c *choice) {
	switch {
	case c.lane:
		b.lane.out = false
	case c.probe:
		b.topic(c.topic).out = false
	}
}

// convicts says that a row that wasn't answered pays, although nothing else of
// its topic was in its call: it went alone because of its silent calls, and its
// topic was known to answer when its call began. Not just answered by the time
// when the call ends: after a short outage others are, before the calls that it
// cut time out [KNOWNLATE].
func (b *breakers) convicts(c *choice, topic int64) bool {
	t := b.topic(topic)
	return !c.probe && c.count >= mostSilent && len(c.keys) == 1 && t.known != 0 && t.known < c.began && !b.lane.open()
}

// paid says that a row of the topic was convicted: to convict the next one, the
// topic has to answer again.
func (b *breakers) paid(topic int64) {
	b.ticks++
	t := b.topic(topic)
	t.unknown, t.known = b.ticks, 0
}

// answered closes the topic: any answer does.
func (b *breakers) answered(c *choice, topic int64, keys []int64) {
	b.ticks++
	t := b.topic(topic)
	if t.breaker, t.silent = (breaker{}), 0; t.known == 0 && c.began > t.unknown {
		t.known = b.ticks
	}
	for _, key := range keys {
		delete(b.keys, key)
	}
}

// quiet notes a call that the topic didn't answer; counts says whether it tells
// something about its rows.
func (b *breakers) quiet(now time.Time, c *choice, topic int64, keys []int64, counts bool) {
	b.ticks++
	for _, key := range keys {
		s := b.keys[key]
		s.last = b.ticks
		if counts && !c.probe {
			s.count = min(s.count+1, mostSilent)
		}
		b.remember(key, s)
	}
	t := b.topic(topic)
	t.silent, t.unknown, t.known = b.ticks, b.ticks, 0
	if !t.open() || c.probe {
		t.trip(now, b.random())
	}
}

func (b *breakers) remember(key int64, s silence) {
	if _, ok := b.keys[key]; !ok && len(b.keys) >= remembered {
		for other := range b.keys { // any; it only loses its place
			delete(b.keys, other)
			break
		}
	}
	b.keys[key] = s
}

// quietLane notes a call to which nothing was answered. Calls that were out when
// the lane opened don't prolong it.
func (b *breakers) quietLane(now time.Time, c *choice) {
	if !b.lane.open() || c.lane {
		b.lane.trip(now, b.random())
	}
}
