package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/liveness"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/outbox"
)

// waiting are the targets that have undelivered rows, by name and number.
func (e *exam) waiting(ctx context.Context, db bun.IDB) (targets []string, lanes map[string]int64, err error) {
	lanes = map[string]int64{}
	err = dbrows.Each(ctx, db, "SELECT l.target, l.id FROM outbox_lanes AS l WHERE EXISTS (SELECT 1 FROM outbox_queue AS q WHERE q.lane = l.id) ORDER BY l.target",
		func(scan func(...any) error) error {
			var target string
			var id int64
			err := scan(&target, &id)
			targets, lanes[target] = append(targets, target), id
			return err
		})
	return targets, lanes, err
}

// lanes looks for rows that nobody publishes: of targets that no process has, and of
// partitions that nobody takes.
func (e *exam) lanes(ctx context.Context, db bun.IDB) (string, error) {
	targets, lanes, err := e.waiting(ctx, db)
	if err != nil {
		return "", err
	}
	for _, target := range targets {
		var live bool
		err := db.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM outbox_members WHERE lane = ? AND until > "+e.now()+")", lanes[target]).Scan(&live)
		if err == nil && live {
			err = errors.Join(e.ownerless(ctx, db, target, lanes[target]), e.short(ctx, db, target, lanes[target]), e.sick(ctx, db, target, lanes[target]))
		} else if err == nil {
			err = e.deserted(ctx, db, target, lanes[target])
		}
		if err != nil {
			return "", err
		}
	}
	if err := e.nameless(ctx, db); err != nil {
		return "", err
	}
	return "every target broker with undelivered rows has a process that publishes them", e.differing(ctx, db)
}

// differing tells of processes that mean other brokers by one target's name.
func (e *exam) differing(ctx context.Context, db bun.IDB) error {
	members := map[string][]outbox.Member{}
	err := dbrows.Each(ctx, db, "SELECT l.target, m.name, m.broker FROM outbox_members AS m JOIN outbox_lanes AS l ON l.id = m.lane WHERE m.broker IS NOT NULL AND m.until > "+e.now()+" ORDER BY m.since, m.member",
		func(scan func(...any) error) error {
			var target, name string
			var text []byte
			err := scan(&target, &name, &text)
			if m := (outbox.Member{Name: name}); json.Unmarshal(text, &m.Broker) == nil {
				members[target] = append(members[target], m)
			}
			return err
		})
	for _, target := range slices.Sorted(maps.Keys(members)) {
		if said := outbox.BrokersDiffer(members[target]); said != "" {
			e.add(Critical, "target broker "+target, "its processes publish to different brokers: "+said, "give this broker the same address and topic_prefix in the configuration files of all these processes, and restart those that are wrong")
		}
		if said := outbox.ExactlyOnceDiffers(members[target]); said != "" {
			e.add(Warning, "target broker "+target, "some of its processes publish in transactions, and others don't, whose messages can come more than once: "+said, "give this broker the same exactly_once in the configuration files of all these processes, and restart those that are wrong")
		}
	}
	return err
}

// deserted tells of a target that no process has.
func (e *exam) deserted(ctx context.Context, db bun.IDB, target string, lane int64) error {
	return e.stuck(ctx, db, target, lane, "no process holds a lease: nothing is published", "start an engine that has this broker; if one runs, its log and /readyz say what keeps it")
}

// stuck tells of all rows of a target that none is published, and why.
func (e *exam) stuck(ctx context.Context, db bun.IDB, target string, lane int64, why, remedy string) error {
	return dbrows.Each(ctx, db, "SELECT w.n, "+dbtime.Seconds(db.Dialect(), "b.created_at", e.now())+
		" FROM (SELECT count(*) AS n, min(seq) AS seq FROM outbox_queue WHERE lane = ?) AS w JOIN outbox_messages AS b ON b.seq = w.seq",
		func(scan func(...any) error) error {
			var n int64
			var age float64
			err := scan(&n, &age)
			severity := Warning
			if seconds(age) >= e.limits.waiting {
				severity = Critical
			}
			e.add(severity, "target broker "+target, fmt.Sprintf("%s wait, the oldest for %v, and %s", count(n, "row"), seconds(age), why), e.unlessMoved(remedy))
			return err
		}, lane)
}

// ownerless tells of partitions that nobody takes, though there are processes that
// could. One that changes hands is nobody's for a moment.
func (e *exam) ownerless(ctx context.Context, db bun.IDB, target string, lane int64) error {
	return dbrows.Each(ctx, db, "SELECT count(*), COALESCE(max("+dbtime.Seconds(db.Dialect(), "b.created_at", e.now())+"), 0) FROM ("+
		"SELECT p.part, (SELECT min(q.seq) FROM outbox_queue AS q WHERE q.lane = p.lane AND q.part = p.part) AS seq"+
		" FROM outbox_partitions AS p WHERE p.lane = ? AND p.owner IS NULL) AS w"+
		" JOIN outbox_messages AS b ON b.seq = w.seq WHERE b.created_at < "+e.ago(e.limits.waiting),
		func(scan func(...any) error) error {
			var n int64
			var age float64
			err := scan(&n, &age)
			if n > 0 {
				e.add(Critical, "target broker "+target, fmt.Sprintf("rows wait in %s without an owner, the oldest for %v, although processes run: these are not published", count(n, "partition"), seconds(age)),
					"see in the log and /readyz of the processes that have this broker what keeps them from taking partitions; waybill partitions shows who has which")
			}
			return err
		}, lane)
}

