package subscription

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
)

const (
	// operateRows is how many dead letters one transaction marks: runners wait for
	// it.
	operateRows = 1000
	// operateTries is how often a transaction is run that met a deadlock or a busy
	// file.
	operateTries = 10
	// maxHeads is how many ids of those in the way are told.
	maxHeads                    = 5
	actionReplay, actionDiscard = "replay", "discard"

	// maxDelay bounds how far in the future a rate puts a replay, in seconds.
	maxDelay = 1e9
)

// ReplayOptions say how to replay.
type ReplayOptions struct {
	// Actor is who asks, for the record. Required.
	Actor string
	// Rate is how many are handled per second, at most; 0: all at once. What was
	// held behind them follows beside that.
	Rate float64
	// Limit is how many are replayed, the first of them. 0: all.
	Limit int
	// UpTo is the greatest Seq that is replayed: with that of a dry run, what is
	// parked meanwhile stays. 0: no bound.
	UpTo int64
	// DryRun changes nothing.
	DryRun bool
}

// DiscardOptions say how to discard.
type DiscardOptions struct {
	Actor  string // As in ReplayOptions.
	UpTo   int64
	DryRun bool
}

// DeadLetterResult says what becomes of those that a filter chooses, or would
// without a dry run.
type DeadLetterResult struct {
	Subscription string `json:"subscription"`
	// Marked are replayed, or discarded.
	Marked int64 `json:"marked"`
	// Skipping are those of Marked that nothing waits for: their replay comes after
	// later messages of their keys.
	Skipping int64 `json:"skipping"`
	// Following are held behind those, whether or not they were chosen, and go on by
	// themselves.
	Following int64 `json:"following"`
	// Behind were left out by Replay: they are parked or held behind parked ones of
	// their key that were not chosen. Heads are the first few of these.
	Behind int64    `json:"behind"`
	Heads  []string `json:"heads"`
	// Held were chosen, but go on by themselves when it is their turn.
	Held int64 `json:"held"`
	// Underway were in replay already, or wait for their time.
	Underway int64 `json:"underway"`
	// Busy were left out by Discard: a runner is handling them now.
	Busy int64 `json:"busy"`
	// Past are replayed or discarded already.
	Past int64 `json:"past"`
	// Missing are ids that the subscription has no dead letter of.
	Missing []string `json:"missing"`
	// UpTo is the greatest Seq that was looked at.
	UpTo int64 `json:"up_to"`
	// Action is the id of the record; 0: nothing was changed.
	Action int64 `json:"action"`
}

// Replay asks the subscription's runners to handle parked messages again, each
// once and, where the subscription holds keys, in the order of its key: one that
// stands behind a parked message that the filter doesn't choose is left out.
// What is held goes on by itself, and needs no replay. One that fails again is
// parked again. The filter must name a subscription, or ids of one.
//
// Many are marked in several transactions, each with its share in the record of
// the action. Where that ends early, the result says how many are marked;
// running it again goes on with the others. Of two operators who ask for
// the same message at the same time, one gets it.
func (s *DeadLetters) Replay(ctx context.Context, f DeadLetterFilter, opts ReplayOptions) (DeadLetterResult, error) {
	if !(opts.Rate >= 0) || opts.Limit < 0 {
		return DeadLetterResult{}, fmt.Errorf("subscription: replay: Rate is %v and Limit %d: give messages per second and a number, or 0 for no bound", opts.Rate, opts.Limit)
	}
	return s.operate(ctx, &operation{
		action: actionReplay, filter: f, actor: opts.Actor, rate: opts.Rate, limit: opts.Limit, upTo: opts.UpTo,
		choose: "d.status = 'parked'", ordered: true,
	}, opts.DryRun)
}

// Discard gives up parked messages for good: the subscription never handles
// them, and what is held behind them goes on. Their rows stay, with all that was
// kept. One that is held or in replay is discarded if the filter names its
// status or its id, unless a runner is handling it just now. For the rest it is
// like Replay.
func (s *DeadLetters) Discard(ctx context.Context, f DeadLetterFilter, opts DiscardOptions) (DeadLetterResult, error) {
	choose := "d.status = 'parked'"
	if len(f.Statuses)+len(f.IDs) > 0 {
		choose = "NOT " + s.isBusy()
	}
	return s.operate(ctx, &operation{action: actionDiscard, filter: f, actor: opts.Actor, upTo: opts.UpTo, choose: choose}, opts.DryRun)
}

