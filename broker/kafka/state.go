package kafka

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/waybill-go/waybill/broker"
)

const (
	// lagIn is how long Lag waits for Kafka.
	lagIn = 5 * time.Second
	// refusedFor is how long a partition counts as refused after Kafka said so.
	refusedFor = 5 * time.Second
	// goneFor is for how long Kafka doesn't know a topic that was deleted. One that was just
	// made isn't known by all servers for a moment.
	goneFor = 2 * time.Second
	// settleIn is how much longer what was delivered of a deleted topic is waited for.
	settleIn = 30 * time.Second
	// silentAfter is how long Kafka answers nothing before that shows. A member asks at
	// least once a heartbeat; kgo itself gives up the group after 10 s and more.
	silentAfter = 5 * heartbeat / 2
)

var errNoShare = broker.Classify(broker.Unavailable, errors.New("kafka: lag: the consumer doesn't have its partitions yet, or lost them; it keeps trying"))

// health is how a consumer fares. Its mutex protects it.
type health struct {
	joined bool
	since  time.Time       // Of joined.
	err    error           // What keeps it from joining, or did last.
	down   bool            // That was logged.
	stuck  map[int32]stuck // -1 is for what concerns none of them alone.
	missed int64

	lacking int // looks in a row: see looked.
}

// stuck is a partition that Kafka doesn't let us read.
type stuck struct {
	err     error
	since   time.Time // of an error of this kind
	at      time.Time // when it was refused last
	forever bool
}

// join says that the group has been joined, and whether that ends an outage.
func (h *health) join() bool {
	if !h.joined {
		h.joined, h.since = true, time.Now()
	}
	down := h.down
	h.err, h.down = nil, false
	return down
}

// leave says that the group is lost.
func (h *health) leave() {
	if h.joined {
		h.joined, h.since = false, time.Now()
	}
}

// State implements [broker.Stateful]. A partition that it may not read, or whose next
// batch is larger than MaxBatchBytes, is an error of one that has joined, and so is a
// Kafka that answers nothing.
func (c *consumer) State() broker.State {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := &c.health
	s := broker.State{Joined: h.joined, Since: h.since, Partitions: len(c.partitions), Missed: h.missed}
	if !h.joined {
		s.LastError = h.err
		return s
	}
	var errs []error
	if silent := c.wire.silent(); silent >= silentAfter {
		errs = append(errs, fmt.Errorf("kafka: no server has answered for %v", silent.Round(time.Second)))
	}
	for _, st := range h.stuck {
		if st.forever || time.Since(st.at) < refusedFor {
			errs = append(errs, st.err)
		}
	}
	if len(errs) > 0 {
		s.LastError = lasting(errors.Join(errs...))
	}
	return s
}

// lasting gives err the class Permanent if it needs somebody.
func lasting(err error) error {
	_, tooLarge := errors.AsType[*kgo.ErrDecompressTooLarge](err)
	if tooLarge || login(err) || refusals[codeOf(err)].stays || errors.Is(err, kerr.GroupAuthorizationFailed) {
		return broker.Classify(broker.Permanent, err)
	}
	return err
}

// refused notes that Kafka doesn't hand out a partition, and logs when it begins.
func (c *consumer) refused(partition int32, err error) {
	if _, known := errors.AsType[*kgo.ErrGroupSession](err); known || c.ctx.Err() != nil || errors.Is(err, kgo.ErrClientClosed) {
		return
	}
	h := &c.health
	if _, lost := errors.AsType[*kgo.ErrDataLoss](err); lost {
		c.logger.Error("kafka: Kafka lost messages that it had", "partition", partition, "error", err)
		return
	}
	if c.partition(partition) == nil {
		partition = -1
	}
	tooLarge, forever := errors.AsType[*kgo.ErrDecompressTooLarge](err)
	switch {
	case forever:
		err = fmt.Errorf("kafka: topic %s, partition %d, offset %d: the batch has more than max_batch_bytes, %d: raise it, or set the group's offset of the partition to %d, which skips the batch: %w",
			c.topic, tooLarge.Partition, tooLarge.Offset, c.broker.conf.MaxBatchBytes, tooLarge.NextOffset, err)
	case partition < 0:
		err = fmt.Errorf("kafka: topic %s: %w", c.topic, err)
	default:
		err = fmt.Errorf("kafka: topic %s, partition %d: %w", c.topic, partition, err)
	}
	now := time.Now()
	s, known := h.stuck[partition]
	if !known || !s.forever && now.Sub(s.at) >= refusedFor {
		c.logger.Error("kafka: reading or committing is refused", "error", err)
		s.since = now
	}
	if errors.Is(err, kerr.UnknownTopicID) != errors.Is(s.err, kerr.UnknownTopicID) {
		s.since = now
	}
	s.err, s.at, s.forever = err, now, forever
	h.stuck[partition] = s
}