func seconds(s float64) time.Duration {
	return max(time.Duration(s*float64(time.Second)), 0).Round(time.Second)
}

// targets looks for rows for brokers that no context sends to, and for brokers that
// were left joining.
func (e *exam) targets(ctx context.Context, db bun.IDB) (string, error) {
	waiting, _, err := e.waiting(ctx, db)
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
		if t.History == outbox.HistoryStarting {
			e.add(Warning, "context "+name, "its history is about to begin, and until then its events are not kept: this takes seconds while an engine runs", "start an engine of the context")
		}
		for _, j := range t.Joining {
			e.add(Warning, "target broker "+j, "it is joining the brokers of context "+name+": it gets no event, and nothing new is removed from the outbox", "waybill outbox backfill "+j)
		}
	}
	for _, target := range waiting {
		if !slices.Contains(known, target) {
			e.add(Warning, "target broker "+target, "rows wait for it, and no context of this database sends to it", "have its context send to it until engines have published them (waybill migrate --set-targets), or give them up: waybill outbox abandon --target "+target)
		}
	}
	return "every row is for a broker that a context sends to", nil
}

// leases looks for processes that are not heard of and hold partitions or rows, and
// for rows that wait for the leases of processes that have ended on this host.
func (e *exam) leases(ctx context.Context, db bun.IDB) (string, error) {
	waiting, _, err := e.waiting(ctx, db)
	if err != nil {
		return "", err
	}
	here := liveness.Here()
	err = dbrows.Each(ctx, db, "SELECT l.target, m.name, m.until, COALESCE(m.until > "+e.now()+", FALSE), COALESCE(m.until < "+e.ago(e.limits.expired)+", FALSE), "+
		dbtime.Seconds(db.Dialect(), "m.until", e.now())+","+
		" (SELECT count(*) FROM outbox_partitions AS p WHERE p.lane = m.lane AND p.owner = m.member),"+
		" (SELECT count(*) FROM outbox_claims AS c WHERE c.member = m.member)"+
		" FROM outbox_members AS m JOIN outbox_lanes AS l ON l.id = m.lane ORDER BY l.target, m.since, m.member",
		func(scan func(...any) error) error {
			var target, name string
			var until dbtime.Time
			var lives, expired bool
			var since float64
			var parts, claims int64
			err := scan(&target, &name, &until, &lives, &expired, &since, &parts, &claims)
			switch {
			case err != nil || parts+claims == 0:
			case lives && slices.Contains(waiting, target) && here.State(name) == liveness.Dead:
				e.add(Warning, "target broker "+target, fmt.Sprintf("%s still held until %s by %s, whose process on this host is dead: their rows wait", count(parts, "partition"), until.Time.Format(time.RFC3339), name),
					"start an engine that has this broker: on this host it takes them over at once, on another when that time has come")
			case expired:
				e.add(Warning, "target broker "+target, fmt.Sprintf("%s and %s still held by %s, whose lease expired %v ago", count(parts, "partition"), count(claims, "claim"), name, seconds(since)),
					"an engine that has this broker takes them over by itself: start one, or see why those that run don't; waybill outbox list --stale shows the rows")
			}
			return err
		})
	return "nothing is held by a process whose lease has expired", err
}

