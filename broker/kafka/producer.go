package kafka

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"github.com/waybill-go/waybill/broker"
)

const (
	// patience is how long a call that makes no progress tries again what is known
	// not to be stored.
	patience = 5 * time.Second
	// requestBytes is what one request holds at most, before compression.
	requestBytes = 8 << 20

	firstWait = 50 * time.Millisecond
	maxWait   = time.Second

	noID = -1
)

// producer sends one call at a time over connections of its own.
//
// It speaks the produce protocol itself instead of using sarama's AsyncProducer,
// which after the final failure of a batch starts a new epoch and goes on with
// the batch behind it before it has told of the failure: messages of a key would
// be stored behind a gap. Here a partition's next batch is sent when the one
// before it is stored, and never otherwise.
type producer struct {
	links
	partitioners map[string]sarama.Partitioner

	id       int64 // From Kafka; noID before.
	epoch    int16
	sequence map[topicPartition]int32 // The next one.
}

func newProducer(c *cluster) *producer {
	return &producer{
		links:        links{cluster: c, byAddr: map[string]*link{}},
		partitioners: map[string]sarama.Partitioner{},
		id:           noID,
		sequence:     map[topicPartition]int32{},
	}
}

// publish sends c until each of its messages is settled. Afterwards nothing of c
// is under way any more.
func (p *producer) publish(ctx context.Context, c *call) {
	if err := p.prepare(ctx, c); err != nil {
		c.abandon(ctx, err)
		return
	}
	c.assign(p.cluster, p.partitioners)
	p.drive(ctx, c)
	if c.doubt {
		p.renew()
	}
}

// prepare finds the partitions and gets a producer id. Nothing of the call is
// sent yet, so every failure leaves it untouched.
func (p *producer) prepare(ctx context.Context, c *call) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("kafka: not possible within %v", patience))
	defer cancel()
	p.wake(ctx, c.topics)
	for wait := firstWait; ; wait *= 2 {
		unknown := c.unknown(p.cluster)
		if len(unknown) == 0 {
			break
		}
		refused, err := p.refresh(ctx, unknown)
		if err != nil {
			return err
		}
		// Not every server may have heard yet of a topic that was just created.
		last := wait >= time.Second
		for topic, code := range refused {
			if last || code != sarama.ErrUnknownTopicOrPartition {
				c.refuse(topic, code)
			}
		}
		if len(c.unknown(p.cluster)) == 0 {
			break
		}
		if err := sleep(ctx, wait); err != nil {
			return err
		}
	}
	if p.id == noID {
		return p.init(ctx)
	}
	return nil
}

// wake asks over every link that rested: if it died unnoticed, that shows before
// the call is in doubt. What fails here is found out again where it matters.
func (p *producer) wake(ctx context.Context, topics []string) {
	for _, l := range p.byAddr {
		if l.closed() || !l.rested() {
			continue
		}
		bounded, cancel := context.WithTimeout(ctx, answerIn)
		_, _ = p.cluster.ask(bounded, l, topics)
		cancel()
	}
	if p.cluster.stale(topics) {
		_, _ = p.refresh(ctx, topics)
	}
}

// init gets a producer id, by which Kafka recognises what is sent again.
func (p *producer) init(ctx context.Context) error {
	request := &sarama.InitProducerIDRequest{Version: 2, ProducerID: noID, ProducerEpoch: noID}
	if p.cluster.conf.Version.IsAtLeast(sarama.V2_7_0_0) {
		request.Version = 4
	}
	for wait := firstWait; ; wait = min(2*wait, maxWait) {
		var response *sarama.InitProducerIDResponse
		err := p.any(ctx, func(ctx context.Context, l *link) (err error) {
			response, err = ask(ctx, l, func() (*sarama.InitProducerIDResponse, error) { return l.broker.InitProducerID(request) })
			return err
		})
		if err != nil {
			return err
		}
		if response.Err == sarama.ErrNoError {
			p.id, p.epoch = response.ProducerID, response.ProducerEpoch
			clear(p.sequence)
			return nil
		}
		err = fmt.Errorf("kafka: no producer id: %w", response.Err)
		if refusals[response.Err].stays {
			return err
		}
		if late := sleep(ctx, wait); late != nil {
			return errors.Join(late, err)
		}
	}
}

