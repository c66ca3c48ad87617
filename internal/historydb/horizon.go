package historydb

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
)

// Horizon is the position up to which nothing appears any more. The zero value knows
// none. It is used by one goroutine at a time.
//
// A position is drawn by an INSERT, which has locked its table by then, and seen after
// the commit, which is over before that lock is gone. So who has drawn a position below
// the highest one that a snapshot shows, and isn't seen in it, had its lock when that
// snapshot was made: either it is among those who have a lock afterwards, or it has
// ended since, and a later snapshot shows what it has committed. When those have ended,
// too, a later snapshot shows everything up to that position that will ever be there.
//
// Nobody else is waited for: no transaction that has written only to other tables, or
// is idle, or belongs to another database, and no number that was drawn in vain.
type Horizon struct {
	upTo    int64
	noted   int64    // the highest position that was seen
	writers []string // transactions that may have lower ones, and were open afterwards
}

// selectHorizon has its snapshot before it calls pg_locks, which shows what is the case then.
const selectHorizon = `SELECT greatest(coalesce((SELECT position FROM history ORDER BY position DESC LIMIT 1), 0),
	coalesce((SELECT position FROM events ORDER BY position DESC LIMIT 1), 0)),
	coalesce((SELECT string_agg(virtualtransaction, ',') FROM pg_locks
	WHERE locktype = 'relation' AND granted AND mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
		AND relation IN ('history'::regclass, 'events'::regclass) AND pid IS DISTINCT FROM pg_backend_pid()), '')`

// Advance looks how far the horizon is now, and returns it. It doesn't wait: as long as
// a transaction that it has noted is open, the horizon stays. db is in no transaction,
// or in one that is READ COMMITTED.
func (h *Horizon) Advance(ctx context.Context, db bun.IDB) (int64, error) {
	if sqlite(db) { // One writer: positions are in the order of commits.
		head, err := Head(ctx, db)
		h.upTo = max(h.upTo, head)
		return h.upTo, err
	}
	var highest int64
	var open string
	if err := db.QueryRowContext(ctx, selectHorizon).Scan(&highest, &open); err != nil {
		return 0, fmt.Errorf("history: look who writes: %w", err)
	}
	var writers []string
	if open != "" {
		writers = strings.Split(open, ",")
	}
	// What was noted before counts once its transactions have ended; and at once what is
	// noted now, if nobody writes.
	for range 2 {
		h.writers = slices.DeleteFunc(h.writers, func(w string) bool { return !slices.Contains(writers, w) })
		if len(h.writers) > 0 {
			break
		}
		h.upTo = max(h.upTo, h.noted)
		h.noted, h.writers = highest, slices.Clone(writers)
	}
	return h.upTo, nil
}

// Writer is an open transaction that has written events. What this role may not see of it
// is empty.
type Writer struct {
	PID         int // 0: it is prepared, and has no session.
	Prepared    string
	Application string
	User        string
	State       string
	Since       time.Time
}

// selectWriters finds sessions, and transactions that are prepared, by what pg_locks calls
// them. One that is prepared is known by the lock of its number: it keeps the name of the session
// that it was begun in, until the server starts again. At most ten: the oldest is the one to ask
// about.
const selectWriters = `SELECT coalesce(l.pid, 0), coalesce(p.gid, ''), coalesce(a.application_name, ''), coalesce(a.usename::text, p.owner::text, ''), coalesce(a.state, ''),
	coalesce(a.xact_start, p.prepared)
	FROM (SELECT DISTINCT virtualtransaction, pid FROM pg_locks WHERE locktype = 'relation' AND granted AND virtualtransaction IN (?)) AS l
	LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
	LEFT JOIN pg_prepared_xacts AS p ON l.pid IS NULL AND EXISTS (SELECT FROM pg_locks AS own
		WHERE own.locktype = 'transactionid' AND own.granted AND own.pid IS NULL AND own.virtualtransaction = l.virtualtransaction AND own.transactionid = p.transaction)
	ORDER BY 6 NULLS LAST, 1 LIMIT 10`

// Writers says who the transactions of [Page].Writers are that are still open, the oldest
// first, at most ten.
func Writers(ctx context.Context, db bun.IDB, transactions []string) (all []Writer, err error) {
	if len(transactions) == 0 || sqlite(db) {
		return nil, nil
	}
	err = dbrows.Each(ctx, db, selectWriters, func(scan func(...any) error) error {
		var w Writer
		var since dbtime.Time
		err := scan(&w.PID, &w.Prepared, &w.Application, &w.User, &w.State, &since)
		w.Since = since.Time
		all = append(all, w)
		return err
	}, bun.List(transactions))
	if err != nil {
		return nil, fmt.Errorf("history: look who the transactions are that have written events: %w", err)
	}
	return all, nil
}