// held looks for keys that wait for an operator.
func (e *exam) held(ctx context.Context, db bun.IDB) (string, error) {
	err := dbrows.Each(ctx, db, "SELECT l.target, count(*) FROM outbox_queue AS q JOIN outbox_lanes AS l ON l.id = q.lane WHERE q.held GROUP BY l.target ORDER BY l.target",
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
	err := dbrows.Each(ctx, db, "SELECT l.target, count(*), max(q.losses), min(q.seq) FROM outbox_queue AS q JOIN outbox_lanes AS l ON l.id = q.lane WHERE q.losses >= 2 GROUP BY l.target ORDER BY l.target",
		func(scan func(...any) error) error {
			var target string
			var n, losses, seq int64
			err := scan(&target, &n, &losses, &seq)
			e.add(Warning, "target broker "+target, fmt.Sprintf("%s in quarantine, the first with seq %d: up to %d processes in a row died while publishing it", count(n, "row"), seq, losses),
				fmt.Sprintf("find out what ended these processes (waybill outbox show %d); each row goes alone from now on, and is abandoned after the fifth time", seq))
			return err
		})
	return "no row is in quarantine", err
}

// retention looks at the oldest of the log only: what never goes is among it.
func (e *exam) retention(ctx context.Context, db bun.IDB) (string, error) {
	keep, err := outboxdb.ReadRetention(ctx, db)
	if err != nil {
		return "", err
	}
	var all, overdue int64
	err = db.QueryRowContext(ctx, "SELECT COALESCE(sum(published), 0), COALESCE(sum(CASE WHEN at < "+e.ago(max(keep.Published, 0)+e.limits.overdue)+" THEN published END), 0)"+
		" FROM (SELECT at, published FROM outbox_log ORDER BY id LIMIT 1000) AS oldest").Scan(&all, &overdue)
	switch {
	case err != nil:
		return "", err
	case keep.Published < 0 && all > 0:
		e.add(Warning, "table outbox_messages", "published rows never expire, and there are some: the tables grow without end",
			"set outbox.retention.published: the engines then remove those that are there, too")
	case keep.Published >= 0 && overdue > 0:
		e.add(Warning, "table outbox_messages", fmt.Sprintf("%s expired more than %v ago, among the oldest, and still there: no clean-up runs", count(overdue, "published row"), e.limits.overdue),
			"let an engine run whose outbox.retention.every is not -1, or call waybill outbox purge from a job; a broker that is joining keeps rows until its back-fill has ended")
	}
	return "published rows expire, and are removed", nil
}

// reconcile is what helps against what no step leaves behind: it is there after a
// part of the tables was restored, or changed by hand. {log} is the numbers in outbox_log.
var reconcile = map[string]string{
	"lost": "find out who emptied or restored a part of these tables; stop the engines of this database, and keep a copy of it; then queue the events again: " +
		"INSERT INTO outbox_queue (lane, part, seq, key, topic, class, bytes) SELECT lane, part, seq, key, topic_hash, CASE WHEN priority > 0 THEN 1 WHEN priority < 0 THEN -1 ELSE 0 END, bytes FROM outbox_messages WHERE seq IN " +
		"(SELECT seq FROM outbox_messages EXCEPT SELECT seq FROM outbox_queue EXCEPT SELECT seq FROM outbox_abandoned EXCEPT {log}); and start them. " +
		"They are published in the order of their keys, but behind what has been published since; and where outbox_log or outbox_abandoned was emptied, what these had is published once more, under the same ids. `waybill outbox show SEQ` has one of them",
	"bodies": "find out who removed rows of outbox_messages, or restored tables without it. Without its body an event can't be published, and its key goes on without it. Where a backup has the bodies, stop the engines, put them back under their seq (INSERT INTO outbox_messages … OVERRIDING SYSTEM VALUE), and start them. " +
		"Where none has, give the events up: DELETE FROM outbox_queue WHERE NOT EXISTS (SELECT 1 FROM outbox_messages AS b WHERE b.lane = outbox_queue.lane AND b.part = outbox_queue.part AND b.seq = outbox_queue.seq AND b.key = outbox_queue.key); " +
		"a context that has a history publishes them again with `waybill history republish`",
	"claims": "stop the engines of this database; DELETE FROM outbox_claims WHERE member NOT IN (SELECT member FROM outbox_members); start them",
	"owners": "UPDATE outbox_partitions SET owner = NULL WHERE owner NOT IN (SELECT member FROM outbox_members)",
}

// accounts proves that each event is queued, was given up or was published, and that
// what is in hand is in somebody's. It reads all of the tables, as far as the time
// lets it.
func (e *exam) accounts(ctx context.Context, db bun.IDB) (string, error) {
	limited := ctx
	if e.postgres() {
		// The server ends a statement itself: a connection whose context ends is closed.
		// All is read, so without indexes.
		each := max(e.limits.integrity/5, time.Millisecond)
		if _, err := db.ExecContext(ctx, "SELECT set_config('enable_seqscan', 'on', true), set_config('statement_timeout', ?, true)", strconv.FormatInt(each.Milliseconds(), 10)); err != nil {
			return "", err
		}
	} else {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, e.limits.integrity)
		defer cancel()
	}
	found, err := outboxdb.Contradictions(limited, db)
	const ended = "57014" // PostgreSQL has, by statement_timeout
	switch {
	case err != nil && ctx.Err() == nil && (limited.Err() != nil || dberr.CodeOf(err) == ended):
		return "there are too many events to account for each within seconds: nothing is known to be wrong", nil
	case err != nil:
		return "", err
	}
	for _, c := range found {
		remedy, ok := reconcile[c.Check]
		if !ok {
			remedy = "keep a copy of the database, find out who changed or restored a part of these tables, and restore all of them together; `waybill outbox show SEQ` says what is left of an event"
		}
		logged := "SELECT j.value FROM outbox_log AS g, json_each(g.seqs) AS j"
		if e.postgres() {
			logged = "SELECT unnest(seqs) FROM outbox_log"
		}
		remedy = strings.Replace(remedy, "{log}", logged, 1)
		e.add(Critical, "tables outbox_…", fmt.Sprintf("%s: %d, such as %s", c.What, c.Rows, strings.Trim(fmt.Sprint(c.Examples), "[]")), remedy)
	}
	return "each event is queued, given up or published", nil
}
