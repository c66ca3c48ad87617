package outboxdb

import (
	"context"
	"fmt"
	"slices"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/outbox"
)

// Republished is what has become of events that are to be published once more.
type Republished struct {
	Rows      int64 // New ones.
	Waiting   int64 // Have a row that is not published yet, which stays.
	Abandoned int64 // Have a row that was abandoned: an operator decides about that one.
}

// Add adds what became of others.
func (r *Republished) Add(o Republished) {
	r.Rows += o.Rows
	r.Waiting += o.Waiting
	r.Abandoned += o.Abandoned
}

// again says which rows are stored, and which published ones are in their place.
func (s *Store) again(ctx context.Context, db bun.IDB, rows []outbox.Row) (insert []outbox.Row, published []int64, of Republished, err error) {
	type place struct{ message, target string }
	waits, abandoned := map[place]bool{}, map[place]bool{}
	ids := make([]string, len(rows))
	for i, r := range rows {
		ids[i] = r.MessageID
	}
	seqs := map[place]int64{}
	err = dbrows.Each(ctx, db, s.text("again_states"), func(scan func(...any) error) error {
		var at place
		var seq int64
		var isQueued, isAbandoned bool
		if err := scan(&seq, &at.message, &at.target, &isQueued, &isAbandoned); err != nil {
			return err
		}
		waits[at], abandoned[at], seqs[at] = isQueued, isAbandoned, seq
		return nil
	}, bun.List(slices.Compact(ids)))
	for _, r := range rows {
		at := place{r.MessageID, r.TargetBroker}
		switch {
		case waits[at]:
			of.Waiting++
		case abandoned[at]:
			of.Abandoned++
		default:
			insert = append(insert, r)
			of.Rows++
			if seq, stored := seqs[at]; stored {
				published = append(published, seq)
			}
		}
	}
	return insert, published, of, err
}

// CountRepublish says what [Store.Republish] would do. It changes nothing.
func (s *Store) CountRepublish(ctx context.Context, rows []outbox.Row) (Republished, error) {
	if len(rows) == 0 {
		return Republished{}, nil
	}
	_, _, of, err := s.again(ctx, s.reader, rows)
	return of, err
}

// Republish stores rows of events that were raised before, under the events' own ids and
// with new seqs: behind all that is stored by now. A row of the same event and target that
// was published makes room. One that isn't published yet stays, and is left out.
//
// Nobody else stores rows of these events meanwhile: units of work have new ones, a
// back-fill those of a target that is joining, beside which this is refused, and other
// republications wait for this one.
func (s *Store) Republish(ctx context.Context, tx bun.Tx, context string, rows []outbox.Row) (of Republished, err error) {
	if len(rows) == 0 {
		return of, nil
	}
	if !s.sqlite() {
		for _, lock := range []string{"lock_republish", "lock_writing"} {
			if _, err := tx.ExecContext(ctx, s.text(lock)); err != nil {
				return of, err
			}
		}
	}
	targets, _, err := FindTargets(ctx, tx, context)
	if err != nil {
		return of, err
	}
	if len(targets.Joining) > 0 {
		// A back-fill reads the rows that make room here, by their seq.
		return of, fmt.Errorf("broker %s is joining: run `waybill outbox backfill` first", targets.Joining[0])
	}
	rows, published, of, err := s.again(ctx, tx, rows)
	if err != nil || len(rows) == 0 {
		return of, err
	}
	if len(published) > 0 {
		if _, err := tx.ExecContext(ctx, s.text("again_remove"), numbers(published)); err != nil {
			return of, err
		}
	}
	return of, s.insertRows(ctx, tx, rows)
}

// insertRows stores rows, past bun, which would take a question mark in the SQL for an argument.
func (s *Store) insertRows(ctx context.Context, tx bun.Tx, rows []outbox.Row) error {
	query, err := Insert(rows).AppendQuery(s.db.QueryGen(), nil)
	if err != nil {
		return err
	}
	_, err = tx.Tx.ExecContext(ctx, string(query))
	return err
}
