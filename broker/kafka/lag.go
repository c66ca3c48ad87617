package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"

	"github.com/waybill-go/waybill/broker"
)

const (
	// lagIn is how long Lag waits for Kafka.
	lagIn = 5 * time.Second
	// tailBytes is how much of a partition's end Lag looks at.
	tailBytes = 64 << 10
)

var errNoShare = broker.Classify(broker.Unavailable, errors.New("kafka: lag: the consumer doesn't have its partitions yet, or lost them; it goes on trying"))

// Lag counts what is not acknowledged of this member's partitions: of what was
// fetched, messages; of the rest, offsets. One that has no message, because that
// was compacted away or it is the end of a transaction, counts until it is passed.
//
// Lag asks Kafka, for 5 s at most, where fetching doesn't tell: about partitions
// that are paused, that never had a message for this group, or at whose end there
// may be no messages.
func (c *consumer) Lag(ctx context.Context) (int64, error) {
	if c.ctx.Err() != nil {
		return 0, ErrClosed
	}
	lag, open, err := c.count()
	if err != nil || len(open) == 0 {
		return lag, err
	}
	ctx, end, err := c.broker.begin(ctx)
	if err != nil {
		return 0, err
	}
	defer end()
	ctx, cancel := context.WithTimeoutCause(ctx, lagIn, fmt.Errorf("not done within %v", lagIn))
	defer cancel()
	p := c.broker.take()
	defer c.broker.put(p)
	if err = c.ask(ctx, &p.links, open); err != nil {
		// There may be other leaders now.
		if _, err = p.refresh(ctx, []string{c.topic}); err == nil {
			err = c.ask(ctx, &p.links, open)
		}
	}
	if err != nil {
		return 0, broker.Classify(broker.Unavailable, fmt.Errorf("kafka: lag: %w", err))
	}
	lag, _, err = c.count()
	return lag, err
}

// question is what Kafka has to be asked about a partition: what is at an offset,
// or, if that is negative, where its first or last message is, in sarama's words.
type question struct {
	p      *partition
	offset int64
}

// count is the lag as far as it is known, and what isn't.
func (c *consumer) count() (lag int64, open []question, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// sarama starts the claims one by one.
	if c.session == nil || len(c.partitions) < len(c.session.Claims()[c.topic]) {
		return 0, nil, errNoShare
	}
	for _, p := range c.partitions {
		unread := p.unread()
		lag += p.unacked + unread
		switch {
		case p.fetched < 0:
			open = append(open, question{p, sarama.OffsetOldest})
		case p.paused:
			open = append(open, question{p, sarama.OffsetNewest})
		case unread > 0 && p.looked != p.fetched:
			open = append(open, question{p, p.fetched})
		}
	}
	return lag, open, nil
}

func (c *consumer) ask(ctx context.Context, ls *links, open []question) error {
	type questions struct{ ends, tails []question }
	byLeader := map[string]questions{}
	for _, q := range open {
		addr := ls.cluster.leader(topicPartition{c.topic, q.p.id})
		if addr == "" {
			return fmt.Errorf("partition %d of %s has no leader", q.p.id, c.topic)
		}
		asked := byLeader[addr]
		if q.offset < 0 {
			asked.ends = append(asked.ends, q)
		} else {
			asked.tails = append(asked.tails, q)
		}
		byLeader[addr] = asked
	}
	for addr, asked := range byLeader {
		l, err := ls.to(ctx, addr)
		if err == nil && len(asked.ends) > 0 {
			err = c.askEnds(ctx, l, asked.ends)
		}
		if err == nil && len(asked.tails) > 0 {
			err = c.askTails(ctx, l, asked.tails)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", addr, err)
		}
	}
	return nil
}

// askEnds finds out where partitions begin or end.
func (c *consumer) askEnds(ctx context.Context, l *link, asked []question) error {
	request := sarama.NewOffsetRequest(c.conf.Version)
	for _, q := range asked {
		request.AddBlock(c.topic, q.p.id, q.offset, 1)
	}
	response, err := ask(ctx, l, func() (*sarama.OffsetResponse, error) { return l.broker.GetAvailableOffsets(request) })
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, q := range asked {
		block := response.GetBlock(c.topic, q.p.id)
		switch {
		case block == nil:
			return sarama.ErrIncompleteResponse
		case block.Err != sarama.ErrNoError:
			return block.Err
		case q.offset == sarama.OffsetNewest:
			q.p.newest = max(q.p.newest, block.Offset)
		default:
			q.p.fetched = max(q.p.fetched, block.Offset)
		}
	}
	return nil
}

// askTails passes what is no message.
func (c *consumer) askTails(ctx context.Context, l *link, asked []question) error {
	request := &sarama.FetchRequest{Version: 4, MaxBytes: 1 << 20, Isolation: c.conf.Consumer.IsolationLevel}
	for _, q := range asked {
		request.AddBlock(c.topic, q.p.id, q.offset, tailBytes, -1)
	}
	response, err := ask(ctx, l, func() (*sarama.FetchResponse, error) { return l.broker.Fetch(request) })
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, q := range asked {
		block := response.GetBlock(c.topic, q.p.id)
		if block == nil {
			return sarama.ErrIncompleteResponse
		}
		if block.Err != sarama.ErrNoError {
			return block.Err
		}
		q.p.looked = behindMarks(q.offset, block.RecordsSet)
		q.p.fetched = max(q.p.fetched, q.p.looked)
	}
	return nil
}

// behindMarks is the offset of the first message in sets, or behind them if there
// is none.
func behindMarks(offset int64, sets []*sarama.Records) int64 {
	for _, set := range sets {
		if batch := set.RecordBatch; batch != nil && batch.Control {
			offset = max(offset, batch.LastOffset()+1)
		} else {
			break
		}
	}
	return offset
}
