package historydb

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/outbox"
)

const (
	importEvents = 500
	importBytes  = 8 << 20
)

// Import says what is brought into a history that was turned on late: the events that are
// still in the outbox, and were raised before it began.
//
// They get the positions below 0, downwards from the lowest that there is, from the latest
// event to the earliest. So whoever reads from the beginning always finds the end of each
// aggregate's past, never one with a hole in it, however far the import is; and it may be
// ended at any time, and run again. What would be a hole all the same is left out:
//
//   - an event whose aggregate has an earlier one in the history: its place is between
//     others, and positions can't be drawn there;
//   - an event that was given up before the oldest that is known to be published: what its
//     aggregate raised next may have been removed since, while itself was kept.
//
// It must be that units of work keep their events by now: what they save beside it is in the
// history, and nothing that isn't can still commit.
type Import struct {
	Context string // Whose events.
	// Own is the condition of rows b of the context's own broker, and of those that were it
	// before: what is for it has all that is known of an event.
	Own schema.QueryWithArgs
	// Hold is called in each transaction that has something to insert, before that. It fails if
	// somebody has read the history beyond the beginning who mustn't miss anything, and sees to
	// it that whoever reads it now begins anew.
	Hold func(ctx context.Context, tx bun.Tx) error
	// Step runs a batch in a transaction, perhaps several times, and notes how many events it
	// says that it has imported.
	Step func(ctx context.Context, batch func(tx bun.Tx) (events int64, err error)) error
	// Progress is called after each transaction. May be nil.
	Progress func(Imported)
}

// Imported is what an import has done so far.
type Imported struct {
	Events   int64     `json:"events"`
	LeftOut  int64     `json:"left_out"` // See Import.
	Earliest time.Time `json:"earliest"` // When the first of them was raised; zero if there is none.
	Action   int64     `json:"action"`   // Its id in the record; 0: nothing was changed.
}

const (
	// Whether it is left out comes last. An aggregate whose events were kept in the outbox only
	// and is event-sourced by now, or the other way round, has its events in both tables.
	selectUnkept = `SELECT b.seq, b.partition_key, b.payload,
	EXISTS (SELECT 1 FROM history AS h WHERE h.category = b.stream_category AND h.id = b.aggregate_id AND h.version < b.aggregate_version)
	OR EXISTS (SELECT 1 FROM events AS e WHERE e.category = b.stream_category AND e.id = b.aggregate_id AND e.version < b.aggregate_version AND e.message_id IS NOT NULL)
	OR EXISTS (SELECT 1 FROM outbox_abandoned AS a WHERE a.seq = b.seq AND (a.at < (SELECT min(at) FROM outbox_log WHERE lane = b.lane)
		OR NOT EXISTS (SELECT 1 FROM outbox_log WHERE lane = b.lane) AND EXISTS (SELECT 1 FROM outbox_counts WHERE lane = b.lane AND published > 0)))
FROM outbox_messages AS b ` + whereUnkept + ` AND b.seq < ?2 ORDER BY b.seq DESC LIMIT ?3`
	// A command, or a message between processes, has no aggregate. The place of an event in
	// events is its primary key.
	whereUnkept = `WHERE ?0 AND substr(b.stream_category, 1, length(?1)) = ?1 AND b.aggregate_type <> ''
	AND NOT EXISTS (SELECT 1 FROM history AS h WHERE h.message_id = b.message_id)
	AND NOT EXISTS (SELECT 1 FROM events AS e WHERE e.category = b.stream_category AND e.id = b.aggregate_id AND e.version = b.aggregate_version AND e.message_id = b.message_id)`
	countUnkept = `SELECT count(*), min(b.occurred_at) FROM outbox_messages AS b ` + whereUnkept

	// lookUp has PostgreSQL look up what the history has by index, in this transaction. It may not
	// have counted either table yet, takes a history that has just begun for small, and would read
	// all of it for each row of the outbox: with writers that have it grow, a page took minutes.
	lookUp = "SELECT set_config('enable_seqscan', 'off', true)"

	insertAt = "INSERT INTO history (position, version, occurred_at, n, message_id, category, id, type, data, metadata) VALUES "
	// Another context may be keeping it for itself at this moment.
	insertAtEnd = " ON CONFLICT (message_id) DO NOTHING"
)