func (s *DeadLetters) isBusy() string {
	return "(d.status <> 'parked' AND COALESCE(d.taken_until > " + dbtime.Now(s.provider.DB().Dialect()) + ", FALSE))"
}

// operation is one call of Replay or Discard.
type operation struct {
	action string
	filter DeadLetterFilter
	actor  string
	rate   float64
	limit  int
	upTo   int64
	choose string // what an open one that the filter matches must be

	ordered  bool                 // one with another one in its way is left out
	match    schema.QueryWithArgs // the filter
	inTheWay map[string]int64     // by key, the first parked one that holds it and is not chosen
	seqs     []int64              // what is to be marked

	record int64       // the action's id, once there is one
	began  dbtime.Time // when the first was marked
	marked int64
}

// place is where a dead letter stands.
type place struct {
	seq   int64
	key   string
	holds bool
}

// behind is what is in the way of p, 0 for nothing.
func (o *operation) behind(p place) int64 {
	if first, ok := o.inTheWay[p.key]; ok && p.holds && first < p.seq {
		return first
	}
	return 0
}

// chosen is a condition for what is marked up to a bound, unless another one is
// in its way.
func (o *operation) chosen(upTo int64) schema.QueryWithArgs {
	return bun.SafeQuery("d.subscription = ? AND "+isOpen+" AND ? AND "+o.choose+" AND d.seq <= ?", o.filter.Subscription, o.match, upTo)
}

func (s *DeadLetters) operate(ctx context.Context, o *operation, dryRun bool) (DeadLetterResult, error) {
	r := DeadLetterResult{Heads: []string{}, Missing: []string{}}
	switch {
	case o.filter.Subscription == "" && len(o.filter.IDs) == 0:
		return r, fmt.Errorf("subscription: %s: the filter names neither a subscription nor ids; name a subscription at least", o.action)
	case o.actor == "" && !dryRun:
		return r, fmt.Errorf("subscription: %s: Actor is missing: say who asks, for the record", o.action)
	}
	if err := s.plan(ctx, o, &r); err != nil {
		return r, fmt.Errorf("subscription: %s: look for what it concerns: %w", o.action, err)
	}
	if dryRun || r.Marked == 0 {
		return r, nil
	}
	r.Marked = 0
	for seqs := range slices.Chunk(o.seqs, operateRows) {
		err := s.mark(ctx, o, seqs, r.UpTo)
		r.Marked, r.Action = o.marked, o.record
		if err != nil {
			return r, fmt.Errorf("subscription: %s: it ended early, with %d messages marked; run it again for the others: %w", o.action, o.marked, err)
		}
	}
	return r, nil
}

// plan completes o, and r with what is to be.
func (s *DeadLetters) plan(ctx context.Context, o *operation, r *DeadLetterResult) error {
	db := s.provider.Reader()
	if err := s.identify(ctx, o, r); err != nil || o.filter.Subscription == "" {
		return err
	}
	r.Subscription = o.filter.Subscription
	var err error
	if o.match, err = o.filter.match(db.Dialect()); err != nil {
		return err
	}
	if r.UpTo = o.upTo; r.UpTo == 0 {
		if err := db.QueryRowContext(ctx, "SELECT COALESCE(max(d.seq), 0) FROM dead_letters AS d WHERE ?", o.match).Scan(&r.UpTo); err != nil {
			return err
		}
	}
	return s.foresee(ctx, o, r)
}

