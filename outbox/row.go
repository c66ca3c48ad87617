package outbox

import (
	"time"

	"github.com/waybill-go/waybill/domain"
)

// Event is a raised event with its bytes, as a unit of work hands it over.
// Version in its metadata is the version that the aggregate gets by this save.
type Event struct {
	domain.Metadata
	Key  string // Of domain.OrderedBy. "": the aggregate's identity.
	Data []byte // The event's JSON, encoded once; every envelope carries these bytes.
}

// Poke says that rows of a partition were committed.
type Poke struct {
	Target    string
	Partition int
}

// Row is one event for one target broker, not yet stored. Its body is final, and
// no part of its JSON.
type Row struct {
	ID               string    `json:"id"`         // UUIDv7 of the row
	MessageID        string    `json:"message_id"` // the event's, equal in all its rows
	TargetBroker     string    `json:"target"`
	Stream           string    `json:"stream"`
	StreamCategory   string    `json:"category"`
	Topic            string    `json:"topic"` // "": the broker's rule
	PartitionKey     string    `json:"key"`
	Partition        int       `json:"partition"`
	MessageType      string    `json:"type"`
	AggregateType    string    `json:"aggregate_type"`
	AggregateID      string    `json:"aggregate_id"`
	AggregateVersion int64     `json:"aggregate_version"`
	Payload          []byte    `json:"-"`
	ContentType      string    `json:"content_type"`
	CloudEvent       string    `json:"cloud_event"` // attributes of which Payload is the data, as a JSON object; "": Payload is all
	CorrelationID    string    `json:"correlation_id"`
	CausationID      string    `json:"causation_id"`
	TenantID         string    `json:"tenant_id"` // "" also where the target's envelope must not name it
	Traceparent      string    `json:"traceparent"`
	Priority         int       `json:"priority"`
	OccurredAt       time.Time `json:"occurred_at"`
}
