package lifeline

import (
	"context"
	"database/sql/driver"
)

// Connector is c, through the line of ctx if it has one. It is for databases in files,
// whose connections are none of the network.
func Connector(ctx context.Context, c driver.Connector) driver.Connector {
	if l, ok := ctx.Value(lineKey{}).(*Line); ok {
		return connector{c, l}
	}
	return c
}

type connector struct {
	driver.Connector
	line *Line
}

// raw is what a connection to a file has to have.
type raw interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.SessionResetter
	driver.Validator
}

func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	if err := c.line.check(); err != nil {
		return nil, err
	}
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &fileConn{conn.(raw), c.line}, nil
}

// fileConn does nothing more once it is cut, but end what it has begun.
type fileConn struct {
	raw
	line *Line
}

func (c *fileConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	if err := c.line.check(); err != nil {
		return nil, err
	}
	tx, err := c.raw.BeginTx(ctx, opts)
	if err != nil {
		return nil, err
	}
	return fileTx{tx, c.line}, nil
}

func (c *fileConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if err := c.line.check(); err != nil {
		return nil, err
	}
	return c.raw.PrepareContext(ctx, query)
}

func (c *fileConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if err := c.line.check(); err != nil {
		return nil, err
	}
	return c.raw.ExecContext(ctx, query, args)
}

func (c *fileConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if err := c.line.check(); err != nil {
		return nil, err
	}
	return c.raw.QueryContext(ctx, query, args)
}

func (c *fileConn) ResetSession(ctx context.Context) error {
	if c.line.check() != nil {
		return driver.ErrBadConn
	}
	return c.raw.ResetSession(ctx)
}

func (c *fileConn) IsValid() bool { return c.line.check() == nil && c.raw.IsValid() }

type fileTx struct {
	driver.Tx
	line *Line
}

func (t fileTx) Commit() error {
	if err := t.line.check(); err != nil {
		_ = t.Rollback()
		return err
	}
	return t.Tx.Commit()
}
