package subscription

import (
	"cmp"
	"encoding/json"
	"time"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/outbox"
)

// message is one message until it is settled.
type message struct {
	broker.Message

	id    string // In the inbox.
	key   string
	keyID string // In dead_letters.
	meta  domain.Metadata
	data  json.RawMessage
	bad   error // Why the body is no message.

	published time.Time

	// The lane's that has it.
	record
	first   time.Time  // When it was first tried by this process.
	tries   int        // by this process
	counted bool       // It may have a row in inbox_attempts.
	begun   bool       // The attempt that is going on is counted there.
	single  bool       // It is not handled together with others.
	why     error      // Why the last attempt at it was not handled.
	parked  *parkedRow // Not nil: it is a dead letter.

	// Guarded by session.mu.
	order      int64             // Of arrival.
	deliveries []broker.Delivery // A broker may deliver it again before it is settled.
	working    bool              // A lane has it.
	spots      []*spot           // Of all its deliveries.
}

// read understands a delivery as far as the inbox and the lanes need it.
func read(d broker.Delivery) *message {
	m := understand(d.Message)
	m.deliveries = []broker.Delivery{d}
	m.counted = d.Redelivered > 0
	m.published = cmp.Or(d.Published, m.meta.Time)
	return m
}

func understand(received broker.Message) *message {
	m := &message{Message: received}
	m.meta, m.data, m.bad = outbox.ParseEnvelope(m.Body)
	if m.bad != nil {
		m.meta = domain.Metadata{ID: m.ID, Type: m.Headers["type"]}
	}
	m.id = inboxID(m.meta.ID, received)
	m.key = cmp.Or(m.Key, m.id) // A message without a key has no order to keep.
	m.keyID = indexable(m.key)
	return m
}

// lost says whether the broker took all of these back.
func lost(deliveries ...broker.Delivery) bool {
	for _, d := range deliveries {
		select {
		case <-d.Lost:
		default:
			return false
		}
	}
	return true
}
