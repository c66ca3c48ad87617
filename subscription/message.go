package subscription

import (
	"encoding/json"
	"time"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/domain"
)

// message is one message until it is settled.
type message struct {
	broker.Message

	id    string // In the inbox.
	key   string
	keyID string // In dead_letters.
	meta  domain.Metadata
	data  json.RawMessage
	bad   error  // Why it is no message that can be handled,
	fault reason // and what that is called.
	stray bool   // It concerns none of the stream's instances.

	traceparent     string // In the envelope, as it came.
	sent, published time.Time

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
