package outboxdb

import (
	"context"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbtx"
	"github.com/waybill-go/waybill/outbox"
)

// A history begins for all programs of a context at once. If one of them kept an event and
// another one, which doesn't know yet, not the next, the history would have a hole in the
// middle of an aggregate, and nothing could mend that: a position can't be drawn later.
//
// So it begins as a target joins, see [Store.Backfill]: first the database says that it is
// about to. Nobody keeps anything then, and every unit of work that has events takes the lock
// that its insert needs anyway, and reads behind it what holds. By then those have looked
// again that had read nothing of it. The last transaction locks out who writes, and says that
// it has begun: what was written before isn't kept, and what comes is.

// BeginHistory has the history of a context begin, if it hasn't, and says how far that is.
// Where nothing was ever written, or events are kept already, it is on at once; otherwise
// [Store.KeepHistory] brings it to its end.
func (s *Store) BeginHistory(ctx context.Context, name string) (state outbox.History, err error) {
	have, found, err := FindTargets(ctx, s.db, name) // nearly always it is on
	if err == nil && found && have.History != "" {
		return have.History, nil
	}
	err = dbtx.Run(ctx, s.db, func(tx bun.Tx) error {
		t, found, err := s.lockTargets(ctx, tx, name)
		if err != nil {
			return err
		}
		if !found {
			return fmt.Errorf("the database doesn't know the context: `waybill migrate` with its configuration, or engine.Migrate, introduces it")
		}
		if t.History == "" {
			var nothing bool
			if err := tx.QueryRowContext(ctx, s.text("history_clear"), name+"::").Scan(&nothing); err != nil {
				return err
			}
			t.History = outbox.HistoryStarting
			if nothing {
				t.History = outbox.HistoryOn
			}
			if err := writeTargets(ctx, tx, name, t, "setting_write"); err != nil {
				return err
			}
		}
		state = t.History
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("outbox: begin the history of context %s: %w", name, err)
	}
	return state, nil
}

// KeepHistory has the history of a context begin, and returns when it has: after six seconds,
// or later if somebody writes for long, which tell is told of; at once where BeginHistory
// says so. It may be ended and run again at any time, and by several at once.
func (s *Store) KeepHistory(ctx context.Context, name string, tell func(waits string)) error {
	return s.keepHistory(ctx, name, 2*outbox.TargetsFresh, tell)
}

func (s *Store) keepHistory(ctx context.Context, name string, settles time.Duration, tell func(waits string)) error {
	state, err := s.BeginHistory(ctx, name)
	if err != nil || state == outbox.HistoryOn {
		return err
	}
	tell("units of work that haven't heard of it to notice it")
	err = rest(ctx, settles) // by then they have looked again
	for pause := firstPause; err == nil; pause = min(2*pause, lastPause) {
		err = dbtx.Run(ctx, s.db, func(tx bun.Tx) error {
			if err := s.lockOut(ctx, tx); err != nil {
				return err
			}
			t, _, err := s.lockTargets(ctx, tx, name)
			if err == nil && t.History == outbox.HistoryStarting {
				t.History = outbox.HistoryOn
				err = writeTargets(ctx, tx, name, t, "setting_write")
			}
			return err
		})
		if !lockTimeout(err) {
			break
		}
		tell("a transaction that has been writing to the outbox for long")
		err = rest(ctx, pause)
	}
	if err != nil {
		return fmt.Errorf("outbox: the history of context %s has not begun yet; try again to continue: %w", name, err)
	}
	return nil
}

// lockTargets reads a context's targets; nobody else changes them before the transaction
// ends.
func (s *Store) lockTargets(ctx context.Context, tx bun.Tx, name string) (outbox.Targets, bool, error) {
	if !s.sqlite() {
		if _, err := tx.ExecContext(ctx, s.text("lock_setting"), targetsPrefix+name); err != nil {
			return outbox.Targets{}, false, err
		}
	}
	return FindTargets(ctx, tx, name)
}
