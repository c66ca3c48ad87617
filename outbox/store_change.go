package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
)

const (
	// changeRows is how many rows one transaction of a change takes: claims leave
	// their partitions alone meanwhile.
	changeRows = 1000
	// changeTries is how often a transaction is run that another one was in the way
	// of.
	changeTries = 10
	// changePatience is how long PostgreSQL waits for a lock, with the locks on
	// partitions that the transaction has by then.
	changePatience = time.Second
	// changePause lets claims have these partitions before it is tried again.
	changePause = 200 * time.Millisecond

	// maxDelay bounds how far in the future a rate makes rows due, in seconds.
	maxDelay = 1e9
)

// Change retries, abandons or skips the rows that a filter chooses, as far as
// their status allows it; the others are counted and left. A filter that chooses
// every row is refused. Filter.Limit has no meaning here.
//
// It is safe while processors run, and while others do the same: each row is
// changed once. Many are changed in several transactions, each with its share in
// the record of the action. Where that ends early, the result says how many are
// changed; running it again goes on with the others.
func (s *Store) Change(ctx context.Context, f Filter, c Change) (ChangeResult, error) {
	o := &changing{filter: f, Change: c, result: ChangeResult{Refused: map[Status]int64{}, Missing: []int64{}}}
	if err := o.check(); err != nil {
		return o.result, err
	}
	var err error
	if o.match, err = f.match(s.db.Dialect()); err != nil {
		return o.result, fmt.Errorf("outbox: %s: %w", c.Verb, err)
	}
	seqs, err := s.plan(ctx, o)
	if err != nil {
		return o.result, fmt.Errorf("outbox: %s: look for the rows: %w", c.Verb, err)
	}
	if c.DryRun || len(seqs) == 0 {
		return o.result, nil
	}
	o.result.Changed, o.result.OutOfOrder = 0, 0
	var took time.Duration
	for some := range slices.Chunk(seqs, changeRows) {
		err := rest(ctx, took) // claims have the partitions for as long
		begin := time.Now()
		if err == nil {
			err = s.change(ctx, o, some)
		}
		took = time.Since(begin)
		if err != nil {
			return o.result, fmt.Errorf("outbox: %s: it ended early, with %d rows %s; run it again for the others: %w", c.Verb, o.result.Changed, o.rule.Verb, err)
		}
		if c.Progress != nil {
			c.Progress(o.result)
		}
	}
	return o.result, nil
}

// changing is one call of Change.
type changing struct {
	Change
	filter Filter
	rule   RefusedError
	match  schema.QueryWithArgs // the filter
	began  dbtime.Time          // when the first row was changed
	result ChangeResult
}

func (o *changing) check() error {
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("outbox: %s: "+format, append([]any{o.Verb}, args...)...)
	}
	switch o.Verb {
	case VerbRetry:
		o.rule = retriable
	case VerbAbandon:
		o.rule = abandonable
	case VerbSkip:
		o.rule = skippable
	default:
		return wrong("%q is not a verb: %s, %s or %s", o.Verb, VerbRetry, VerbAbandon, VerbSkip)
	}
	allowed := func(s Status) bool { return slices.Contains(o.rule.From, s) }
	switch {
	case o.filter.Empty():
		return wrong("the filter is empty, so it chooses every row: say which")
	case len(o.filter.Statuses) > 0 && !slices.ContainsFunc(o.filter.Statuses, allowed):
		return wrong("the filter chooses none but %v rows, and only %v ones can be %s", o.filter.Statuses, o.rule.From, o.rule.Verb)
	case o.Actor == "" && !o.DryRun:
		return wrong("Actor is missing: say who asks, for the record")
	case !Storable(o.Actor):
		return wrong("Actor is %q: it must be UTF-8 without a zero byte", o.Actor)
	case !(o.Rate >= 0) || o.Rate > math.MaxFloat64 || o.Limit < 0 || o.UpTo < 0:
		return wrong("Rate is %v, Limit %d and UpTo %d: give rows per second and numbers, or 0 for no bound", o.Rate, o.Limit, o.UpTo)
	case o.Rate > 0 && o.Verb != VerbRetry:
		return wrong("Rate is for retries only")
	}
	return nil
}

