package outboxdb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/dbtx"
	"github.com/waybill-go/waybill/internal/historydb"
	"github.com/waybill-go/waybill/outbox"
)

// positionPrefix stands before "<context>:<target>" in outbox_settings, if the target gets
// its past from the history.
const positionPrefix = "backfill-position:"

// keptSpan is how many positions a transaction looks at, at most.
const keptSpan = 100_000

// bounds are up to where events can be copied: a seq, and a position in the history.
type bounds struct{ seq, position int64 }

// horizons are up to where nothing appears any more.
type horizons struct {
	outbox  horizon
	history historydb.Horizon
}

// copyMore is one transaction, up to the horizon.
func (s *Store) copyMore(ctx context.Context, c *copier, h *horizons, done *outbox.Backfilled) (next progress, err error) {
	if err := s.sample(ctx, &h.outbox); err != nil {
		return more, err
	}
	to := bounds{seq: h.outbox.seq}
	if kept, err := readKept(ctx, s.reader, c.position); err != nil {
		return more, err
	} else if kept != nil {
		if to.position, err = h.history.Advance(ctx, s.reader); err != nil {
			return more, err
		}
	}
	return s.copySome(ctx, c, to, false, done)
}

// keptCursor is how far a back-fill from the history is. What the outbox still has and the
// history lacks comes first, behind the cursor that all back-fills have: it was raised before
// the history began. Then come the events of the history, in their order.
//
// From parts the two, whatever is imported meanwhile: that gets positions below it.
type keptCursor struct {
	From int64  `json:"from"`         // The lowest position that is copied from the history.
	At   *int64 `json:"at,omitempty"` // The last one that was; nil: the outbox is not done yet.
}

// readKept reads the cursor of a back-fill from the history; nil: it is none.
func readKept(ctx context.Context, db bun.IDB, name string) (*keptCursor, error) {
	value, found, err := readSetting(ctx, db, name)
	if err != nil || !found {
		return nil, err
	}
	var k keptCursor
	if err := json.Unmarshal([]byte(value), &k); err != nil {
		return nil, fmt.Errorf("outbox_settings says that %s is %q: %w", name, value, err)
	}
	return &k, nil
}

func (s *Store) writeKept(ctx context.Context, tx bun.Tx, name string, k keptCursor) error {
	value, err := json.Marshal(k)
	if err == nil {
		_, err = tx.ExecContext(ctx, s.text("setting_write"), name, string(value))
	}
	return err
}

// beginKept has a target get its past from the history. One that has begun goes on as it
// did.
func (s *Store) beginKept(ctx context.Context, c *copier) error {
	if err := s.checkKept(ctx, c); err != nil {
		return err
	}
	return dbtx.Run(ctx, s.db, func(tx bun.Tx) error {
		if err := s.lockToCopy(ctx, tx, false); err != nil {
			return err
		}
		value, joining, err := s.lockCursor(ctx, tx, c.cursor)
		if err != nil || !joining {
			return err
		}
		have, err := readKept(ctx, tx, c.position)
		if err != nil || have != nil {
			return err
		}
		if value != "0" {
			return fmt.Errorf("outbox: back-fill of %s from the history: a part of the outbox was copied already, and what is older would come behind it: finish it without --from-history", c.Target.Broker)
		}
		lowest, err := historydb.Lowest(ctx, tx)
		if err != nil {
			return err
		}
		return s.writeKept(ctx, tx, c.position, keptCursor{From: min(lowest, 1)})
	})
}

// checkKept returns an error unless the history has all that it needs to have.
func (s *Store) checkKept(ctx context.Context, c *copier) error {
	if err := historydb.Migrations().Check(ctx, s.reader); err != nil {
		return err
	}
	if c.targets.History != outbox.HistoryOn {
		return fmt.Errorf("outbox: back-fill of %s from the history: the database keeps no history of context %s: set uow.Config.History, or copy what the outbox has, without --from-history", c.Target.Broker, c.Context)
	}
	var n int64
	var first *int64
	if err := s.reader.NewRaw(s.text("backfill_between"), c.own, c.Context+"::").Scan(ctx, &n, &first); err != nil {
		return err
	}
	if n > 0 {
		return fmt.Errorf("outbox: back-fill of %s from the history: it lacks %d events of the outbox between others of their aggregates, such as that of row %d, so it has no order for them: copy what the outbox has, without --from-history", c.Target.Broker, n, *first)
	}
	return nil
}

