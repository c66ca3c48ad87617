package timerdb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/outbox"
)

// maxBytes is about how much a promotion reads into memory, unless one timer has more.
const maxBytes = 4 << 20

// Promoted is what became of timers that were due.
type Promoted struct {
	Sent  int
	Pokes []outbox.Poke // where their messages are now
	Busy  bool          // Another process is at it.
	// Left are those that somebody has locked, or that wait behind one of their key that
	// is: they may be looked at again soon.
	Left int
	// Broken are those that were set aside, as their messages can't be sent.
	Broken []Broken
}

// Broken is a timer whose message can't be sent.
type Broken struct{ ID, Error string }

// dueTimer is one that was due when it was looked for.
type dueTimer struct {
	id  string
	key int64
}

// Promote puts the messages of a target's timers that are due into the outbox, in the
// order of their times, at most limit. A row that somebody has locked is not waited for, as who
// has it may wait for another row; it keeps those of its key behind it, and no others. One
// whose message can't be sent is set aside, and keeps nobody.
func (s *Store) Promote(ctx context.Context, target string, limit int) (p Promoted, err error) {
	p, suspect, err := s.promote(ctx, target, limit)
	if dberr.Permanent(err) && len(suspect) > 1 {
		// The database refuses one of them: it is found when it goes alone.
		p, suspect, err = s.promote(ctx, target, 1)
	}
	if dberr.Permanent(err) && len(suspect) == 1 {
		p = Promoted{Broken: []Broken{{suspect[0].MessageID, dberr.Clip(err.Error())}}}
		err = s.inTx(ctx, func(tx bun.Tx) error { return s.setAside(ctx, tx, p.Broken) })
	}
	if err != nil {
		return Promoted{}, fmt.Errorf("timers: send those that are due: %w", err)
	}
	return p, nil
}

// promote is a transaction of it. sending are the rows that it has sent, or tried to.
func (s *Store) promote(ctx context.Context, target string, limit int) (p Promoted, sending []outbox.Row, err error) {
	err = s.inTx(ctx, func(tx bun.Tx) (err error) {
		p, sending = Promoted{}, nil
		if !s.sqlite() {
			mine := false
			if err := tx.QueryRowContext(ctx, text("lock")).Scan(&mine); err != nil || !mine {
				p.Busy = !mine
				return err
			}
		}
		if sending, err = s.choose(ctx, tx, target, limit, &p); err != nil {
			return err
		}
		if err := s.setAside(ctx, tx, p.Broken); err != nil || len(sending) == 0 {
			return err
		}
		p.Sent, p.Pokes = len(sending), pokes(sending)
		return s.send(ctx, tx, sending)
	})
	return p, sending, err
}

// choose locks those that may leave. Where it finds none, as they are locked, it looks
// behind their keys.
func (s *Store) choose(ctx context.Context, tx bun.Tx, target string, limit int, p *Promoted) ([]outbox.Row, error) {
	var held []int64
	for {
		due, full, err := s.due(ctx, tx, target, limit, held)
		if err != nil || len(due) == 0 {
			return nil, err
		}
		rows, broken, err := s.lock(ctx, tx, due)
		if err != nil {
			return nil, err
		}
		send, keys := inOrder(due, rows, broken)
		p.Left += len(due) - len(send) - len(broken)
		p.Broken = append(p.Broken, broken...)
		if !full || len(send)+len(broken) > 0 {
			return send, nil
		}
		held = append(held, keys...)
	}
}

// due are the first timers of a target that are due, without their bodies, but for those of
// some keys. full says that there may be more.
func (s *Store) due(ctx context.Context, tx bun.Tx, target string, limit int, but []int64) (due []dueTimer, full bool, err error) {
	total, others := 0, schema.QueryAppender(always)
	if len(but) > 0 {
		others = bun.SafeQuery("key NOT IN (?)", bun.List(but))
	}
	err = dbrows.Each(ctx, tx, text("due"), func(scan func(...any) error) error {
		var d dueTimer
		var bytes int
		if err := scan(&d.id, &d.key, &bytes); err != nil {
			return err
		}
		total += bytes
		if full = full || len(due) > 0 && total > maxBytes; !full {
			due = append(due, d)
		}
		return nil
	}, s.now(), limit, target, others)
	return due, full || len(due) == limit, err
}

