package relay

import (
	"encoding/json"
	"fmt"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/outbox"
)

// timeLayout is RFC 3339 in UTC with exactly six decimals.
const timeLayout = "2006-01-02T15:04:05.000000Z"

// nameTopics writes out where rows go that have their category's topic.
func nameTopics(rows []Claimed) {
	category, topic := "", ""
	for i := range rows {
		row := &rows[i]
		if row.Topic != "" {
			continue
		}
		if row.StreamCategory != category {
			category, topic = row.StreamCategory, outbox.DefaultTopic(row.StreamCategory)
		}
		row.Topic = topic
	}
}

// messageOf is what travels of a row. An error can only come from a row that was
// written by hand: it will be the same the next time.
func messageOf(row *Claimed) (broker.Message, error) {
	m := broker.Message{ID: row.MessageID, Topic: row.Topic, Key: row.PartitionKey, Body: row.Payload, Headers: make(map[string]string, 8)}
	m.Headers["id"] = row.MessageID
	m.Headers["type"] = row.MessageType
	m.Headers["time"] = row.OccurredAt.UTC().Format(timeLayout)
	m.Headers["content-type"] = row.ContentType
	for _, h := range [...]struct{ name, value string }{{"correlation-id", row.CorrelationID}, {"tenant-id", row.TenantID}, {"traceparent", row.Traceparent}} {
		if h.value != "" {
			m.Headers[h.name] = h.value
		}
	}
	if row.CloudEvent == "" {
		return m, nil
	}
	if err := json.Unmarshal([]byte(row.CloudEvent), &m.CloudEvent); err != nil {
		return m, fmt.Errorf("outbox: column cloud_event of row %d is no JSON object of texts: %w; abandon the row, or mend the column", row.Seq, err)
	}
	return m, nil
}

// IdentityOf is which broker that is, as far as it tells.
func IdentityOf(b broker.Broker) outbox.BrokerIdentity {
	c := b.Capabilities()
	i := outbox.BrokerIdentity{System: c.System, TopicPrefix: c.TopicPrefix}
	if b, ok := b.(broker.Clustered); ok {
		i.Cluster = b.Cluster()
	}
	if b, ok := b.(broker.Transactional); ok {
		i.ExactlyOnce = b.ExactlyOnce()
	}
	return i
}
