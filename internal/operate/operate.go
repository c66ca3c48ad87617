// Package operate is the frame of what operators do to many rows at once, be they
// of the outbox or dead letters: a plan of what is to be changed, which a dry run
// ends with, then batches. A batch is a transaction of its own, with its share in
// the record of who did what; it looks again at what it changes, so that a change
// runs beside others, ends at any point, and goes on when it is run again.
package operate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/internal/dbtx"
)

const (
	// Batch is how many rows one transaction changes: who works with them waits for
	// it.
	Batch = 1000
	// maxActor is how long the name of who acts may be, that of a token before it.
	maxActor = 256
	// tries is how often a transaction is run that another one is in the way of.
	tries = 10
	// pause lets others have what a transaction had locked before it is tried again.
	pause = 200 * time.Millisecond
	// longest bounds how far in the future a rate makes rows due.
	longest = 1_000_000_000 * time.Second
)

// Run is one change by an operator.
type Run struct {
	DB     *bun.DB
	What   string // Begins its errors, as in "outbox: retry".
	Done   string // What is counted, as in "rows retried".
	Record Record
	DryRun bool // Ends with the plan.
	// LockWait is how long PostgreSQL waits for a lock, with those that the
	// transaction has by then, before it is rolled back and tried again. 0: no bound.
	LockWait time.Duration
	// Rest is how many times as long as a transaction the pause behind it is.
	Rest int
	// After is called when a batch is committed. May be nil.
	After func()
	// Limit is how many are changed at most. 0: no bound. Who runs it again is told how many of
	// them are left.
	Limit int
	// GoOn says how to do the others where it ends early. "": run it again.
	GoOn string

	Changed int64 // So far.
	Action  int64 // Its id in the record; 0: nothing was changed.

	took   time.Duration // by the last batch
	unsure int64         // that it has changed unless the commit was lost with the connection
}

// Do plans, and unless that is all, changes in batches what plan returned. change
// is called in the batch's transaction, perhaps several times, so it begins anew
// each time. It leaves out what isn't as it was, and says how many it changed.
func Do[K any](ctx context.Context, r *Run, plan func(ctx context.Context) ([]K, error),
	change func(ctx context.Context, tx bun.Tx, some []K) (int64, error),
) error {
	if err := r.Record.Check(r.What, r.DryRun); err != nil {
		return err
	}
	keys, err := plan(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", r.What, err)
	}
	if r.DryRun {
		return nil
	}
	for some := range slices.Chunk(keys, Batch) {
		err := r.Step(ctx, func(tx bun.Tx) (int64, error) { return change(ctx, tx, some) })
		if err != nil {
			return err
		}
	}
	return nil
}

// Step is one batch, for what finds by itself what is left to do.
func (r *Run) Step(ctx context.Context, change func(tx bun.Tx) (int64, error)) error {
	err := rest(ctx, time.Duration(r.Rest)*r.took)
	begin := time.Now()
	for try := 1; err == nil; try++ {
		if err = r.once(ctx, change); err == nil {
			r.took = time.Since(begin)
			if r.After != nil {
				r.After()
			}
			return nil
		}
		code := dberr.CodeOf(err)
		if ctx.Err() != nil || !slices.Contains(inTheWay, code) {
			break
		}
		if try == tries {
			if code == lockTimeout {
				err = fmt.Errorf("another session has locked one of the rows for long, pg_locks says which: %w", err)
			}
			break
		}
		err = rest(ctx, pause)
	}
	return r.Ended(ctx, err)
}

// Ended is the error of one that has ended early.
func (r *Run) Ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		err = context.Cause(ctx) // Whatever the database made of it.
	}
	perhaps := ""
	if r.unsure > 0 {
		perhaps = fmt.Sprintf(", and perhaps %d more, which the record of the action counts if they are", r.unsure)
	}
	return fmt.Errorf("%s: it ended early, with %d %s%s; %s: %w", r.What, r.Changed, r.Done, perhaps, r.goOn(), err)
}

func (r *Run) goOn() string {
	if left := int64(r.Limit) - r.Changed; left > 0 && r.Changed > 0 {
		return fmt.Sprintf("run it again for the others, with a limit of %d", left)
	}
	return cmp.Or(r.GoOn, "run it again for the others")
}

// once is one attempt.
func (r *Run) once(ctx context.Context, change func(tx bun.Tx) (int64, error)) error {
	var n, action int64
	err := dbtx.Run(ctx, r.DB, func(tx bun.Tx) (err error) {
		if r.LockWait > 0 && r.DB.Dialect().Name() == dialect.PG {
			if _, err := tx.ExecContext(ctx, "SELECT set_config('lock_timeout', ?, true)", fmt.Sprint(r.LockWait.Milliseconds())); err != nil {
				return err
			}
		}
		if n, err = change(tx); err == nil {
			action, err = r.Record.Add(ctx, tx, r.Action, r.Changed, n)
		}
		return err
	})
	if err == nil {
		r.Changed, r.Action = r.Changed+n, action
	}
	r.unsure = 0
	if failed, is := errors.AsType[*dbtx.CommitError](err); is && failed.Unknown() {
		r.unsure = n
	}
	return err
}

