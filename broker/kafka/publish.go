package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill/broker"
)

const (
	// patience is how long a call that hands nothing over goes on while nobody answers.
	patience = 5 * time.Second
	// outageIn is how long it goes on while no server can be reached.
	outageIn = time.Second
	// tries is how often what Kafka refuses for now is sent: for some 10 s. Of a
	// topic that was just created, leaders may not know for a while.
	tries = 13

	firstWait = 50 * time.Millisecond
	maxWait   = time.Second
	answerIn  = 3 * time.Second

	// takeBackIn is how long kgo has for calling promises before it is asked again.
	takeBackIn = 50 * time.Millisecond
)

// errUnproven is of a message that kgo takes for stored and nobody else does.
var errUnproven = errors.New("the acknowledgement is not of this message: Kafka was not seen to answer for it, or its sequence number was used before; a new producer sends it again")

// producer is a kgo client that sends one call at a time. Its rounds have at most
// one batch for a partition, and the next one begins when each record of the last one
// is settled: so what Kafka accepts of a key is a leading run, whatever becomes of a
// batch. What is sent again within a round is recognised by Kafka; kgo never gives up
// what may be stored. If the call ends before that is clear, the connections are cut
// and the records taken out of kgo, which then goes on with a new epoch: Kafka refuses
// what may still be on its way.
type producer struct {
	client *kgo.Client
	wire   *wire
	teller *teller
	opts   []kgo.Opt // Of the next client; none with a transactional id, which is opened anew after a failure.
	broken bool      // The last call was given up.
	stale  bool      // A topic was missing, or kgo may have forgotten one: see renew.
}

// producer makes one. more are options of one with a transactional id.
func (c Config) producer(more ...kgo.Opt) (*producer, error) {
	w, teller := c.wire(), c.spread.partitioner()
	opts := append(c.options(w),
		kgo.ManualFlushing(), // A round is sent when it is complete.
		kgo.ProducerLinger(0),
		kgo.MaxBufferedRecords(math.MaxInt32),
		kgo.MaxBufferedBytes(0),
		kgo.ProduceRequestTimeout(5*time.Second),
		kgo.ProducerBatchMaxBytes(int32(c.MaxMessageBytes)),
		kgo.ProducerBatchCompression(codecs[c.Compression]),
		kgo.RecordPartitioner(teller),
		kgo.RecordRetries(tries),
		kgo.RecordDeliveryTimeout(0), // It would hide the cause.
		kgo.UnknownTopicRetries(4),
		kgo.ConnIdleTimeout(patience), // One that died unnoticed would put a call in doubt.
	)
	client, err := kgo.NewClient(append(opts, more...)...)
	if err != nil {
		return nil, fmt.Errorf("kafka: Options: %w", err)
	}
	if len(more) > 0 {
		return &producer{client: client, wire: w, teller: teller}, nil // Open has checked the others.
	}
	if err := checkOptions(client); err != nil {
		client.Close()
		return nil, err
	}
	return &producer{client: client, wire: w, teller: teller, opts: opts}, nil
}

// renew goes on with a new client, and so with a new producer's id, after a topic was
// missing, or records were taken back before kgo knew their topic, or where another client
// has heard of another number of partitions. Of a missing topic the
// old one asks for ever. To have it forget a topic, which taking back does to those that it
// doesn't know, loses messages: it then numbers the topic's batches from 0 again under the
// same id, also in the middle: an answer that was asked for before may have the topic's next
// batch sent, and the one behind that is the first of what it learns afterwards. A partition
// takes the second batch for its first one, says that it is stored and doesn't store it.
func (p *producer) renew() error {
	if p.opts == nil || !p.stale && !p.teller.differs() {
		return nil
	}
	p.wire.close()
	p.client.Close()
	p.wire.open()
	p.teller.forget()
	client, err := kgo.NewClient(p.opts...)
	if err != nil {
		return fmt.Errorf("kafka: %w", err)
	}
	p.client, p.stale = client, false
	return nil
}

func (p *producer) close() {
	p.wire.close()
	p.client.Close()
}

// publish sends all of among until each is settled.
func (p *producer) publish(ctx context.Context, c *call, among []int) {
	for {
		round := c.next(among)
		if len(round) == 0 {
			return
		}
		if ctx.Err() != nil {
			c.abandon(broker.ScopeUnknown, context.Cause(ctx))
			return
		}
		if err := p.renew(); err != nil {
			c.abandon(broker.ScopeBroker, err)
			return
		}
		p.send(ctx, c, round)
		// A batch that is refused because of some of it is sent in halves.
		for _, group := range c.halves(round) {
			p.publish(ctx, c, group)
		}
	}
}

