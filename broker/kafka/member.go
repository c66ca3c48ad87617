package kafka

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// drainIn is how long a partition that is taken away waits for the messages
// that are being handled. Who gets it next waits with it. It is less if half of
// RebalanceTimeout is.
const drainIn = 5 * time.Second

// assigned is called by kgo when the group has been joined.
func (c *consumer) assigned(added []int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.health.join() {
		c.logger.Info("kafka: consuming resumed")
	}
	for _, id := range added {
		c.partitions = append(c.partitions, &partition{consumer: c, id: id, next: -1, lost: make(chan struct{}), settled: make(chan struct{})})
	}
}

// starts is called by kgo, after assigned, with what the group committed.
func (c *consumer) starts(ctx context.Context, offsets map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	c.createdAgain(ctx, offsets[c.topic])
	c.mu.Lock()
	defer c.mu.Unlock()
	set := map[int32]int64{}
	for id, offset := range offsets[c.topic] {
		at := offset.EpochOffset()
		if at.Offset >= 0 && at.Epoch < 0 { // A member commits the epoch of what it has read.
			set[id] = at.Offset
		}
		if p := c.partition(id); p != nil {
			p.next = max(p.next, at.Offset)
		}
	}
	if len(set) > 0 {
		c.logger.Warn("kafka: a tool has set the group's offsets, or another program has committed them: what it skipped is never handled, and isn't counted", "offsets", set)
	}
	return offsets, nil
}

// createdAgain has partitions begin at their start of which what was committed is of a topic that
// was deleted since, and created again, as the commit says. One that doesn't say it, such as a
// tool's, shows only if there is less than it says although there was no other leader since: kgo
// would take the log for cut off, and begin at its end. An offset without an epoch, which
// tools set, kgo puts to the start itself, and says nothing.
func (c *consumer) createdAgain(ctx context.Context, committed map[int32]kgo.Offset) {
	if !slices.ContainsFunc(slices.Collect(maps.Values(committed)), func(o kgo.Offset) bool { return o.EpochOffset().Offset > 0 }) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lagIn)
	defer cancel()
	now, err := c.asked(ctx)
	var ends kadm.ListedOffsets
	if err == nil {
		ends, err = kadm.NewClient(c.client).ListEndOffsets(ctx, c.topic)
	}
	if err != nil {
		c.logger.Warn("kafka: the topic's id and the ends of its partitions aren't known, reading begins where the group left off", "error", err)
		return
	}
	c.mu.Lock()
	origins := c.origins
	c.mu.Unlock()
	for id, offset := range committed {
		end, known := ends.Lookup(c.topic, id)
		switch at := offset.EpochOffset(); {
		case at.Offset <= 0:
			continue
		case now.replaces(origins[id]):
			c.logger.Warn("kafka: the topic was deleted and created again since the group read a partition: it is read from its start; what the group had not handled of the deleted topic is lost, have the sender publish it again",
				"partition", id, "committed", at.Offset, "of", origins[id].id(), "now", now.id())
		case known && end.Err == nil && at.Offset > end.Offset && (at.Epoch < 0 || at.Epoch >= end.LeaderEpoch):
			c.logger.Warn("kafka: the group has read more of a partition than there is, as its topic was created again, or its offset was set beyond the end: it is read from its start", "partition", id, "committed", at.Offset, "end", end.Offset)
		default:
			continue
		}
		committed[id] = kgo.NewOffset().AtStart()
	}
}

func (c *consumer) partition(id int32) *partition {
	for _, p := range c.partitions {
		if p.id == id {
			return p
		}
	}
	return nil
}

// revoked gives partitions back: it waits a while for what is being handled, so
// that it needn't be done twice, and tells the rest that it is lost.
func (c *consumer) revoked(ctx context.Context, lost []int32, drain bool) {
	c.mu.Lock()
	var going []*partition
	for _, id := range lost {
		if p := c.partition(id); p != nil {
			p.end()
			going = append(going, p)
		}
	}
	c.mu.Unlock()
	if len(going) == 0 {
		return
	}
	if drain {
		c.drain(ctx, going)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range going {
		p.gone = true
		close(p.lost)
		c.resume(p)
		delete(c.health.stuck, p.id)
	}
	c.partitions = slices.DeleteFunc(c.partitions, func(p *partition) bool { return p.gone })
}

// drain waits until nothing of going is in hand, and commits.
func (c *consumer) drain(ctx context.Context, going []*partition) {
	timer := time.NewTimer(min(drainIn, c.broker.conf.RebalanceTimeout/2))
	defer timer.Stop()
	for _, p := range going {
		select {
		case <-p.settled:
			continue
		case <-timer.C:
		case <-c.ctx.Done():
		}
		break
	}
	if c.ctx.Err() == nil && !c.isGone(0) { // Close has done it already.
		ctx, cancel := context.WithTimeout(ctx, leaveIn)
		defer cancel()
		c.trouble(c.group.CommitMarkedOffsets(c.committing(ctx)))
	}
}

// run polls until the consumer is closed. A full partition is paused.
func (c *consumer) run(group string) {
	defer close(c.done)
	var watching sync.WaitGroup
	watching.Go(c.watch)
	watching.Go(func() { c.endDead(group) })
	defer watching.Wait()
	for wait := firstWait; c.ctx.Err() == nil; {
		fetches := c.client.PollFetches(c.ctx)
		c.mu.Lock()
		fetches.EachTopic(func(t kgo.FetchTopic) {
			if t.TopicID != [16]byte{} {
				c.source = t.TopicID
			}
			t.EachPartition(c.fetched)
		})
		c.mu.Unlock()
		c.client.AllowRebalance()
		c.signal()
		if fetches.NumRecords() > 0 {
			wait = firstWait
			continue
		}
		// kgo asks again at once after an error, such as of authorisation.
		_ = sleep(c.ctx, wait)
		wait = min(2*wait, maxWait)
	}
}

// fetched takes in what came of a partition. A full one is paused.
func (c *consumer) fetched(f kgo.FetchPartition) {
	if f.Err != nil {
		c.refused(f.Partition, f.Err)
	}
	p := c.partition(f.Partition)
	if p == nil {
		return
	}
	if p.next >= 0 && p.next < f.LogStartOffset {
		c.missed(p, f.LogStartOffset)
	}
	if len(f.Records) > 0 {
		delete(c.health.stuck, f.Partition)
	}
	p.known = max(p.known, f.HighWatermark)
	p.add(f.Records)
	if p.full() && !p.paused {
		p.paused = true
		c.group.PauseFetchPartitions(map[string][]int32{c.topic: {p.id}})
	}
}

// resume lets kgo fetch p again, which it would remember beyond this assignment.
func (c *consumer) resume(p *partition) {
	if p.paused {
		p.paused = false
		c.group.ResumeFetchPartitions(map[string][]int32{c.topic: {p.id}})
	}
}

// mark has what is before at committed, unless that is of a topic that was deleted: Kafka
// would take it for what was read of the one that is made under its name. kgo takes out
// of the map what is in it.
func (c *consumer) mark(id int32, at kgo.EpochOffset) {
	if c.unknownFor(0) {
		return
	}
	if c.marks == nil {
		c.marks = map[string]map[int32]kgo.EpochOffset{c.topic: {}}
	}
	of := c.marks[c.topic]
	clear(of)
	of[id] = at
	c.group.MarkCommitOffsets(c.marks)
}