// copyKept is a transaction of a back-fill from the history. A page of the outbox's has no
// bound: what isn't kept was raised before the history began, so nothing of it is still to
// come.
func (s *Store) copyKept(ctx context.Context, tx bun.Tx, c *copier, k keptCursor, cursor, bound int64, last bool, done *outbox.Backfilled) (progress, error) {
	if k.At == nil {
		rows, read, full, err := s.readRows(ctx, tx, c, s.text("backfill_unkept"), cursor, c.own, c.Context+"::", cursor, backfillRows, k.From)
		if err == nil {
			err = s.insertMissing(ctx, tx, c.Target.Broker, rows, done)
		}
		if err != nil {
			return more, err
		}
		if full {
			return more, s.moveCursor(ctx, tx, c, read)
		}
		at := k.From - 1
		k.At = &at
		return more, s.writeKept(ctx, tx, c.position, k)
	}
	rows, read, full, err := s.readKeptEvents(ctx, tx, c, *k.At, bound)
	if err != nil {
		return more, err
	}
	if full && last {
		// The cursor stays below the horizon: a unit may have drawn a lower position, and not
		// wait for this lock yet.
		return more, errTooMany
	}
	if err := s.insertMissing(ctx, tx, c.Target.Broker, rows, done); err != nil {
		return more, err
	}
	if last {
		return live, s.goLive(ctx, tx, c)
	}
	k.At = &read
	if err := s.writeKept(ctx, tx, c.position, k); err != nil {
		return more, err
	}
	if full {
		return more, nil
	}
	return upToDate, nil
}

// errTooMany is a last transaction that found more than one page: it is rolled back.
var errTooMany = errors.New("outbox: more than the last transaction of a back-fill copies")

// readKeptEvents makes rows of the next events of the history. read is the position up to which
// it has all; full says that there may be more below the bound.
func (s *Store) readKeptEvents(ctx context.Context, tx bun.Tx, c *copier, after, bound int64) (rows []outbox.Row, read int64, full bool, err error) {
	next, found, err := historydb.Next(ctx, tx, after)
	if err != nil {
		return nil, 0, false, err
	}
	if !found || next > bound {
		return nil, max(after, bound), false, nil
	}
	end := historydb.Until(next-1, keptSpan, bound)
	events, full, err := historydb.Between(ctx, tx, historydb.Filter{Context: c.Context}, next-1, end, backfillRows)
	if err != nil {
		return nil, 0, false, err
	}
	if read = end; full {
		read = events[len(events)-1].Position
	} else if end < bound {
		_, full, err = historydb.Next(ctx, tx, end)
	}
	for i := range events {
		e := &events[i]
		if err != nil || !c.Wants(e.Type) {
			continue
		}
		row, copied := c.CopyEvent(c.targets.Broker, &e.Event, c.partitions)
		if copied != nil {
			return nil, 0, false, fmt.Errorf("event at position %d of the history: %w", e.Position, copied)
		}
		rows = append(rows, row)
	}
	return rows, read, full, err
}

// countKept says how much a back-fill from the history would copy now.
func (s *Store) countKept(ctx context.Context, c *copier, cursor int64) (found outbox.Backfilled, err error) {
	if err := s.checkKept(ctx, c); err != nil {
		return found, err
	}
	if c.partitions, err = Partitions(ctx, s.reader); err != nil {
		return found, err
	}
	k, err := readKept(ctx, s.reader, c.position)
	if err != nil {
		return found, err
	}
	if k == nil {
		lowest, err := historydb.Lowest(ctx, s.reader)
		if err != nil {
			return found, err
		}
		k = &keptCursor{From: min(lowest, 1)}
	}
	after := k.From - 1
	if k.At != nil {
		after = *k.At
	} else {
		for full := true; full; {
			var rows []outbox.Row
			if rows, cursor, full, err = s.readRows(ctx, s.reader, c, s.text("backfill_unkept"), cursor, c.own, c.Context+"::", cursor, backfillRows, k.From); err != nil {
				return found, err
			}
			note(&found, rows)
		}
	}
	err = historydb.Count(ctx, s.reader, c.Context, after, func(wireName string, n int64, oldest, latest dbtime.Time) {
		if c.Wants(wireName) {
			found.Add(outbox.Backfilled{Events: n, Oldest: oldest.Time, Latest: latest.Time})
		}
	})
	return found, err
}

// readRows makes rows for the target of those that its context's own broker got: seq, key, type and
// body. read is the last seq that it has looked at; full says that there may be more.
func (s *Store) readRows(ctx context.Context, db bun.IDB, c *copier, query string, after int64, args ...any) (rows []outbox.Row, read int64, full bool, err error) {
	n, size := 0, 0
	read = after
	err = dbrows.Each(ctx, db, query, func(scan func(...any) error) error {
		if full {
			return nil
		}
		var key, wireName string
		var body []byte
		if err := scan(&read, &key, &wireName, &body); err != nil {
			return err
		}
		n++
		size += len(body)
		full = n == backfillRows || size > backfillBytes
		if !c.Wants(wireName) {
			return nil
		}
		row, err := c.Copy(c.targets.Broker, wireName, key, body, c.partitions)
		if err != nil {
			return fmt.Errorf("row %d: %w", read, err)
		}
		if slices.ContainsFunc(rows, func(r outbox.Row) bool { return r.MessageID == row.MessageID }) {
			return nil // It was published again, since the context has another own broker.
		}
		rows = append(rows, row)
		return nil
	}, args...)
	return rows, read, full, err
}