// send sends a round and settles what comes of it.
func (p *producer) send(ctx context.Context, c *call, round []int) {
	bounded, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p.wire.begin(cancel)
	refused := map[*kgo.Record]error{}
	// A record that the client refuses before it keeps it is none that Flush waits for: without
	// waiting for its promise it would pass for stored.
	var promised sync.WaitGroup
	promised.Add(len(round))
	promise := func(r *kgo.Record, err error) { // One after the other.
		defer promised.Done()
		if err != nil {
			refused[r] = err
		}
	}
	detached := context.WithoutCancel(ctx)
	for _, i := range round {
		r := &c.records[i]
		r.Timestamp = time.Time{}
		p.client.Produce(detached, &r.Record, promise)
	}
	var why error
	if p.client.Flush(bounded) != nil {
		why = context.Cause(bounded)
		p.abort(detached)
	}
	promised.Wait()
	a, trouble := p.wire.end()
	e := ending{account: a, why: why, trouble: trouble, scope: broker.ScopeTopic}
	switch {
	case ctx.Err() != nil: // Who knows what would have come.
		e.scope = broker.ScopeUnknown
	case !a.heard, trouble == nil && a.id, login(trouble):
		e.scope = broker.ScopeBroker
	}
	for _, i := range round {
		c.records[i].err = refused[&c.records[i].Record]
		p.settle(c, i, e)
	}
}

// abort takes back all that isn't settled. Afterwards nothing of it is sent: the wire
// stays shut until kgo has no record any more.
//
// Once isn't enough: kgo takes from its partitions first and from the topics it doesn't
// know yet then. Records that it gets to know the partitions of in between go from there
// to here behind its back, and would wait for a connection for ever.
func (p *producer) abort(ctx context.Context) {
	p.broken = true
	p.wire.close()
	for left := true; left; {
		p.client.UnsafeAbortBufferedRecords()
		bounded, cancel := context.WithTimeout(ctx, takeBackIn)
		left = p.client.Flush(bounded) != nil // Nil: every promise was called.
		cancel()
	}
	p.wire.open()
}

// ending is how a round ended.
type ending struct {
	account
	why     error        // It was given up.
	trouble error        // Of connecting.
	scope   broker.Scope // Of what wasn't handed over.
}

// settle settles a message, unless its batch is to be sent in halves.
func (p *producer) settle(c *call, i int, e ending) {
	r := &c.records[i]
	f, code := e.of(r.place()), codeOf(r.err)
	if r.err == nil && f.proven() || f.stored() { // kgo may give up a topic of which a batch is stored.
		r.state = stored
		return
	}
	if r.err == nil { // Kafka has it for an earlier one, with the same numbers.
		p.stale = true
		c.fail(i, broker.Unknown, broker.ScopeRow, fmt.Errorf("kafka: topic %s, partition %d: %w", r.Topic, r.Partition, errUnproven))
		return
	}
	if e.why != nil && errors.Is(r.err, kgo.ErrAborting) {
		r.err = e.why
		p.stale = p.stale || f.sent == 0
	}
	if same := errors.Unwrap(e.trouble); same != nil && same.Error() == r.err.Error() {
		r.err = e.trouble // It says to whom, too.
	}
	if code == nil && f.last != nil {
		code = f.last
		r.err = fmt.Errorf("%w; Kafka said last: %w", r.err, code)
	}
	if code == kerr.UnknownTopicOrPartition || code == kerr.UnknownTopicID {
		p.stale = true
		r.err = fmt.Errorf("it doesn't exist: create it, or let EnsureTopics do so: %w", r.err)
	}
	if code == kerr.MessageTooLarge {
		r.err = fmt.Errorf("raise the topic's max.message.bytes, or send less: %w", r.err)
	}
	r.err = fmt.Errorf("kafka: topic %s, partition %d: %w", r.Topic, r.Partition, r.err)
	refused := refusals[code]
	switch {
	case f.doubt(), f.sent > 0 && code == nil:
		c.fail(i, broker.Unknown, refused.scope, r.err)
	case f.sent > 0 && refused.partly: // See halves.
	case f.sent > 0, refused.scope == broker.ScopeTopic && code != kerr.LeaderNotAvailable:
		c.fail(i, refused.class, refused.scope, r.err)
	default: // Nothing was handed over.
		if e.trouble != nil && !errors.Is(r.err, e.trouble) {
			r.err = fmt.Errorf("%w: %w", r.err, e.trouble)
		}
		c.fail(i, broker.Unavailable, cmp.Or(refused.scope, e.scope), r.err)
	}
}
