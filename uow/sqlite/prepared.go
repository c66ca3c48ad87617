package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"hash/maphash"
	"slices"

	"github.com/waybill-go/waybill/internal/lifeline"
)

const (
	// maxPrepared is how many statements a connection keeps: more than Waybill itself has.
	maxPrepared = 256
	// maxPreparedText keeps long texts out, such as lists of values, which hardly come twice.
	maxPreparedText = 16 << 10
	// maxSeen is how many texts without arguments a connection remembers.
	maxSeen = 128
)

// preparing are connections that keep the statements that they have prepared: to prepare a
// statement of some length takes as long as to run it, or longer. SQLite prepares one anew by
// itself where a table has changed, and also for each value of a parameter that stands alone
// behind LIMIT: LIMIT +?1 spares that.
type preparing struct{ driver.Connector }

// Connect implements [driver.Connector].
func (c preparing) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &preparedConn{FileConn: conn.(lifeline.FileConn), seed: maphash.MakeSeed()}, nil
}

// preparedConn keeps statements that have arguments, and those without that come again: most
// have their values in the text, and never do. One that is in use isn't among them: who wants
// the same meanwhile prepares it again.
type preparedConn struct {
	lifeline.FileConn
	kept []prepared // the one that was used last comes last
	seen []uint64   // hashes of texts without arguments, a ring
	next int        // of seen
	seed maphash.Seed
}

type prepared struct {
	query string
	stmt  sqliteStmt
}

type sqliteStmt interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

// ExecContext implements [driver.ExecerContext].
func (c *preparedConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if !c.keeps(query, args) {
		return c.FileConn.ExecContext(ctx, query, args)
	}
	p, err := c.take(ctx, query)
	if err != nil {
		return nil, err
	}
	res, err := p.stmt.ExecContext(ctx, args)
	if err != nil {
		_ = p.stmt.Close() // it would say the same
		return nil, err
	}
	c.keep(p)
	return res, nil
}

// QueryContext implements [driver.QueryerContext].
func (c *preparedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if !c.keeps(query, args) {
		return c.FileConn.QueryContext(ctx, query, args)
	}
	p, err := c.take(ctx, query)
	if err != nil {
		return nil, err
	}
	rows, err := p.stmt.QueryContext(ctx, args)
	if err != nil {
		_ = p.stmt.Close() // it would say the same
		return nil, err
	}
	return &preparedRows{sqliteRows: rows.(sqliteRows), conn: c, of: p}, nil
}

func (c *preparedConn) keeps(query string, args []driver.NamedValue) bool {
	return len(query) <= maxPreparedText && (len(args) > 0 || c.again(query))
}

// again says whether a text has come before.
func (c *preparedConn) again(query string) bool {
	hash := maphash.String(c.seed, query)
	switch {
	case slices.Contains(c.seen, hash):
		return true
	case len(c.seen) < maxSeen:
		c.seen = append(c.seen, hash)
	default:
		c.seen[c.next] = hash
		c.next = (c.next + 1) % maxSeen
	}
	return false
}

// take returns a statement that nobody uses.
func (c *preparedConn) take(ctx context.Context, query string) (prepared, error) {
	for i, p := range slices.Backward(c.kept) {
		if p.query == query {
			c.kept = slices.Delete(c.kept, i, i+1)
			return p, nil
		}
	}
	stmt, err := c.PrepareContext(ctx, query)
	if err != nil {
		return prepared{}, err
	}
	return prepared{query, stmt.(sqliteStmt)}, nil
}

// keep gives a statement back. What was used longest ago makes room: whether that can be
// closed is no matter of who has run another one.
func (c *preparedConn) keep(p prepared) {
	if len(c.kept) == maxPrepared {
		_ = c.kept[0].stmt.Close()
		c.kept = slices.Delete(c.kept, 0, 1)
	}
	c.kept = append(c.kept, p)
}

func (c *preparedConn) Close() error {
	var errs []error
	for _, p := range c.kept {
		errs = append(errs, p.stmt.Close())
	}
	c.kept = nil
	return errors.Join(append(errs, c.FileConn.Close())...)
}

// preparedRows give their statement back when they are closed.
type preparedRows struct {
	sqliteRows
	conn *preparedConn
	of   prepared
}

func (r *preparedRows) Close() error {
	if r.conn == nil {
		return nil
	}
	conn := r.conn
	r.conn = nil
	if err := r.sqliteRows.Close(); err != nil {
		_ = r.of.stmt.Close()
		return err
	}
	conn.keep(r.of)
	return nil
}
