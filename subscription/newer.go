package subscription

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/processmsg"
)

// What a newer build has written, this one may not be able to read: an event's version,
// or what is stored of an aggregate or a process. Its message is parked, and its row says
// what a build needs to read. While builds of both kinds run:
//
//   - A runner whose build reads it marks the row for replay by itself, whenever it looks.
//   - Rows that need something are taken by such runners only. One of an old build would
//     park the row again, and so on for as long as both run.
//   - What is behind it in its key needs nothing as far as anybody knows. Whoever takes it
//     finds out, and if that is the old build the row says so from then on.
//
// needs stays in the row until it is parked for another reason, so a failed attempt is
// tried again by those who can.

// storedNeed begins what a build needs to read from the database, and not in a message.
const storedNeed = "stored:"

// unhandledError is a message that is this subscription's, as nobody else handles what comes or
// as a build of it has begun with it, and for which this build has no handler.
type unhandledError struct{ name string }

func (e *unhandledError) Error() string {
	return fmt.Sprintf("subscription: this build has no handler for %q, which this subscription is to handle: deploy a build that declares it, which then handles it by itself, or discard the message", e.name)
}

// marked is how many rows a runner marks at a time.
const marked = 500

// needOf is what a build needs to read, if err says that this one is too old for it; ""
// if it says something else. It is the error of a handler: what it met is stored.
func needOf(err error) string {
	if e, ok := errors.AsType[*domain.NewerStateError](err); ok {
		return storedNeed + e.Needs()
	}
	if e, ok := errors.AsType[*domain.UnknownEventError](err); ok && e.Newer() {
		return storedNeed + e.Name
	}
	if e, ok := errors.AsType[*processmsg.UnheardError](err); ok {
		return e.Needs()
	}
	if e, ok := errors.AsType[*unhandledError](err); ok {
		return storedNeed + e.name // which m.need finds to be the message's own
	}
	return ""
}

// need is what a message needs that is parked because of why.
func (m *message) need(why reason, cause error) any {
	need := ""
	if why == newerVersion {
		if need = needOf(cause); strings.TrimPrefix(need, storedNeed) == m.meta.Type {
			need = m.meta.Type
		}
	}
	return bun.NullZero(need)
}

// reads says whether this build reads what a row needs: in a message, if there is a
// handler for it, or a process that hears it.
func (r *Runner) reads(need string) bool {
	name, stored := strings.CutPrefix(need, storedNeed)
	return (stored || processmsg.IsNeed(name) || r.handles(name)) && r.stream.Units.Domain().Readable(name)
}

// needs are those of the open dead letters of the subscription. It steps through them by
// the index, however many rows have the same.
const needs = "WITH RECURSIVE n(needs) AS (SELECT min(needs) FROM dead_letters WHERE subscription = ?0 AND needs IS NOT NULL AND " + open +
	" UNION ALL SELECT (SELECT min(needs) FROM dead_letters WHERE subscription = ?0 AND needs > n.needs AND " + open + ") FROM n WHERE n.needs IS NOT NULL)" +
	" SELECT needs, EXISTS (SELECT 1 FROM dead_letters AS d WHERE d.subscription = ?0 AND d.needs = n.needs AND d." + open + " AND d.status = 'parked') FROM n WHERE needs IS NOT NULL"

// awaken marks for replay what older builds have parked and this one reads.
func (r *Runner) awaken(ctx context.Context) error {
	var able, parked []string
	err := dbrows.Each(ctx, r.provider.Reader(), needs, func(scan func(...any) error) error {
		var need string
		var some bool
		if err := scan(&need, &some); err != nil || !r.reads(need) {
			return err
		}
		able = append(able, need)
		if some {
			parked = append(parked, need)
		}
		return nil
	}, r.stream.Letters())
	if err != nil {
		return fmt.Errorf("subscription: look for what older builds have parked: %w", err)
	}
	r.letters.able.Store(&able)
	for _, need := range parked {
		n, err := r.letters.awaken(ctx, need)
		if err != nil {
			return err
		}
		if n > 0 {
			r.log.Info("messages that an older build has parked are handled now, as this one reads them", "messages", n, "needs", need)
			signal(r.woken)
		}
	}
	return nil
}

// awaken lets some parked rows be handled that need what this build reads.
func (h letters) awaken(ctx context.Context, need string) (int64, error) {
	lock := ""
	if h.provider.DB().Dialect().Name() == dialect.PG {
		lock = " FOR UPDATE SKIP LOCKED" // What an operator has just now is looked at again later.
	}
	result, err := h.provider.DB().ExecContext(ctx, "UPDATE dead_letters SET status = 'replay', due_at = NULL WHERE status = 'parked' AND seq IN"+
		" (SELECT seq FROM dead_letters WHERE subscription = ? AND needs = ? AND "+open+" AND status = 'parked' ORDER BY seq LIMIT ?"+lock+")", h.stream.Letters(), need, marked)
	if err != nil {
		return 0, fmt.Errorf("subscription: mark what this build reads: %w", err)
	}
	return result.RowsAffected()
}

// readable is the condition of a row that this build can handle, as far as it knows.
func (h letters) readable() any {
	able := h.able.Load()
	if able == nil || len(*able) == 0 {
		return bun.Safe("needs IS NULL")
	}
	return bun.SafeQuery("(needs IS NULL OR needs IN (?))", bun.List(*able))
}

// need notes what a build must know to handle one that is marked.
func (r *DeadLetterResult) need(what string) {
	what = strings.TrimPrefix(what, storedNeed)
	if what != "" && len(r.Needs) < maxHeads && !slices.Contains(r.Needs, what) {
		r.Needs = append(r.Needs, what)
	}
}
