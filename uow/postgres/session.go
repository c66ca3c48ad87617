package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/handling"
	"github.com/waybill-go/waybill/uow"
)

// session is one transaction.
//
// If all of it is known at Commit, it is one pipeline of prepared statements, or
// one simple-protocol message of several statements. Either is one transaction
// that PostgreSQL answers at once: one round trip, and after a failure nothing is
// left to roll back. Otherwise
// it is a bun.Tx on a pinned connection. bun's interface wants the real thing,
// and a transaction of ours on top of a bun.Conn would be ended by the
// application's RunInTx.
type session struct {
	p       *provider
	begun   bool
	ended   bool
	handler bool // a handler has begun it
	pinned  bun.Conn
	tx      bun.Tx
	cancel  context.CancelFunc // of what tx was begun with
}

var _ uow.Session = (*session)(nil)

func (s *session) Began() bool { return s.begun }

// Held is nothing: transactions run beside each other.
func (s *session) Held() time.Duration { return 0 }

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
	_, s.handler = handling.Of(ctx)
	if err := s.p.units.enter(ctx, s.handler); err != nil {
		return fmt.Errorf("postgres: no connection: %w", err)
	}
	conn, err := s.p.db.Conn(ctx)
	if err != nil {
		s.p.units.leave(s.handler)
		return fmt.Errorf("postgres: no connection: %w", err)
	}
	// database/sql rolls back when the context of BeginTx is done. That of the
	// first call may be shorter than the transaction: only the end of a unit
	// cancels this one.
	txCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	tx, err := conn.BeginTx(txCtx, nil)
	if !stop() {
		if err == nil {
			_ = tx.Rollback()
		}
		err = context.Cause(ctx)
	}
	if err != nil {
		cancel()
		_ = conn.Close()
		s.p.units.leave(s.handler)
		return fmt.Errorf("postgres: begin: %w", err)
	}
	s.begun, s.pinned, s.tx, s.cancel = true, conn, tx, cancel
	return nil
}

func (s *session) Send(ctx context.Context, statements []uow.Statement) error {
	if len(statements) == 0 {
		return nil
	}
	query, err := message(s.p.db.QueryGen(), statements)
	if err != nil {
		return err
	}
	if err := s.begin(ctx); err != nil {
		return err
	}
	return s.raw(func(c *conn) error {
		if err := c.open(); err != nil {
			return err
		}
		_, err := run(ctx, c.Conn.Conn(), query)
		return outcome(err, statements)
	})
}

func (s *session) Commit(ctx context.Context, statements []uow.Statement) error {
	switch {
	case s.ended:
		return uow.ErrDone
	case !s.begun:
		return s.commitAtOnce(ctx, statements)
	}
	if err := s.Send(ctx, statements); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("postgres: commit: %w", err)
	}
	if err := s.raw((*conn).open); err != nil {
		return fmt.Errorf("postgres: commit: %w", err)
	}
	s.ended = true
	defer s.release()
	// COMMIT hardly ever waits; who is told to stop while it does, still wants
	// to know what became of it.
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(answerTimeout, s.cancel) })
	defer stop()
	err := s.tx.Commit()
	switch {
	case err == nil:
		return nil
	case severity(err) == "ERROR", unsent(err), errors.Is(err, pgx.ErrTxCommitRollback), errors.Is(err, sql.ErrTxDone):
		return fmt.Errorf("postgres: commit: %w", err)
	}
	if cause := context.Cause(ctx); cause != nil {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	return &uow.CommitUnknownError{Err: err}
}

// raw runs f on the connection of the transaction.
func (s *session) raw(f func(*conn) error) error {
	return s.pinned.Raw(func(driver any) error { return f(driver.(*conn)) })
}

// open says whether the transaction of a connection is still there, and may commit.
func (c *conn) open() error {
	switch {
	case c.Conn.Conn().IsClosed():
		return errors.New("the connection was lost before")
	case c.refused != nil:
		return c.refused
	case c.Conn.Conn().PgConn().TxStatus() == inNone:
		return errEnded
	case c.Conn.Conn().PgConn().TxStatus() == inFailure:
		return errFailed
	}
	return nil
}

// errFailed is a transaction of which PostgreSQL would say that it is aborted, and no more.
var errFailed = errors.New("a statement of the unit of work has failed and its error was not returned: nothing of the unit can be stored; return that error, or run the statement outside of the unit")

// errEnded is a transaction that was ended behind other statements, where nobody looks for it.
var errEnded = errors.New("a statement has ended the transaction of the unit of work: what came before it may be stored and what comes after isn't; take COMMIT or ROLLBACK out of it")

// commitAtOnce is the whole transaction in one round trip.
func (s *session) commitAtOnce(ctx context.Context, statements []uow.Statement) error {
	if len(statements) == 0 {
		s.ended = true
		return nil
	}
	requests, err := s.p.pipeline(statements)
	if err != nil {
		return err
	}
	query := ""
	if requests == nil {
		if query, err = message(s.p.db.QueryGen(), statements); err != nil {
			return err
		}
	}
	_, handler := handling.Of(ctx)
	if err := s.p.units.enter(ctx, handler); err != nil {
		return fmt.Errorf("postgres: no connection: %w", err)
	}
	defer s.p.units.leave(handler)
	conn, err := s.p.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("postgres: no connection: %w", s.p.connecting(err))
	}
	defer conn.Release() // closes it, unless it is idle and in no transaction
	s.ended = true
	answered := 0
	if requests != nil {
		answered, err = runPatiently(ctx, conn.Conn(), func(ctx context.Context, c *pgx.Conn) (int, error) {
			return runPipeline(ctx, c, requests)
		})
		if s.p.pause.missed(conn.Conn(), err) { // nothing of it has happened
			if query, err = message(s.p.db.QueryGen(), statements); err != nil {
				return err
			}
		}
	}
	if query != "" {
		answered, err = runPatiently(ctx, conn.Conn(), func(ctx context.Context, c *pgx.Conn) (int, error) {
			return run(ctx, c, query)
		})
	}
	if cause := context.Cause(ctx); cause != nil && err != nil {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	switch {
	case err == nil:
		return nil
	case severity(err) == "ERROR", unsent(err):
	case severity(err) == "FATAL" && answered < len(statements)-1:
		// The server ended the connection before it came to the last statement,
		// with whose answer the transaction commits.
	default:
		return &uow.CommitUnknownError{Err: err}
	}
	return outcome(err, statements)
}

func (s *session) Rollback(ctx context.Context) error {
	if s.ended || !s.begun {
		s.ended = true
		return nil
	}
	s.ended = true
	defer s.release()
	stop := context.AfterFunc(ctx, s.cancel)
	defer stop()
	if err := s.tx.Rollback(); err != nil && !errors.Is(err, sql.ErrTxDone) {
		return fmt.Errorf("postgres: rollback: %w", err)
	}
	return nil
}

// release gives the connection back to the pool, which closes it if it is
// broken or still in a transaction.
func (s *session) release() {
	s.cancel()
	_ = s.pinned.Close()
	s.p.units.leave(s.handler)
}
