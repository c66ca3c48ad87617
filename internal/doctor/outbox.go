package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/liveness"
	"github.com/waybill-go/waybill/internal/outboxdb"
)

// waiting are the targets that have unfinished rows. It steps through an index,
// whatever their number.
const waiting = "WITH RECURSIVE t(target) AS ((SELECT target_broker FROM outbox WHERE finished_at IS NULL ORDER BY target_broker LIMIT 1)" +
	" UNION ALL SELECT (SELECT o.target_broker FROM outbox AS o WHERE o.finished_at IS NULL AND o.target_broker > t.target ORDER BY o.target_broker LIMIT 1)" +
	" FROM t WHERE t.target IS NOT NULL) SELECT target FROM t WHERE target IS NOT NULL"

// In SQLite a part of a union has no LIMIT of its own.
const waitingSQLite = "WITH RECURSIVE t(target) AS (SELECT min(target_broker) FROM outbox WHERE finished_at IS NULL" +
	" UNION ALL SELECT (SELECT min(o.target_broker) FROM outbox AS o WHERE o.finished_at IS NULL AND o.target_broker > t.target)" +
	" FROM t WHERE t.target IS NOT NULL) SELECT target FROM t WHERE target IS NOT NULL"

func (e *exam) waiting(ctx context.Context, db bun.IDB) (targets []string, err error) {
	query := waitingSQLite
	if e.postgres() {
		query = waiting
	}
	err = dbrows.Each(ctx, db, query, func(scan func(...any) error) error {
		var target string
		err := scan(&target)
		targets = append(targets, target)
		return err
	})
	return targets, err
}

// lanes looks for rows that nobody publishes.
func (e *exam) lanes(ctx context.Context, db bun.IDB) (string, error) {
	targets, err := e.waiting(ctx, db)
	if err != nil {
		return "", err
	}
	for _, target := range targets {
		var live bool
		err := db.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM outbox_partitions WHERE target_broker = ? AND locked_until > "+e.now()+")", target).Scan(&live)
		if err != nil {
			return "", err
		}
		if live {
			continue
		}
		var n int64
		var age float64
		err = db.QueryRowContext(ctx, "SELECT count(*), "+dbtime.Seconds(db.Dialect(), "min(created_at)", e.now())+" FROM outbox WHERE finished_at IS NULL AND target_broker = ? HAVING count(*) > 0", target).Scan(&n, &age)
		if err != nil {
			return "", err
		}
		severity := Warning
		if oldest := seconds(age); oldest >= e.limits.waiting {
			severity = Critical
		}
		e.add(severity, "target broker "+target, fmt.Sprintf("%s, the oldest for %v, and no processor holds a lease: nobody publishes", count(n, "row")+" wait", seconds(age)),
			"start an engine that has this broker; if one runs, its log and /readyz say what keeps it")
	}
	return "every target broker with unfinished rows has a processor", nil
}

func seconds(s float64) time.Duration {
	return max(time.Duration(s*float64(time.Second)), 0).Round(time.Second)
}

// targets looks for rows for brokers that no context sends to, and for brokers that
// were left joining.
func (e *exam) targets(ctx context.Context, db bun.IDB) (string, error) {
	waiting, err := e.waiting(ctx, db)
	if err != nil {
		return "", err
	}
	contexts, err := outboxdb.ReadTargets(ctx, db)
	if err != nil {
		return "", err
	}
	var known []string
	for _, name := range slices.Sorted(maps.Keys(contexts)) {
		t := contexts[name]
		known = append(append(known, t.Broker), t.External...)
		for _, j := range t.Joining {
			e.add(Warning, "target broker "+j, "it is joining the brokers of context "+name+": it gets no event, and nothing new is removed from the outbox", "waybill outbox backfill "+j)
		}
	}
	for _, target := range waiting {
		if !slices.Contains(known, target) {
			e.add(Warning, "target broker "+target, "rows wait for it, and no context of this database sends to it", "let an engine that has this broker publish them, or give them up: waybill outbox abandon --target "+target)
		}
	}
	return "every row is for a broker that a context sends to", nil
}

