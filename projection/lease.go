package projection

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/uow"
)

var (
	// errFenced is a lease that another process has by now, or that was taken away.
	errFenced = errors.New("projection: another process has the lease")
	// errUndone is a position that was committed, and that the database doesn't have any more:
	// it was restored, or a standby took over that had not got it. What is known of the history
	// is then of another one: numbers of events may be given again.
	errUndone = fmt.Errorf("%w, or the database was restored: its position is behind what was committed", errFenced)
	// errNewer is an event that a newer build has written. The lease is given back, for a process
	// that reads it; without one, this process takes it again when the event is to be retried.
	errNewer = errors.New("projection: a newer build has written the event")
	// errMoved is a position that has moved under the lease that this process still has.
	errMoved = errors.New("projection: an earlier commit, whose answer was lost, has taken effect after all; it continues from there")
)

// lease is the right to feed a shard of a build.
type lease struct {
	projection string
	build      int
	shard      int
	fence      int64
}

func (l lease) where() schema.QueryAppender {
	return bun.SafeQuery("projection = ? AND build = ? AND shard = ? AND fence = ?", l.projection, l.build, l.shard, l.fence)
}

// leased is the condition of a position whose lease somebody has. One that ends later than any
// can is from when the database's clock was wrong.
func leased(d schema.Dialect) string {
	return "(locked_until > " + dbtime.Now(d) + " AND locked_until <= " + dbtime.In(d, longestLease) + ")"
}

// take takes a shard's lease, if nobody has it, or one that is known to be dead; "": nobody is.
func take(ctx context.Context, p uow.Provider, name string, build, shard int, owner, dead string, length time.Duration) (l lease, position int64, failure Failure, ok bool, err error) {
	d := p.DB().Dialect()
	l = lease{projection: name, build: build, shard: shard}
	var at, next dbtime.Time
	err = dbrows.Each(ctx, p.DB(), "UPDATE projection_positions SET owner = ?, fence = fence + 1, held_since = NULL, held_by = NULL, locked_until = "+dbtime.In(d, length)+
		" WHERE projection = ? AND build = ? AND shard = ? AND (NOT "+leased(d)+" OR owner = ? AND owner <> '') RETURNING fence, position, tries, coalesce(error, ''), failed_at, next_at",
		func(scan func(...any) error) error {
			ok = true
			return scan(&l.fence, &position, &failure.Tries, &failure.Error, &at, &next)
		}, owner, name, build, shard, dead)
	failure.Since, failure.NextAt = at.Time, next.Time
	if err != nil {
		return l, 0, failure, false, fmt.Errorf("projection %s: take the lease of build %d: %w", name, build, err)
	}
	return l, position, failure, ok, nil
}

// renew lengthens a lease, and says how fast it goes, and whom it waits for.
func (l lease) renew(ctx context.Context, p uow.Provider, length time.Duration, s shard) error {
	return l.lasts(ctx, p, length, s, "")
}

// giveBack lets others have the lease at once. again says whether this process comes back to the
// event that has failed.
func (l lease) giveBack(ctx context.Context, p uow.Provider, s shard, again bool) error {
	if again {
		return l.lasts(ctx, p, 0, s, "")
	}
	return l.lasts(ctx, p, 0, s, ", next_at = NULL")
}

func (l lease) lasts(ctx context.Context, p uow.Provider, length time.Duration, s shard, more string) error {
	d, since := p.DB().Dialect(), "NULL"
	if len(s.heldBy) > 0 {
		since = dbtime.In(d, -time.Since(s.heldSince))
	}
	position, err := int64(0), sql.ErrNoRows
	wrong := dbrows.Each(ctx, p.DB(), "UPDATE projection_positions SET per_second = ?, closing = ?, held_by = ?, held_since = "+since+", locked_until = "+dbtime.In(d, length)+more+" WHERE ? RETURNING position",
		func(scan func(...any) error) error {
			err = nil
			return scan(&position)
		},
		s.perSecond, s.closing, bun.NullZero(strings.Join(s.heldBy, ",")), l.where())
	return l.found(position, s.position, "renew the lease", cmp.Or(wrong, err))
}

// advance is the statement that a commit begins with: it locks the position, and changes
// no row if the lease is another's by now, or the position isn't where the batch begins. The
// fence alone would let a commit whose answer was lost, and which the server does later, take
// effect beside the one that was made in its place.
func (l lease) advance(p uow.Provider, length time.Duration, from int64, s shard) uow.Statement {
	return uow.Statement{
		Query: bun.SafeQuery("UPDATE projection_positions SET position = ?, at_head = ?, events = events + ?, per_second = ?, closing = ?, held_since = NULL, held_by = NULL, locked_until = "+dbtime.In(p.DB().Dialect(), length)+
			", tries = 0, failed_at = NULL, failed_position = NULL, failed_event = NULL, next_at = NULL, error = NULL WHERE ? AND position = ?",
			s.position, s.atHead, s.events, s.perSecond, s.closing, l.where(), from),
		Rows: 1, Else: errFenced,
	}
}

// position is what the database has, if the lease is still this one. It isn't below what was
// committed.
func (l lease) position(ctx context.Context, p uow.Provider, committed int64) (position int64, err error) {
	err = p.DB().NewRaw("SELECT position FROM projection_positions WHERE ?", l.where()).Scan(ctx, &position)
	return position, l.found(position, committed, "read the position", err)
}

// found says what it means where the row of a lease is, or that there is none.
func (l lease) found(position, committed int64, what string, err error) error {
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return errFenced
	case err != nil:
		return fmt.Errorf("projection %s: %s of build %d: %w", l.projection, what, l.build, err)
	case position < committed:
		return errUndone
	}
	return nil
}

// fail notes that the event behind a position has failed, if that is still where it stands: a
// note that the server does late, when the event has been handled, would have an operator skip
// it, back to before what came next.
func (l lease) fail(ctx context.Context, p uow.Provider, length, again time.Duration, from int64, e *HandlerError) error {
	d := p.DB().Dialect()
	_, err := p.DB().ExecContext(ctx, "UPDATE projection_positions SET tries = tries + 1, failed_at = coalesce(failed_at, "+dbtime.Now(d)+"), failed_position = ?, failed_event = ?,"+
		" next_at = "+dbtime.In(d, again)+", error = ?, at_head = FALSE, per_second = 0, closing = 0, held_since = NULL, held_by = NULL, locked_until = "+dbtime.In(d, length)+" WHERE ? AND position = ?",
		e.Position, dberr.Clip(strings.TrimSpace(e.Type+" "+e.ID)), dberr.Clip(e.Err.Error()), l.where(), from)
	if err != nil {
		return fmt.Errorf("projection %s: note that build %d has stopped: %w", l.projection, l.build, err)
	}
	return nil
}
