package outboxdb

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
	"github.com/waybill-go/waybill/outbox"
)

const (
	// changeRows is how many rows one transaction of a change takes: nobody claims of
	// their partitions' owners meanwhile.
	changeRows = 1000
	// changeTries is how often a transaction is run that another one was in the way
	// of.
	changeTries = 10
	// changePatience is how long PostgreSQL waits for a lock, with the locks that the
	// transaction has by then.
	changePatience = time.Second
	// changePause lets claims have these partitions before it is tried again.
	changePause = 200 * time.Millisecond

	// maxDelay bounds how far in the future a rate makes rows due, in seconds.
	maxDelay = 1e9
)

// rule is what a verb asks of a row, and its participle.
type rule struct {
	done string
	from []outbox.Status
	held bool
}

var rules = map[outbox.Verb]rule{
	outbox.VerbRetry:   {done: "retried", from: []outbox.Status{outbox.Failed, outbox.Abandoned}},
	outbox.VerbAbandon: {done: "abandoned", from: []outbox.Status{outbox.Pending, outbox.Failed}},
	outbox.VerbSkip:    {done: "skipped", from: []outbox.Status{outbox.Abandoned}, held: true},
}

func (r rule) allows(row changeable) bool {
	return slices.Contains(r.from, row.status) && (row.held || !r.held)
}

// changeable is a row as a change sees it.
type changeable struct {
	seq     int64
	status  outbox.Status
	held    bool
	matches bool
}

// changing is one call of Change.
type changing struct {
	outbox.Change

	filter outbox.Filter
	rule   rule
	match  schema.QueryWithArgs // the filter
	began  dbtime.Time          // when the first row was changed
	result outbox.ChangeResult
}

// Change retries, abandons or skips the rows that a filter chooses, as far as
// their status allows it; the others are counted and left, and so is what a call
// has in hand. A filter that chooses every row is refused. Filter.Limit has no
// meaning here.
//
// It is safe while relays run, and while others do the same: each row is changed
// once. Many are changed in several transactions, each with its share in the record
// of the action. Where that ends early, the result says how many are changed;
// running it again goes on with the others.
func (s *Store) Change(ctx context.Context, f outbox.Filter, c outbox.Change) (outbox.ChangeResult, error) {
	o := &changing{filter: f, Change: c, result: outbox.ChangeResult{Refused: map[outbox.Status]int64{}, Missing: []int64{}}}
	if err := o.check(); err != nil {
		return o.result, err
	}
	var err error
	if o.match, err = s.match(f); err != nil {
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
			return o.result, fmt.Errorf("outbox: %s: it ended early, with %d rows %s; run it again for the others: %w", c.Verb, o.result.Changed, o.rule.done, err)
		}
		if c.Progress != nil {
			c.Progress(o.result)
		}
	}
	return o.result, nil
}

func (o *changing) check() error {
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("outbox: %s: "+format, append([]any{o.Verb}, args...)...)
	}
	var known bool
	if o.rule, known = rules[o.Verb]; !known {
		return wrong("%q is not a verb: %s, %s or %s", o.Verb, outbox.VerbRetry, outbox.VerbAbandon, outbox.VerbSkip)
	}
	allowed := func(s outbox.Status) bool { return slices.Contains(o.rule.from, s) }
	switch {
	case o.filter.Empty():
		return wrong("the filter is empty, so it chooses every row: say which")
	case len(o.filter.Statuses) > 0 && !slices.ContainsFunc(o.filter.Statuses, allowed):
		return wrong("the filter chooses none but %v rows, and only %v ones can be %s", o.filter.Statuses, o.rule.from, o.rule.done)
	case o.Actor == "" && !o.DryRun:
		return wrong("Actor is missing: say who asks, for the record")
	case !outbox.Storable(o.Actor):
		return wrong("Actor is %q: it must be UTF-8 without a zero byte", o.Actor)
	case !(o.Rate >= 0) || o.Rate > math.MaxFloat64 || o.Limit < 0 || o.UpTo < 0:
		return wrong("Rate is %v, Limit %d and UpTo %d: give rows per second and numbers, or 0 for no bound", o.Rate, o.Limit, o.UpTo)
	case o.Rate > 0 && o.Verb != outbox.VerbRetry:
		return wrong("Rate is for retries only")
	}
	return nil
}

// outOfOrder says whether a change of that row breaks the order of its key.
func (o *changing) outOfOrder(row changeable) bool {
	return o.Verb == outbox.VerbRetry && row.status == outbox.Abandoned && !row.held
}

