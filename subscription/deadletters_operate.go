package subscription

import (
	"context"
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
	"github.com/waybill-go/waybill/internal/operate"
)

const (
	// maxHeads is how many ids of those in the way are told.
	maxHeads                    = 5
	actionReplay, actionDiscard = "replay", "discard"
	// lockWait is how long PostgreSQL waits for a row that another session has locked: runners
	// wait for those that the transaction has by then.
	lockWait = time.Second
)

// participles are those of what is done.
var participles = map[string]string{actionReplay: "marked", actionDiscard: "discarded"}

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
	// Running says that some process ran the subscription a moment ago. If not, what is
	// marked for replay waits until one does.
	Running bool `json:"running"`
	// Needs are the first few of what a build must know to handle some of Marked; others
	// leave these alone.
	Needs []string `json:"needs"`
	// Marked are replayed, or discarded.
	Marked int64 `json:"marked"`
	// Skipping are those of Marked that nothing waits for: their replay comes after
	// later messages of their keys.
	Skipping int64 `json:"skipping"`
	// Following are held behind those, whether or not they were chosen, and continue by
	// themselves.
	Following int64 `json:"following"`
	// Behind were left out by Replay: they are parked or held behind parked ones of
	// their key that were not chosen. Heads are the first few of these.
	Behind int64    `json:"behind"`
	Heads  []string `json:"heads"`
	// Held were chosen, but continue by themselves when it is their turn.
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
// What is held continues by itself, and needs no replay. One that fails again is
// parked again. The filter must name a subscription, or ids of one.
//
// Many are marked in several transactions, each with its share in the record of
// the action. Where that ends early, the result says how many are marked;
// running it again goes on with the others. Of two operators who ask for
// the same message at the same time, one gets it.
func (s *DeadLetters) Replay(ctx context.Context, f DeadLetterFilter, opts ReplayOptions) (DeadLetterResult, error) {
	return s.operate(ctx, &operation{
		action: actionReplay, filter: f, bounds: operate.Bounds{Rate: opts.Rate, Limit: opts.Limit, UpTo: opts.UpTo},
		choose: "d.status IN ('parked', 'early')", ordered: true,
	}, opts.Actor, opts.DryRun)
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
	return s.operate(ctx, &operation{action: actionDiscard, filter: f, bounds: operate.Bounds{UpTo: opts.UpTo}, choose: choose}, opts.Actor, opts.DryRun)
}

func (s *DeadLetters) isBusy() string {
	d := s.provider.DB().Dialect()
	return "(d.status <> 'parked' AND COALESCE(d.taken_until > " + dbtime.Now(d) + " AND d.taken_until <= " + dbtime.In(d, 2*takenFor) + ", FALSE))"
}

