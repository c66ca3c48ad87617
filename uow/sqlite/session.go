package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/uow"
)

// session is one immediate transaction on the writer.
type session struct {
	p      *provider
	unit   *uow.Unit // whose it is; may be nil
	begun  bool
	ended  bool
	tx     bun.Tx
	cancel context.CancelFunc // of what tx was begun with
	holds  *holder            // the writer, once it has begun
	held   time.Duration
}

var (
	_ uow.Session = (*session)(nil)
	_ uow.Owned   = (*session)(nil)
)

func (s *session) Began() bool { return s.begun }

func (s *session) DB(ctx context.Context) (bun.IDB, error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	return s.tx, nil
}

func (s *session) begin(ctx context.Context) error {
	switch {
	case s.ended:
		return uow.ErrDone
	case s.begun:
		return nil
	}
	// database/sql rolls back when the context of BeginTx is done. That of the
	// first call may be shorter than the transaction: only the end of a unit
	// cancels this one.
	txCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	waiting, done, err := s.patience(ctx)
	if err != nil {
		cancel()
		return err
	}
	defer done()
	stop := context.AfterFunc(waiting, cancel)
	tx, err := s.p.db.BeginTx(txCtx, nil)
	if !stop() {
		if err == nil {
			_ = tx.Rollback()
		}
		err = context.Cause(waiting)
	}
	if err != nil {
		cancel()
		return fmt.Errorf("sqlite: begin: %w", err)
	}
	s.begun, s.tx, s.cancel, s.holds = true, tx, cancel, hold(ctx, s.unit)
	s.p.writer.holder.Store(s.holds)
	return nil
}

// patience is ctx for as long as it makes sense to wait for the writer. A unit inside
// another's function waits for itself if that one is inside: certainly if both have
// one context, and most likely if it takes long.
func (s *session) patience(ctx context.Context) (context.Context, context.CancelFunc, error) {
	w := s.p.writer
	if s.unit == nil || !w.gate.busy() || !s.unit.Nested() {
		return ctx, func() {}, nil
	}
	if holder := w.holder.Load(); holder != nil && holder.unit != nil && s.unit.SameContext(holder.unit) {
		return nil, nil, fmt.Errorf("sqlite: provider %q: %w", w.name, uow.ErrOuterContext)
	}
	waiting, done := context.WithTimeoutCause(ctx, w.nested, fmt.Errorf("provider %q: the writer was busy for %v: %w", w.name, w.nested, uow.ErrOuterContext))
	return waiting, done, nil
}

// OwnedBy implements [uow.Owned].
func (s *session) OwnedBy(u *uow.Unit) { s.unit = u }

func (s *session) Send(ctx context.Context, statements []uow.Statement) error {
	for i, st := range statements {
		if st.Rows >= 0 && st.Else == nil {
			return fmt.Errorf("sqlite: statement %d demands %d rows and has no Else", i, st.Rows)
		}
	}
	if len(statements) == 0 {
		return nil
	}
	if err := s.begin(ctx); err != nil {
		return err
	}
	for i, st := range statements {
		query, err := st.Query.AppendQuery(s.p.db.QueryGen(), nil)
		if err != nil {
			return fmt.Errorf("sqlite: statement %d: %w", i, err)
		}
		if bytes.IndexByte(query, 0) >= 0 { // SQLite would read no further
			return errors.New("sqlite: a statement has a NUL byte, which can't be stored as text: leave it out, or use a BLOB")
		}
		res, err := s.tx.Tx.ExecContext(ctx, string(query))
		if err != nil {
			return explain(ctx, err)
		}
		if st.Rows < 0 {
			continue
		}
		n, err := res.RowsAffected()
		if err != nil {
			return err
		}
		if n != st.Rows {
			return st.Else
		}
	}
	return nil
}

func (s *session) Commit(ctx context.Context, statements []uow.Statement) error {
	if s.ended {
		return uow.ErrDone
	}
	if err := s.Send(ctx, statements); err != nil {
		return err
	}
	if !s.begun {
		s.ended = true
		return nil
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("sqlite: commit: %w", err)
	}
	s.ended = true
	defer s.release()
	err := s.tx.Commit()
	switch {
	case err == nil:
		return nil
	case is(err, codeIOErr):
		// The frame that commits may be in the file although it could not be synced.
		return &uow.CommitUnknownError{Err: err}
	}
	return fmt.Errorf("sqlite: commit: %w", err)
}

func (s *session) Rollback(context.Context) error {
	if s.ended || !s.begun {
		s.ended = true
		return nil
	}
	s.ended = true
	defer s.release()
	err := s.tx.Rollback()
	if err != nil && !errors.Is(err, sql.ErrTxDone) && !rolledBack(err) {
		return fmt.Errorf("sqlite: rollback: %w", err)
	}
	return nil
}

func (s *session) release() {
	s.p.writer.holder.CompareAndSwap(s.holds, nil)
	s.cancel()
	s.held = time.Since(s.holds.since)
}

func (s *session) Held() time.Duration { return s.held }

// rolledBack says that SQLite had done it itself, as after an interrupted
// statement or on a full disk.
func rolledBack(err error) bool { return strings.Contains(err.Error(), "no transaction is active") }

func explain(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("sqlite: %w: %w", cause, err)
	}
	return dberr.Missing(err)
}
