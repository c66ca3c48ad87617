package postgres

import (
	"context"
	"database/sql/driver"
	"errors"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
)

// connector hands out pgx's own connections, but for one thing.
//
// When the answer to an Exec is lost, pgx up to 5.12 reports "conn closed", and
// calls that safe to retry. database/sql then sends the statement again on
// another connection, and it may happen twice.
type connector struct{ driver.Connector }

func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	dc, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &conn{dc.(*stdlib.Conn)}, nil
}

type conn struct{ *stdlib.Conn }

func (c *conn) ExecContext(ctx context.Context, query string, named []driver.NamedValue) (driver.Result, error) {
	if c.Conn.Conn().IsClosed() {
		return nil, driver.ErrBadConn
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

// unsent says that no part of a request on an open connection was sent.
func unsent(err error) bool {
	return pgconn.SafeToRetry(err) && !errors.Is(err, pgconn.ErrConnClosed)
}
