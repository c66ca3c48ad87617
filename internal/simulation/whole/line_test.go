package whole

import (
	"context"
	"database/sql/driver"
	"errors"
)

// connector hands out a process's connections to the database, to database/sql.
type connector struct {
	p      *process
	reader bool
}

func (c connector) Connect(context.Context) (driver.Conn, error) {
	return &line{p: c.p, reader: c.reader}, nil
}
func (connector) Driver() driver.Driver { return nil }

// line is a connection of a process. What goes over it waits until the schedule has it go on.
type line struct {
	p      *process
	reader bool
	tx     *transaction // that goes on
}

var (
	_ driver.ConnBeginTx        = (*line)(nil)
	_ driver.ConnPrepareContext = (*line)(nil)
	_ driver.ExecerContext      = (*line)(nil)
	_ driver.QueryerContext     = (*line)(nil)
)

func (l *line) Close() error { return nil }

// free says whether this line may write now.
func (l *line) free() bool { return l.p.w.db.holder == l.tx }

// conn is where its statements run.
func (l *line) conn() raw {
	if l.reader {
		return l.p.w.db.reader
	}
	return l.p.w.db.writer
}

// run has a statement run when its turn has come.
func (l *line) run(ctx context.Context, text string, do func()) error {
	w := l.p.w
	if l.tx != nil && !w.plan.fine {
		return w.atOnce(ctx, l.p, do)
	}
	r := &request{kind: "write", what: text, do: do, tx: l.tx, changes: l.tx == nil && !reads(text), ready: l.free, database: true}
	switch {
	case l.reader:
		r.kind, r.ready = "read", nil
	case l.tx != nil:
		r.kind = "in"
	}
	return w.ask(ctx, l.p, r)
}

func (l *line) ExecContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Result, error) {
	var res driver.Result
	var err error
	if asked := l.run(ctx, text, func() { res, err = execute(l.conn(), text, args...) }); asked != nil {
		return nil, asked
	}
	return res, err
}

func (l *line) QueryContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Rows, error) {
	var all *rows
	var err error
	if asked := l.run(ctx, text, func() { all, err = query(l.conn(), text, args...) }); asked != nil {
		return nil, asked
	}
	if err != nil {
		return nil, err
	}
	return all, nil
}

// BeginTx waits until nobody else writes.
func (l *line) BeginTx(ctx context.Context, _ driver.TxOptions) (driver.Tx, error) {
	w, tx := l.p.w, &transaction{l.p}
	var err error
	asked := w.ask(ctx, l.p, &request{kind: "begin", database: true, ready: func() bool { return w.db.holder == nil }, do: func() {
		if _, err = execute(w.db.writer, "BEGIN IMMEDIATE"); err == nil {
			w.db.holder = tx
		}
	}})
	if asked != nil {
		w.end(tx) // it may have begun
		return nil, asked
	}
	if err != nil {
		return nil, err
	}
	l.tx = tx
	return ending{l}, nil
}

// ending ends the transaction of a line.
type ending struct{ l *line }

// Commit may happen although nobody hears of it.
func (e ending) Commit() error {
	l, tx := e.l, e.l.tx
	l.tx = nil
	var err error
	r := &request{kind: "commit", database: true, changes: true, tx: tx, do: func() { err = l.p.w.commit(tx) }}
	if asked := l.p.w.ask(context.Background(), l.p, r); asked != nil {
		if errors.Is(asked, errRefused) {
			l.p.w.end(tx)
		}
		return asked
	}
	return err
}

func (e ending) Rollback() error {
	tx := e.l.tx
	e.l.tx = nil
	e.l.p.w.end(tx)
	return nil
}

// prepared is a statement that is sent as it is.
type prepared struct {
	l    *line
	text string
}

func (l *line) PrepareContext(_ context.Context, text string) (driver.Stmt, error) {
	return prepared{l, text}, nil
}
func (l *line) Prepare(text string) (driver.Stmt, error) { return prepared{l, text}, nil }
func (l *line) Begin() (driver.Tx, error)                { return l.BeginTx(context.Background(), driver.TxOptions{}) }

func (s prepared) Close() error  { return nil }
func (s prepared) NumInput() int { return -1 }

func (s prepared) Exec([]driver.Value) (driver.Result, error) { return nil, errors.ErrUnsupported }
func (s prepared) Query([]driver.Value) (driver.Rows, error)  { return nil, errors.ErrUnsupported }

func (s prepared) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	return s.l.ExecContext(ctx, s.text, args)
}

func (s prepared) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return s.l.QueryContext(ctx, s.text, args)
}

// commit ends a transaction, unless it has ended before.
func (w *world) commit(tx *transaction) error {
	if w.db.holder != tx {
		return errRefused
	}
	w.db.holder = nil
	_, err := execute(w.db.writer, "COMMIT")
	return err
}

// end rolls a transaction back, unless it has ended before.
func (w *world) end(tx *transaction) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rollback(tx)
}

// rollback is end. The lock is held.
func (w *world) rollback(tx *transaction) {
	if tx == nil || w.db.holder != tx {
		return
	}
	w.db.holder = nil
	if _, err := execute(w.db.writer, "ROLLBACK"); err != nil {
		w.wrong("rolls back: %v", err)
	}
}