// lock reads the timers that nobody else has locked, and that are still what they were
// when they were looked for, and says which of them are broken.
func (s *Store) lock(ctx context.Context, tx bun.Tx, due []dueTimer) (rows map[string]outbox.Row, broken []Broken, err error) {
	partitions, err := outboxdb.Partitions(ctx, tx)
	if err != nil {
		return nil, nil, err
	}
	ids := make([]string, len(due))
	for i, d := range due {
		ids[i] = d.id
	}
	lock := bun.Safe("")
	if !s.sqlite() {
		lock = "FOR UPDATE SKIP LOCKED"
	}
	rows = make(map[string]outbox.Row, len(due))
	err = dbrows.Each(ctx, tx, text("due_rows"), func(scan func(...any) error) error {
		var id, message string
		var payload []byte
		if err := scan(&id, &message, &payload); err != nil {
			return err
		}
		row, wrong := rowOf(id, message, payload)
		if wrong != nil {
			broken = append(broken, Broken{id, dberr.Clip(wrong.Error())})
			return nil
		}
		// There may be another number of them than when it was set.
		row.Partition = outbox.PartitionOf(row.PartitionKey, partitions)
		rows[id] = row
		return nil
	}, s.now(), bun.List(ids), lock)
	return rows, broken, err
}

// rowOf is the row of the outbox that a timer becomes.
func rowOf(id, message string, payload []byte) (row outbox.Row, err error) {
	if err := json.Unmarshal([]byte(message), &row); err != nil {
		return row, fmt.Errorf("its message is not what was stored: %w", err)
	}
	row.Payload = payload
	switch {
	case row.MessageID != id:
		return row, fmt.Errorf("its message is not what was stored: it has the id %q", row.MessageID)
	case row.TargetBroker == "":
		return row, errors.New("its message is not what was stored: it has no target")
	}
	return row, outboxdb.CheckText(&row)
}

// setAside notes that timers are broken.
func (s *Store) setAside(ctx context.Context, tx bun.Tx, all []Broken) error {
	for _, b := range all {
		if _, err := tx.ExecContext(ctx, text("set_aside"), b.ID, b.Error); err != nil {
			return err
		}
	}
	return nil
}

// inOrder are the rows that may leave: not those behind one of their key that has to
// stay. held are these keys.
func inOrder(due []dueTimer, rows map[string]outbox.Row, broken []Broken) (send []outbox.Row, held []int64) {
	for _, d := range due {
		row, mine := rows[d.id]
		switch {
		case slices.ContainsFunc(broken, func(b Broken) bool { return b.ID == d.id }):
		case slices.Contains(held, d.key):
		case !mine:
			held = append(held, d.key)
		default:
			send = append(send, row)
		}
	}
	return send, held
}

// send puts rows into the outbox, and notes that they are there.
func (s *Store) send(ctx context.Context, tx bun.Tx, rows []outbox.Row) error {
	query, err := outboxdb.Insert(rows).AppendQuery(s.db.QueryGen(), nil)
	if err != nil {
		return err
	}
	// Past bun, which would take a question mark in the SQL for an argument.
	if _, err := tx.Tx.ExecContext(ctx, string(query)); err != nil {
		return err
	}
	ids := make([]string, len(rows))
	for i := range rows {
		ids[i] = rows[i].MessageID
	}
	result, err := tx.ExecContext(ctx, text("sent"), s.now(), bun.List(ids))
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n != int64(len(rows)) {
		return fmt.Errorf("%d of %d rows were there to be marked as sent: %w", n, len(rows), err)
	}
	return nil
}

// pokes are where rows are, each place once.
func pokes(rows []outbox.Row) (all []outbox.Poke) {
	for i := range rows {
		if p := (outbox.Poke{Target: rows[i].TargetBroker, Partition: rows[i].Partition}); !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return all
}
