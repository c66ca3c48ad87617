package outbox

import (
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

const (
	breakerFirst = time.Second
	breakerMax   = 8 * time.Second
	// probing is how long a worker waits to see what another's probe says.
	probing = 20 * time.Millisecond
	// suspicion is how long a key is suspected at most.
	suspicion = 10 * time.Minute
)

// breaker keeps from calling a destination that doesn't answer. After an outage
// began one call with one real row goes through, at growing intervals, until one
// is answered.
type breaker struct {
	wait   time.Duration
	until  time.Time
	probed bool // a probe is out
	passes int  // workers that found no row to probe with
}

// following is the wait after one more silence.
func (b *breaker) following() time.Duration {
	if b == nil {
		return breakerFirst
	}
	return min(2*b.wait, breakerMax)
}

func (b *breaker) open() {
	b.wait = max(b.following(), breakerFirst)
	b.until = time.Now().Add(time.Duration((0.75 + 0.5*rand.Float64()) * float64(b.wait)))
	b.probed, b.passes = false, 0
}

// may says whether a probe may go, and takes the right to it.
func (b *breaker) may() bool {
	if b.probed || time.Now().Before(b.until) {
		return false
	}
	b.probed = true
	return true
}

// The rows that a probe looks for. What may itself be the reason for the silence
// comes later: each step is taken after every worker had nothing for the one
// before.
type step int

const (
	otherTopic  step = iota // neither of a suspect nor of a topic of the unanswered calls
	otherKey                // not of a suspect
	untried                 // of a suspect that was no probe yet
	anyKey                  // of any
	quarantined             // a row that may kill
	steps
)

// circuit decides what a lane may call: all, or, while its broker or one of its
// topics doesn't answer, now and then a probe. It is safe for concurrent use.
//
// It also remembers suspects. A call of many rows that was not answered at all
// tells nothing: the broker may be away, or one of the rows may be what it can't
// stand. Nobody pays then; but once the broker is known to answer, the keys of
// that call go one row per call, and a row that is then not answered has only
// itself to blame.
type circuit struct {
	workers int

	mu       sync.Mutex
	lane     *breaker            // nil: closed
	topics   map[string]*breaker // that fail while others are answered
	suspects map[string]suspect  // by key
	tried    map[string]bool     // suspects that were probes, in vain
	silent   map[string]bool     // topics of the calls that opened the lane's breaker
	seen     map[string]bool     // topics of all calls
	step     step
	answer   time.Time // the last
}

type suspect struct {
	partition int
	since     time.Time
	next      time.Time // when to look for its head again
	out       bool
}

func newCircuit(workers int) *circuit {
	return &circuit{workers: workers, topics: map[string]*breaker{}, suspects: map[string]suspect{}, tried: map[string]bool{}, silent: map[string]bool{}, seen: map[string]bool{}}
}

// permit is what a worker may do next.
type permit struct {
	wait  time.Duration                // > 0: nothing, for so long
	may   func(key, topic string) bool // nil: any row
	probe bool                         // of the lane
	topic string                       // != "": a probe of this topic
	alone bool                         // a row in quarantine
	key   bool                         // a suspect's
	began time.Time
}

// single says that the call is to hold one row.
func (p permit) single() bool { return p.probe || p.topic != "" || p.alone || p.key }

// enter says how a worker may go on.
func (c *circuit) enter() permit {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := permit{began: time.Now()}
	if c.lane == nil {
		if len(c.suspects) > 0 || len(c.topics) > 0 {
			suspects, topics := keys(c.suspects), keys(c.topics)
			p.may = func(key, topic string) bool { return !suspects[key] && !topics[topic] }
		}
		return p
	}
	if d := time.Until(c.lane.until); d > 0 {
		p.wait = d
		return p
	}
	if !c.lane.may() {
		p.wait = probing
		return p
	}
	p.probe = true
	suspects, tried, silent := keys(c.suspects), maps.Clone(c.tried), maps.Clone(c.silent)
	switch c.step {
	case otherTopic:
		p.may = func(key, topic string) bool { return !suspects[key] && !silent[topic] }
	case otherKey:
		p.may = func(key, _ string) bool { return !suspects[key] }
	case untried:
		p.may = func(key, _ string) bool { return !tried[key] }
	case anyKey:
		clear(c.tried)
	case quarantined:
		p.alone = true
	}
	return p
}

func keys[V any](m map[string]V) map[string]bool {
	set := make(map[string]bool, len(m))
	for k := range m {
		set[k] = true
	}
	return set
}

// enterAlone is the permit for a row in quarantine, which goes alone, so that it
// doesn't matter whether it is suspected, too; ok is false during an outage.
func (c *circuit) enterAlone() (p permit, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	topics := keys(c.topics)
	return permit{
		alone: true, began: time.Now(),
		may: func(_, topic string) bool { return !topics[topic] },
	}, c.lane == nil
}

// special is one more thing that a worker may do besides, while something is
// wrong: probe a topic, or call for a suspect of its partitions.
func (c *circuit) special(holds func(partition int) bool) (p permit, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lane != nil {
		return p, false
	}
	p.began = time.Now()
	for topic, b := range c.topics {
		if b.may() {
			// A suspect tells more of itself than of its topic.
			avoid := keys(c.suspects)
			switch b.passes / c.workers {
			case 0:
			case 1:
				avoid = maps.Clone(c.tried)
			default:
				avoid = nil
				clear(c.tried)
			}
			p.topic = topic
			p.may = func(key, t string) bool { return t == topic && !avoid[key] }
			return p, true
		}
	}
	mine := map[string]bool{}
	for key, s := range c.suspects {
		switch {
		case time.Since(s.since) > suspicion && !s.out:
			delete(c.suspects, key)
		case s.out && holds(s.partition):
			return p, false // one at a time
		case time.Now().After(s.next) && holds(s.partition):
			mine[key] = true
		}
	}
	if len(mine) == 0 {
		return p, false
	}
	topics := keys(c.topics)
	p.key = true
	p.may = func(key, topic string) bool { return mine[key] && !topics[topic] }
	return p, true
}

// troubled says that there is something to do besides the usual.
func (c *circuit) troubled() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.suspects) > 0 || len(c.topics) > 0
}

