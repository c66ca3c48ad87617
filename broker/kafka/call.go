package kafka

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/IBM/sarama"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"

	"github.com/waybill-go/waybill/broker"
)

// errBehind is why a message is held back whose key's earlier message failed.
var errBehind = broker.Scoped(broker.Unavailable, broker.ScopeRow, errors.New("kafka: not sent: an earlier message of its key was not stored"))

// call is one call of Publish.
type call struct {
	messages []broker.Message
	records  []record
	lanes    map[topicPartition]*lane
	topics   []string
	failed   map[int]error
	doubt    bool // A batch was sent and is not settled as stored.
}

type topicPartition struct {
	topic     string
	partition int32
}

// record is a message on its way.
type record struct {
	message sarama.ProducerMessage // For the partitioner.
	wire    sarama.Record
	size    int
	earlier *record // The message of the same key before it, in the same call.
	batch   *batch  // That holds it.
	state   state
}

type state int8

const (
	waiting state = iota
	stored
	failed
)

// newCall prepares every message before one is sent, so that what can be refused
// here cuts its key at the right place.
func newCall(conf *sarama.Config, messages []broker.Message) *call {
	c := &call{messages: messages, records: make([]record, len(messages)), lanes: map[topicPartition]*lane{}}
	last := make(map[string]*record, len(messages))
	p := preparing{conf: conf, topics: map[string]error{}, names: map[string][]byte{}}
	for i := range messages {
		m, r := &messages[i], &c.records[i]
		r.earlier = last[m.Key]
		last[m.Key] = r
		if err := p.prepare(r, m); err != nil {
			class := broker.Permanent
			if broker.ScopeOf(err) == broker.ScopeTopic {
				class = broker.Unavailable
			}
			c.fail(i, class, fmt.Errorf("kafka: message %q: %w", m.ID, err))
		}
		if r.earlier != nil && r.earlier.state == failed && r.state != failed {
			c.fail(i, broker.Unavailable, errBehind)
		}
		if r.state == waiting && !slices.Contains(c.topics, m.Topic) {
			c.topics = append(c.topics, m.Topic)
		}
	}
	return c
}

