package kafka

import (
	"errors"
	"fmt"
	"regexp"
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

// encode makes of a message what Watermill's Kafka adapter would make of it, and
// says how many bytes it takes in a batch before compression, give or take a few.
func encode(r *kgo.Record, m *broker.Message, limit int) (size int, err error) {
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
	text := make([]byte, 0, length) // all in one
	part := func(s string) []byte {
		text = append(text, s...)
		return text[len(text)-len(s) : len(text) : len(text)]
	}
	r.Topic, r.Key, r.Value = m.Topic, part(m.Key), m.Body
	r.Headers = make([]kgo.RecordHeader, 0, 1+len(native))
	r.Headers = append(r.Headers, kgo.RecordHeader{Key: uuidHeader, Value: part(m.ID)})
	for name, value := range native {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: name, Value: part(value)})
	}
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

// decode is the other direction. A record without an id gets that of its place.
func decode(r *kgo.Record) broker.Message {
	m := broker.Message{Topic: r.Topic, Key: string(r.Key), Body: r.Value, Headers: make(map[string]string, len(r.Headers))}
	for _, h := range r.Headers {
		if h.Key == uuidHeader {
			m.ID = string(h.Value)
		} else {
			m.Headers[h.Key] = string(h.Value)
		}
	}
	if m.ID == "" {
		m.ID = fmt.Sprintf("%s/%d/%d", r.Topic, r.Partition, r.Offset)
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
