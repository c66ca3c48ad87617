package subscription

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/operate"
)

const (
	actionPurge = "purge"
	// overAt is when a dead letter was over, of one that is: its replay is its last
	// attempt.
	overAt = "COALESCE(discarded_at, last_at)"
	// isOver is of dead letters that are over.
	isOver = "status IN ('replayed', 'discarded')"
	// isRemovable is of those that may be removed: nothing of their key waits for them, and
	// no runner has them.
	isRemovable = "(" + isOver + " OR status = 'parked' AND NOT holds)"
	// cleanRest is how many times as long as a step of a clean-up the pause behind it is.
	cleanRest = 3
)

// DeadLetterRetention says how long dead letters stay that were handled again or
// given up. Open ones stay until an operator decides.
type DeadLetterRetention struct {
	Resolved time.Duration // Since its replay, or since it was discarded. Defaults to 720 h; -1 keeps for ever.
	Every    time.Duration // Between two clean-ups, over all processes. Defaults to 1 h; -1 is never.
	Batch    int           // Rows per statement. Defaults to 1000.
}

// WithDefaults returns r with a value in every field.
func (r DeadLetterRetention) WithDefaults() DeadLetterRetention {
	r.Resolved = cmp.Or(r.Resolved, 720*time.Hour)
	r.Every = cmp.Or(r.Every, time.Hour)
	r.Batch = cmp.Or(r.Batch, 1000)
	return r
}

// Check returns all that is wrong with r, by the keys of a configuration file.
func (r DeadLetterRetention) Check() error {
	r = r.WithDefaults()
	var errs []error
	must := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("subscriptions.dead_letters."+format, args...))
		}
	}
	must(r.Resolved == -1 || r.Resolved > 0, "resolved is %v: above 0, or -1 to keep for ever", r.Resolved)
	must(r.Every == -1 || r.Every > 0, "every is %v: above 0, or -1 for never", r.Every)
	must(r.Batch > 0 && r.Batch <= 100000, "batch is %d: from 1 to 100000", r.Batch)
	return errors.Join(errs...)
}

// CleanUp removes dead letters that have been over for r.Resolved, unless another
// process has done so within r.Every, and says how many, also with an error. It is
// done in steps of r.Batch rows, each a transaction of its own, with pauses, and
// begins none when the next interval has come. Rows that somebody has locked are
// left for the next time.
func (s *DeadLetters) CleanUp(ctx context.Context, r DeadLetterRetention) (removed int64, err error) {
	r = r.WithDefaults()
	if r.Every < 0 || r.Resolved < 0 {
		return 0, nil
	}
	mine, err := s.takeTurn(ctx, r.Every)
	for end := time.Now().Add(r.Every); err == nil && mine && time.Now().Before(end); {
		begin := time.Now()
		n, failed := s.cleanStep(ctx, r)
		removed += n
		if failed == nil && n < int64(r.Batch) {
			return removed, nil
		}
		if err = failed; err == nil && !sleep(ctx, cleanRest*time.Since(begin)) {
			err = ctx.Err()
		}
	}
	if err != nil {
		err = fmt.Errorf("subscription: clean up dead letters: %w", err)
	}
	return removed, err
}

// takeTurn says whether the interval's clean-up is this caller's. One that is due later than any
// can be is from when the database's clock was wrong.
func (s *DeadLetters) takeTurn(ctx context.Context, every time.Duration) (bool, error) {
	d := s.provider.DB().Dialect()
	due := bun.Safe(dbtime.In(d, every))
	result, err := s.provider.DB().ExecContext(ctx, "INSERT INTO subscription_jobs (name, due_at) VALUES ('dead_letters', ?)"+
		" ON CONFLICT (name) DO UPDATE SET due_at = excluded.due_at WHERE subscription_jobs.due_at <= ? OR subscription_jobs.due_at > ?", due, bun.Safe(dbtime.Now(d)), due)
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n == 1, err
}