// calling notes the rows of a call that is about to be made.
func (c *circuit) calling(p permit, rows []Claimed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, row := range rows {
		c.seen[row.Message.Topic] = true
		if s, ok := c.suspects[row.Message.Key]; ok && p.key {
			s.out = true
			c.suspects[row.Message.Key] = s
		}
	}
}

// pass says that a worker had no row for what it was permitted.
func (c *circuit) pass(p permit, holds func(partition int) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case p.topic != "":
		if b := c.topics[p.topic]; b != nil {
			b.probed, b.until = false, time.Now().Add(breakerFirst/10)
			b.passes++
		}
	case p.key:
		for key, s := range c.suspects {
			if holds(s.partition) && !s.out {
				s.next = time.Now().Add(breakerFirst)
				c.suspects[key] = s
			}
		}
	case p.probe && c.lane != nil:
		c.lane.probed = false
		if c.lane.passes++; c.lane.passes >= c.workers {
			c.lane.passes = 0
			c.step = (c.step + 1) % steps
			c.skip()
		}
	}
}

// skip leaves out steps that exclude nothing more than the next one.
func (c *circuit) skip() {
	if c.step == otherTopic && len(c.seen) <= 1 {
		c.step = otherKey
	}
	if c.step == otherKey && len(c.suspects) == 0 {
		c.step = untried
	}
	if c.step == untried && len(c.tried) == 0 {
		c.step = anyKey
	}
}

// cancel gives a permit back: the call that it was for came to no end. rows are
// those that it was to hold.
func (c *circuit) cancel(p permit, rows []Claimed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.landed(p, rows)
}

// landed notes that a call is no longer out, however it ended.
func (c *circuit) landed(p permit, rows []Claimed) {
	if p.probe && c.lane != nil {
		c.lane.probed = false
	}
	if b := c.topics[p.topic]; b != nil {
		b.probed = false
	}
	for _, row := range rows {
		if s, ok := c.suspects[row.Message.Key]; ok && p.key {
			s.out = false
			c.suspects[row.Message.Key] = s
		}
	}
}

// outage is how long the destination will rest if a call to it, which is out,
// is not answered.
func (c *circuit) outage(topic string) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lane == nil && c.topics[topic] != nil {
		return c.topics[topic].following()
	}
	return c.lane.following()
}

// change is what a call's answer meant for the lane ("") or a topic.
type change struct {
	topic string
	open  bool
}

// report takes in what the answer to a call of rows tells.
func (c *circuit) report(p permit, rows []Claimed, f finding) (changes []change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.landed(p, rows)
	for key := range f.answered {
		delete(c.suspects, key)
		delete(c.tried, key)
	}
	for key, partition := range f.unknown {
		if p.probe || p.topic != "" {
			c.tried[key] = true
		}
		s := c.suspects[key]
		if s.since.IsZero() {
			s.since = time.Now()
		}
		s.partition, s.next = partition, time.Time{}
		c.suspects[key] = s
	}
	switch {
	case len(f.topics) > 0: // something was answered
		c.answer = time.Now()
		if c.lane != nil {
			c.lane = nil
			changes = append(changes, change{"", false})
			// What is still silent is so by itself.
			for topic := range c.silent {
				if !f.topics[topic] {
					c.topics[topic] = &breaker{wait: breakerFirst}
					changes = append(changes, change{topic, true})
				}
			}
			clear(c.silent)
		}
		for topic := range f.topics {
			if c.topics[topic] != nil {
				delete(c.topics, topic)
				changes = append(changes, change{topic, false})
			}
		}
		for topic := range f.silent {
			if c.topics[topic] == nil {
				changes = append(changes, change{topic, true})
				c.topics[topic] = &breaker{}
			}
			c.topics[topic].open()
		}
	case p.topic != "":
		if b := c.topics[p.topic]; b != nil {
			b.open()
		}
	case p.key && c.answer.After(p.began): // others were answered meanwhile
	default:
		began := c.lane == nil
		if began {
			c.lane = &breaker{}
			changes = append(changes, change{"", true})
		}
		if began || p.probe {
			// Calls that were out when it opened don't prolong it.
			c.lane.open()
			c.step = otherTopic
			for topic := range f.silent {
				c.silent[topic] = true
			}
			c.skip()
		}
	}
	return changes
}

// state is "closed", "open" or "half-open", and the topics that are open.
func (c *circuit) state() (state string, topics []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	topics = slices.Sorted(maps.Keys(c.topics))
	switch {
	case c.lane == nil:
		return "closed", topics
	case c.lane.probed || time.Now().After(c.lane.until):
		return "half-open", topics
	}
	return "open", topics
}
