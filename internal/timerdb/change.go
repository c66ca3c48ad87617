package timerdb

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/operate"
	"github.com/waybill-go/waybill/outbox"
)

const (
	// patience is how long PostgreSQL waits for a lock that no timer's row has.
	patience = time.Second
	// tries is how often a change comes back to rows that others had locked, and pause how
	// long it leaves them between.
	tries = 20
	pause = 100 * time.Millisecond
)

// Change moves or stops the timers that a filter chooses, and records who did it. Those
// that are sent can only be stopped: they are left otherwise, and counted. Once it has
// returned, what it has stopped has no effect any more.
//
// A row that somebody has locked is not waited for, as who has it may wait for another
// one that this change has: it comes back to it.
func (s *Store) Change(ctx context.Context, f outbox.TimerFilter, c outbox.TimerChange) (done outbox.TimersChanged, err error) {
	o := &changing{Store: s, TimerChange: c, status: f.Status}
	if err := o.prepare(f); err != nil {
		return done, err
	}
	match, err := s.match(f)
	if err != nil {
		return done, err
	}
	if !c.Before.IsZero() { // What is set in the same millisecond, SQLite's unit, may not have been shown.
		match = bun.SafeQuery("? AND t.set_at < ?", match, dbtime.Value(s.db.Dialect(), c.Before))
	}
	run := &operate.Run{DB: s.db, What: o.what, Done: "timers " + o.word, DryRun: c.DryRun, LockWait: patience, Record: o.record(f)}
	run.After = func() { o.busy = append(o.busy, o.skipped...) }
	planned := int64(0)
	err = operate.Do(ctx, run, func(ctx context.Context) (ids []string, err error) {
		err = dbrows.Each(ctx, s.reader, text("chosen"), func(scan func(...any) error) error {
			var id, status string
			err := scan(&id, &status)
			if o.moves() && status == outbox.TimerSent {
				done.Left++
				return err
			}
			ids = append(ids, id)
			return err
		}, struct{ Match any }{match})
		planned = int64(len(ids))
		return ids, err
	}, o.change)
	for try := 0; err == nil && len(o.busy) > 0; try++ {
		if try == tries {
			err = run.Ended(ctx, fmt.Errorf("%d of them are locked by transactions that don't end, pg_locks says which", len(o.busy)))
			break
		}
		err = o.comeBack(ctx, run)
	}
	if done.Changed, done.Action = run.Changed, run.Action; c.DryRun {
		done.Changed = planned
	}
	return done, err
}

// changing is one call of Change.
type changing struct {
	*Store
	outbox.TimerChange

	what, action, word string
	status             string // that a timer must have still; "": any
	but                string // and one that it must not have; "": none

	skipped []string // in the batch under way
	busy    []string // in those that are committed
}

func (o *changing) moves() bool { return o.Now || !o.At.IsZero() }

func (o *changing) prepare(f outbox.TimerFilter) error {
	o.what, o.action, o.word = "timers: stop", "timers-stop", "stopped"
	if o.moves() {
		o.what, o.action, o.word, o.but = "timers: move", "timers-move", "moved", outbox.TimerSent
	}
	switch {
	case f.Empty():
		return errors.New(o.what + ": the filter is empty, so it chooses every timer: say which")
	case o.Now && !o.At.IsZero():
		return errors.New(o.what + ": Now is set, and At is too: give one of them")
	case !o.At.IsZero() && (o.At.UTC().Year() < 1 || o.At.UTC().Year() > 9998):
		return fmt.Errorf("%s: At is in the year %d, which no database keeps: choose one from 1 to 9998", o.what, o.At.UTC().Year())
	}
	return nil
}

func (o *changing) record(f outbox.TimerFilter) operate.Record {
	return operate.Record{Table: "outbox_actions", Count: "rows", Actor: o.Actor, Action: o.action, Asked: struct {
		outbox.TimerFilter
		At  time.Time `json:"at,omitzero"`
		Now bool      `json:"now,omitempty"`
	}{f, o.At, o.Now}}
}

// change is one batch. What was handled, stopped or set anew meanwhile isn't there any
// more under its id.
func (o *changing) change(ctx context.Context, tx bun.Tx, some []string) (int64, error) {
	o.skipped = nil
	lock := bun.Safe("")
	if !o.sqlite() {
		lock = "FOR UPDATE SKIP LOCKED"
	}
	mine, err := o.ids(ctx, tx, some, lock)
	if err != nil {
		return 0, err
	}
	if len(mine) < len(some) && !o.sqlite() {
		there, err := o.ids(ctx, tx, some, "")
		if err != nil {
			return 0, err
		}
		o.skipped = slices.DeleteFunc(there, func(id string) bool { return slices.Contains(mine, id) })
	}
	if len(mine) == 0 {
		return 0, nil
	}
	result, err := tx.ExecContext(ctx, text(o.step()), bun.List(mine), o.due())
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (o *changing) step() string {
	if o.moves() {
		return "change_move"
	}
	return "change_stop"
}

// due is what available_at becomes.
func (o *changing) due() any {
	if o.Now {
		return o.now()
	}
	return instant(o.db.Dialect().Name(), o.At)
}

func (o *changing) ids(ctx context.Context, tx bun.Tx, some []string, lock bun.Safe) (all []string, err error) {
	err = dbrows.Each(ctx, tx, text("change_lock"), func(scan func(...any) error) error {
		var id string
		err := scan(&id)
		all = append(all, id)
		return err
	}, bun.List(some), o.status, o.but, lock)
	return all, err
}

// comeBack changes what was locked.
func (o *changing) comeBack(ctx context.Context, run *operate.Run) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return run.Ended(ctx, ctx.Err())
	}
	left := o.busy
	o.busy = nil
	for some := range slices.Chunk(left, operate.Batch) {
		if err := run.Step(ctx, func(tx bun.Tx) (int64, error) { return o.change(ctx, tx, some) }); err != nil {
			return err
		}
	}
	return nil
}