// identify finds the subscription of ids, and which of them are missing.
func (s *DeadLetters) identify(ctx context.Context, o *operation, r *DeadLetterResult) error {
	if len(o.filter.IDs) == 0 {
		return nil
	}
	ids, err := o.filter.ids()
	if err != nil {
		return err
	}
	db := s.provider.Reader()
	match, err := DeadLetterFilter{IDs: ids, Subscription: o.filter.Subscription}.match(db.Dialect())
	if err != nil {
		return err
	}
	found, names := map[string]bool{}, []string{}
	err = dbrows.Each(ctx, db, "SELECT d.id, d.subscription FROM dead_letters AS d WHERE ?",
		func(scan func(...any) error) error {
			var id, name string
			err := scan(&id, &name)
			found[id] = true
			names = append(names, name)
			return err
		}, match)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if !found[id] {
			r.Missing = append(r.Missing, id)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) > 1 {
		return fmt.Errorf("the ids are of several subscriptions, %s: name one in the filter", strings.Join(names, ", "))
	}
	if len(names) == 1 {
		o.filter.Subscription = names[0]
	}
	return nil
}

// foresee counts what is to be. It joins in memory: the database may know nothing
// of how many rows there are, and plan accordingly.
func (s *DeadLetters) foresee(ctx context.Context, o *operation, r *DeadLetterResult) error {
	db := s.provider.Reader()
	if err := db.QueryRowContext(ctx, "SELECT count(*) FROM dead_letters AS d WHERE ? AND NOT "+isOpen+" AND d.seq <= ?", o.match, r.UpTo).Scan(&r.Past); err != nil {
		return err
	}
	if err := o.look(ctx, db, r.UpTo); err != nil {
		return err
	}
	marked, heads := map[string]int64{}, map[int64]bool{}
	full := errors.New("the limit is reached")
	err := dbrows.Each(ctx, db, "SELECT d.seq, d.key_id, d.holds, d.status, ?, "+s.isBusy()+" FROM dead_letters AS d WHERE ? AND "+isOpen+" AND d.seq <= ? ORDER BY d.seq",
		func(scan func(...any) error) error {
			var p place
			var status DeadLetterStatus
			var chosen, busy bool
			if err := scan(&p.seq, &p.key, &p.holds, &status, &chosen, &busy); err != nil {
				return err
			}
			behind := o.behind(p)
			switch {
			case chosen && (behind == 0 || !o.ordered):
				r.Marked++
				o.seqs = append(o.seqs, p.seq)
				if _, has := marked[p.key]; !has && p.holds {
					marked[p.key] = p.seq
				}
				if !p.holds {
					r.Skipping++
				}
				if r.Marked == int64(o.limit) {
					r.UpTo = p.seq
					return full
				}
			case busy && !o.ordered:
				r.Busy++
			case status == DeadLetterReplay, status == DeadLetterWaiting:
				r.Underway++
			case behind > 0 && o.ordered:
				r.Behind++
				heads[behind] = true
			default:
				r.Held++
			}
			return nil
		}, o.chosen(r.UpTo), o.match, r.UpTo)
	if errors.Is(err, full) {
		err = o.look(ctx, db, r.UpTo) // what is beyond the limit is in the way, too
	}
	if err != nil {
		return err
	}
	err = dbrows.Each(ctx, db, "SELECT d.seq, d.key_id FROM dead_letters AS d WHERE d.subscription = ? AND "+isOpen+" AND d.status = 'held' AND (?) IS NOT TRUE",
		func(scan func(...any) error) error {
			p := place{holds: true}
			err := scan(&p.seq, &p.key)
			if first, has := marked[p.key]; has && first < p.seq && o.behind(p) == 0 {
				r.Following++
			}
			return err
		}, r.Subscription, o.chosen(r.UpTo))
	if err != nil || len(heads) == 0 {
		return err
	}
	first := slices.Sorted(maps.Keys(heads))
	return dbrows.Each(ctx, db, "SELECT d.id FROM dead_letters AS d WHERE d.seq IN (?) ORDER BY d.seq",
		func(scan func(...any) error) error {
			var id string
			err := scan(&id)
			r.Heads = append(r.Heads, id)
			return err
		}, bun.List(first[:min(maxHeads, len(first))]))
}

// look finds what is in the way.
func (o *operation) look(ctx context.Context, db bun.IDB, upTo int64) error {
	o.inTheWay = map[string]int64{}
	return dbrows.Each(ctx, db, "SELECT d.key_id, min(d.seq) FROM dead_letters AS d WHERE d.subscription = ? AND "+isOpen+" AND d.status = 'parked' AND d.holds AND (?) IS NOT TRUE GROUP BY d.key_id",
		func(scan func(...any) error) error {
			var p place
			err := scan(&p.key, &p.seq)
			o.inTheWay[p.key] = p.seq
			return err
		}, o.filter.Subscription, o.chosen(upTo))
}