// renew makes Kafka refuse what of earlier calls may still be on its way, and
// ends every doubt about sequences: one that is used twice would be taken for a
// duplicate.
func (p *producer) renew() {
	clear(p.sequence)
	if p.id == noID || p.epoch == math.MaxInt16 {
		p.id = noID
		return
	}
	p.epoch++
}

// drive sends batches, and tries them again, until all are settled. What is in
// doubt is tried again until ctx is done; the rest is given up earlier.
func (p *producer) drive(ctx context.Context, c *call) {
	progress, wait := time.Now(), firstWait
	forgotten := false
	for {
		if forgotten && !c.open() {
			if p.id = noID; p.reach(ctx, c, progress, p.init) != nil {
				return
			}
			forgotten = false
		}
		round := p.gather(c)
		if len(round) == 0 {
			return
		}
		p.exchange(ctx, round)
		var moved, failed, elsewhere bool
		for _, a := range round {
			switch p.settle(ctx, c, a) {
			case moveOn:
				moved = true
			case tryAgain:
				failed = true
			case tryElsewhere:
				failed, elsewhere = true, true
			case tryAnew:
				failed, forgotten = true, true
			}
		}
		if moved {
			progress, wait = time.Now(), firstWait
		}
		if ctx.Err() != nil {
			c.giveUp(context.Cause(ctx), true)
			return
		}
		if !failed {
			continue
		}
		if time.Since(progress) > patience {
			c.giveUp(fmt.Errorf("kafka: given up after %v", patience), false)
		}
		_ = sleep(ctx, wait) // If ctx ends, the next round finds out.
		wait = min(2*wait, maxWait)
		if elsewhere {
			err := p.reach(ctx, c, progress, func(ctx context.Context) error {
				_, err := p.refresh(ctx, c.topics)
				return err
			})
			if err != nil {
				return
			}
		}
	}
}

// reach calls fn, which asks any server. While nothing of the call is in doubt,
// a failure ends the call.
func (p *producer) reach(ctx context.Context, c *call, progress time.Time, fn func(context.Context) error) error {
	if c.open() {
		_ = fn(ctx) // The next round shows.
		return nil
	}
	left := max(patience-time.Since(progress), time.Second)
	bounded, cancel := context.WithTimeoutCause(ctx, left, fmt.Errorf("kafka: given up after %v", patience))
	defer cancel()
	err := fn(bounded)
	if err != nil {
		c.abandon(ctx, err)
	}
	return err
}

// attempt is a batch in a round.
type attempt struct {
	lane   *lane
	addr   string // Of the leader; empty for none.
	answer *sarama.ProduceResponseBlock
	left   bool // Bytes of it may have left.
	err    error
}

// gather makes the next round: a batch of each lane, as many as fit.
func (p *producer) gather(c *call) []*attempt {
	round := make([]*attempt, 0, len(c.lanes))
	size := map[string]int{}
	for _, l := range c.lanes {
		c.next(l, p.cluster.conf)
		if l.batch == nil {
			continue
		}
		addr := p.cluster.leader(l.topicPartition)
		if size[addr] > 0 && size[addr]+l.batch.size > requestBytes {
			continue
		}
		size[addr] += l.batch.size
		if !l.batch.open {
			set := l.batch.set
			set.ProducerID, set.ProducerEpoch, set.FirstSequence = p.id, p.epoch, p.sequence[l.topicPartition]
		}
		round = append(round, &attempt{lane: l, addr: addr})
	}
	return round
}