// plan returns what is to be changed, and foretells the result.
func (s *Store) plan(ctx context.Context, o *changing) (seqs []int64, err error) {
	f := o.filter
	if !named(f) {
		if len(f.Statuses) == 0 {
			f.Statuses = outbox.Statuses()
		}
		f.Statuses = slices.DeleteFunc(slices.Clone(f.Statuses), func(s outbox.Status) bool { return s == outbox.Published })
	}
	upTo := o.UpTo
	err = s.look(ctx, func(ctx context.Context, db bun.IDB) error {
		if upTo == 0 {
			if err := db.QueryRowContext(ctx, s.text("change_highest")).Scan(&upTo); err != nil {
				return err
			}
		}
		query, args, err := s.chosen(f, upTo, math.MaxInt32, "o.seq, o.status, o.held")
		if err != nil {
			return err
		}
		full := errors.New("the limit is reached")
		err = dbrows.Each(ctx, db, query, func(scan func(...any) error) error {
			var row changeable
			if err := scan(&row.seq, &row.status, &row.held); err != nil {
				return err
			}
			if !o.rule.allows(row) {
				o.result.Refused[row.status]++
				return nil
			}
			seqs = append(seqs, row.seq)
			if o.outOfOrder(row) {
				o.result.OutOfOrder++
			}
			if len(seqs) == o.Limit {
				upTo = row.seq
				return full
			}
			return nil
		}, args)
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
	if err := scanAll(ctx, db, &found, s.text("among_seqs"), numbers(o.filter.Seqs)); err != nil {
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
	if err := s.lockRows(ctx, tx, seqs); err != nil {
		return err
	}
	var still []int64
	err := dbrows.Each(ctx, tx, s.text("change_rows"), func(scan func(...any) error) error {
		var row changeable
		if err := scan(&row.seq, &row.status, &row.held, &row.matches); err != nil {
			return err
		}
		if !row.matches || !o.rule.allows(row) {
			o.result.Refused[row.status]++
			return nil
		}
		still = append(still, row.seq)
		if o.outOfOrder(row) {
			o.result.OutOfOrder++
		}
		return nil
	}, numbers(seqs), o.match)
	if err != nil || len(still) == 0 {
		return err
	}
	if o.Verb == outbox.VerbRetry {
		err = s.makeDue(ctx, tx, o, still)
	} else {
		err = s.giveUp(ctx, tx, still)
	}
	if err != nil {
		return err
	}
	o.result.Changed += int64(len(still))
	return o.note(ctx, tx)
}

// lockRows sees to it that nobody claims, takes over or decides about these rows
// until the transaction ends: it locks the partitions, their owners, whom each claim
// locks, too, and the rows. What is in hand by then shows in the owners' tokens,
// which are read in a later statement: one that is read before the locks may miss
// a token that is just being inserted.
func (s *Store) lockRows(ctx context.Context, tx bun.Tx, seqs []int64) error {
	if s.sqlite() {
		return nil // there is one writer
	}
	for _, step := range []string{"change_patience", "change_lock_partitions", "change_lock_owners", "change_lock_queue", "change_lock_abandoned"} {
		if _, err := tx.ExecContext(ctx, s.text(step), numbers(seqs), changePatience.Milliseconds()); err != nil {
			return err
		}
	}
	return nil
}

// makeDue puts rows back into the queue, at their old place, with nothing counted
// against them: at once, or as the rate says.
func (s *Store) makeDue(ctx context.Context, tx bun.Tx, o *changing, seqs []int64) error {
	if !o.began.Valid {
		if err := tx.QueryRowContext(ctx, "SELECT "+s.now()).Scan(&o.began); err != nil {
			return err
		}
	}
	due := make([]schema.QueryWithArgs, len(seqs))
	for i, seq := range seqs {
		at := o.began.Time
		if o.Rate > 0 {
			seconds := min(float64(o.result.Changed+int64(i))/o.Rate, maxDelay)
			at = at.Add(time.Duration(seconds * float64(time.Second)))
		}
		due[i] = bun.SafeQuery("(?, ?)", seq, dbtime.Value(s.db.Dialect(), at))
	}
	for _, step := range []string{"retry_queued", "retry_abandoned", "retry_done"} {
		if _, err := tx.ExecContext(ctx, s.text(step), bun.List(due), numbers(seqs)); err != nil {
			return err
		}
	}
	return nil
}

// giveUp moves rows out of the queue and makes due what is behind each in its key:
// its head may be gone with nobody to be told. It is not the key's first that becomes
// due: that one may be in hand, and would take the mark along.
func (s *Store) giveUp(ctx context.Context, tx bun.Tx, seqs []int64) error {
	for _, step := range []string{"abandon_move", "abandon_leave", "abandon_free"} {
		if _, err := tx.ExecContext(ctx, s.text(step), numbers(seqs), bun.Safe(s.now())); err != nil {
			return err
		}
	}
	return nil
}

// note puts what is changed into the record of the action.
func (o *changing) note(ctx context.Context, tx bun.Tx) error {
	if o.result.Action != 0 {
		_, err := tx.ExecContext(ctx, "UPDATE outbox_actions SET rows = ? WHERE id = ?", o.result.Changed, o.result.Action)
		return err
	}
	asked := struct {
		outbox.Filter
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
