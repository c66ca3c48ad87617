package historydb

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/outbox"
)

// Event is a kept event.
type Event struct {
	outbox.Event

	Position int64
	N        int64 // Its place within its save, from 1.
}

// Filter chooses events. The zero one chooses all.
type Filter struct {
	// Context chooses the events of its aggregates, and those that Foreign names: several
	// contexts may share a database.
	Context    string
	Foreign    []string // as Names
	Categories []string
	Names      []string // Without their versions: "Ordering.OrderPlaced".
	ID         string   // Of the aggregate.
	MessageIDs []string // UUIDs.
	// Causation and Correlation are in the metadata: no index has them.
	Causation, Correlation string
}

const (
	// span is how many positions a page looks at, at most, however few of them are chosen.
	span = 100_000
	// pageBytes is how much data a page has, at most, but for its last event.
	pageBytes = 8 << 20
)

// selectColumns are of both tables. A row of events that is no event has no message.
const (
	selectColumns = "SELECT position, message_id, category, id, version, n, type, data, metadata, occurred_at FROM "
	selectPage    = "SELECT * FROM (" + selectColumns + "history WHERE position > ?0 AND position <= ?1 ?3 ORDER BY position LIMIT ?2) AS h" +
		" UNION ALL SELECT * FROM (" + selectColumns + "events WHERE message_id IS NOT NULL AND position > ?0 AND position <= ?1 ?3 ORDER BY position LIMIT ?2) AS e" +
		" ORDER BY position LIMIT ?2"
	selectHead = "SELECT coalesce((SELECT position FROM history ORDER BY position DESC LIMIT 1), 0), coalesce((SELECT position FROM events ORDER BY position DESC LIMIT 1), 0)"
	selectNext = "SELECT (SELECT position FROM history WHERE position > ?0 ORDER BY position LIMIT 1), (SELECT position FROM events WHERE position > ?0 ORDER BY position LIMIT 1)"
)

// Reader reads the history of a database page by page. It is used by one goroutine at a
// time.
type Reader struct {
	Filter

	db      *bun.DB
	horizon Horizon
}

// NewReader returns a reader. db is a provider's Reader: its statements must be
// transactions of their own, as each needs a snapshot of its own.
func NewReader(db *bun.DB, f Filter) *Reader { return &Reader{Filter: f, db: db} }

// Page is a part of the history.
type Page struct {
	Events []Event
	// UpTo is the position up to which there is nothing else to read, now or later: the
	// next page is after it.
	UpTo int64
	// More says that there may be more already.
	More bool
	// Unknown says that nothing can be read yet, and how much there is isn't known: since
	// before the reader's first look somebody writes events. An empty page that is Unknown
	// is no end.
	Unknown bool
	// Writers are the transactions, as pg_locks.virtualtransaction has them, that an empty
	// page waits for: behind UpTo there are events, which can be read when these have ended.
	Writers []string
}

// Page reads up to limit events after a position; 0 is the beginning. Nothing will
// appear any more at or below Page.UpTo: where a transaction that has written events is
// still open, the page ends before them. until bounds it; 0: the horizon.
func (r *Reader) Page(ctx context.Context, after, until int64, limit int) (p Page, err error) {
	// The horizon before the page, which needs a later snapshot.
	end := r.horizon.upTo
	if end <= after || end == 0 {
		if end, err = r.horizon.Advance(ctx, r.db); err != nil {
			return p, err
		}
	}
	if until != 0 {
		end = min(end, until)
	}
	p.UpTo, p.Unknown = after, r.horizon.upTo == 0 && r.horizon.noted != 0
	if end <= after && r.horizon.noted > after && end == r.horizon.upTo {
		p.Writers = slices.Clone(r.horizon.writers)
	}
	if end <= after && after != 0 {
		return p, nil
	}
	bottom := after
	if after == 0 {
		bottom = math.MinInt64
	}
	next, found, err := Next(ctx, r.db, bottom)
	if err != nil || !found || next > end {
		if end != 0 {
			p.UpTo = max(end, after)
		}
		return p, err
	}
	bottom = next - 1
	bound := Until(bottom, span, end)
	var full bool
	p.Events, full, err = Between(ctx, r.db, r.Filter, bottom, bound, limit)
	if err != nil {
		return p, err
	}
	p.UpTo, p.More, p.Writers = bound, bound < end, nil
	if full {
		p.UpTo, p.More = p.Events[len(p.Events)-1].Position, true
	}
	if p.UpTo == 0 { // which would be the beginning; no event has this position
		p.UpTo = -1
	}
	return p, nil
}

// Between reads up to limit events of positions after one and up to another, in their
// order. full says that there may be more of them. It knows of no horizon: the bound has
// to be one that was known before the transaction's snapshot was made.
func Between(ctx context.Context, db bun.IDB, f Filter, after, upTo int64, limit int) (events []Event, full bool, err error) {
	size := 0
	err = dbrows.Each(ctx, db, selectPage, func(scan func(...any) error) error {
		if size > pageBytes {
			full = true
			return nil
		}
		e, err := scanEvent(scan)
		if err != nil {
			return err
		}
		size += len(e.Data)
		events = append(events, e)
		return nil
	}, after, upTo, limit, f.where(db))
	if err != nil {
		return nil, false, fmt.Errorf("history: read events after position %d: %w", after, err)
	}
	return events, full || len(events) == limit, nil
}