// leases looks for rows in the hand of workers that are gone, and for rows that wait
// for the leases of processes that have ended on this host.
func (e *exam) leases(ctx context.Context, db bun.IDB) (string, error) {
	waiting, err := e.waiting(ctx, db)
	if err != nil {
		return "", err
	}
	type process struct{ target, name string }
	var dead []process
	held, until := map[process]int64{}, map[process]time.Time{}
	here := liveness.Here()
	err = dbrows.Each(ctx, db, "SELECT target_broker, locked_by, count(*), max(locked_until) FROM outbox_partitions WHERE locked_until > "+e.now()+" GROUP BY target_broker, locked_by ORDER BY target_broker, locked_by",
		func(scan func(...any) error) error {
			var target, worker string
			var n int64
			var end dbtime.Time
			err := scan(&target, &worker, &n, &end)
			if slices.Contains(waiting, target) && here.State(worker) == liveness.Dead {
				p := process{target, liveness.Process(worker)}
				if held[p] == 0 {
					dead = append(dead, p)
				}
				held[p] += n
				if end.Time.After(until[p]) {
					until[p] = end.Time
				}
			}
			return err
		})
	if err != nil {
		return "", err
	}
	for _, p := range dead {
		e.add(Warning, "target broker "+p.target, fmt.Sprintf("%s still held until %s by %s, whose process on this host is dead: their rows wait", count(held[p], "partition"), until[p].Format(time.RFC3339), p.name),
			"start an engine that has this broker: on this host it takes them over at once, on another when that time has come")
	}
	err = dbrows.Each(ctx, db, "SELECT o.target_broker, count(*), max(o.locked_by), max("+dbtime.Seconds(db.Dialect(), "COALESCE(p.locked_until, o.locked_until)", e.now())+")"+
		" FROM outbox AS o LEFT JOIN outbox_partitions AS p ON p.target_broker = o.target_broker AND p.partition = o.partition"+
		" WHERE o.finished_at IS NULL AND o.status = 'processing' AND (p.locked_until IS NULL OR p.locked_until < "+e.ago(e.limits.expired)+")"+
		" GROUP BY o.target_broker ORDER BY o.target_broker",
		func(scan func(...any) error) error {
			var target, worker string
			var n int64
			var since float64
			err := scan(&target, &n, &worker, &since)
			e.add(Warning, "target broker "+target, fmt.Sprintf("%s in the hand of workers whose lease ran out up to %v ago, such as %s", count(n, "row")+" still", seconds(since), worker),
				"an engine that has this broker takes them over by itself: start one, or see why those that run don't; waybill outbox list --stale shows the rows")
			return err
		})
	return "no row is in the hand of a worker whose lease has run out", err
}

// held looks for keys that wait for an operator.
func (e *exam) held(ctx context.Context, db bun.IDB) (string, error) {
	err := dbrows.Each(ctx, db, "SELECT target_broker, count(*) FROM outbox WHERE held GROUP BY target_broker ORDER BY target_broker",
		func(scan func(...any) error) error {
			var target string
			var n int64
			err := scan(&target, &n)
			e.add(Warning, "target broker "+target, count(n, "row")+" given up and held: what is behind them in their keys waits", "see them with waybill outbox list --held --target "+target+"; then waybill outbox retry or skip")
			return err
		})
	return "no key is held", err
}

// quarantine looks for rows that ended one process after the other.
func (e *exam) quarantine(ctx context.Context, db bun.IDB) (string, error) {
	err := dbrows.Each(ctx, db, "SELECT target_broker, count(*), max(losses), min(seq) FROM outbox WHERE finished_at IS NULL AND losses >= 2 GROUP BY target_broker ORDER BY target_broker",
		func(scan func(...any) error) error {
			var target string
			var n, losses, seq int64
			err := scan(&target, &n, &losses, &seq)
			e.add(Warning, "target broker "+target, fmt.Sprintf("%s in quarantine, the first with seq %d: up to %d processes in a row ended with it in hand", count(n, "row"), seq, losses),
				fmt.Sprintf("find out what ended these processes (waybill outbox show %d); each row goes alone from now on, and is abandoned after the fifth time, or max_attempts", seq))
			return err
		})
	return "no row is in quarantine", err
}

// retention looks at the oldest rows only: what never goes is among them.
func (e *exam) retention(ctx context.Context, db bun.IDB) (string, error) {
	var forever, overdue int64
	err := db.QueryRowContext(ctx, "SELECT count(CASE WHEN expires_at IS NULL THEN 1 END), count(CASE WHEN expires_at < "+e.ago(e.limits.overdue)+" THEN 1 END)"+
		" FROM (SELECT published_at, expires_at FROM outbox ORDER BY seq LIMIT 1000) AS oldest WHERE published_at IS NOT NULL").Scan(&forever, &overdue)
	if err != nil {
		return "", err
	}
	if forever > 0 {
		e.add(Warning, "table outbox", fmt.Sprintf("of the 1000 oldest rows, %d are published and never expire: the table grows without end", forever),
			"set outbox.retention.published, which is for rows to come; for those that are there: UPDATE outbox SET expires_at = "+e.now()+" WHERE status = 'published' AND expires_at IS NULL")
	}
	if overdue > 0 {
		e.add(Warning, "table outbox", fmt.Sprintf("of the 1000 oldest rows, %d expired more than %v ago and are still there: nobody cleans up", overdue, e.limits.overdue),
			"let an engine run whose outbox.retention.every is not -1, or call waybill outbox purge from a job; a broker that is joining keeps rows until its back-fill has ended")
	}
	return "published rows expire, and are removed", nil
}
