package outbox

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
)

// among are conditions, one for each index, that together hold all rows which can
// be in f; nil: the history may have some.
func (f Filter) among() []string {
	switch {
	case f.Stale, f.RetryReady:
		return []string{unfinished}
	case f.Held:
		return []string{"held"}
	case len(f.Statuses) == 0 || slices.Contains(f.Statuses, Published):
		return nil
	case !slices.Contains(f.Statuses, Abandoned):
		return []string{unfinished}
	case slices.ContainsFunc(f.Statuses, func(s Status) bool { return s != Abandoned }):
		return []string{unfinished, givenUp}
	default:
		return []string{"held", givenUp}
	}
}

// match is what f asks of a row of outbox, After and Limit aside.
func (f Filter) match(d schema.Dialect) (schema.QueryWithArgs, error) {
	where, args := []string{"TRUE"}, []any(nil)
	add := func(condition string, arg ...any) { where, args = append(where, condition), append(args, arg...) }
	for _, equal := range []struct{ column, value string }{
		{"target_broker", f.Target},
		{"message_type", f.Type},
		{"stream", f.Stream},
		{"stream_category", f.Category},
		{"partition_key", f.PartitionKey},
		{"correlation_id", f.CorrelationID},
		{"causation_id", f.CausationID},
		{"failure_class", f.FailureClass},
		{"last_error", f.Error},
	} {
		switch {
		case equal.value == "":
			continue
		case !Storable(equal.value):
			return schema.QueryWithArgs{}, fmt.Errorf("outbox: the filter's %s, %q, is no text that a row can have: it must be UTF-8 without a zero byte", equal.column, equal.value)
		case equal.column == "last_error" && d.Name() == dialect.SQLite:
			add("instr(last_error, ?) > 0", equal.value)
		case equal.column == "last_error":
			add("strpos(last_error, ?) > 0", equal.value)
		default:
			add(equal.column+" = ?", equal.value)
		}
	}
	if f.MessageID != "" {
		id, err := uuid.Parse(f.MessageID)
		if err != nil {
			return schema.QueryWithArgs{}, fmt.Errorf("outbox: %q is not the id of a message, which is a UUID as in 0198f3c2-7d8e-7b9a-8c6d-5e4f3a2b1c0d", f.MessageID)
		}
		add("message_id = ?", id.String())
	}
	if len(f.Seqs) > 0 {
		add("seq IN (" + list(f.Seqs) + ")")
	}
	for _, s := range f.Statuses {
		if !slices.Contains(Statuses(), s) {
			return schema.QueryWithArgs{}, fmt.Errorf("outbox: %q is not a status; there are %v", s, Statuses())
		}
	}
	if len(f.Statuses) > 0 {
		add("status IN (?)", bun.List(f.Statuses))
	}
	now := dbtime.Now(d)
	if f.Held {
		add("held")
	}
	if f.Stale {
		add("status = 'processing' AND finished_at IS NULL AND " + stale(now))
	}
	if f.RetryReady {
		add("status = 'failed' AND finished_at IS NULL AND available_at <= " + now)
	}
	if !f.From.IsZero() {
		add("created_at >= ?", dbtime.Value(d, f.From))
	}
	if !f.Until.IsZero() {
		add("created_at < ?", dbtime.Value(d, f.Until))
	}
	return bun.SafeQuery(strings.Join(where, " AND "), args...), nil
}

// stale is a condition for a row whose claim has no lease any more.
func stale(now string) string {
	return "NOT EXISTS (SELECT 1 FROM outbox_partitions AS p WHERE p.target_broker = outbox.target_broker AND p.partition = outbox.partition" +
		" AND p.fence = outbox.fence AND p.locked_until > " + now + ")"
}

// chosen is the query for columns of the rows that f chooses behind f.After, in
// the order of seq, up to a bound.
//
// Where rows are looked for that are not published, seq + 0 keeps the database
// from walking through all others in the order of seq.
func (s *Store) chosen(f Filter, upTo int64, columns string) (schema.QueryWithArgs, error) {
	match, err := f.match(s.db.Dialect())
	if err != nil {
		return match, err
	}
	among, seq := f.among(), "seq + 0"
	if f.named() || among == nil {
		among, seq = []string{"TRUE"}, "seq"
	}
	var parts []string
	var args []any
	for _, rows := range among {
		parts = append(parts, fmt.Sprintf("SELECT %s AS seq, %s FROM outbox WHERE %s AND %s > ? AND %s <= ? AND ?", seq, columns, rows, seq, seq))
		args = append(args, f.After, upTo, match)
	}
	return bun.SafeQuery(strings.Join(parts, " UNION ALL ")+" ORDER BY seq", args...), nil
}