// operation is one call of Replay or Discard.
type operation struct {
	action string
	filter DeadLetterFilter
	bounds operate.Bounds
	choose string // what an open one that the filter matches must be

	ordered  bool                 // one with another one in its way is left out
	match    schema.QueryWithArgs // the filter
	inTheWay map[string]int64     // by key, the first parked one that holds it and is not chosen
	seqs     []int64              // what is to be marked
	began    dbtime.Time          // when the first was
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

func (s *DeadLetters) operate(ctx context.Context, o *operation, actor string, dryRun bool) (DeadLetterResult, error) {
	r := DeadLetterResult{Heads: []string{}, Needs: []string{}, Missing: []string{}}
	what := "subscription: " + o.action
	if err := o.bounds.Check(what); err != nil {
		return r, err
	}
	if o.filter.Subscription == "" && len(o.filter.IDs) == 0 {
		return r, fmt.Errorf("%s: the filter names neither a subscription nor ids; name a subscription at least", what)
	}
	run := &operate.Run{
		DB: s.provider.DB(), What: what, Done: "messages " + participles[o.action], DryRun: dryRun, LockWait: lockWait, Limit: o.bounds.Limit, Record: actionRecord(actor, o.action),
	}
	err := operate.Do(ctx, run, func(ctx context.Context) ([]int64, error) {
		if err := s.plan(ctx, o, &r); err != nil {
			return nil, fmt.Errorf("look for what it concerns: %w", err)
		}
		run.Record.Value = o.filter.Subscription
		run.Record.Asked = struct {
			DeadLetterFilter
			operate.Bounds
		}{o.filter, o.bounds}
		return o.seqs, nil
	}, func(ctx context.Context, tx bun.Tx, some []int64) (int64, error) {
		return o.mark(ctx, tx, some, r.UpTo, run.Changed)
	})
	if !dryRun {
		r.Marked, r.Action = run.Changed, run.Action
	}
	return r, err
}

// actionRecord is what dead_letter_actions says of an action.
func actionRecord(actor, action string) operate.Record {
	return operate.Record{Table: "dead_letter_actions", Count: "messages", Column: "subscription", Actor: actor, Action: action}
}

// plan completes o, and r with what is to be.
func (s *DeadLetters) plan(ctx context.Context, o *operation, r *DeadLetterResult) error {
	db := s.provider.Reader()
	if err := s.identify(ctx, o, r); err != nil || o.filter.Subscription == "" {
		return err
	}
	r.Subscription = o.filter.Subscription
	var err error
	if r.Running, err = runs(ctx, db, r.Subscription); err != nil {
		return err
	}
	if o.match, err = o.filter.match(db.Dialect()); err != nil {
		return err
	}
	if r.UpTo = o.bounds.UpTo; r.UpTo == 0 {
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
	marked, heads, err := s.mark(ctx, o, r)
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

// mark finds, up to the operation's limit, which dead letters are its own. It returns the
// first of each key among them, and what others are behind.
func (s *DeadLetters) mark(ctx context.Context, o *operation, r *DeadLetterResult) (marked map[string]int64, heads map[int64]bool, err error) {
	db := s.provider.Reader()
	marked, heads = map[string]int64{}, map[int64]bool{}
	full := errors.New("the limit is reached")
	err = dbrows.Each(ctx, db, "SELECT d.seq, d.key_id, d.holds, d.status, COALESCE(d.needs, ''), ?, "+s.isBusy()+" FROM dead_letters AS d WHERE ? AND "+isOpen+" AND d.seq <= ? ORDER BY d.seq",
		func(scan func(...any) error) error {
			var p place
			var status DeadLetterStatus
			var chosen, busy bool
			var needs string
			if err := scan(&p.seq, &p.key, &p.holds, &status, &needs, &chosen, &busy); err != nil {
				return err
			}
			behind := o.behind(p)
			switch {
			case chosen && (behind == 0 || !o.ordered):
				r.Marked++
				r.need(needs)
				o.seqs = append(o.seqs, p.seq)
				if _, has := marked[p.key]; !has && p.holds {
					marked[p.key] = p.seq
				}
				if !p.holds {
					r.Skipping++
				}
				if o.bounds.Full(len(o.seqs)) {
					r.UpTo = p.seq
					return full
				}
			case busy && !o.ordered:
				r.Busy++
			case status == DeadLetterReplay, status == DeadLetterWaiting, status == DeadLetterEarly:
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
	return marked, heads, err
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

// mark marks those of seqs that are still to be marked; so many were before.
func (o *operation) mark(ctx context.Context, tx bun.Tx, seqs []int64, upTo, before int64) (int64, error) {
	lock := " FOR NO KEY UPDATE"
	if tx.Dialect().Name() == dialect.SQLite {
		lock = ""
	}
	var still []int64
	var now dbtime.Time
	// The bounds say no more than the list, but PostgreSQL plans by them.
	err := dbrows.Each(ctx, tx, "SELECT d.seq, "+dbtime.Now(tx.Dialect())+" FROM dead_letters AS d WHERE d.seq IN (?) AND d.seq BETWEEN ? AND ? AND ? ORDER BY d.seq"+lock,
		func(scan func(...any) error) error {
			var seq int64
			err := scan(&seq, &now)
			still = append(still, seq)
			return err
		}, bun.List(seqs), seqs[0], seqs[len(seqs)-1], o.chosen(upTo))
	if err != nil || len(still) == 0 {
		return 0, err
	}
	if before == 0 {
		o.began = now
	}
	return int64(len(still)), o.set(ctx, tx, still, before)
}

// set marks rows that are locked.
func (o *operation) set(ctx context.Context, tx bun.Tx, seqs []int64, before int64) error {
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
		if o.bounds.Rate > 0 {
			at = dbtime.Value(tx.Dialect(), o.began.Time.Add(o.bounds.Delay(before+int64(i))))
		}
		rows[i] = bun.SafeQuery("(?, ?)", seq, at)
	}
	_, err := tx.ExecContext(ctx, "WITH due (seq, at) AS (VALUES ?) UPDATE dead_letters SET holds = holds OR status = 'early', status = 'replay', replays = replays + 1, taken_until = NULL, due_at = "+due+
		" FROM due WHERE dead_letters.seq = due.seq AND dead_letters.seq BETWEEN ? AND ?", bun.List(rows), seqs[0], seqs[len(seqs)-1])
	return err
}
