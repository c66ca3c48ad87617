package kafka

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// removedLook is how often Kafka is asked where its partitions begin.
const removedLook = 5 * time.Second

// watch looks, until the consumer is closed, for messages that Kafka removed before this
// group got them where none came after them: kgo goes on behind them, and says nothing. Nor
// does it of a topic that isn't there, as an empty Kafka has taken the place of the one that
// had it: it asks for ever where the partitions begin.
func (c *consumer) watch() {
	look := time.NewTicker(removedLook)
	defer look.Stop()
	waiting := map[*partition]int64{}
	for {
		select {
		case <-look.C:
		case <-c.ctx.Done():
			return
		}
		ctx, cancel := context.WithTimeout(c.ctx, lagIn)
		starts, err := kadm.NewClient(c.client).ListStartOffsets(ctx, c.topic)
		cancel()
		if err != nil {
			continue // State tells of a Kafka that doesn't answer.
		}
		c.looked(errors.Is(starts[c.topic][-1].Err, kerr.UnknownTopicOrPartition))
		waiting = c.compare(starts[c.topic], waiting)
	}
}

// looked counts the looks in a row that found no such topic: who has partitions of it has had
// one, and one that was just made isn't known by all servers for a moment.
func (c *consumer) looked(lacks bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !lacks || len(c.partitions) == 0 {
		c.health.lacking = 0
		return
	}
	if c.health.lacking++; c.health.lacking == 2 {
		c.logger.Error("kafka: Kafka has no such topic any more")
	}
	c.signal()
}

// compare holds where partitions begin against what was read of them. What was fetched before
// it was removed may be on its way, so only a partition that stands where it stood in the look
// before has missed something. Of others that are behind, it returns where they stand.
func (c *consumer) compare(starts map[int32]kadm.ListedOffset, before map[*partition]int64) map[*partition]int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	waiting := map[*partition]int64{}
	for _, p := range c.partitions {
		start, known := starts[p.id]
		if !known || start.Err != nil || p.next < 0 || p.next >= start.Offset || p.paused || p.ending {
			continue
		}
		if at, waited := before[p]; !waited || at != p.next {
			waiting[p] = p.next
			continue
		}
		c.missed(p, start.Offset)
		p.skip(kgo.EpochOffset{Epoch: start.LeaderEpoch, Offset: start.Offset})
	}
	return waiting
}

// missed notes that there is nothing of p before start any more. The lock is held.
func (c *consumer) missed(p *partition, start int64) {
	c.health.missed += start - p.next
	c.logger.Error("kafka: Kafka removed messages before this group got them; raise the topic's retention above the time by which a group may be behind", "partition", p.id, "from", p.next, "to", start)
	p.next = start
}

// isOver says whether there is nothing more to be had of a topic that was deleted. What was
// fetched of it is nowhere else: it is waited for, in bounds. What Kafka had beside it, as far
// as the last fetches told, and what isn't settled even then counts as missed.
func (c *consumer) isOver() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.unknownFor(goneFor) {
		return false
	}
	if slices.ContainsFunc(c.partitions, func(p *partition) bool { return p.unacked > 0 }) && !c.unknownFor(goneFor+settleIn) {
		return false
	}
	for _, p := range c.partitions {
		if n := max(p.known-p.next, 0) + p.unacked - p.counted; p.next >= 0 && n > 0 {
			c.health.missed += n
			c.logger.Error("kafka: the topic was deleted before this group had handled all of it: have the sender publish it again", "partition", p.id, "messages", n)
			p.counted += n
		}
	}
	return true
}