func (s *DeadLetters) cleanStep(ctx context.Context, r DeadLetterRetention) (int64, error) {
	d := s.provider.DB().Dialect()
	these := " FROM dead_letters WHERE " + isOver + " AND " + overAt + " <= ? ORDER BY " + overAt + " LIMIT ?"
	query := "DELETE FROM dead_letters WHERE seq IN (SELECT seq" + these + ")"
	if d.Name() != dialect.SQLite {
		query = "DELETE FROM dead_letters WHERE ctid = ANY (ARRAY(SELECT ctid" + these + " FOR UPDATE SKIP LOCKED))"
	}
	result, err := s.provider.DB().ExecContext(ctx, query, bun.Safe(dbtime.In(d, -r.Resolved)), r.Batch)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// PurgeOptions say which of those that a filter chooses are removed.
type PurgeOptions struct {
	// Actor is who asks, for the record. Required unless DryRun.
	Actor string
	// OlderThan chooses those that have been over for so long; of parked ones, whose last
	// attempt was so long ago. 0: whenever that was.
	OlderThan time.Duration
	// DryRun counts, and removes nothing.
	DryRun bool
	// Progress is called after each transaction with how many were removed so far. May
	// be nil.
	Progress func(removed int64)
}

// PurgeResult is how many dead letters were removed, or would be without a dry run.
type PurgeResult struct {
	Removed map[DeadLetterStatus]int64 `json:"removed"`
	// Refused were chosen, and must be discarded before: messages of their keys wait for
	// them, or a runner handles them. Heads are the first few.
	Refused int64    `json:"refused"`
	Heads   []string `json:"heads"`
	Action  int64    `json:"action"` // id of the record; 0: nothing was removed
}

// Total is how many were removed.
func (r PurgeResult) Total() (n int64) {
	for _, of := range r.Removed {
		n += of
	}
	return n
}

// Purge removes dead letters for good, with all that was kept of them. Statuses
// default to replayed and discarded. Of open ones only those are removed whose
// status the filter names, and of these only parked ones that hold no key: if it
// chooses another one nothing is removed, and the error says what to do.
//
// Many are removed in several transactions, each with its share in the record of
// the action. Where that ends early, running it again goes on.
func (s *DeadLetters) Purge(ctx context.Context, f DeadLetterFilter, o PurgeOptions) (PurgeResult, error) {
	plan, done := newPurgeResult(), newPurgeResult()
	if o.OlderThan < 0 {
		return plan, fmt.Errorf("subscription: purge: OlderThan is %v: above 0, or 0 for any age", o.OlderThan)
	}
	if len(f.Statuses) == 0 {
		f.Statuses = []DeadLetterStatus{DeadLetterReplayed, DeadLetterDiscarded}
	}
	asked := struct {
		DeadLetterFilter
		OlderThan string `json:"older_than,omitempty"`
	}{DeadLetterFilter: f}
	if o.OlderThan > 0 {
		asked.OlderThan = o.OlderThan.String()
	}
	run := &operate.Run{DB: s.provider.DB(), What: "subscription: purge", Done: "removed", DryRun: o.DryRun, LockWait: lockWait, Record: actionRecord(o.Actor, actionPurge)}
	run.Record.Asked, run.Record.Value = asked, f.Subscription
	var removed map[DeadLetterStatus]int64
	run.After = func() {
		for status, n := range removed {
			done.Removed[status] += n
		}
		if o.Progress != nil {
			o.Progress(run.Changed)
		}
	}
	err := operate.Do(ctx, run, func(ctx context.Context) ([]int64, error) { return s.planPurge(ctx, f, o, &plan) },
		func(ctx context.Context, tx bun.Tx, some []int64) (n int64, err error) {
			removed, err = purge(ctx, tx, f, some)
			for _, of := range removed {
				n += of
			}
			return n, err
		})
	if o.DryRun {
		return plan, err
	}
	done.Refused, done.Heads, done.Action = plan.Refused, plan.Heads, run.Action
	return done, err
}

func newPurgeResult() PurgeResult {
	return PurgeResult{Removed: map[DeadLetterStatus]int64{}, Heads: []string{}}
}

// planPurge returns what is to be removed, and fills in r with it.
func (s *DeadLetters) planPurge(ctx context.Context, f DeadLetterFilter, o PurgeOptions, r *PurgeResult) (seqs []int64, err error) {
	db := s.provider.Reader()
	match, err := f.match(db.Dialect())
	if err != nil {
		return nil, err
	}
	err = dbrows.Each(ctx, db, "SELECT d.seq, d.id, d.status, "+isRemovable+" FROM dead_letters AS d WHERE ? AND "+overAt+" <= ? ORDER BY d.seq",
		func(scan func(...any) error) error {
			var seq int64
			var id string
			var status DeadLetterStatus
			var may bool
			if err := scan(&seq, &id, &status, &may); err != nil {
				return err
			}
			if may {
				r.Removed[status]++
				seqs = append(seqs, seq)
				return nil
			}
			if r.Refused++; len(r.Heads) < maxHeads {
				r.Heads = append(r.Heads, id)
			}
			return nil
		}, match, bun.Safe(dbtime.In(db.Dialect(), -o.OlderThan)))
	switch {
	case err != nil:
		return nil, fmt.Errorf("look for what it concerns: %w", err)
	case r.Refused > 0 && !o.DryRun:
		return nil, fmt.Errorf("of what was chosen, %d hold their keys or are in replay, such as %s: discard these first, which releases the messages behind them; nothing was removed", r.Refused, strings.Join(r.Heads, ", "))
	}
	return seqs, nil
}

// purge removes those of seqs that may still be removed. What was asked for
// meanwhile, such as a replay, stays.
func purge(ctx context.Context, tx bun.Tx, f DeadLetterFilter, seqs []int64) (map[DeadLetterStatus]int64, error) {
	removed := map[DeadLetterStatus]int64{}
	err := dbrows.Each(ctx, tx, "DELETE FROM dead_letters WHERE seq IN (?) AND status IN (?) AND "+isRemovable+" RETURNING status",
		func(scan func(...any) error) error {
			var status DeadLetterStatus
			err := scan(&status)
			removed[status]++
			return err
		}, bun.List(seqs), bun.List(f.Statuses))
	return removed, err
}