// mark is one transaction: it marks those of seqs that are still to be marked,
// and notes it in the record.
func (s *DeadLetters) mark(ctx context.Context, o *operation, seqs []int64, upTo int64) error {
	for try := 1; ; try++ {
		done := *o
		err := s.markOnce(ctx, &done, seqs, upTo)
		if err == nil {
			*o = done
			return nil
		}
		if try == operateTries || !s.provider.Retryable(err) {
			return err
		}
	}
}

func (s *DeadLetters) markOnce(ctx context.Context, o *operation, seqs []int64, upTo int64) error {
	db := s.provider.DB()
	opts, lock := &sql.TxOptions{Isolation: sql.LevelReadCommitted}, " FOR NO KEY UPDATE"
	if db.Dialect().Name() == dialect.SQLite {
		opts, lock = nil, ""
	}
	tx, err := db.BeginTx(ctx, opts)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // Nothing is left of it, whatever this answers.
	var still []int64
	var now dbtime.Time
	// The bounds say no more than the list, but PostgreSQL plans by them.
	err = dbrows.Each(ctx, tx, "SELECT d.seq, "+dbtime.Now(db.Dialect())+" FROM dead_letters AS d WHERE d.seq IN (?) AND d.seq BETWEEN ? AND ? AND ? ORDER BY d.seq"+lock,
		func(scan func(...any) error) error {
			var seq int64
			err := scan(&seq, &now)
			still = append(still, seq)
			return err
		}, bun.List(seqs), seqs[0], seqs[len(seqs)-1], o.chosen(upTo))
	if err != nil || len(still) == 0 {
		return err
	}
	if !o.began.Valid {
		o.began = now
	}
	if err := o.set(ctx, tx, still); err != nil {
		return err
	}
	if err := o.note(ctx, tx, len(still)); err != nil {
		return err
	}
	return tx.Commit()
}

// set marks rows that are locked.
func (o *operation) set(ctx context.Context, tx bun.Tx, seqs []int64) error {
	if o.action == actionDiscard {
		_, err := tx.ExecContext(ctx, "UPDATE dead_letters SET status = 'discarded', due_at = NULL, taken_until = NULL, discarded_at = ? WHERE seq IN (?)", bun.Safe(dbtime.Now(tx.Dialect())), bun.List(seqs))
		return err
	}
	due, rows := "due.at", make([]schema.QueryWithArgs, len(seqs))
	if tx.Dialect().Name() == dialect.PG {
		due = "CAST(due.at AS timestamptz)"
	}
	for i, seq := range seqs {
		var at any // at once
		if o.rate > 0 {
			seconds := min(float64(o.marked+int64(i))/o.rate, maxDelay)
			at = dbtime.Value(tx.Dialect(), o.began.Time.Add(time.Duration(seconds*float64(time.Second))))
		}
		rows[i] = bun.SafeQuery("(?, ?)", seq, at)
	}
	_, err := tx.ExecContext(ctx, "WITH due (seq, at) AS (VALUES ?) UPDATE dead_letters SET status = 'replay', replays = replays + 1, taken_until = NULL, due_at = "+due+
		" FROM due WHERE dead_letters.seq = due.seq AND dead_letters.seq BETWEEN ? AND ?", bun.List(rows), seqs[0], seqs[len(seqs)-1])
	return err
}

// note puts n more into the record of the action.
func (o *operation) note(ctx context.Context, tx bun.Tx, n int) error {
	e := entry{actor: o.actor, action: o.action, subscription: o.filter.Subscription, id: o.record, messages: o.marked, filter: struct {
		DeadLetterFilter
		Rate  float64 `json:"rate,omitempty"`
		Limit int     `json:"limit,omitempty"`
		UpTo  int64   `json:"up_to,omitempty"`
	}{o.filter, o.rate, o.limit, o.upTo}}
	e, err := e.with(ctx, tx, int64(n))
	o.record, o.marked = e.id, e.messages
	return err
}
