package timerdb

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/dbtx"
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
	if s.clock != nil {
		return bun.Safe(dbtime.Literal(s.db.Dialect(), s.clock.Now()))
	}
	return bun.Safe(dbtime.Now(s.db.Dialect()))
}

// Time is the database's.
func (s *Store) Time(ctx context.Context) (time.Time, error) {
	return dbtime.Ask(ctx, s.reader)
}

// inTx runs fn in a transaction of its own, of which PostgreSQL's plans are by index,
// whatever the statistics say.
func (s *Store) inTx(ctx context.Context, fn func(tx bun.Tx) error) error {
	return dbtx.Run(ctx, s.db, func(tx bun.Tx) error {
		if !s.sqlite() {
			if _, err := tx.ExecContext(ctx, text("begin")); err != nil {
				return err
			}
		}
		return fn(tx)
	})
}

// Earliest is the first of a target's timers that wait.
type Earliest struct {
	Target string
	At     time.Time
	In     time.Duration // from now, by the database's clock
}

// longestIn is in how many seconds a timer is due at most, as far as a duration can say it:
// there are some for the year 9998.
const longestIn = float64(200 * 365 * 24 * 60 * 60)

// Next is the earliest timer of each target that has any that wait, by when they are due.
func (s *Store) Next(ctx context.Context) (all []Earliest, err error) {
	until := bun.Safe(dbtime.Seconds(s.db.Dialect(), string(s.now()), "available_at"))
	err = s.look(ctx, func(db bun.IDB) error {
		return dbrows.Each(ctx, db, text("next"), func(scan func(...any) error) error {
			var e Earliest
			var due dbtime.Time
			var seconds float64
			err := scan(&e.Target, &due, &seconds)
			seconds = min(max(seconds, -longestIn), longestIn)
			e.At, e.In = due.Time, time.Duration(seconds*float64(time.Second))
			all = append(all, e)
			return err
		}, until)
	})
	if err != nil {
		return nil, fmt.Errorf("timers: look for the earliest: %w", err)
	}
	slices.SortFunc(all, func(a, b Earliest) int { return a.At.Compare(b.At) })
	return all, nil
}

// Stats is the state of timers.
type Stats struct {
	Waiting int64
	Due     int64         // how many of them should have been sent
	Sent    int64         // and are not handled yet
	Broken  int64         // set aside: their messages can't be sent
	Late    time.Duration // since when the earliest that waits is due
	Of      string        // the target of that one
}

// dear is how many times as long as a count it is good for: there may be millions that
// wait for months.
const dear = 20

// Stats reads how late timers are, and how many there are, which may be from a little
// earlier if it takes long to count.
func (s *Store) Stats(ctx context.Context) (f Stats, err error) {
	next, err := s.Next(ctx)
	if err != nil {
		return f, err
	}
	s.counting.Lock()
	defer s.counting.Unlock()
	if !time.Now().Before(s.counted) {
		began := time.Now()
		err := s.look(ctx, func(db bun.IDB) error {
			return db.QueryRowContext(ctx, text("count"), s.now()).Scan(&s.counts.Waiting, &s.counts.Due, &s.counts.Sent, &s.counts.Broken)
		})
		if err != nil {
			return f, fmt.Errorf("timers: count them: %w", err)
		}
		s.counted = time.Now().Add(dear * time.Since(began))
	}
	f = s.counts
	if len(next) > 0 && next[0].In < 0 {
		f.Late, f.Of = -next[0].In, next[0].Target
	}
	return f, nil
}

// Unpublished is how many timers of a target were sent whose messages are in the outbox
// still. It looks at the latest of them, and no further than limit.
func (s *Store) Unpublished(ctx context.Context, target string, limit int) (n int, err error) {
	err = s.look(ctx, func(db bun.IDB) error {
		return db.QueryRowContext(ctx, text("unpublished"), limit, target).Scan(&n)
	})
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
