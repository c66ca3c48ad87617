package processdb

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/operate"
	"github.com/waybill-go/waybill/internal/timerdb"
	"github.com/waybill-go/waybill/process"
)

// lockWait is how long PostgreSQL waits for a process that hears something.
const lockWait = 5 * time.Second

// End is how an operator ends processes.
type End struct {
	// Retention is how long they are known afterwards, so that what comes too late for them
	// is ignored.
	Retention time.Duration
	Actor     string // For the record.
	DryRun    bool
	// Before leaves those that didn't begin before it, by the database's clock: with [Store.Time] of
	// before a dry run, what begins meanwhile stays. Zero: no bound.
	Before time.Time
}

// Changed is what a change came to.
type Changed struct {
	Changed int64 `json:"changed"`
	// Left don't run: they have ended, or have not begun.
	Left   int64 `json:"left"`
	Action int64 `json:"action"` // in outbox_actions; 0: nothing was changed
}

// End ends the running processes that a filter chooses, and stops their timers, each in a
// transaction of its own, which holds the process's row as that of a message does: a
// message that is being handled goes before, and later ones are ignored. What they have
// sent stays sent. It records who did it.
func (s *Store) End(ctx context.Context, f Filter, c End) (done Changed, err error) {
	const what = "processes: end"
	switch {
	case f.Empty():
		return done, errors.New(what + ": the filter is empty, so it chooses every process: say which")
	case c.Retention <= 0:
		return done, fmt.Errorf("%s: Retention is %v: it must be above 0", what, c.Retention)
	}
	run := &operate.Run{DB: s.provider.DB(), What: what, Done: "processes ended", DryRun: c.DryRun, LockWait: lockWait, Record: operate.Record{
		Table: "outbox_actions", Count: "rows", Actor: c.Actor, Action: "processes-end", Asked: struct {
			Filter
			Retention string `json:"retention"`
		}{f, c.Retention.String()},
	}}
	if err := run.Record.Check(what, c.DryRun); err != nil {
		return done, err
	}
	match, err := s.match(f)
	if err != nil {
		return done, err
	}
	if !c.Before.IsZero() { // What begins in the same millisecond, SQLite's unit, may not have been shown.
		match = bun.SafeQuery("? AND p.began_at < ?", match, dbtime.Value(s.db.Dialect(), c.Before))
	}
	var chosen []Process
	err = dbrows.Each(ctx, s.db, "SELECT "+columns+" FROM processes AS p WHERE ? ORDER BY p.began_at, p.process, p.id", func(scan func(...any) error) error {
		var p Process
		if err := p.scan(scan); err != nil {
			return err
		}
		if p.Status != Running {
			done.Left++
			return nil
		}
		chosen = append(chosen, p)
		return nil
	}, match)
	if err != nil {
		return done, fmt.Errorf("%s: %w", what, err)
	}
	if done.Changed = int64(len(chosen)); c.DryRun {
		return done, nil
	}
	err = s.endAll(ctx, run, chosen, match, c.Retention)
	done.Changed, done.Action = run.Changed, run.Action
	return done, err
}

// endAll ends them one by one, those that somebody has locked last: only then it waits.
func (s *Store) endAll(ctx context.Context, run *operate.Run, chosen []Process, match any, retention time.Duration) error {
	free := bun.SafeQuery("(process, id) IN (SELECT l.process, l.id FROM processes AS l WHERE l.process = p.process AND l.id = p.id FOR NO KEY UPDATE SKIP LOCKED)")
	if s.db.Dialect().Name() == dialect.SQLite {
		free = bun.SafeQuery("TRUE") // It has one writer.
	}
	for _, only := range []any{free, bun.Safe("TRUE")} {
		var left []Process
		for _, p := range chosen {
			before := run.Changed
			if err := run.Step(ctx, func(tx bun.Tx) (int64, error) {
				return end(ctx, tx, p, bun.SafeQuery("? AND ?", match, only), retention)
			}); err != nil {
				return err
			}
			if run.Changed == before {
				left = append(left, p)
			}
		}
		chosen = left
	}
	return nil
}

// end ends one, if it is still as it was chosen. Whoever has read the row before must see
// that it has changed, so its version does, too. Timers come behind the row, as in a
// unit of the process.
func end(ctx context.Context, tx bun.Tx, p Process, match any, retention time.Duration) (int64, error) {
	d := tx.Dialect()
	result, err := tx.ExecContext(ctx, "UPDATE processes AS p SET status = 'ended', version = version + 1, ended_at = ?, forget_at = ? WHERE process = ? AND id = ? AND status = 'running' AND ?",
		bun.Safe(dbtime.Now(d)), bun.Safe(dbtime.In(d, retention)), p.Process, p.ID, match)
	if err != nil {
		return 0, err
	}
	n, err := result.RowsAffected()
	if err != nil || n == 0 {
		return 0, err
	}
	_, err = tx.ExecContext(ctx, "?", timerdb.StopAll(process.Owner(p.Process, p.ID)))
	return n, err
}