// unknownFor says whether Kafka has said for so long that it doesn't know the topic that
// this member reads. The lock is held.
func (c *consumer) unknownFor(d time.Duration) bool {
	for _, s := range c.health.stuck {
		if errors.Is(s.err, kerr.UnknownTopicID) && time.Since(s.at) < refusedFor && s.at.Sub(s.since) >= d {
			return true
		}
	}
	return c.health.lacking > 1 && time.Duration(c.health.lacking-1)*removedLook >= d
}

// isGone is unknownFor without the lock.
func (c *consumer) isGone(d time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unknownFor(d)
}

// trouble keeps err for State. Nil is none.
func (c *consumer) trouble(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil || c.ctx.Err() != nil {
		return
	}
	c.health.err = lasting(err)
}

func (c *consumer) committed(resp *kmsg.OffsetCommitResponse, err error) {
	if err == nil && resp != nil {
		for _, topic := range resp.Topics {
			for _, p := range topic.Partitions {
				err = errors.Join(err, kerr.ErrorForCode(p.ErrorCode))
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil || c.ctx.Err() != nil:
	case errors.Is(err, kerr.GroupAuthorizationFailed), errors.Is(err, kerr.TopicAuthorizationFailed):
		c.refused(-1, fmt.Errorf("what was acknowledged can't be committed: %w", err))
	default:
		c.logger.Debug("kafka: what was acknowledged isn't committed yet, trying again", "error", err)
	}
}

// watcher is what kgo tells of a consumer's membership.
type watcher consumer

var (
	_ kgo.HookGroupManageError = (*watcher)(nil)
	_ kgo.HookBrokerConnect    = (*watcher)(nil)
)

// OnGroupManageError is called when the membership is lost or can't be had. The
// first time of an outage is logged.
func (w *watcher) OnGroupManageError(err error) {
	c := (*consumer)(w)
	c.trouble(err)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return
	}
	c.health.leave()
	if !c.health.down {
		c.health.down = true
		c.logger.Warn("kafka: consuming is interrupted, trying again", "error", err)
	}
}

// OnBrokerConnect is called after every try to connect.
func (w *watcher) OnBrokerConnect(_ kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	(*consumer)(w).trouble(err)
}

// Lag counts what is not acknowledged of this member's partitions: of what was
// fetched, messages; of the rest, offsets. It asks Kafka, for 5 s at most.
func (c *consumer) Lag(ctx context.Context) (int64, error) {
	if c.ctx.Err() != nil {
		return 0, ErrClosed
	}
	ctx, cancel := context.WithTimeoutCause(ctx, lagIn, fmt.Errorf("not done within %v", lagIn))
	defer cancel()
	admin := kadm.NewClient(c.client)
	ends, err := admin.ListCommittedOffsets(ctx, c.topic)
	if err == nil {
		err = ends.Error()
	}
	starts := kadm.ListedOffsets{}
	if err == nil && c.fresh() {
		if starts, err = admin.ListStartOffsets(ctx, c.topic); err == nil {
			err = starts.Error()
		}
	}
	if err != nil && !errors.Is(err, kerr.UnknownTopicOrPartition) {
		return 0, broker.Classify(broker.Unavailable, fmt.Errorf("kafka: lag: %w", err))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.health.joined {
		return 0, errNoShare
	}
	var lag int64
	for _, p := range c.partitions {
		end, _ := ends.Lookup(c.topic, p.id)
		start, _ := starts.Lookup(c.topic, p.id)
		lag += p.unacked + max(0, end.Offset-max(p.next, start.Offset))
	}
	return lag, nil
}

// fresh says that a partition has no position yet.
func (c *consumer) fresh() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.partitions, func(p *partition) bool { return p.next < 0 })
}
