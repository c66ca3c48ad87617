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

// Row is one event for one target broker, not yet stored. Its body is final.
type Row struct {
	ID               string // UUIDv7 of the row
	MessageID        string // the event's, equal in all its rows
	TargetBroker     string
	Stream           string
	StreamCategory   string
	Topic            string // "": the broker's rule
	PartitionKey     string
	Partition        int
	MessageType      string
	AggregateType    string
	AggregateID      string
	AggregateVersion int64
	Payload          []byte
	ContentType      string
	CloudEvent       string // attributes of which Payload is the data, as a JSON object; "": Payload is all
	CorrelationID    string
	CausationID      string
	TenantID         string // "" also where the target's envelope must not name it
	Traceparent      string
	Priority         int
	OccurredAt       time.Time
}