// Run imports batch by batch, in transactions of their own, and returns when nothing is
// left. What it returns counts with an error, too.
//
// A projection that begins beside it sees all or stops it: either its row is there when a
// batch asks Hold, which takes its lease away, so that what it has read without the batch has
// no effect; or it is made later, and then its reader looks for the horizon after this
// transaction has locked the table, waits until that has ended, and sees the batch.
func (im Import) Run(ctx context.Context) (done Imported, err error) {
	for before := int64(math.MaxInt64); ; {
		var next Imported
		var last int64
		var full bool
		err := im.Step(ctx, func(tx bun.Tx) (int64, error) {
			next = done
			if !sqlite(tx) {
				// One import at a time draws positions. The table is locked as an insert does it,
				// for those who read beside it.
				for _, first := range []string{lookUp, "SELECT pg_advisory_xact_lock(hashint8extended(0, 'history'::regclass::oid::bigint))", "LOCK TABLE history IN ROW EXCLUSIVE MODE"} {
					if _, err := tx.ExecContext(ctx, first); err != nil {
						return 0, err
					}
				}
			}
			var events []outbox.Event
			var err error
			if events, last, full, err = im.page(ctx, tx, before, &next); err != nil || len(events) == 0 {
				return 0, err
			}
			if err := im.Hold(ctx, tx); err != nil {
				return 0, err
			}
			return int64(len(events)), keepBelow(ctx, tx, events)
		})
		if err != nil {
			return done, err
		}
		if done, before = next, last; im.Progress != nil {
			im.Progress(done)
		}
		if !full {
			return done, nil
		}
	}
}

// Count says how much Run would look at, left out or not. It changes nothing.
func (im Import) Count(ctx context.Context, db bun.IDB) (found Imported, err error) {
	var earliest dbtime.Time
	err = db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		if !sqlite(tx) {
			if _, err := tx.ExecContext(ctx, lookUp); err != nil {
				return err
			}
		}
		return tx.NewRaw(countUnkept, im.Own, im.Context+"::").Scan(ctx, &found.Events, &earliest)
	})
	if err != nil {
		return found, fmt.Errorf("history: count what could be imported: %w", err)
	}
	found.Earliest = earliest.Time
	return found, nil
}

// page are the next events, the latest first.
func (im Import) page(ctx context.Context, tx bun.Tx, before int64, done *Imported) (events []outbox.Event, last int64, full bool, err error) {
	n, size := 0, 0
	last = before
	err = dbrows.Each(ctx, tx, selectUnkept, func(scan func(...any) error) error {
		if full {
			return nil
		}
		var key string
		var body []byte
		var leftOut bool
		if err := scan(&last, &key, &body, &leftOut); err != nil {
			return err
		}
		n++
		size += len(body)
		full = n == importEvents || size > importBytes
		if leftOut {
			done.LeftOut++
			return nil
		}
		e := outbox.Event{}
		var err error
		if e.Metadata, e.Data, err = outbox.ParseEnvelope(body); err != nil {
			return fmt.Errorf("row %d: %w", last, err)
		}
		if key != e.AggregateID {
			e.Key = key
		}
		events = append(events, e)
		done.Events++
		done.Earliest = e.Time
		return nil
	}, im.Own, im.Context+"::", before, importEvents)
	return events, last, full, err
}

// keepBelow inserts events below all others, the first highest.
func keepBelow(ctx context.Context, tx bun.Tx, events []outbox.Event) error {
	lowest, err := Lowest(ctx, tx)
	if err != nil {
		return err
	}
	lowest = min(lowest, 0)
	d := tx.Dialect()
	b := []byte(insertAt)
	for i := range events {
		values, err := row(&events[i])
		if err != nil {
			return err
		}
		if i > 0 {
			b = append(b, ", "...)
		}
		lowest--
		b = strconv.AppendInt(append(b, '('), lowest, 10)
		for _, v := range values {
			b = appendText(d, append(b, ','), v)
		}
		b = append(b, ')')
	}
	// Past bun, which would take a question mark in the SQL for an argument.
	_, err = tx.Tx.ExecContext(ctx, string(append(b, insertAtEnd...)))
	return err
}

// Lowest is the lowest position that is stored: below 0 of what was imported. 0: there is
// none.
func Lowest(ctx context.Context, db bun.IDB) (int64, error) {
	next, _, err := Next(ctx, db, math.MinInt64)
	return next, err
}
