package outbox

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
)

// Filter chooses rows. An empty field does not restrict; all that are set must
// hold.
type Filter struct {
	MessageID     string
	Target        string
	Type          string
	Stream        string
	Category      string
	PartitionKey  string
	CorrelationID string
	CausationID   string
	Status        Status
	// Stale chooses rows that are in the hand of a lease that has run out.
	Stale bool
	// RetryReady chooses failed rows that are due.
	RetryReady bool
	// After is the Seq of the last row of the page before.
	After int64
	// Limit is the size of a page. Defaults to 100.
	Limit int
}

// Entry is a row as operators see it, without its payload.
type Entry struct {
	Row
	Seq           int64
	Status        Status
	Attempts      int
	MaxAttempts   int
	AvailableAt   time.Time
	LastAttemptAt *time.Time
	LastError     string
	FailureClass  string
	LockedBy      string
	LockedUntil   *time.Time
	Fence         int64
	ClaimID       int64
	Losses        int
	Held          bool
	CreatedAt     time.Time
	PublishedAt   *time.Time
	ExpiresAt     *time.Time
}

// Find returns rows in the order of seq, a page at a time.
func (s *Store) Find(ctx context.Context, f Filter) ([]Entry, error) {
	if f.Limit <= 0 {
		f.Limit = 100
	}
	where, args := []string{"seq > ?"}, []any{f.After}
	for column, value := range map[string]string{
		"message_id": f.MessageID, "target_broker": f.Target, "message_type": f.Type, "stream": f.Stream, "stream_category": f.Category,
		"partition_key": f.PartitionKey, "correlation_id": f.CorrelationID, "causation_id": f.CausationID, "status": string(f.Status),
	} {
		if value != "" {
			where = append(where, column+" = ?")
			args = append(args, value)
		}
	}
	if f.Stale {
		where = append(where, "status = 'processing' AND finished_at IS NULL AND NOT EXISTS (SELECT 1 FROM outbox_partitions AS p"+
			" WHERE p.target_broker = outbox.target_broker AND p.partition = outbox.partition AND p.fence = outbox.fence AND p.locked_until > "+s.now()+")")
	}
	if f.RetryReady {
		where = append(where, "status = 'failed' AND finished_at IS NULL AND available_at <= "+s.now())
	}
	var found []Entry
	err := dbrows.Each(ctx, s.reader, "SELECT seq, id, message_id, target_broker, stream, stream_category, topic, partition_key, partition, message_type,"+
		" aggregate_type, aggregate_id, aggregate_version, content_type, cloud_event, correlation_id, causation_id, tenant_id, traceparent, priority,"+
		" status, attempts, max_attempts, available_at, last_attempt_at, last_error, failure_class, locked_by, locked_until,"+
		" fence, claim_id, losses, held, occurred_at, created_at, published_at, expires_at"+
		" FROM outbox WHERE "+strings.Join(where, " AND ")+" ORDER BY seq LIMIT "+fmt.Sprint(f.Limit),
		func(scan func(...any) error) error {
			e, err := scanEntry(scan)
			found = append(found, e)
			return err
		}, args...)
	return found, err
}

func scanEntry(scan func(...any) error) (e Entry, err error) {
	var available, lastAttempt, lockedUntil, occurred, created, published, expires dbtime.Time
	err = scan(&e.Seq, &e.ID, &e.MessageID, &e.TargetBroker, &e.Stream, &e.StreamCategory, (*text)(&e.Topic), &e.PartitionKey, &e.Partition, &e.MessageType,
		&e.AggregateType, &e.AggregateID, &e.AggregateVersion, &e.ContentType, (*text)(&e.CloudEvent), (*text)(&e.CorrelationID), (*text)(&e.CausationID),
		(*text)(&e.TenantID), (*text)(&e.Traceparent), &e.Priority,
		&e.Status, &e.Attempts, &e.MaxAttempts, &available, &lastAttempt, (*text)(&e.LastError), (*text)(&e.FailureClass), (*text)(&e.LockedBy), &lockedUntil,
		(*number)(&e.Fence), (*number)(&e.ClaimID), &e.Losses, &e.Held, &occurred, &created, &published, &expires)
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

// text scans a column in which NULL stands for "".
type text string

// Scan implements sql.Scanner.
func (t *text) Scan(src any) error {
	switch v := src.(type) {
	case nil:
		*t = ""
	case string:
		*t = text(v)
	case []byte:
		*t = text(v)
	default:
		return fmt.Errorf("outbox: a column of type %T is not text", src)
	}
	return nil
}

// number scans a column in which NULL stands for 0.
type number int64

// Scan implements sql.Scanner.
func (n *number) Scan(src any) error {
	switch v := src.(type) {
	case nil:
		*n = 0
	case int64:
		*n = number(v)
	default:
		return fmt.Errorf("outbox: a column of type %T is not a number", src)
	}
	return nil
}
