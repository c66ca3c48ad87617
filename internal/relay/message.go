package relay

import (
	"encoding/json"
	"fmt"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/outbox"
)

// timeLayout is RFC 3339 in UTC with exactly six decimals.
const timeLayout = "2006-01-02T15:04:05.000000Z"

// topicOf is where a row goes.
func topicOf(row *Claimed) string {
	if row.Topic != "" {
		return row.Topic
	}
	return outbox.DefaultTopic(row.StreamCategory)
}

// messageOf is what travels of a row. An error can only come from a row that was
// written by hand: it will be the same the next time.
func messageOf(row *Claimed) (broker.Message, error) {
	m := broker.Message{ID: row.MessageID, Topic: topicOf(row), Key: row.PartitionKey, Body: row.Payload, Headers: make(map[string]string, 12)}
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
