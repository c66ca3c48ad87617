package outboxdb

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/outbox"
)

// matching are the arguments of match.sql: what a filter asks of a row of the view o.
// "" doesn't restrict.
type matching struct {
	Target, FailureClass, Error, MessageID string

	Message  schema.QueryWithArgs
	ByStatus bool
	Statuses schema.QueryWithArgs

	Held, Stale, RetryReady bool
	Now                     bun.Safe
}

// matchingMessage are those of match_message.sql: what outbox_messages has as well as the
// view, which reads several tables for each row.
type matchingMessage struct {
	Type, Stream, Category, PartitionKey, CorrelationID, CausationID string

	BySeq bool
	Seqs  schema.QueryWithArgs

	ByFrom, ByUntil bool
	From, Until     any
}

// match is a condition for the rows that f chooses, After and Limit aside.
func (s *Store) match(f outbox.Filter) (schema.QueryWithArgs, error) {
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
		if !outbox.Storable(equal.value) {
			return schema.QueryWithArgs{}, fmt.Errorf("outbox: the filter's %s, %q, is no text that a row can have: it must be UTF-8 without a zero byte", equal.column, equal.value)
		}
	}
	for _, status := range f.Statuses {
		if !slices.Contains(outbox.Statuses(), status) {
			return schema.QueryWithArgs{}, fmt.Errorf("outbox: %q is not a status; there are %v", status, outbox.Statuses())
		}
	}
	id := f.MessageID
	if id != "" {
		parsed, err := uuid.Parse(id)
		if err != nil {
			return schema.QueryWithArgs{}, fmt.Errorf("outbox: %q is not the id of a message, which is a UUID as in 0198f3c2-7d8e-7b9a-8c6d-5e4f3a2b1c0d", id)
		}
		id = parsed.String()
	}
	return bun.SafeQuery(s.text("match"), matching{
		Target: f.Target, FailureClass: f.FailureClass, Error: f.Error, MessageID: id, Message: s.matchMessage(f),
		ByStatus: len(f.Statuses) > 0, Statuses: bun.SafeQuery("?", bun.List(f.Statuses)),
		Held: f.Held, Stale: f.Stale, RetryReady: f.RetryReady, Now: bun.Safe(s.now()),
	}), nil
}

func (s *Store) matchMessage(f outbox.Filter) schema.QueryWithArgs {
	d := s.db.Dialect()
	return bun.SafeQuery(s.text("match_message"), matchingMessage{
		Type: f.Type, Stream: f.Stream, Category: f.Category, PartitionKey: f.PartitionKey, CorrelationID: f.CorrelationID, CausationID: f.CausationID,
		BySeq: len(f.Seqs) > 0, Seqs: numbers(f.Seqs),
		ByFrom: !f.From.IsZero(), From: instant(d, f.From), ByUntil: !f.Until.IsZero(), Until: instant(d, f.Until),
	})
}

// instant is a time for a query; NULL for none.
func instant(d schema.Dialect, t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return dbtime.Value(d, t)
}

// numbers is the inside of an IN (…).
func numbers(n []int64) schema.QueryWithArgs { return bun.SafeQuery("?", bun.List(n)) }

// named says whether f names rows, so that nothing is searched for them.
func named(f outbox.Filter) bool { return len(f.Seqs) > 0 || f.MessageID != "" }

// among is the query for the seqs of which those that f chooses are some: of what
// is narrow, so that the history is only walked for what is published.
func (s *Store) among(f outbox.Filter) schema.QueryWithArgs {
	wants := func(status outbox.Status) bool { return slices.Contains(f.Statuses, status) }
	undelivered := wants(outbox.Pending) || wants(outbox.Failed) || wants(outbox.Processing)
	switch {
	case len(f.Seqs) > 0:
		return bun.SafeQuery(s.text("among_seqs"), numbers(f.Seqs))
	case f.MessageID != "":
		return bun.SafeQuery(s.text("among_message"), f.MessageID)
	case f.Stale, len(f.Statuses) == 1 && wants(outbox.Processing):
		return bun.SafeQuery(s.text("among_claimed"))
	case f.RetryReady:
		return bun.SafeQuery(s.text("among_due"), bun.Safe(s.now()))
	case len(f.Statuses) == 1 && wants(outbox.Failed):
		return bun.SafeQuery(s.text("among_failed"))
	case f.Held:
		return bun.SafeQuery(s.text("among_held"))
	case f.Error != "" || f.FailureClass != "": // nothing published has any
		return bun.SafeQuery(s.text("among_unpublished"))
	case len(f.Statuses) == 0 || wants(outbox.Published):
		return bun.SafeQuery(s.text("among_all"), struct {
			Target  string
			Message schema.QueryWithArgs
		}{f.Target, s.matchMessage(f)})
	case !wants(outbox.Abandoned):
		return bun.SafeQuery(s.text("among_queued"))
	case undelivered:
		return bun.SafeQuery(s.text("among_unpublished"))
	default:
		return bun.SafeQuery(s.text("among_abandoned"))
	}
}

// chosen is the query for columns of the rows that f chooses behind f.After, up to
// a bound, in the order of seq.
func (s *Store) chosen(f outbox.Filter, upTo int64, limit int, columns string) (query string, args any, err error) {
	match, err := s.match(f)
	if f.MessageID != "" && err == nil {
		f.MessageID = uuid.MustParse(f.MessageID).String()
	}
	return s.text("find"), struct {
		Columns      bun.Safe
		Among, Match schema.QueryWithArgs
		After, UpTo  int64
		Rows         int
	}{bun.Safe(columns), s.among(f), match, f.After, upTo, limit}, err
}

// Find returns rows in the order of seq, a page at a time. What is not published
// is found whatever the number of published rows; a search among those goes
// through them, those of the time that is asked for, and ends with an error after 30 s.
func (s *Store) Find(ctx context.Context, f outbox.Filter) ([]outbox.Entry, error) {
	if f.Limit <= 0 {
		f.Limit = 100
	}
	var found []outbox.Entry
	err := s.look(ctx, func(ctx context.Context, db bun.IDB) error {
		after, upTo, err := s.between(ctx, db, f)
		if err != nil {
			return err
		}
		f.After = max(f.After, after)
		query, args, err := s.chosen(f, upTo, f.Limit, entryColumns)
		if err != nil {
			return err
		}
		return dbrows.Each(ctx, db, query, func(scan func(...any) error) error {
			e, err := scanEntry(scan)
			found = append(found, e)
			return err
		}, args)
	})
	if errors.Is(err, ErrEndless) {
		err = fmt.Errorf("%w; a search among published rows goes through all of them: name a message, other statuses, or the time when it was stored", err)
	}
	return found, err
}
