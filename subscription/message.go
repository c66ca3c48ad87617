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

	id   string // In the inbox.
	key  string
	meta domain.Metadata
	data json.RawMessage
	bad  error // Why the body is no message.

	first    time.Time // When its first attempt began.
	failures int

	// Guarded by session.mu.
	order      int64             // Of arrival.
	deliveries []broker.Delivery // A broker may deliver it again before it is settled.
	working    bool              // A lane has it.
}

// read understands a delivery as far as the inbox and the lanes need it.
func read(d broker.Delivery) *message {
	m := &message{Message: d.Message, deliveries: []broker.Delivery{d}}
	m.meta, m.data, m.bad = outbox.ParseEnvelope(d.Body)
	if m.bad != nil {
		m.meta = domain.Metadata{ID: d.ID, Type: d.Headers["type"]}
	}
	m.id = inboxID(m.meta.ID, d.Message)
	m.key = cmp.Or(d.Key, m.id) // A message without a key has no order to keep.
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
