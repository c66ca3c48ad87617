package outboxdb

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/dbtx"
	"github.com/waybill-go/waybill/internal/operate"
	"github.com/waybill-go/waybill/outbox"
)

// A purge removes a little at a time, so that others hardly notice.
const (
	// purgeRows is about how many rows one of its steps removes.
	purgeRows = 1000
	// purgeLook is how many rows of the log, or abandoned ones, a step looks at.
	purgeLook = 1000
	// purgeLeast is how few of them a step is made to look at by being slow.
	purgeLeast = 10
	// purgeTarget is how long a step should take; its size follows.
	purgeTarget = 25 * time.Millisecond
	// purgeRest is how many times as long as a step the pause behind it is.
	purgeRest = 3
	// purgeLimit is when PostgreSQL ends a statement of it that takes longer all the
	// same.
	purgeLimit = 200 * time.Millisecond
	// purgeMost is the limit on a server that is too slow for a single row of the log,
	// which stands for all that one claim published.
	purgeMost = time.Minute
)

// actionPurge is the record's word for it.
const actionPurge = "purge"

// Purge removes finished rows whose time has passed and says how many, also with an
// error. Published ones are found by the log: what was not published is in none of its
// rows. Held rows stay until an operator decides, and so does what a target that is
// joining may need.
//
// It is done in steps of about a thousand rows, each a transaction of its own, with
// a pause of three times as long behind it. It begins no step later than r.Every, when
// the next one's turn comes.
func (s *Store) Purge(ctx context.Context, r outbox.Retention) (p outbox.Purged, err error) {
	r = outbox.Config{Retention: r}.WithDefaults().Retention
	end := time.Now().Add(cmp.Or(max(r.Every, 0), math.MaxInt64))
	if err := s.Fold(ctx); err != nil {
		return p, err
	}
	if r.Abandoned >= 0 {
		if p.Abandoned, err = s.walk(ctx, purging{status: outbox.Abandoned, older: r.Abandoned, end: end}); err != nil {
			return p, err
		}
	}
	if r.Delete {
		r.Published = 0
	}
	if r.Published >= 0 {
		p.Published, err = s.walk(ctx, purging{status: outbox.Published, older: r.Published, end: end})
	}
	return p, err
}

// CleanUp removes finished rows like [Store.Purge], because an operator wants it:
// never one that is held, or that a target that is joining may need. It takes as
// long as that takes, and may be ended and run again at any time.
func (s *Store) CleanUp(ctx context.Context, c outbox.CleanUp) (outbox.CleanedUp, error) {
	o := newCleaning(c)
	if err := o.check(); err != nil {
		return o.done, err
	}
	keep, err := ReadRetention(ctx, s.reader)
	if err != nil {
		return o.done, err
	}
	for _, p := range []purging{{status: outbox.Abandoned, older: keep.Abandoned}, {status: outbox.Published, older: keep.Published}} {
		if len(c.Statuses) > 0 && !slices.Contains(c.Statuses, p.status) {
			continue
		}
		if c.OlderThan > 0 {
			p.older = c.OlderThan
		}
		if p.older < 0 {
			continue // it is kept for ever
		}
		p.operator, p.end = o, time.Now().Add(math.MaxInt64)
		_, err := s.walk(ctx, p)
		if err != nil && c.DryRun {
			return o.done, fmt.Errorf("outbox: purge: it ended while it counted, and has removed nothing: %w", err)
		}
		if err != nil {
			return o.done, fmt.Errorf("outbox: purge: it ended early, after %d published and %d abandoned rows; run it again for the others: %w", o.done.Published, o.done.Abandoned, err)
		}
	}
	return o.done, nil
}

// cleaning is one call of CleanUp; nil is housekeeping.
type cleaning struct {
	outbox.CleanUp

	record operate.Record
	done   outbox.CleanedUp
}

func newCleaning(c outbox.CleanUp) *cleaning {
	asked := struct {
		OlderThan string          `json:"older_than,omitempty"`
		Statuses  []outbox.Status `json:"statuses,omitempty"`
	}{Statuses: c.Statuses}
	if c.OlderThan > 0 {
		asked.OlderThan = c.OlderThan.String()
	}
	return &cleaning{CleanUp: c, record: actionRecord(c.Actor, actionPurge, asked)}
}

func (o *cleaning) check() error {
	for _, status := range o.Statuses {
		if !status.Finished() {
			return fmt.Errorf("outbox: purge: %q rows stay: only those that are %s or %s are ever removed", status, outbox.Published, outbox.Abandoned)
		}
	}
	if o.OlderThan < 0 {
		return fmt.Errorf("outbox: purge: OlderThan is %v: above 0, or 0 for what has expired", o.OlderThan)
	}
	return o.record.Check("outbox: purge", o.DryRun)
}

// note puts n more rows into the record of the action.
func (o *cleaning) note(ctx context.Context, tx bun.Tx, n int) (action int64, err error) {
	if o == nil || o.DryRun || n == 0 {
		return 0, nil
	}
	return o.record.Add(ctx, tx, o.done.Action, int64(o.done.Published+o.done.Abandoned), int64(n))
}

// removed adds what a transaction did.
func (o *cleaning) removed(status outbox.Status, n int, action int64) {
	if o == nil || n == 0 {
		return
	}
	if status == outbox.Published {
		o.done.Published += n
	} else {
		o.done.Abandoned += n
	}
	if action != 0 {
		o.done.Action = action
	}
	if o.Progress != nil {
		o.Progress(o.done.Purged)
	}
}

// purging is what is to be removed.
type purging struct {
	status   outbox.Status
	older    time.Duration // since it was published or given up
	end      time.Time     // no step begins later
	limit    time.Duration // of a statement
	operator *cleaning     // who asks for it; nil: nobody, it is housekeeping
}

