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

// FileConn is what a connection to a file has to have.
type FileConn interface {
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
	return &fileConn{conn.(FileConn), c.line}, nil
}

// fileConn does nothing more once it is cut, but end what it has begun.
type fileConn struct {
	FileConn
	line *Line
}

func (c *fileConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	if err := c.line.check(); err != nil {
		return nil, err
	}
	tx, err := c.FileConn.BeginTx(ctx, opts)
	if err != nil {
		return nil, err
	}
	return fileTx{tx, c.line}, nil
}

func (c *fileConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if err := c.line.check(); err != nil {
		return nil, err
	}
	return c.FileConn.PrepareContext(ctx, query)
}

func (c *fileConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if err := c.line.check(); err != nil {
		return nil, err
	}
	return c.FileConn.ExecContext(ctx, query, args)
}

func (c *fileConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if err := c.line.check(); err != nil {
		return nil, err
	}
	return c.FileConn.QueryContext(ctx, query, args)
}

func (c *fileConn) ResetSession(ctx context.Context) error {
	if c.line.check() != nil {
		return driver.ErrBadConn
	}
	return c.FileConn.ResetSession(ctx)
}

func (c *fileConn) IsValid() bool { return c.line.check() == nil && c.FileConn.IsValid() }

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