func rest(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// lockTimeout is PostgreSQL's code for a lock that was not to be had in time.
const lockTimeout = "55P03"

// inTheWay are the codes of a transaction that failed because of another one: no
// serial order, a deadlock, a lock; and with SQLite a busy file or a locked table. And
// that of one that the server has ended because this process was stopped meanwhile.
var inTheWay = []string{"40001", "40P01", lockTimeout, "25P03", "sqlite 5", "sqlite 6"}

// Record is what a table of actions says of one. It grows with each batch.
type Record struct {
	Table string // With the columns id, actor, action, filter and Count.
	Count string // Such as "rows".
	// Column is one more, with Value in it. "": none.
	Column, Value string

	Actor, Action string
	Asked         any // The filter and what else was said, as JSON.
	// Moves says that Asked has how far it has come, and is written anew with each batch.
	Moves bool
	// Always says that a batch is on record that has changed no rows.
	Always bool
}

// Check says whether somebody who can be put on record asks. Its error begins with
// what.
func (r Record) Check(what string, dryRun bool) error {
	switch {
	case r.Actor == "" && !dryRun:
		return fmt.Errorf("%s: Actor is missing: say who asks, for the record", what)
	case ActorProblem(r.Actor) != "":
		return fmt.Errorf("%s: Actor %s", what, ActorProblem(r.Actor))
	}
	return nil
}

// ActorProblem says why nobody can be on record under a name, or nothing. Logs and
// terminals show it as one line among others.
func ActorProblem(actor string) string {
	switch {
	case utf8.RuneCountInString(actor) > maxActor:
		return fmt.Sprintf("is longer than %d characters: give a name", maxActor)
	case !utf8.ValidString(actor) || strings.ContainsFunc(actor, func(r rune) bool { return !unicode.IsPrint(r) }):
		return fmt.Sprintf("is %q: give a name of UTF-8 text, without line breaks and other control characters", actor)
	}
	return ""
}

// Add notes n more of an action that had so many before. id 0: it had none.
func (r Record) Add(ctx context.Context, tx bun.Tx, id, before, n int64) (int64, error) {
	switch {
	case n == 0 && !r.Always:
		return id, nil
	case id != 0 && !r.Moves:
		_, err := tx.ExecContext(ctx, "UPDATE ? SET ? = ? WHERE id = ?", bun.Ident(r.Table), bun.Ident(r.Count), before+n, id)
		return id, err
	}
	asked, err := json.Marshal(r.Asked)
	if err != nil {
		return 0, err
	}
	if id != 0 {
		_, err := tx.ExecContext(ctx, "UPDATE ? SET ? = ?, filter = ? WHERE id = ?", bun.Ident(r.Table), bun.Ident(r.Count), before+n, string(asked), id)
		return id, err
	}
	columns := []bun.Ident{"actor", "action", "filter", bun.Ident(r.Count)}
	values := []any{r.Actor, r.Action, string(asked), n}
	if r.Column != "" {
		columns, values = append(columns, bun.Ident(r.Column)), append(values, r.Value)
	}
	err = tx.QueryRowContext(ctx, "INSERT INTO ? (?) VALUES (?) RETURNING id", bun.Ident(r.Table), bun.List(columns), bun.List(values)).Scan(&id)
	return id, err
}

// Bounds are how much of what a filter chooses is changed, and how fast. They
// belong to what is asked for on record.
type Bounds struct {
	Rate  float64 `json:"rate,omitempty"`  // So many become due per second, at most; 0: all at once.
	Limit int     `json:"limit,omitempty"` // The first so many; 0: all.
	UpTo  int64   `json:"up_to,omitempty"` // The greatest number; 0: no bound.
}

// Check returns an error that begins with what.
func (b Bounds) Check(what string) error {
	if b.Rate >= 0 && b.Rate <= math.MaxFloat64 && b.Limit >= 0 && b.UpTo >= 0 {
		return nil
	}
	return fmt.Errorf("%s: Rate is %v, Limit %d and UpTo %d: give rows or messages per second and numbers, or 0 for no bound", what, b.Rate, b.Limit, b.UpTo)
}

// Delay is how long after the first the n-th is due, from 0 on.
func (b Bounds) Delay(n int64) time.Duration {
	if b.Rate == 0 {
		return 0
	}
	seconds := float64(n) / b.Rate
	return time.Duration(min(seconds, longest.Seconds()) * float64(time.Second))
}

// Full says whether n are as many as Limit allows.
func (b Bounds) Full(n int) bool { return n == cmp.Or(b.Limit, math.MaxInt) }
