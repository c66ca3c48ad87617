package kafka

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/waybill-go/waybill/broker"
)

const (
	// MarkTopic is the topic that marks are offsets of, behind the broker's prefix. It is
	// always empty.
	MarkTopic = "waybill.marks"
	// openIn is how long Transact takes at most. A transaction whose end is being written
	// is waited for.
	openIn = 15 * time.Second
	// abortIn is how long is waited for the end of a transaction that failed. Nobody has to
	// hear of it: who opens the id next ends it.
	abortIn = 2 * time.Second
	// again is when a request is repeated while the last transaction's end is being written.
	again = 2 * time.Millisecond
)

// errNotEnded is of a transaction for whose end kgo has sent nothing, without an error.
var errNotEnded = errors.New("the client has not ended the transaction: its id is opened again, and all of it is sent again")

// errOtherSpread is of a client that would put keys where they were.
var errOtherSpread = errors.New("a topic has another number of partitions than this client knows: its id is opened again, and all of it is sent then")

var _ broker.Transactional = (*Broker)(nil)

// markTopic has the prefix that the id has.
func markTopic(id string) string {
	return id[:max(strings.LastIndex(id, broker.TransactionalPrefix), 0)] + MarkTopic
}

// transactor publishes claims, each in a transaction with its mark: an offset that a group
// with the name of the id commits, of a topic that is there for this.
type transactor struct {
	broker   *Broker
	id       string
	producer *producer
	failed   bool
	// The producer's id and epoch since Transact. kgo may ask for another epoch after an
	// error; with that one nothing may be sent that was claimed before.
	number int64
	epoch  int16
}

// ExactlyOnce implements [broker.Transactional].
func (b *Broker) ExactlyOnce() bool { return b.conf.ExactlyOnce }

// Transact implements [broker.Transactional]: InitProducerId, then a read of the mark.
func (b *Broker) Transact(ctx context.Context, id string) (broker.Transactor, broker.Mark, error) {
	ctx, end, err := b.begin(ctx)
	if err != nil {
		return nil, broker.Mark{}, err
	}
	defer end()
	ctx, cancel := context.WithTimeoutCause(ctx, openIn, fmt.Errorf("not done within %v", openIn))
	defer cancel()
	if err := b.marks(ctx, id); err != nil {
		return nil, broker.Mark{}, broker.Classify(broker.Unavailable, err)
	}
	p, err := b.conf.producer(transactional(b.conf, id)...)
	if err != nil {
		return nil, broker.Mark{}, err
	}
	x := &transactor{broker: b, id: id, producer: p}
	mark, err := x.open(ctx)
	if err != nil {
		x.Close()
		if ctx.Err() != nil {
			err = errors.Join(context.Cause(ctx), err)
		}
		err = fmt.Errorf("kafka: transactional id %s: %w", id, err)
		if refusals[codeOf(err)].stays || errors.Is(err, kerr.GroupAuthorizationFailed) {
			return nil, broker.Mark{}, broker.Scoped(broker.Permanent, broker.ScopeBroker, err)
		}
		return nil, broker.Mark{}, broker.Scoped(broker.Unavailable, broker.ScopeBroker, err)
	}
	return x, mark, nil
}

// marks sees to it, once, that the topic of the marks is there.
func (b *Broker) marks(ctx context.Context, id string) error {
	topic := markTopic(id)
	b.mu.Lock()
	known := b.marked[topic]
	b.mu.Unlock()
	if known {
		return nil
	}
	if err := b.EnsureTopics(ctx, topic); err != nil {
		return fmt.Errorf("the topic of the marks of exactly_once: %w", err)
	}
	b.mu.Lock()
	b.marked[topic] = true
	b.mu.Unlock()
	return nil
}

// transactional are the options of a producer with an id.
func transactional(c Config, id string) []kgo.Opt {
	newest := versions()
	// Where transactions end with a new epoch (KIP-890), raw requests would have to follow.
	newest.SetMaxKeyVersion(kmsg.EndTxn.Int16(), 4)
	newest.SetMaxKeyVersion(kmsg.TxnOffsetCommit.Int16(), 4)
	return []kgo.Opt{
		kgo.MaxVersions(newest),
		kgo.TransactionalID(id),
		// A call is over before.
		kgo.TransactionTimeout(max(time.Minute, c.PublishTimeout+10*time.Second)),
		kgo.ConcurrentTransactionsBackoff(again),
		kgo.RetryBackoffFn(func(fails int) time.Duration { return min(again<<min(max(fails-1, 0), 10), maxWait) }),
	}
}