// page is what a step has found: rows of the log, or abandoned ones, from the oldest
// on.
type page struct {
	ids  []int64 // of the log; of abandoned ones their seqs
	rows int     // that they stand for
	last place   // of the page, whether it can go or not
	full bool    // there may be more behind it
	old  bool    // something of it is old enough, or of the future
}

// place is where a page ends.
type place struct {
	at dbtime.Time
	id int64
}

// walk removes what is old enough, step by step, from the oldest on. What may not
// go yet, as a target that is joining needs it, is passed. The log is in the order of
// time, about: a page of it of which nothing is old enough ends the walk, a single row
// doesn't, and neither do rows of the future.
func (s *Store) walk(ctx context.Context, p purging) (removed int, err error) {
	size := purgeLook
	p.limit = purgeLimit
	var after place
	for time.Now().Before(p.end) {
		begin := time.Now()
		found, n, err := s.step(ctx, p, after, size)
		took := time.Since(begin)
		switch {
		case ended(err) && size > 1:
			size = max(size/2, 1)
		case ended(err) && p.limit < purgeMost:
			p.limit *= 2
		case err != nil:
			return removed, err
		default:
			removed += n
			if !found.full {
				return removed, nil
			}
			after = found.last
			switch {
			case took > purgeTarget:
				size = max(size/2, min(size, purgeLeast))
			case took < purgeTarget/2:
				size = min(2*size, purgeLook)
			}
		}
		if err := rest(ctx, purgeRest*took); err != nil {
			return removed, err
		}
	}
	return removed, nil
}

// step looks at the rows behind a place and removes those that may go. On SQLite
// only the second takes the writer.
func (s *Store) step(ctx context.Context, p purging, after place, size int) (found page, removed int, err error) {
	if s.sqlite() || p.operator.counts() {
		found, err = s.examine(ctx, s.reader, p, after, size)
		if err != nil || len(found.ids) == 0 {
			return found, 0, err
		}
		if p.operator.counts() {
			if removed, err = s.left(ctx, p.status, found); err == nil {
				p.operator.removed(p.status, removed, 0)
			}
			return found, removed, err
		}
	}
	var action int64
	err = dbtx.Run(ctx, s.db, func(tx bun.Tx) error {
		if !s.sqlite() {
			if _, err := tx.ExecContext(ctx, s.text("purge_settings"), p.limit.Milliseconds(), purgeLimit.Milliseconds()/2); err != nil {
				return err
			}
			// One at a time goes through the log.
			if _, err := tx.ExecContext(ctx, s.text("fold_lock")); err != nil {
				return err
			}
			if found, err = s.examine(ctx, tx, p, after, size); err != nil || len(found.ids) == 0 {
				return err
			}
		}
		if removed, err = s.remove(ctx, tx, p.status, found.ids); err == nil {
			action, err = p.operator.note(ctx, tx, removed)
		}
		return err
	})
	if err != nil {
		return found, 0, err
	}
	p.operator.removed(p.status, removed, action)
	return found, removed, nil
}

// left is how many rows of a page are there. A row that was published again has another number
// since, and the log's row of the first time is still there.
func (s *Store) left(ctx context.Context, status outbox.Status, found page) (n int, err error) {
	if status != outbox.Published {
		return found.rows, nil
	}
	err = s.reader.QueryRowContext(ctx, s.text("purge_log_left"), numbers(found.ids)).Scan(&n)
	return n, err
}

// counts says that rows stay.
func (o *cleaning) counts() bool { return o != nil && o.DryRun }

// examine reads a page. It ends before it stands for more rows than a step removes.
func (s *Store) examine(ctx context.Context, db bun.IDB, p purging, after place, size int) (found page, err error) {
	d := s.db.Dialect()
	name := "purge_abandoned_page"
	if p.status == outbox.Published {
		name = "purge_log_page"
	}
	looked, lock := 0, bun.Safe("")
	if !s.sqlite() && !p.operator.counts() && p.status == outbox.Abandoned {
		lock = "FOR UPDATE SKIP LOCKED" // whoever changes one of them keeps it
	}
	err = dbrows.Each(ctx, db, s.text(name), func(scan func(...any) error) error {
		var at place
		var rows int
		var old, may bool
		if err := scan(&at.id, &at.at, &rows, &old, &may); err != nil {
			return err
		}
		if found.full = found.full || found.rows > 0 && found.rows+rows > purgeRows; found.full {
			return nil
		}
		looked++
		found.last, found.old = at, found.old || old
		if may {
			found.ids = append(found.ids, at.id)
			found.rows += rows
		}
		return nil
	}, after.id, instant(d, after.at.Time), bun.Safe(dbtime.In(d, -p.older)), size, lock, bun.Safe(dbtime.Now(d)))
	found.full = found.full || looked == size && found.old
	return found, err
}

// remove deletes bodies, and what led to them. What leaves the log stays counted.
func (s *Store) remove(ctx context.Context, tx bun.Tx, status outbox.Status, ids []int64) (removed int, err error) {
	bodies, others := "purge_abandoned_bodies", []string{"purge_abandoned"}
	if status == outbox.Published {
		bodies, others = "purge_log_bodies", []string{"purge_log_count", "purge_log"}
	}
	result, err := tx.ExecContext(ctx, s.text(bodies), numbers(ids))
	if err != nil {
		return 0, err
	}
	for _, step := range others {
		if _, err := tx.ExecContext(ctx, s.text(step), numbers(ids)); err != nil {
			return 0, err
		}
	}
	n, err := result.RowsAffected()
	return int(n), err
}