// outOfOrder says whether a change of that row breaks the order of its key.
func (o *changing) outOfOrder(s Status, held bool) bool {
	return o.Verb == VerbRetry && s == Abandoned && !held
}

// plan returns what is to be changed, and foretells the result.
func (s *Store) plan(ctx context.Context, o *changing) (seqs []int64, err error) {
	f := o.filter
	if !f.named() {
		if len(f.Statuses) == 0 {
			f.Statuses = Statuses()
		}
		f.Statuses = slices.DeleteFunc(slices.Clone(f.Statuses), func(s Status) bool { return s == Published })
	}
	upTo := o.UpTo
	err = s.look(ctx, func(ctx context.Context, db bun.IDB) error {
		if upTo == 0 {
			if err := db.QueryRowContext(ctx, "SELECT COALESCE(max(seq), 0) FROM outbox").Scan(&upTo); err != nil {
				return err
			}
		}
		query, err := s.chosen(f, upTo, "status, held")
		if err != nil {
			return err
		}
		full := errors.New("the limit is reached")
		err = dbrows.Each(ctx, db, "?", func(scan func(...any) error) error {
			var row locked
			if err := scan(&row.seq, &row.status, &row.held); err != nil {
				return err
			}
			if !o.rule.allows(row.status, row.held) {
				o.result.Refused[row.status]++
				return nil
			}
			seqs = append(seqs, row.seq)
			if o.outOfOrder(row.status, row.held) {
				o.result.OutOfOrder++
			}
			if len(seqs) == o.Limit {
				upTo = row.seq
				return full
			}
			return nil
		}, query)
		if err != nil && !errors.Is(err, full) {
			return err
		}
		return s.findMissing(ctx, db, o)
	})
	o.result.Changed, o.result.UpTo = int64(len(seqs)), upTo
	return seqs, err
}

func (s *Store) findMissing(ctx context.Context, db bun.IDB, o *changing) error {
	if len(o.filter.Seqs) == 0 {
		return nil
	}
	var found []int64
	if err := scanAll(ctx, db, &found, "SELECT seq FROM outbox WHERE seq IN ("+list(o.filter.Seqs)+")"); err != nil {
		return err
	}
	missing := map[int64]bool{}
	for _, seq := range o.filter.Seqs {
		missing[seq] = true
	}
	for _, seq := range found {
		delete(missing, seq)
	}
	o.result.Missing = append(o.result.Missing, slices.Sorted(maps.Keys(missing))...)
	return nil
}

// change is one transaction: it changes those rows that still are as they were
// when they were chosen, and notes it in the record.
func (s *Store) change(ctx context.Context, o *changing, seqs []int64) error {
	for try := 1; ; try++ {
		done := *o
		done.result.Refused = maps.Clone(o.result.Refused)
		err := s.inTx(ctx, s.db, func(tx bun.Tx) error { return s.changeIn(ctx, tx, &done, seqs) })
		if err == nil {
			*o = done
			return nil
		}
		switch {
		case ctx.Err() != nil || !inTheWay(err):
			return err
		case try == changeTries && lockTimeout(err):
			return fmt.Errorf("another session has locked one of the rows for long, pg_locks says which: %w", err)
		case try == changeTries:
			return err
		}
		if err := rest(ctx, changePause); err != nil {
			return err
		}
	}
}

func (s *Store) changeIn(ctx context.Context, tx bun.Tx, o *changing, seqs []int64) error {
	if !s.sqlite() {
		if _, err := tx.ExecContext(ctx, fmt.Sprintf("SELECT set_config('lock_timeout', '%d', true)", changePatience.Milliseconds())); err != nil {
			return err
		}
	}
	var still []int64
	err := s.lock(ctx, tx, seqs, o.match, func(row locked) {
		if !row.matches || !o.rule.allows(row.status, row.held) {
			o.result.Refused[row.status]++
			return
		}
		still = append(still, row.seq)
		if o.outOfOrder(row.status, row.held) {
			o.result.OutOfOrder++
		}
	})
	if err != nil || len(still) == 0 {
		return err
	}
	if err := s.set(ctx, tx, o, still); err != nil {
		return err
	}
	o.result.Changed += int64(len(still))
	return o.note(ctx, tx)
}

