package timerdb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/testclock"
)

// Store is the timers of one database. It is safe for concurrent use.
type Store struct {
	db     *bun.DB
	reader *bun.DB
	clock  *testclock.Clock // nil: it is no test

	counting sync.Mutex
	counts   Stats
	counted  time.Time // until when these are good
}

// New returns the store on a database: db for what writes, reader for what only
// looks.
func New(db, reader *bun.DB) *Store { return &Store{db: db, reader: reader} }

// By has timers go by a test's clock, if it is one, and returns s.
func (s *Store) By(c *testclock.Clock) *Store {
	s.clock = c
	return s
}

func (s *Store) sqlite() bool { return s.db.Dialect().Name() == dialect.SQLite }

func (s *Store) now() bun.Safe {
	if ahead := s.clock.Ahead(); ahead != 0 {
		return bun.Safe(dbtime.In(s.db.Dialect(), ahead))
	}
	return bun.Safe(dbtime.Now(s.db.Dialect()))
}

// inTx runs fn in a transaction of its own. On PostgreSQL it is READ COMMITTED, as each
// statement must see what was committed while an earlier one got its locks, and its
// plans are by index, whatever the statistics say. On SQLite it holds the writer.
func (s *Store) inTx(ctx context.Context, fn func(tx bun.Tx) error) error {
	var opts *sql.TxOptions
	if !s.sqlite() {
		opts = &sql.TxOptions{Isolation: sql.LevelReadCommitted}
	}
	tx, err := s.db.BeginTx(ctx, opts)
	if err != nil {
		return err
	}
	if !s.sqlite() {
		_, err = tx.ExecContext(ctx, text("begin"))
	}
	if err == nil {
		err = fn(tx)
	}
	if err != nil {
		if rollback := tx.Rollback(); rollback != nil && !errors.Is(rollback, sql.ErrTxDone) {
			return errors.Join(err, rollback)
		}
		return err
	}
	return tx.Commit()
}

// Next is when the earliest timer that waits is due, and how long that is from now, by
// the database's clock. ok is false if none waits.
func (s *Store) Next(ctx context.Context) (at time.Time, in time.Duration, ok bool, err error) {
	var due dbtime.Time
	var seconds float64
	until := bun.Safe(dbtime.Seconds(s.db.Dialect(), string(s.now()), "available_at"))
	switch err := s.reader.QueryRowContext(ctx, text("next"), until).Scan(&due, &seconds); {
	case errors.Is(err, sql.ErrNoRows):
		return at, 0, false, nil
	case err != nil:
		return at, 0, false, fmt.Errorf("timers: look for the earliest: %w", err)
	}
	return due.Time, time.Duration(seconds * float64(time.Second)), true, nil
}

// Stats is the state of timers.
type Stats struct {
	Waiting int64
	Due     int64         // how many of them should have been sent
	Sent    int64         // and are not handled yet
	Late    time.Duration // since when the earliest that waits is due
}

// dear is how many times as long as a count it is good for: there may be millions that
// wait for months.
const dear = 20

// Stats reads how late timers are, and how many there are, which may be from a little
// earlier if it takes long to count.
func (s *Store) Stats(ctx context.Context) (f Stats, err error) {
	_, in, ok, err := s.Next(ctx)
	if err != nil {
		return f, err
	}
	s.counting.Lock()
	defer s.counting.Unlock()
	if !time.Now().Before(s.counted) {
		began := time.Now()
		err := s.look(ctx, func(db bun.IDB) error {
			return db.QueryRowContext(ctx, text("count"), s.now()).Scan(&s.counts.Waiting, &s.counts.Due, &s.counts.Sent)
		})
		if err != nil {
			return f, fmt.Errorf("timers: count them: %w", err)
		}
		s.counted = time.Now().Add(dear * time.Since(began))
	}
	f = s.counts
	if ok {
		f.Late = max(-in, 0)
	}
	return f, nil
}

// Unpublished is how many timers were sent whose messages are in the outbox still. It
// looks at the latest of them, and no further than limit.
func (s *Store) Unpublished(ctx context.Context, limit int) (n int, err error) {
	err = s.look(ctx, func(db bun.IDB) error { return db.QueryRowContext(ctx, text("unpublished"), limit).Scan(&n) })
	if err != nil {
		return 0, fmt.Errorf("timers: count those in the outbox: %w", err)
	}
	return n, nil
}

// look reads, on PostgreSQL by plans that no statistics change, and on SQLite beside
// the writer.
func (s *Store) look(ctx context.Context, fn func(db bun.IDB) error) error {
	if s.sqlite() {
		return fn(s.reader)
	}
	return s.inTx(ctx, func(tx bun.Tx) error { return fn(tx) })
}