// exchange sends a round, to all leaders at once, and waits for the answers.
func (p *producer) exchange(ctx context.Context, round []*attempt) {
	byLeader := map[string][]*attempt{}
	for _, a := range round {
		byLeader[a.addr] = append(byLeader[a.addr], a)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	for addr, attempts := range byLeader {
		if addr == "" {
			fail(attempts, leaderless(errors.New("kafka: the partition has no leader")), false)
			continue
		}
		l, err := p.to(ctx, addr)
		switch {
		case err != nil:
			err = fmt.Errorf("kafka: no connection to %s: %w", addr, err)
			if p.connected() {
				err = leaderless(err)
			} else { // as far as is known, no other server answers either
				err = broker.Scoped(broker.Unavailable, broker.ScopeBroker, err)
			}
			fail(attempts, err, false)
		case len(byLeader) == 1:
			p.produce(ctx, l, attempts)
		default:
			wg.Go(func() { p.produce(ctx, l, attempts) })
		}
	}
}

// leaderless is about partitions that nobody leads, or somebody who can't be
// reached. Others may be well: if no server answers, refresh says so.
func leaderless(err error) error { return broker.Scoped(broker.Unavailable, broker.ScopeTopic, err) }

func fail(attempts []*attempt, err error, left bool) {
	for _, a := range attempts {
		a.err, a.left = err, left
	}
}

// produce sends one request.
func (p *producer) produce(ctx context.Context, l *link, attempts []*attempt) {
	conf := p.cluster.conf
	request := &sarama.ProduceRequest{
		RequiredAcks: conf.Producer.RequiredAcks,
		Timeout:      int32(conf.Producer.Timeout / time.Millisecond),
		Version:      8,
	}
	if conf.Version.IsAtLeast(sarama.V2_8_0_0) {
		request.Version = 9
	}
	for _, a := range attempts {
		request.AddBatch(a.lane.topic, a.lane.partition, a.lane.batch.set)
	}
	before := l.cutter.written.Load()
	response, err := ask(ctx, l, func() (*sarama.ProduceResponse, error) { return l.broker.Produce(request) })
	if err != nil {
		fail(attempts, fmt.Errorf("kafka: %s: %w", l.addr, err), l.cutter.written.Load() > before)
		return
	}
	l.quiet = time.Now().Add(response.ThrottleTime)
	for _, a := range attempts {
		a.left, a.answer = true, response.GetBlock(a.lane.topic, a.lane.partition)
		if a.answer == nil {
			a.err = fmt.Errorf("kafka: %s: %w", l.addr, sarama.ErrIncompleteResponse)
		}
	}
}

type verdict int

const (
	moveOn       verdict = iota // Settled, or made smaller.
	tryAgain                    // Refused for now.
	tryElsewhere                // The leader may be another one.
	tryAnew                     // Kafka doesn't know the producer any more.
)

// settle takes in what came of an attempt.
func (p *producer) settle(ctx context.Context, c *call, a *attempt) verdict {
	l, b := a.lane, a.lane.batch
	b.sent = b.sent || a.left
	if a.err != nil {
		if b.err == nil || ctx.Err() == nil {
			b.err = a.err // Else an earlier error says more.
		}
		b.open = b.open || a.left
		if _, ok := errors.AsType[sarama.PacketEncodingError](a.err); ok && !b.open {
			c.end(l, broker.Permanent)
			return moveOn
		}
		return tryElsewhere
	}
	code := a.answer.Err
	if code == sarama.ErrNoError || code == sarama.ErrDuplicateSequenceNumber && b.open {
		p.sequence[l.topicPartition] = int32((int64(b.set.FirstSequence) + int64(len(b.indexes))) & math.MaxInt32)
		c.store(l)
		return moveOn
	}
	b.err = fmt.Errorf("kafka: topic %s, partition %d: %w", l.topic, l.partition, code)
	if a.answer.ErrorMessage != nil {
		b.err = fmt.Errorf("%w: %s", b.err, *a.answer.ErrorMessage)
	}
	r := refusals[code]
	switch {
	case r.partly && len(b.indexes) > 1:
		c.split(l, p.cluster.conf)
		return moveOn
	case r.forgotten && !b.open:
		return tryAnew
	case r.again:
		b.open = b.open || r.unclear
		return tryElsewhere
	case r.unclear || r.forgotten || b.open && !r.partly:
		c.end(l, broker.Unknown)
	default:
		c.end(l, r.class)
	}
	return moveOn
}