// set changes rows that are locked.
func (s *Store) set(ctx context.Context, tx bun.Tx, o *changing, seqs []int64) error {
	these := " WHERE seq IN (" + list(seqs) + ")"
	switch {
	case o.Verb == VerbAbandon:
		_, err := tx.ExecContext(ctx, "UPDATE outbox SET "+s.abandoned(o.Retention)+these)
		return err
	case o.Verb == VerbSkip:
		_, err := tx.ExecContext(ctx, "UPDATE outbox SET "+s.skipped(o.Retention)+these)
		return err
	case o.Rate == 0:
		_, err := tx.ExecContext(ctx, "UPDATE outbox SET "+s.retried(s.now())+these)
		return err
	}
	if !o.began.Valid {
		if err := tx.QueryRowContext(ctx, "SELECT "+s.now()).Scan(&o.began); err != nil {
			return err
		}
	}
	at, rows := "due.at", make([]schema.QueryWithArgs, len(seqs))
	if !s.sqlite() {
		at = "CAST(due.at AS timestamptz)"
	}
	for i, seq := range seqs {
		seconds := min(float64(o.result.Changed+int64(i))/o.Rate, maxDelay)
		rows[i] = bun.SafeQuery("(?, ?)", seq, dbtime.Value(s.db.Dialect(), o.began.Time.Add(time.Duration(seconds*float64(time.Second)))))
	}
	// The bounds say no more than the list, but PostgreSQL plans by them.
	_, err := tx.ExecContext(ctx, "WITH due (r, at) AS (VALUES ?) UPDATE outbox SET "+s.retried(at)+" FROM due WHERE seq = due.r AND seq BETWEEN ? AND ?",
		bun.List(rows), seqs[0], seqs[len(seqs)-1])
	return err
}

// note puts what is changed into the record of the action.
func (o *changing) note(ctx context.Context, tx bun.Tx) error {
	if o.result.Action != 0 {
		_, err := tx.ExecContext(ctx, "UPDATE outbox_actions SET rows = ? WHERE id = ?", o.result.Changed, o.result.Action)
		return err
	}
	asked := struct {
		Filter
		Rate  float64 `json:"rate,omitempty"`
		Limit int     `json:"limit,omitempty"`
		UpTo  int64   `json:"up_to,omitempty"`
	}{o.filter, o.Rate, o.Limit, o.UpTo}
	var err error
	o.result.Action, err = record(ctx, tx, o.Actor, string(o.Verb), asked, o.result.Changed)
	return err
}

// record writes what an operator did.
func record(ctx context.Context, tx bun.Tx, actor, action string, asked any, rows int64) (id int64, err error) {
	filter, err := json.Marshal(asked)
	if err != nil {
		return 0, err
	}
	err = tx.QueryRowContext(ctx, "INSERT INTO outbox_actions (actor, action, filter, rows) VALUES (?, ?, ?, ?) RETURNING id", actor, action, string(filter), rows).Scan(&id)
	return id, err
}

// inTheWay says whether a transaction failed because of another one: a deadlock,
// a lock that was not to be had, a busy file.
func inTheWay(err error) bool {
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		return slices.Contains([]string{"40001", "40P01", "55P03"}, state.SQLState())
	}
	var code interface{ Code() int }
	return errors.As(err, &code) && (code.Code()&0xff == sqliteBusy || code.Code()&0xff == sqliteLocked)
}

const sqliteBusy, sqliteLocked = 5, 6

// Actions returns what operators did, the last first, at most limit.
func (s *Store) Actions(ctx context.Context, limit int) ([]Action, error) {
	actions := []Action{}
	err := dbrows.Each(ctx, s.reader, "SELECT id, at, actor, action, filter, rows FROM outbox_actions ORDER BY id DESC LIMIT ?",
		func(scan func(...any) error) error {
			var a Action
			var at dbtime.Time
			var filter []byte
			err := scan(&a.ID, &at, &a.Actor, &a.Action, &filter, &a.Rows)
			a.At, a.Filter = at.Time, filter
			actions = append(actions, a)
			return err
		}, max(limit, 0))
	if err != nil {
		return nil, fmt.Errorf("outbox: read outbox_actions: %w", err)
	}
	return actions, nil
}
