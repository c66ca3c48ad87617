package kafka

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill/broker"
)

type state int8

const (
	waiting state = iota
	stored
	failed
)

// record is a message on its way.
type record struct {
	kgo.Record
	size    int
	earlier *record // The message of the same key before it, in the same call.
	state   state
	round   int   // The last one that it was in.
	err     error // What kgo says of it.
}

func (r *record) place() place { return place{r.Topic, r.Partition} }

// call is one call of Publish.
type call struct {
	limit   int // Bytes of a batch.
	records []record
	failed  map[int]error
	round   int
}

// newCall prepares every message before one is sent, so that what can be refused
// here cuts its key at the right place.
func newCall(limit int, messages []broker.Message) *call {
	c := &call{limit: limit, records: make([]record, len(messages))}
	last := make(map[string]*record, len(messages))
	topics := map[string]error{}
	var at room
	for i := range messages {
		m, r := &messages[i], &c.records[i]
		r.earlier = last[m.Key]
		last[m.Key] = r
		if _, known := topics[m.Topic]; !known {
			topics[m.Topic] = checkTopic(m.Topic)
		}
		if err := topics[m.Topic]; err != nil {
			// A prefix or a rule of the configuration may have made the name.
			c.fail(i, broker.Unavailable, broker.ScopeTopic, fmt.Errorf("kafka: message %q: %w", m.ID, err))
			continue
		}
		var err error
		if r.size, err = encode(&r.Record, m, limit, &at, len(messages)-i-1); err != nil {
			c.fail(i, broker.Permanent, broker.ScopeRow, fmt.Errorf("kafka: message %q: %w", m.ID, err))
		}
	}
	return c
}

// fail settles message i.
func (c *call) fail(i int, class broker.Class, scope broker.Scope, err error) {
	c.records[i].state = failed
	if c.failed == nil {
		c.failed = map[int]error{}
	}
	c.failed[i] = broker.Scoped(class, scope, err)
}

// abandon fails what is not settled yet, and is not under way.
func (c *call) abandon(scope broker.Scope, err error) {
	for i := range c.records {
		if c.records[i].state == waiting {
			c.fail(i, broker.Unavailable, scope, err)
		}
	}
}

// err is what Publish returns.
func (c *call) err() error {
	if len(c.failed) == 0 {
		return nil
	}
	return &broker.PublishError{Failed: c.failed}
}

// all are the indexes of the call's messages.
func (c *call) all() []int {
	all := make([]int, len(c.records))
	for i := range all {
		all[i] = i
	}
	return all
}

// next is what may go now of among, at most one batch of a topic: those whose key's
// earlier message is stored, or goes with it to the same topic. Those whose earlier
// message failed fail.
func (c *call) next(among []int) []int {
	c.round++
	var round []int
	size := map[string]int{}
	full := map[string]bool{}
	for _, i := range among {
		r := &c.records[i]
		switch {
		case r.state != waiting:
		case r.earlier != nil && r.earlier.state == failed:
			c.fail(i, broker.Unavailable, broker.ScopeRow, errBehind)
		case r.earlier != nil && r.earlier.state == waiting && (r.earlier.round != c.round || r.earlier.Topic != r.Topic):
		case full[r.Topic] || size[r.Topic] > 0 && batchBytes+size[r.Topic]+r.size > c.limit:
			full[r.Topic] = true
		default:
			r.round = c.round
			size[r.Topic] += r.size
			round = append(round, i)
		}
	}
	return round
}

// halves are what of a round is still to be sent, by halves of its partitions. Who
// is alone is what Kafka refuses.
func (c *call) halves(round []int) (groups [][]int) {
	left := map[place][]int{}
	for _, i := range round {
		if r := &c.records[i]; r.state == waiting {
			left[r.place()] = append(left[r.place()], i)
		}
	}
	for _, all := range left {
		if len(all) == 1 {
			err := c.records[all[0]].err
			refused := refusals[codeOf(err)]
			c.fail(all[0], refused.class, refused.scope, err)
			continue
		}
		half := len(all) / 2
		groups = append(groups, all[:half], all[half:])
	}
	return groups
}
