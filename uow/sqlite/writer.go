package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill/internal/dbtext"
	"github.com/waybill-go/waybill/internal/firstrow"
	"github.com/waybill-go/waybill/internal/writer"
)

// oneWriter is the file's one connection that writes, behind a gate.
//
// To database/sql it is a connector, and what it hands out as connections are
// places in the queue at the gate. They cost nothing, so that all who want to
// write wait there, and none of them in database/sql.
type oneWriter struct {
	driver.Connector // of the connection
	file             *openFile
	gate             gate
	name             string
	timeout          time.Duration // of the wait for others of this process
	nested           time.Duration // the same, inside the function of another unit
	holder           atomic.Pointer[holder]

	locked atomic.Pointer[lockedError] // what the last one inside met; nil: nothing
	conn   driver.Conn                 // of whoever is inside; nil: not open
	log    logFiles                    // of conn
	closed atomic.Bool
}

// Connect implements [driver.Connector].
func (w *oneWriter) Connect(context.Context) (driver.Conn, error) { return &place{w: w}, nil }

// Close lets whoever is inside end. It is called by Close of the [sql.DB].
func (w *oneWriter) Close() error {
	w.closed.Store(true)
	return w.sweep()
}

// sweep closes the connection of a closed writer, unless somebody is inside: who
// leaves does it then.
func (w *oneWriter) sweep() error {
	if !w.closed.Load() || !w.gate.tryEnter() {
		return nil
	}
	defer w.gate.leave()
	return w.discard()
}

func (w *oneWriter) discard() error {
	if w.conn == nil {
		return nil
	}
	err := w.conn.Close()
	w.conn, w.log = nil, logFiles{}
	return err
}

func (w *oneWriter) enter(ctx context.Context) error {
	wait, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	if err := w.gate.enter(wait, writer.IsUrgent(ctx)); err != nil {
		if ctx.Err() != nil {
			return w.since(context.Cause(ctx))
		}
		return w.late(w.timeout)
	}
	if err := w.open(ctx); err != nil {
		w.leave()
		return err
	}
	return nil
}

// open opens the connection again after a statement was interrupted, which may
// have left something behind.
func (w *oneWriter) open(ctx context.Context) (err error) {
	if w.closed.Load() {
		return sql.ErrConnDone
	}
	if err := w.file.checkLog(w.log); err != nil {
		return err
	}
	if v, ok := w.conn.(driver.Validator); ok && !v.IsValid() {
		_ = w.discard()
	}
	if w.conn == nil {
		if w.conn, err = w.Connector.Connect(ctx); err == nil {
			w.log = w.file.logOf(ctx, w.conn)
		}
	}
	return err
}

func (w *oneWriter) leave() {
	w.gate.leave()
	_ = w.sweep()
}

// place is one who writes now and then: a transaction at a time, or a statement.
type place struct {
	w       *oneWriter
	inside  bool  // in a transaction
	refused error // A statement that would have ended it.
}

var (
	_ driver.ConnBeginTx        = (*place)(nil)
	_ driver.ConnPrepareContext = (*place)(nil)
	_ driver.ExecerContext      = (*place)(nil)
	_ driver.QueryerContext     = (*place)(nil)
)

// enter returns what to do when it is done.
func (p *place) enter(ctx context.Context) (leave func(), err error) {
	if p.inside {
		return func() {}, nil
	}
	if err := p.w.enter(ctx); err != nil {
		return nil, err
	}
	return p.w.leave, nil
}

func (p *place) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	leave, err := p.enter(ctx)
	if err != nil {
		return nil, err
	}
	tx, err := p.w.conn.(driver.ConnBeginTx).BeginTx(ctx, opts)
	if err = p.w.noted(err); err != nil {
		leave()
		return nil, err
	}
	p.inside, p.refused = true, nil
	return &placeTx{p, tx}, nil
}

type placeTx struct {
	p  *place
	tx driver.Tx
}

func (t *placeTx) Rollback() error { return t.end(t.tx.Rollback) }

func (t *placeTx) Commit() error {
	if t.p.refused != nil {
		return errors.Join(t.p.refused, t.Rollback())
	}
	return t.end(t.tx.Commit)
}

// refuse keeps a statement from ending the transaction that it is in. The transaction can't
// commit any more, also where nobody looks at the error: who meant to roll back would have
// committed.
func (p *place) refuse(query string) error {
	if !p.inside {
		return nil
	}
	err := dbtext.CheckTransaction(query)
	if err != nil {
		p.refused = err
	}
	return err
}

func (t *placeTx) end(how func() error) error {
	err := how()
	if err != nil { // the transaction may still be there, and must not meet the next one
		_ = t.p.w.discard()
	}
	t.p.inside = false
	t.p.w.leave()
	return t.p.w.unwritable(err)
}

func (p *place) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	leave, err := p.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	if err := p.refuse(query); err != nil {
		return nil, err
	}
	result, err := p.w.conn.(driver.ExecerContext).ExecContext(ctx, query, args)
	return result, p.w.noted(err)
}

func (p *place) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	leave, err := p.enter(ctx)
	if err != nil {
		return nil, err
	}
	if err := p.refuse(query); err != nil {
		leave()
		return nil, err
	}
	rows, err := p.w.conn.(driver.QueryerContext).QueryContext(ctx, query, args)
	if err = p.w.noted(err); err != nil {
		leave()
		return nil, err
	}
	return &placeRows{sqliteRows: rows.(sqliteRows), leave: leave}, nil
}

// sqliteRows is what the driver's rows can do.
type sqliteRows interface {
	driver.RowsColumnTypeDatabaseTypeName
	driver.RowsColumnTypeLength
	driver.RowsColumnTypeNullable
	driver.RowsColumnTypePrecisionScale
	driver.RowsColumnTypeScanType
}

type placeRows struct {
	sqliteRows
	leave  func()
	reader firstrow.Reader
}

func (r *placeRows) Next(dest []driver.Value) error { return r.reader.Next(dest, r.sqliteRows.Next) }

func (r *placeRows) Close() error {
	defer r.leave()
	return r.sqliteRows.Close()
}

var errPrepare = errors.New("sqlite: to prepare a statement begin a transaction: outside one, others write in between")

func (p *place) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if !p.inside {
		return nil, errPrepare
	}
	return p.w.conn.(driver.ConnPrepareContext).PrepareContext(ctx, query)
}

// Prepare and Begin are of no use to database/sql, which calls those above.

func (p *place) Prepare(string) (driver.Stmt, error) { return nil, errPrepare }

func (p *place) Begin() (driver.Tx, error) {
	return p.BeginTx(context.Background(), driver.TxOptions{})
}
func (p *place) Close() error { return nil }