const (
	whereOf  = " WHERE category = ?0 AND id = ?1 AND (version, n) > (?2, ?3)"
	selectOf = selectColumns + "history" + whereOf + " UNION ALL " + selectColumns + "events" + whereOf + " AND message_id IS NOT NULL ORDER BY version, n LIMIT ?4"
)

// Of reads up to limit events of one aggregate, after its n-th of a version.
func Of(ctx context.Context, db bun.IDB, category, id string, version, n int64, limit int) (events []Event, err error) {
	err = dbrows.Each(ctx, db, selectOf, func(scan func(...any) error) error {
		e, err := scanEvent(scan)
		events = append(events, e)
		return err
	}, category, id, version, n, limit)
	if err != nil {
		return nil, fmt.Errorf("history: read events of %s %s: %w", category, id, err)
	}
	return events, nil
}

// where is the filter's condition.
func (f Filter) where(db bun.IDB) bun.Safe {
	var b strings.Builder
	quoted := func(text string) string { return string(db.Dialect().AppendString(nil, text)) }
	in := func(what string, texts []string, end string) {
		b.WriteString(what + " IN (''")
		for _, t := range texts {
			b.WriteString("," + quoted(t+end))
		}
		b.WriteString(")")
	}
	// Whatever the version: one that is not known is not passed over.
	const name = "rtrim(type, '0123456789')"
	if f.Context != "" {
		own := f.Context + "::"
		fmt.Fprintf(&b, " AND (substr(category, 1, %d) = %s OR ", utf8.RuneCountInString(own), quoted(own))
		in(name, f.Foreign, ".v")
		b.WriteString(")")
	}
	if f.Categories != nil {
		in(" AND category", f.Categories, "")
	}
	if f.Names != nil {
		in(" AND "+name, f.Names, ".v")
	}
	if f.ID != "" {
		b.WriteString(" AND id = " + quoted(f.ID))
	}
	for i, id := range f.MessageIDs {
		b.WriteString([]string{" AND message_id IN (", ","}[min(i, 1)] + quoted(id))
	}
	if len(f.MessageIDs) > 0 {
		b.WriteString(")")
	}
	if f.Causation != "" {
		b.WriteString(" AND metadata ->> 'causation_id' = " + quoted(f.Causation))
	}
	if f.Correlation != "" {
		b.WriteString(" AND metadata ->> 'correlation_id' = " + quoted(f.Correlation))
	}
	return bun.Safe(b.String())
}

// scanEvent reads a row of selectColumns.
func scanEvent(scan func(...any) error) (e Event, err error) {
	var metadata []byte
	var at dbtime.Time
	if err := scan(&e.Position, &e.ID, &e.Category, &e.AggregateID, &e.Version, &e.N, &e.Type, &e.Data, &metadata, &at); err != nil {
		return e, err
	}
	e.Time = at.Time
	if err := restore(&e.Event, int(e.N), metadata); err != nil {
		return e, fmt.Errorf("metadata at position %d: %w", e.Position, err)
	}
	return e, nil
}

// Head is the highest position that is stored: what was committed before the call isn't
// above it. 0: nothing was ever kept.
func Head(ctx context.Context, db bun.IDB) (int64, error) {
	var history, events int64
	if err := db.QueryRowContext(ctx, selectHead).Scan(&history, &events); err != nil {
		return 0, fmt.Errorf("history: read its head: %w", err)
	}
	return max(history, events), nil
}

// Until is the position that is so many after another one, or most if that comes first. Near
// the greatest one there is no sum: below 0 it would be a page with nothing in it, and a reader
// would stand there for ever.
func Until(after, n, most int64) int64 {
	if after > math.MaxInt64-n {
		return most
	}
	return min(after+n, most)
}

// Next is the lowest position after another one that can be seen.
func Next(ctx context.Context, db bun.IDB, after int64) (position int64, found bool, err error) {
	var history, events *int64
	if err := db.QueryRowContext(ctx, selectNext, after).Scan(&history, &events); err != nil {
		return 0, false, fmt.Errorf("history: look for position %s: %w", strconv.FormatInt(after, 10), err)
	}
	switch {
	case history == nil && events == nil:
		return 0, false, nil
	case history == nil:
		return *events, true, nil
	case events == nil:
		return *history, true, nil
	}
	return min(*history, *events), true, nil
}

func sqlite(db bun.IDB) bool { return db.Dialect().Name() == dialect.SQLite }

const selectCounts = "SELECT type, count(*), min(occurred_at), max(occurred_at) FROM (SELECT type, occurred_at FROM history WHERE position > ?0 ?1" +
	" UNION ALL SELECT type, occurred_at FROM events WHERE message_id IS NOT NULL AND position > ?0 ?1) AS kept GROUP BY type"

// Count tells how many events of a context there are after a position, by their type.
func Count(ctx context.Context, db bun.IDB, name string, after int64, tell func(wireName string, n int64, oldest, latest dbtime.Time)) error {
	err := dbrows.Each(ctx, db, selectCounts, func(scan func(...any) error) error {
		var wireName string
		var n int64
		var oldest, latest dbtime.Time
		err := scan(&wireName, &n, &oldest, &latest)
		if err == nil {
			tell(wireName, n, oldest, latest)
		}
		return err
	}, after, Filter{Context: name}.where(db))
	if err != nil {
		return fmt.Errorf("history: count events of context %s: %w", name, err)
	}
	return nil
}