// open fences, and reads the mark behind that: what isn't committed by then never will be.
func (x *transactor) open(ctx context.Context) (m broker.Mark, err error) {
	defer context.AfterFunc(ctx, x.producer.wire.cut)() // kgo may wait for an answer.
	if x.number, x.epoch, err = x.producer.client.ProducerID(ctx); err != nil {
		return m, err
	}
	var all kadm.OffsetResponses
	err = x.while(ctx, func() (err error) { // On a new Kafka the coordinator's topic is made first.
		all, err = kadm.NewClient(x.producer.client).FetchOffsets(kadm.RequireStable(ctx), x.id)
		return err
	})
	if errors.Is(err, kerr.GroupIDNotFound) {
		return m, nil
	}
	if err != nil {
		return m, fmt.Errorf("read its mark: %w", err)
	}
	at, ok := all.Lookup(markTopic(x.id), 0)
	switch {
	case !ok, at.Err == nil && at.At < 0:
		return m, nil
	case at.Err != nil:
		return m, fmt.Errorf("read its mark: %w", at.Err)
	}
	return broker.Mark{N: at.At, Note: at.Metadata}, nil
}

// Publish implements [broker.Transactor].
func (x *transactor) Publish(ctx context.Context, mark broker.Mark, messages []broker.Message) (err error) {
	ctx, end, err := x.broker.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	if x.failed {
		return broker.Scoped(broker.Unavailable, broker.ScopeRow, errors.New("kafka: the transactor has failed before: open its id again"))
	}
	x.failed = true
	limit := x.broker.conf.PublishTimeout
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("kafka: not done within publish_timeout, %v", limit))
	defer cancel()
	c := newCall(x.broker.conf.MaxMessageBytes, messages)
	if len(c.failed) > 0 {
		return c.takenBack()
	}
	if x.producer.teller.differs() { // Who opens the id has a new client: see renew.
		return broker.Scoped(broker.Unavailable, broker.ScopeRow, fmt.Errorf("kafka: transactional id %s: %w", x.id, errOtherSpread))
	}
	if err := x.same(ctx); err != nil { // BeginTransaction would ask for a new epoch, without ctx.
		return x.unavailable(err)
	}
	if err := x.producer.client.BeginTransaction(); err != nil {
		return x.unavailable(err)
	}
	x.producer.publish(ctx, c, c.all())
	if len(c.failed) > 0 {
		x.abort(ctx)
		return c.takenBack()
	}
	defer context.AfterFunc(ctx, x.producer.wire.cut)() // kgo may wait for an answer.
	if err := c.known(ctx, x.producer.client.PartitionLeader); err != nil {
		x.abort(ctx)
		return x.unavailable(err)
	}
	if err := x.mark(ctx, mark); err != nil {
		if codeOf(err) == kerr.UnknownTopicOrPartition { // Another Kafka, or somebody has deleted it: the next Transact makes it.
			x.broker.mu.Lock()
			delete(x.broker.marked, markTopic(x.id))
			x.broker.mu.Unlock()
		}
		x.abort(ctx)
		return x.unavailable(err)
	}
	before := x.producer.wire.ended()
	if err := x.producer.client.EndTransaction(ctx, kgo.TryCommit); err != nil {
		if errors.Is(err, kerr.OperationNotAttempted) {
			x.abort(ctx)
			return x.unavailable(err)
		}
		return fmt.Errorf("%w: kafka: transactional id %s: %w", broker.ErrUndecided, x.id, err)
	}
	if x.producer.wire.ended() == before {
		return x.unavailable(errNotEnded) // Who opens the id aborts it.
	}
	x.failed = false
	return nil
}

// unavailable is why nothing is stored. A fenced one has its rows decided by another.
func (x *transactor) unavailable(err error) error {
	code := codeOf(err)
	err = fmt.Errorf("kafka: transactional id %s: %w", x.id, err)
	if code == kerr.ProducerFenced || code == kerr.InvalidProducerEpoch || code == kerr.InvalidProducerIDMapping {
		return broker.Scoped(broker.Unavailable, broker.ScopeRow, err)
	}
	return broker.Scoped(broker.Unavailable, broker.ScopeBroker, err)
}

