package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
)

// TakeTurn says whether it is this caller's turn to do a job that runs once per
// interval over all processes. The first turn comes at once.
func (s *Store) TakeTurn(ctx context.Context, job string, every time.Duration) (bool, error) {
	next := dbtime.In(s.db.Dialect(), every)
	result, err := s.db.ExecContext(ctx, "INSERT INTO outbox_jobs (name, due_at) VALUES (?, "+next+")"+
		" ON CONFLICT (name) DO UPDATE SET due_at = excluded.due_at WHERE outbox_jobs.due_at <= "+s.now(), job)
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n == 1, err
}

// GiveBackTurn makes a job due at once whose turn came to nothing.
func (s *Store) GiveBackTurn(ctx context.Context, job string) error {
	_, err := s.db.ExecContext(ctx, "UPDATE outbox_jobs SET due_at = "+s.now()+" WHERE name = ?", job)
	return err
}

// A purge steps through the table so that others hardly notice.
const (
	// purgeFirst is how many rows its first step looks at, before it knows how long
	// that takes.
	purgeFirst = 500
	// purgeLeast is how many rows a step is made to look at by being slow: with
	// fewer it would hardly be faster.
	purgeLeast = 250
	// purgeTarget is how long a step should take; its size follows.
	purgeTarget = 25 * time.Millisecond
	// purgeRest is how many times as long as a step the pause behind it is.
	purgeRest = 3
	// purgeLimit is when PostgreSQL ends a statement of it that takes longer
	// all the same.
	purgeLimit = 200 * time.Millisecond
)

// Purge removes finished rows that have expired and says how many, also with an
// error. Rows that are not finished have no expiry, and neither have held ones:
// they stay until an operator decides, since what holding promises is about rows
// that are yet to come. What r keeps for ever stays, whatever an earlier setting
// has written on it, and so does what a target that is joining may need.
//
// It is done in steps of at most r.Batch rows, each a transaction of its own that
// is over within a fraction of a second, with a pause of three times as long
// behind it. Rows that somebody has locked are left for the next time. It begins
// no step later than r.Every, when the next one's turn comes.
func (s *Store) Purge(ctx context.Context, r Retention) (p Purged, err error) {
	r = Config{Retention: r}.WithDefaults().Retention
	end := time.Now().Add(cmp.Or(max(r.Every, 0), math.MaxInt64))
	if r.Abandoned >= 0 {
		if p.Abandoned, err = s.walk(ctx, s.expired(abandonedRows), r.Batch, end); err != nil {
			return p, err
		}
	}
	if r.Delete || r.Published >= 0 {
		p.Published, err = s.walk(ctx, s.expired(publishedRows), r.Batch, end)
	}
	return p, err
}

// expirable are rows of which some may have expired.
type expirable struct {
	among  string // which rows are walked, by an index in the order of seq
	status Status // which of them may be removed
	// inTurn says that they expire about in the order of seq: the walk ends at the
	// first page of which none has.
	inTurn bool
	// expires and expired are conditions for those that will be removed one day, and
	// for those that may be now.
	expires, expired string
	operator         *cleaning // who asks for it; nil: nobody, it is housekeeping
}

// expired gives every row its own expiry.
func (s *Store) expired(e expirable) expirable {
	e.expires, e.expired = "expires_at IS NOT NULL", "expires_at <= "+s.now()
	return e
}

// Published rows are walked in the table itself: an index of their own is one
// that every settle would have to keep.
var (
	abandonedRows = expirable{among: " AND " + givenUp, status: Abandoned}
	publishedRows = expirable{status: Published, inTurn: true}
)

