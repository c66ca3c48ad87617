package kafka

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill/broker"
)

const (
	// uuidHeader is where Watermill's Kafka adapter keeps a message's id.
	uuidHeader = "_watermill_message_uuid"
	// cloudEventsPrefix is that of Kafka's CloudEvents binding, which sends values as
	// they are.
	cloudEventsPrefix = "ce_"
	// batchBytes is what a batch takes without its records.
	batchBytes = 70
)

var topicName = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,249}$`)

func checkTopic(topic string) error {
	if !topicName.MatchString(topic) || topic == "." || topic == ".." {
		return fmt.Errorf("%q is no topic name: use up to 249 of a-z, A-Z, 0-9, '.', '_' and '-'", topic)
	}
	return nil
}

// room is where the texts and headers of a call's records lie, some hundred together.
type room struct {
	text    []byte
	headers []kgo.RecordHeader
}

const (
	textAhead    = 64 << 10 // At most so much is made for messages to come.
	headersAhead = 1 << 10
)

// make has room for a message, and for left more like it.
func (m *room) make(text, headers, left int) {
	if cap(m.text)-len(m.text) < text {
		m.text = make([]byte, 0, max(text, min(text*(1+left), textAhead)))
	}
	if cap(m.headers)-len(m.headers) < headers {
		m.headers = make([]kgo.RecordHeader, 0, max(headers, min(headers*(1+left), headersAhead)))
	}
}

// add copies s.
func (m *room) add(s string) []byte {
	m.text = append(m.text, s...)
	return m.text[len(m.text)-len(s) : len(m.text) : len(m.text)]
}

// encode makes of a message what Watermill's Kafka adapter would make of it, and
// says how many bytes it takes in a batch before compression, give or take a few.
// It is followed by left more.
func encode(r *kgo.Record, m *broker.Message, limit int, at *room, left int) (size int, err error) {
	switch {
	case m.ID == "":
		return 0, errors.New("the id is missing")
	case m.Key == "":
		return 0, errors.New("the key is missing")
	}
	native := m.NativeHeaders(cloudEventsPrefix)
	if native[uuidHeader] != "" {
		return 0, fmt.Errorf("the header %s is reserved", uuidHeader)
	}
	length := len(m.Key) + len(m.ID)
	for _, value := range native {
		length += len(value)
	}
	at.make(length, 1+len(native), left)
	r.Topic, r.Key, r.Value = m.Topic, at.add(m.Key), m.Body
	first := len(at.headers)
	at.headers = append(at.headers, kgo.RecordHeader{Key: uuidHeader, Value: at.add(m.ID)})
	for name, value := range native {
		at.headers = append(at.headers, kgo.RecordHeader{Key: name, Value: at.add(value)})
	}
	r.Headers = at.headers[first:len(at.headers):len(at.headers)]
	const lengths = 20 // Of the record, key, value and headers, with attributes and deltas.
	size = lengths + len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		size += 6 + len(h.Key) + len(h.Value)
	}
	if batchBytes+size > limit {
		return 0, fmt.Errorf("it has %d bytes, the limit is %d: raise max_message_bytes together with the topic's max.message.bytes, or send less", batchBytes+size, limit)
	}
	return size, nil
}

// texts is where those of received messages lie, some hundred together.
type texts struct{ strings.Builder }

// make has room for a message, and for left more like it.
func (t *texts) make(size, left int) {
	if t.Cap()-t.Len() < size {
		t.Builder = strings.Builder{}
		t.Grow(max(size, min(size*(1+left), textAhead)))
	}
}

// add copies b.
func (t *texts) add(b []byte) string {
	first := t.Len()
	t.Write(b)
	return t.String()[first:]
}

// decode is the other direction. A record without an id gets that of its place, with its
// time: a topic that was deleted and created again counts from 0. It is followed by left
// more.
func decode(r *kgo.Record, at *texts, left int) broker.Message {
	length := len(r.Key)
	for _, h := range r.Headers {
		length += len(h.Value)
	}
	at.make(length, left)
	m := broker.Message{Topic: r.Topic, Key: at.add(r.Key), Body: r.Value, Headers: make(map[string]string, len(r.Headers))}
	for _, h := range r.Headers {
		if value := at.add(h.Value); h.Key == uuidHeader {
			m.ID = value
		} else {
			m.Headers[h.Key] = value
		}
	}
	if m.ID == "" {
		m.ID = fmt.Sprintf("%s/%d/%d/%d", r.Topic, r.Partition, r.Offset, r.Timestamp.UnixMilli())
	}
	return m
}

// published is zero for records of before Kafka 0.10, which have no time.
func published(r *kgo.Record) time.Time {
	if r.Timestamp.Unix() <= 0 {
		return time.Time{}
	}
	return r.Timestamp
}
