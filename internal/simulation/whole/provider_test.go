package whole

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/sqlitedialect"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

// provider is a process's pool of connections.
type provider struct {
	p          *process
	db, reader *bun.DB
}

var _ uow.Provider = (*provider)(nil)

func newProvider(p *process) *provider {
	pool := func(reader bool) *bun.DB {
		db := sql.OpenDB(connector{p, reader})
		db.SetMaxIdleConns(8)
		return bun.NewDB(db, sqlitedialect.New(), bun.WithDiscardUnknownColumns())
	}
	return &provider{p, pool(false), pool(true)}
}

func (p *provider) Name() string             { return "whole" }
func (p *provider) DB() *bun.DB              { return p.db }
func (p *provider) Reader() *bun.DB          { return p.reader }
func (p *provider) Session() uow.Session     { return &session{p: p} }
func (p *provider) Retryable(err error) bool { return errors.Is(err, errBusy) }
func (p *provider) Close() error             { return errors.Join(p.reader.Close(), p.db.Close()) }

// Signal and Watch: nobody hears of others but by the poll.
func (p *provider) Signal([]outbox.Poke) {}

func (p *provider) Watch(ctx context.Context, _ func([]outbox.Poke)) error {
	<-ctx.Done()
	return ctx.Err()
}

// session is one transaction, as that of uow/sqlite.
type session struct {
	p            *provider
	tx           bun.Tx
	begun, ended bool
	cancel       context.CancelFunc
}

var _ uow.Session = (*session)(nil)

func (s *session) Began() bool         { return s.begun }
func (s *session) Held() time.Duration { return 0 }

func (s *session) DB(ctx context.Context) (bun.IDB, error) {
	if s.ended {
		return nil, uow.ErrDone
	}
	if !s.begun {
		// The context of the first call may be shorter than the transaction.
		whole, cancel := context.WithCancel(context.WithoutCancel(ctx))
		stop := context.AfterFunc(ctx, cancel)
		tx, err := s.p.db.BeginTx(whole, nil)
		stop()
		if err != nil {
			cancel()
			return nil, fmt.Errorf("whole: begin: %w", err)
		}
		s.tx, s.begun, s.cancel = tx, true, cancel
	}
	return s.tx, nil
}

func (s *session) Send(ctx context.Context, statements []uow.Statement) error {
	if len(statements) == 0 {
		return nil
	}
	if _, err := s.DB(ctx); err != nil {
		return err
	}
	for _, st := range statements {
		text, err := st.Query.AppendQuery(s.p.db.QueryGen(), nil)
		if err != nil {
			return err
		}
		res, err := s.tx.Tx.ExecContext(ctx, string(text))
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil {
			return err
		} else if st.Rows >= 0 && n != st.Rows {
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
	if s.ended = true; !s.begun {
		return nil
	}
	defer s.cancel()
	err := s.tx.Commit()
	if errors.Is(err, errLost) || errors.Is(err, errDead) {
		return &uow.CommitUnknownError{Err: err}
	}
	return err
}

func (s *session) Rollback(context.Context) error {
	if s.ended || !s.begun {
		s.ended = true
		return nil
	}
	s.ended = true
	defer s.cancel()
	if err := s.tx.Rollback(); !errors.Is(err, sql.ErrTxDone) {
		return err
	}
	return nil
}