var topicName = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,249}$`)

func checkTopic(topic string) error {
	if !topicName.MatchString(topic) || topic == "." || topic == ".." {
		return fmt.Errorf("%q is no topic name: use up to 249 of a-z, A-Z, 0-9, '.', '_' and '-'", topic)
	}
	return nil
}

// preparing is what the messages of a call have in common.
type preparing struct {
	conf   *sarama.Config
	topics map[string]error
	names  map[string][]byte // of headers
}

func (p *preparing) topic(topic string) error {
	err, known := p.topics[topic]
	if !known {
		// A prefix or a rule of the configuration may have made the name.
		err = broker.Scoped(broker.Unavailable, broker.ScopeTopic, checkTopic(topic))
		p.topics[topic] = err
	}
	return err
}

// prepare makes of a message what Watermill's Kafka adapter would make of it.
func (p *preparing) prepare(r *record, m *broker.Message) error {
	switch {
	case m.ID == "":
		return errors.New("the id is missing")
	case m.Key == "":
		return errors.New("the key is missing")
	}
	if err := p.topic(m.Topic); err != nil {
		return err
	}
	native := m.NativeHeaders(cloudEventsPrefix)
	if native[wmkafka.UUIDHeaderKey] != "" {
		return fmt.Errorf("the header %s is reserved", wmkafka.UUIDHeaderKey)
	}
	length := len(m.Key) + len(m.ID)
	for _, value := range native {
		length += len(value)
	}
	text := make([]byte, 0, length) // all in one
	part := func(s string) []byte {
		text = append(text, s...)
		return text[len(text)-len(s) : len(text) : len(text)]
	}
	headers := make([]sarama.RecordHeader, 0, 1+len(native))
	headers = append(headers, sarama.RecordHeader{Key: p.name(wmkafka.UUIDHeaderKey), Value: part(m.ID)})
	for name, value := range native {
		headers = append(headers, sarama.RecordHeader{Key: p.name(name), Value: part(value)})
	}
	key := part(m.Key)
	r.message = sarama.ProducerMessage{Topic: m.Topic, Key: sarama.ByteEncoder(key), Value: sarama.ByteEncoder(m.Body), Headers: headers}
	r.wire = sarama.Record{Key: key, Value: m.Body, Headers: make([]*sarama.RecordHeader, len(headers))}
	for i := range headers {
		r.wire.Headers[i] = &headers[i]
	}
	r.size = recordBytes(&r.wire)
	if limit := p.conf.Producer.MaxMessageBytes; batchBytes+r.size > limit {
		return fmt.Errorf("it has %d bytes, the limit is %d: raise max_message_bytes together with the topic's max.message.bytes, or send less", batchBytes+r.size, limit)
	}
	return nil
}

func (p *preparing) name(name string) []byte {
	b, known := p.names[name]
	if !known {
		b = []byte(name)
		p.names[name] = b
	}
	return b
}

// cloudEventsPrefix is that of Kafka's CloudEvents binding, which sends values as
// they are.
const cloudEventsPrefix = "ce_"

// batchBytes is what a batch takes without its records.
const batchBytes = 61

// recordBytes is what a record takes in a batch before compression, give or take
// a few bytes.
func recordBytes(r *sarama.Record) int {
	const lengths = 15 // Of the record, key, value and headers, with attributes and deltas.
	n := lengths + len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		n += 4 + len(h.Key) + len(h.Value)
	}
	return n
}

// err is what Publish returns.
func (c *call) err() error {
	if len(c.failed) == 0 {
		return nil
	}
	return &broker.PublishError{Failed: c.failed}
}

// assign puts each message into the lane of its partition.
func (c *call) assign(cl *cluster, partitioners map[string]sarama.Partitioner) {
	for i := range c.records {
		r := &c.records[i]
		if r.state != waiting {
			continue
		}
		topic := c.messages[i].Topic
		by := partitioners[topic]
		if by == nil {
			by = cl.conf.Producer.Partitioner(topic)
			partitioners[topic] = by
		}
		count := int32(len(cl.leaders(topic)))
		partition, err := by.Partition(&r.message, count)
		if err == nil && (partition < 0 || partition >= count) {
			err = sarama.ErrInvalidPartition
		}
		if err != nil {
			c.fail(i, broker.Permanent, fmt.Errorf("kafka: partitioner: %w", err))
			continue
		}
		tp := topicPartition{topic, partition}
		l := c.lanes[tp]
		if l == nil {
			l = &lane{topicPartition: tp}
			c.lanes[tp] = l
		}
		l.queue = append(l.queue, i)
	}
}

// lane is what a call has for one partition. It has one batch out at a time, so
// that no message overtakes another one that is tried again.
type lane struct {
	topicPartition
	queue []int // Messages that are in no batch, in order.
	batch *batch
}

// batch is a run of records that are stored together or not at all.
type batch struct {
	indexes []int
	set     *sarama.RecordBatch
	size    int
	sent    bool  // Bytes of it left, once or more.
	open    bool  // It may be stored: an attempt was not answered, or not clearly.
	err     error // Why the last attempt failed.
}

// next takes the longest run that may go now into l.batch.
func (c *call) next(l *lane, conf *sarama.Config) {
	if l.batch != nil || len(l.queue) == 0 {
		return
	}
	b := &batch{size: batchBytes}
	rest := l.queue[:0]
	for n, i := range l.queue {
		r := &c.records[i]
		switch {
		case r.earlier != nil && r.earlier.state == failed:
			c.fail(i, broker.Unavailable, errBehind)
		case len(b.indexes) > 0 && b.size+r.size > conf.Producer.MaxMessageBytes:
			rest = append(rest, l.queue[n:]...)
			l.queue = rest
			l.batch = c.seal(b, conf)
			return
		case r.earlier != nil && r.earlier.state == waiting && r.earlier.batch != b:
			rest = append(rest, i) // Its key waits for another topic.
		default:
			b.add(c, i)
		}
	}
	l.queue = rest
	if len(b.indexes) > 0 {
		l.batch = c.seal(b, conf)
	}
}

func (b *batch) add(c *call, i int) {
	b.indexes = append(b.indexes, i)
	b.size += c.records[i].size
	c.records[i].batch = b
}

// seal makes the batch that Kafka stores.
func (c *call) seal(b *batch, conf *sarama.Config) *batch {
	now := time.Now().Truncate(time.Millisecond)
	b.set = &sarama.RecordBatch{
		Version: 2, Codec: conf.Producer.Compression, CompressionLevel: conf.Producer.CompressionLevel,
		FirstTimestamp: now, MaxTimestamp: now, LastOffsetDelta: int32(len(b.indexes) - 1),
		Records: make([]*sarama.Record, len(b.indexes)),
	}
	for n, i := range b.indexes {
		b.set.Records[n] = &c.records[i].wire
		b.set.Records[n].OffsetDelta = int64(n)
	}
	return b
}

// split leaves the first half of a batch that is refused as a whole because of
// some of it, and puts the second half back.
func (c *call) split(l *lane, conf *sarama.Config) {
	old := l.batch
	half := len(old.indexes) / 2
	l.queue = append(append([]int{}, old.indexes[half:]...), l.queue...)
	for _, i := range l.queue[:len(old.indexes)-half] {
		c.records[i].batch = nil
	}
	first := &batch{size: batchBytes, sent: old.sent, open: old.open, err: old.err}
	for _, i := range old.indexes[:half] {
		first.add(c, i)
	}
	l.batch = c.seal(first, conf)
	set := l.batch.set
	set.ProducerID, set.ProducerEpoch, set.FirstSequence = old.set.ProducerID, old.set.ProducerEpoch, old.set.FirstSequence
}

// store settles l's batch as stored.
func (c *call) store(l *lane) {
	for _, i := range l.batch.indexes {
		c.records[i].state = stored
	}
	l.batch = nil
}

// end settles l's batch as failed. The lane goes on: it holds other keys too.
func (c *call) end(l *lane, class broker.Class) {
	c.doubt = c.doubt || l.batch.sent
	for _, i := range l.batch.indexes {
		c.fail(i, class, l.batch.err)
	}
	l.batch = nil
}

// open says that a batch may be stored without our knowing.
func (c *call) open() bool {
	for _, l := range c.lanes {
		if l.batch != nil && l.batch.open {
			return true
		}
	}
	return false
}

// unknown are the topics of waiting messages that cl doesn't know.
func (c *call) unknown(cl *cluster) []string {
	c.topics = c.topics[:0]
	var unknown []string
	for i := range c.records {
		topic := c.messages[i].Topic
		if c.records[i].state != waiting || slices.Contains(c.topics, topic) {
			continue
		}
		c.topics = append(c.topics, topic)
		if cl.leaders(topic) == nil {
			unknown = append(unknown, topic)
		}
	}
	return unknown
}