// abort ends what is open, if Kafka answers soon.
func (x *transactor) abort(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortIn)
	defer cancel()
	defer context.AfterFunc(ctx, x.producer.wire.cut)()
	_ = x.producer.client.EndTransaction(ctx, kgo.TryAbort) // Who opens the id ends it.
}

// same fails if the producer has another epoch than that of Transact, or none.
func (x *transactor) same(ctx context.Context) error {
	number, epoch, err := x.producer.client.ProducerID(ctx)
	if err != nil {
		return err
	}
	if number != x.number || epoch != x.epoch {
		return fmt.Errorf("the producer has another epoch by now, %d instead of %d: %w", epoch, x.epoch, kerr.ProducerFenced)
	}
	return nil
}

// mark puts the mark into the open transaction. kgo does so only for the group that its
// client is a member of.
func (x *transactor) mark(ctx context.Context, m broker.Mark) error {
	if err := x.same(ctx); err != nil {
		return err
	}
	client := x.producer.client
	add := kmsg.NewPtrAddOffsetsToTxnRequest()
	add.TransactionalID, add.ProducerID, add.ProducerEpoch, add.Group = x.id, x.number, x.epoch, x.id
	err := x.while(ctx, func() error {
		added, err := add.RequestWith(ctx, client)
		if err != nil {
			return err
		}
		return kerr.ErrorForCode(added.ErrorCode)
	})
	if err != nil {
		return fmt.Errorf("mark: %w", err)
	}
	commit := kmsg.NewPtrTxnOffsetCommitRequest()
	commit.TransactionalID, commit.ProducerID, commit.ProducerEpoch, commit.Group, commit.Generation = x.id, x.number, x.epoch, x.id, -1
	p := kmsg.NewTxnOffsetCommitRequestTopicPartition()
	p.Offset, p.Metadata = m.N, &m.Note
	t := kmsg.NewTxnOffsetCommitRequestTopic()
	t.Topic, t.Partitions = markTopic(x.id), []kmsg.TxnOffsetCommitRequestTopicPartition{p}
	commit.Topics = append(commit.Topics, t)
	err = x.while(ctx, func() error {
		committed, err := commit.RequestWith(ctx, client)
		if err != nil {
			return err
		}
		for _, t := range committed.Topics {
			for _, p := range t.Partitions {
				err = errors.Join(err, kerr.ErrorForCode(p.ErrorCode))
			}
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("mark %d: %w", m.N, err)
	}
	return nil
}

// while repeats a request as long as the answer says that a moment later it may do better.
func (x *transactor) while(ctx context.Context, request func() error) error {
	for {
		err := request()
		switch codeOf(err) {
		case kerr.ConcurrentTransactions, kerr.CoordinatorLoadInProgress, kerr.NotCoordinator, kerr.CoordinatorNotAvailable:
		default:
			return err
		}
		if stopped := sleep(ctx, again); stopped != nil {
			return errors.Join(stopped, err)
		}
	}
}

// known waits until kgo knows of each partition that the call's records are in, so that it
// ends the transaction there. Of a topic that is new to it, kgo stores the partitions after
// it has handed on the records that waited for them: in between, these can be sent and
// acknowledged, and EndTransaction finds nothing to end, sends nothing and says that all is
// well. What is stored would be aborted later, and believed to be published.
func (c *call) known(ctx context.Context, leader func(topic string, partition int32) (int32, int32, error)) error {
	for i := range c.records {
		for {
			r := &c.records[i]
			// A leader that is -1 without an error is of a partition that isn't there yet.
			if id, _, err := leader(r.Topic, r.Partition); id >= 0 || err != nil {
				break
			}
			if err := sleep(ctx, again); err != nil {
				return err
			}
		}
	}
	return nil
}

// Close implements [broker.Transactor].
func (x *transactor) Close() { x.producer.close() }

// takenBack is the answer of a call of which nothing is stored.
func (c *call) takenBack() error {
	for i := range c.records {
		switch c.records[i].state {
		case stored:
			c.failed[i] = broker.ErrTakenBack
		case waiting:
			c.fail(i, broker.Unavailable, broker.ScopeRow, errBesides)
		}
	}
	return c.err()
}
