package timerdb

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/uptrace/bun"

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
}

// dueTimer is one that was due when it was looked for.
type dueTimer struct {
	id  string
	key int64
}

// Promote puts the messages of a target's timers that are due into the outbox, in the
// order of their times, at most limit. A row that somebody has locked is not waited for, as who
// has it may wait for another row; it keeps those of its key behind it.
func (s *Store) Promote(ctx context.Context, target string, limit int) (p Promoted, err error) {
	err = s.inTx(ctx, func(tx bun.Tx) error {
		p = Promoted{}
		if !s.sqlite() {
			mine := false
			if err := tx.QueryRowContext(ctx, text("lock")).Scan(&mine); err != nil || !mine {
				p.Busy = !mine
				return err
			}
		}
		due, err := s.due(ctx, tx, target, limit)
		if err != nil || len(due) == 0 {
			return err
		}
		rows, err := s.lock(ctx, tx, due)
		if err != nil {
			return err
		}
		send := inOrder(due, rows)
		p.Left = len(due) - len(send)
		if len(send) == 0 {
			return nil
		}
		p.Sent, p.Pokes = len(send), pokes(send)
		return s.send(ctx, tx, send)
	})
	if err != nil {
		return Promoted{}, fmt.Errorf("timers: send those that are due: %w", err)
	}
	return p, nil
}

// due are the first timers of a target that are due, without their bodies.
func (s *Store) due(ctx context.Context, tx bun.Tx, target string, limit int) (due []dueTimer, err error) {
	total, full := 0, false
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
	}, s.now(), limit, target)
	return due, err
}

// lock reads the timers that nobody else has locked, and that are still what they were
// when they were looked for.
func (s *Store) lock(ctx context.Context, tx bun.Tx, due []dueTimer) (map[string]outbox.Row, error) {
	ids := make([]string, len(due))
	for i, d := range due {
		ids[i] = d.id
	}
	lock := bun.Safe("")
	if !s.sqlite() {
		lock = "FOR UPDATE SKIP LOCKED"
	}
	rows := make(map[string]outbox.Row, len(due))
	err := dbrows.Each(ctx, tx, text("due_rows"), func(scan func(...any) error) error {
		var id, message string
		var payload []byte
		if err := scan(&id, &message, &payload); err != nil {
			return err
		}
		var row outbox.Row
		if err := json.Unmarshal([]byte(message), &row); err != nil {
			return fmt.Errorf("the message of timer %s is not what was stored; `waybill timers stop --id %s` releases the others: %w", id, id, err)
		}
		row.Payload = payload
		rows[id] = row
		return nil
	}, s.now(), bun.List(ids), lock)
	return rows, err
}

// inOrder are the rows that may leave: not those behind one of their key that has to
// stay.
func inOrder(due []dueTimer, rows map[string]outbox.Row) (send []outbox.Row) {
	stays := map[int64]bool{}
	for _, d := range due {
		row, mine := rows[d.id]
		if !mine || stays[d.key] {
			stays[d.key] = true
			continue
		}
		send = append(send, row)
	}
	return send
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