// walk removes what has expired, step by step.
//
// Rows that were removed and not vacuumed yet are still passed, at the low end by
// each walk, and a limit on rows doesn't bound how many. After a step that took
// too long the walk therefore goes on by ranges of seq, until it meets rows again.
func (s *Store) walk(ctx context.Context, e expirable, batch int, end time.Time) (removed int, err error) {
	size := min(batch, purgeFirst)
	var after, span int64 // span is 0: no range
	for time.Now().Before(end) {
		begin := time.Now()
		found, err := s.step(ctx, e, after, span, size)
		took := time.Since(begin)
		removed += found.removed
		switch {
		case ended(err) && (size > 1 || span != 1):
			size = max(size/2, 1)
			span = int64(size)
		case err != nil:
			return removed, err
		case span == 0 && found.rows < size, e.inTurn && found.expired == nil && found.young:
			return removed, nil
		case found.rows > 0:
			if after = after + span; span == 0 || found.rows == size {
				after = found.last
			}
			span = 0
		default:
			if after, span = after+span, 2*span; span > math.MaxInt32 {
				span = 0 // wide enough to have passed all that was removed
			}
		}
		switch {
		case err != nil:
		case took > purgeTarget:
			size = max(size/2, min(size, purgeLeast))
			if span > 0 {
				span = max(span/4, 1)
			}
		case took < purgeTarget/2:
			size = min(2*size, batch)
		}
		if err := rest(ctx, purgeRest*took); err != nil {
			return removed, err
		}
	}
	return removed, nil
}

// stretch is what a step found.
type stretch struct {
	rows    int
	last    int64 // seq of the last of them
	expired []int64
	young   bool // there are rows that will expire
	removed int
}

// step looks at the rows behind a seq, and removes those that have expired. On
// SQLite only the second takes the writer.
func (s *Store) step(ctx context.Context, e expirable, after, span int64, size int) (p stretch, err error) {
	var action int64
	db := s.db
	if s.sqlite() {
		if p, err = s.examine(ctx, s.reader, e, after, span, size); err != nil || p.expired == nil {
			return p, err
		}
	}
	if e.operator.counts() {
		db = s.reader
	}
	err = s.inTx(ctx, db, func(tx bun.Tx) error {
		if !s.sqlite() {
			limits := fmt.Sprintf("SELECT set_config('statement_timeout', '%d', true), set_config('lock_timeout', '%d', true)", purgeLimit.Milliseconds(), purgeLimit.Milliseconds()/2)
			if _, err := tx.ExecContext(ctx, limits); err != nil {
				return err
			}
			if p, err = s.examine(ctx, tx, e, after, span, size); err != nil || p.expired == nil {
				return err
			}
		}
		p.removed, err = s.remove(ctx, tx, e, p.expired)
		if err == nil && p.removed > 0 {
			action, err = e.operator.note(ctx, tx, p.removed)
		}
		return err
	})
	if err != nil {
		p.removed = 0
	}
	e.operator.removed(e.status, p.removed, action)
	return p, err
}

func (s *Store) examine(ctx context.Context, db bun.IDB, e expirable, after, span int64, size int) (p stretch, err error) {
	bound := ""
	if span > 0 {
		bound = fmt.Sprintf(" AND seq <= %d", after+span)
	}
	err = dbrows.Each(ctx, db, fmt.Sprintf("SELECT seq, status = '%s' AND %s, COALESCE(%s, FALSE) FROM outbox WHERE seq > %d%s%s ORDER BY seq LIMIT %d",
		e.status, e.expires, e.expired, after, bound, e.among, size), func(scan func(...any) error) error {
		var expires, expired bool
		err := scan(&p.last, &expires, &expired)
		p.rows++
		if expires && expired {
			p.expired = append(p.expired, p.last)
		}
		p.young = p.young || expires && !expired
		return err
	})
	return p, err
}

// remove looks again at each row, since an operator may have changed it, and
// waits for none.
func (s *Store) remove(ctx context.Context, tx bun.Tx, e expirable, seqs []int64) (int, error) {
	these := fmt.Sprintf(" FROM outbox WHERE seq IN (%s) AND status = '%s' AND NOT held AND finished_at IS NOT NULL AND %s AND %s", list(seqs), e.status, e.expired, removable)
	if e.operator.counts() {
		var n int
		err := tx.QueryRowContext(ctx, "SELECT count(*)"+these).Scan(&n)
		return n, err
	}
	query := "DELETE" + these
	if !s.sqlite() {
		query = "DELETE FROM outbox WHERE ctid = ANY (ARRAY(SELECT ctid" + these + " FOR UPDATE SKIP LOCKED))"
	}
	result, err := tx.ExecContext(ctx, query)
	if err != nil {
		return 0, err
	}
	n, err := result.RowsAffected()
	return int(n), err
}

// ended says whether PostgreSQL ended a statement because it took too long.
func ended(err error) bool {
	var state interface{ SQLState() string }
	return errors.As(err, &state) && state.SQLState() == "57014"
}

func rest(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
