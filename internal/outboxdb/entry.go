package outboxdb

import (
	"fmt"
	"time"

	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/outbox"
)

// entryColumns are what scanEntry reads of the view.
const entryColumns = "o.seq, o.id, o.message_id, o.target_broker, o.stream, o.stream_category, o.topic, o.partition_key, o.partition, o.message_type," +
	" o.aggregate_type, o.aggregate_id, o.aggregate_version, o.content_type, o.cloud_event, o.correlation_id, o.causation_id, o.tenant_id, o.traceparent, o.priority," +
	" o.status, o.attempts, o.max_attempts, o.available_at, o.last_attempt_at, o.last_error, o.failure_class, o.locked_by, o.locked_until," +
	" o.fence, o.claim_id, o.losses, o.held, o.occurred_at, o.created_at, o.published_at, o.expires_at"

func scanEntry(scan func(...any) error, more ...any) (e outbox.Entry, err error) {
	var available, lastAttempt, lockedUntil, occurred, created, published, expires dbtime.Time
	err = scan(append([]any{
		&e.Seq, &e.ID, &e.MessageID, &e.TargetBroker, &e.Stream, &e.StreamCategory, (*nullText)(&e.Topic), &e.PartitionKey, &e.Partition, &e.MessageType,
		&e.AggregateType, &e.AggregateID, &e.AggregateVersion, &e.ContentType, (*nullText)(&e.CloudEvent), (*nullText)(&e.CorrelationID), (*nullText)(&e.CausationID),
		(*nullText)(&e.TenantID), (*nullText)(&e.Traceparent), &e.Priority,
		&e.Status, &e.Attempts, &e.MaxAttempts, &available, &lastAttempt, (*nullText)(&e.LastError), (*nullText)(&e.FailureClass), (*nullText)(&e.LockedBy), &lockedUntil,
		(*nullNumber)(&e.Fence), (*nullNumber)(&e.ClaimID), &e.Losses, &e.Held, &occurred, &created, &published, &expires,
	}, more...)...)
	e.AvailableAt, e.OccurredAt, e.CreatedAt = available.Time, occurred.Time, created.Time
	e.LastAttemptAt, e.LockedUntil, e.PublishedAt, e.ExpiresAt = pointer(lastAttempt), pointer(lockedUntil), pointer(published), pointer(expires)
	return e, err
}

func pointer(t dbtime.Time) *time.Time {
	if !t.Valid {
		return nil
	}
	return &t.Time
}

// nullText scans a column in which NULL stands for "".
type nullText string

// Scan implements sql.Scanner.
func (t *nullText) Scan(src any) error {
	switch v := src.(type) {
	case nil:
		*t = ""
	case string:
		*t = nullText(v)
	case []byte:
		*t = nullText(v)
	default:
		return fmt.Errorf("outbox: a column of type %T is not text", src)
	}
	return nil
}

// nullNumber scans a column in which NULL stands for 0.
type nullNumber int64

// Scan implements sql.Scanner.
func (n *nullNumber) Scan(src any) error {
	switch v := src.(type) {
	case nil:
		*n = 0
	case int64:
		*n = nullNumber(v)
	default:
		return fmt.Errorf("outbox: a column of type %T is not a number", src)
	}
	return nil
}