// lookLimit is how long an operator's question may take.
const lookLimit = 30 * time.Second

// look runs what an operator wants to know. An index is used wherever one can be:
// a server that has not counted since most rows were unfinished would rather read
// the table.
func (s *Store) look(ctx context.Context, fn func(ctx context.Context, db bun.IDB) error) error {
	limited, cancel := context.WithTimeout(ctx, lookLimit+time.Second)
	defer cancel()
	var err error
	if s.sqlite() {
		err = fn(limited, s.reader)
	} else {
		err = s.inTx(limited, s.reader, func(tx bun.Tx) error {
			// The server would go on after its client has gone.
			limit := lookLimit
			if deadline, ok := ctx.Deadline(); ok {
				limit = min(limit, max(time.Until(deadline), 0)+100*time.Millisecond)
			}
			settings := fmt.Sprintf("SELECT set_config('enable_seqscan', 'off', true), set_config('statement_timeout', '%d', true)", limit.Milliseconds())
			if _, err := tx.ExecContext(limited, settings); err != nil {
				return err
			}
			return fn(limited, tx)
		})
	}
	if err != nil && ctx.Err() == nil && (limited.Err() != nil || ended(err)) {
		return fmt.Errorf("%w: %w", errEndless, err)
	}
	return err
}

var errEndless = fmt.Errorf("outbox: it took longer than %v, and was ended", lookLimit)

// entryColumns are what scanEntry reads, after seq.
const entryColumns = "id, message_id, target_broker, stream, stream_category, topic, partition_key, partition, message_type," +
	" aggregate_type, aggregate_id, aggregate_version, content_type, cloud_event, correlation_id, causation_id, tenant_id, traceparent, priority," +
	" status, attempts, max_attempts, available_at, last_attempt_at, last_error, failure_class, locked_by, locked_until," +
	" fence, claim_id, losses, held, occurred_at, created_at, published_at, expires_at"

// Find returns rows in the order of seq, a page at a time. What is not published
// is found whatever the number of published rows; a search among those goes
// through them, and ends with an error after 30 s.
func (s *Store) Find(ctx context.Context, f Filter) ([]Entry, error) {
	if f.Limit <= 0 {
		f.Limit = 100
	}
	query, err := s.chosen(f, math.MaxInt64, entryColumns)
	if err != nil {
		return nil, err
	}
	var found []Entry
	err = s.look(ctx, func(ctx context.Context, db bun.IDB) error {
		return dbrows.Each(ctx, db, "? LIMIT ?", func(scan func(...any) error) error {
			e, err := scanEntry(scan)
			found = append(found, e)
			return err
		}, query, f.Limit)
	})
	if errors.Is(err, errEndless) {
		err = fmt.Errorf("%w; a search among published rows goes through all of them: name a message, or other statuses, or begin further on", err)
	}
	return found, err
}

func scanEntry(scan func(...any) error, more ...any) (e Entry, err error) {
	var available, lastAttempt, lockedUntil, occurred, created, published, expires dbtime.Time
	err = scan(append([]any{
		&e.Seq, &e.ID, &e.MessageID, &e.TargetBroker, &e.Stream, &e.StreamCategory, (*text)(&e.Topic), &e.PartitionKey, &e.Partition, &e.MessageType,
		&e.AggregateType, &e.AggregateID, &e.AggregateVersion, &e.ContentType, (*text)(&e.CloudEvent), (*text)(&e.CorrelationID), (*text)(&e.CausationID),
		(*text)(&e.TenantID), (*text)(&e.Traceparent), &e.Priority,
		&e.Status, &e.Attempts, &e.MaxAttempts, &available, &lastAttempt, (*text)(&e.LastError), (*text)(&e.FailureClass), (*text)(&e.LockedBy), &lockedUntil,
		(*number)(&e.Fence), (*number)(&e.ClaimID), &e.Losses, &e.Held, &occurred, &created, &published, &expires,
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
