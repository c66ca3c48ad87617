package outboxdb

import (
	"context"
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
	"github.com/waybill-go/waybill/internal/operate"
	"github.com/waybill-go/waybill/outbox"
)

// changePatience is how long PostgreSQL waits for a lock, with the locks that the
// transaction has by then.
const changePatience = time.Second

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
	bounds operate.Bounds
	rule   rule
	match  schema.QueryWithArgs // the filter
	began  dbtime.Time          // when the first row was changed
	result outbox.ChangeResult
	batch  outbox.ChangeResult // what the batch under way counts
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
	o := &changing{
		filter: f, Change: c, bounds: operate.Bounds{Rate: c.Rate, Limit: c.Limit, UpTo: c.UpTo},
		result: outbox.ChangeResult{Refused: map[outbox.Status]int64{}, Missing: []int64{}},
	}
	what := fmt.Sprintf("outbox: %s", c.Verb)
	if err := o.check(what); err != nil {
		return o.result, err
	}
	var err error
	if o.match, err = s.match(f); err != nil {
		return o.result, fmt.Errorf("%s: %w", what, err)
	}
	run := &operate.Run{
		DB: s.db, What: what, Done: "rows " + o.rule.done, DryRun: c.DryRun, LockWait: changePatience,
		Rest:  1, // claims have the partitions for as long
		Limit: c.Limit,
		Record: actionRecord(c.Actor, string(c.Verb), struct {
			outbox.Filter
			Rate  float64 `json:"rate,omitempty"`
			Limit int     `json:"limit,omitempty"`
			UpTo  int64   `json:"up_to,omitempty"`
		}{f, c.Rate, c.Limit, c.UpTo}),
	}
	run.After = func() { o.add(run) }
	err = operate.Do(ctx, run, func(ctx context.Context) ([]int64, error) {
		seqs, err := s.plan(ctx, o)
		if err != nil {
			return nil, fmt.Errorf("look for the rows: %w", err)
		}
		if !c.DryRun {
			o.result.Changed, o.result.OutOfOrder = 0, 0
		}
		return seqs, nil
	}, func(ctx context.Context, tx bun.Tx, some []int64) (int64, error) {
		return s.change(ctx, tx, o, some, run.Changed)
	})
	return o.result, err
}

// add takes in a batch that is committed.
func (o *changing) add(run *operate.Run) {
	o.result.Changed, o.result.Action = run.Changed, run.Action
	o.result.OutOfOrder += o.batch.OutOfOrder
	for status, n := range o.batch.Refused {
		o.result.Refused[status] += n
	}
	if o.Progress != nil {
		o.Progress(o.result)
	}
}

func (o *changing) check(what string) error {
	wrong := func(format string, args ...any) error {
		return fmt.Errorf(what+": "+format, args...)
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
	case o.Rate > 0 && o.Verb != outbox.VerbRetry:
		return wrong("Rate is for retries only")
	}
	return o.bounds.Check(what)
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
			if o.bounds.Full(len(seqs)) {
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

// change changes those rows that still are as they were when they were chosen; so
// many were changed before.
func (s *Store) change(ctx context.Context, tx bun.Tx, o *changing, seqs []int64, before int64) (int64, error) {
	o.batch = outbox.ChangeResult{Refused: map[outbox.Status]int64{}}
	if err := s.lockRows(ctx, tx, seqs); err != nil {
		return 0, err
	}
	var still []int64
	err := dbrows.Each(ctx, tx, s.text("change_rows"), func(scan func(...any) error) error {
		var row changeable
		if err := scan(&row.seq, &row.status, &row.held, &row.matches); err != nil {
			return err
		}
		if !row.matches || !o.rule.allows(row) {
			o.batch.Refused[row.status]++
			return nil
		}
		still = append(still, row.seq)
		if o.outOfOrder(row) {
			o.batch.OutOfOrder++
		}
		return nil
	}, numbers(seqs), o.match)
	if err != nil || len(still) == 0 {
		return 0, err
	}
	if o.Verb == outbox.VerbRetry {
		err = s.makeDue(ctx, tx, o, still, before)
	} else {
		err = s.giveUp(ctx, tx, still)
	}
	return int64(len(still)), err
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
	for _, step := range []string{"change_settings", "change_lock_partitions", "change_lock_owners", "change_lock_queue", "change_lock_abandoned"} {
		if _, err := tx.ExecContext(ctx, s.text(step), numbers(seqs)); err != nil {
			return err
		}
	}
	return nil
}

// makeDue puts rows back into the queue, at their old place, with nothing counted
// against them: at once, or as the rate says.
func (s *Store) makeDue(ctx context.Context, tx bun.Tx, o *changing, seqs []int64, before int64) error {
	if before == 0 {
		if err := tx.QueryRowContext(ctx, "SELECT "+s.now()).Scan(&o.began); err != nil {
			return err
		}
	}
	due := make([]schema.QueryWithArgs, len(seqs))
	for i, seq := range seqs {
		due[i] = bun.SafeQuery("(?, ?)", seq, dbtime.Value(s.db.Dialect(), o.began.Time.Add(o.bounds.Delay(before+int64(i)))))
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
