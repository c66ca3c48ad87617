package postgres

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/waybill-go/waybill/internal/dbtext"
	"github.com/waybill-go/waybill/internal/firstrow"
	"github.com/waybill-go/waybill/internal/handling"
	"github.com/waybill-go/waybill/internal/pipeline"
)

// connector hands out pgx's own connections, but for two things.
//
// Rows are as [firstrow.Reader] reads them.
//
// When the answer to an Exec is lost, pgx up to 5.12 reports "conn closed", and
// calls that safe to retry. database/sql then sends the statement again on
// another connection, and it may happen twice.
type connector struct {
	driver.Connector
	p *provider
}

func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	dc, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, c.p.connecting(err)
	}
	return &conn{Conn: dc.(*stdlib.Conn), p: c.p}, nil
}

type conn struct {
	*stdlib.Conn
	p       *provider
	refused error // A statement that would have ended the transaction.
}

var _ pipeline.Conn = (*conn)(nil)

// Pipeline implements pipeline.Conn.
func (c *conn) Pipeline(ctx context.Context, then func() []pipeline.Statement, statements ...pipeline.Statement) error {
	if c.p.pause.on() {
		return pipeline.ErrUnprepared
	}
	conn := c.Conn.Conn()
	err := c.send(ctx, then, statements)
	if err != nil && conn.PgConn().TxStatus() == inTransaction {
		// Between the two trips. What it has locked is free when it is closed.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		err = errors.Join(err, conn.Close(ctx))
	}
	if c.p.pause.missed(conn, err) {
		return pipeline.ErrUnprepared
	}
	return err
}

const inTransaction, inFailure, inNone = 'T', 'E', 'I'

// BeginTx implements [driver.ConnBeginTx].
func (c *conn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	c.refused = nil
	atMost, handler := handling.Of(ctx)
	switch {
	case !handler || !c.p.waitsForEver || opts != driver.TxOptions{}:
		return c.Conn.BeginTx(ctx, opts)
	case c.Conn.Conn().IsClosed():
		return nil, driver.ErrBadConn
	}
	idle := min((atMost + idleGrace).Milliseconds(), math.MaxInt32)
	tx, err := c.Conn.Conn().BeginTx(ctx, pgx.TxOptions{BeginQuery: fmt.Sprintf("BEGIN; SET LOCAL idle_in_transaction_session_timeout = %d", idle)})
	if err != nil {
		return nil, err
	}
	return handlerTx{ctx, tx}, nil
}

// idleGrace is for how long the transaction of a handler may be idle beyond the time that the handler may take. Of a
// process that is frozen, or a machine that is gone, it would keep its rows for hours, from those that took over.
const idleGrace = 30 * time.Second

// handlerTx is a transaction that PostgreSQL ends when it has been idle for too long.
type handlerTx struct {
	ctx context.Context
	tx  pgx.Tx
}

func (t handlerTx) Commit() error   { return t.tx.Commit(t.ctx) }
func (t handlerTx) Rollback() error { return t.tx.Rollback(t.ctx) }

// refuse keeps a statement from ending the transaction that it is in. The transaction can't
// commit any more, also where nobody looks at the error: who meant to roll back would have
// committed.
func (c *conn) refuse(query string) error {
	if c.Conn.Conn().PgConn().TxStatus() == inNone {
		return nil
	}
	err := dbtext.CheckTransaction(query)
	if err != nil {
		c.refused = fmt.Errorf("postgres: %w", err)
	}
	return err
}

func (c *conn) send(ctx context.Context, then func() []pipeline.Statement, statements []pipeline.Statement) error {
	one := then == nil && len(statements) == 1
	requests := make([]request, 0, len(statements)+2)
	if !one {
		requests = append(requests, request{query: "BEGIN ISOLATION LEVEL READ COMMITTED"})
	}
	requests, err := c.requests(requests, statements)
	if err != nil {
		return err
	}
	if then != nil {
		if _, err := runPipeline(ctx, c.Conn.Conn(), requests); err != nil {
			return err
		}
		if requests, err = c.requests(requests[:0], then()); err != nil {
			return err
		}
	}
	if !one {
		requests = append(requests, request{query: "COMMIT"})
	}
	_, err = runPipeline(ctx, c.Conn.Conn(), requests)
	return err
}

func (c *conn) requests(all []request, statements []pipeline.Statement) ([]request, error) {
	for i, s := range statements {
		r, err := c.p.prepared(s.Query, -1, len(s.Values)).with(s.Values)
		if err != nil {
			return nil, fmt.Errorf("postgres: statement %d: %w", i, err)
		}
		r.row = s.Row
		all = append(all, r)
	}
	return all, nil
}

func (c *conn) ExecContext(ctx context.Context, query string, named []driver.NamedValue) (driver.Result, error) {
	if c.Conn.Conn().IsClosed() {
		return nil, driver.ErrBadConn
	}
	if err := c.refuse(query); err != nil {
		return nil, err
	}
	args := make([]any, len(named))
	for i, n := range named {
		args[i] = n.Value
	}
	tag, err := c.Conn.Conn().Exec(ctx, query, args...)
	if unsent(err) {
		return nil, driver.ErrBadConn
	}
	return driver.RowsAffected(tag.RowsAffected()), err
}

func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if err := c.refuse(query); err != nil {
		return nil, err
	}
	r, err := c.Conn.QueryContext(ctx, query, args)
	if err != nil {
		return nil, err
	}
	return &rows{Rows: r.(*stdlib.Rows)}, nil
}

// rows fail with the first one if their query fails later.
type rows struct {
	*stdlib.Rows
	reader firstrow.Reader
}

func (r *rows) Next(dest []driver.Value) error { return r.reader.Next(dest, r.Rows.Next) }

// unsent says that no part of a request on an open connection was sent.
func unsent(err error) bool {
	return pgconn.SafeToRetry(err) && !errors.Is(err, pgconn.ErrConnClosed)
}
