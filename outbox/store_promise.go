package outbox

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbtime"
)

// Promises makes the promises of one target. The zero value has made none. It is
// used by one goroutine at a time.
type Promises struct {
	source string
	// noted is a time when the transactions running had written to the outbox. When
	// they have ended, all that was stored before is visible.
	noted   time.Time
	running []string
	horizon time.Time
}

// Promise makes the next one. ok is false as long as a transaction is open that
// was writing when it was called first.
func (s *Store) Promise(ctx context.Context, target string, memory *Promises) (p Promise, ok bool, err error) {
	if memory.source == "" {
		if memory.source, err = s.source(ctx); err != nil {
			return p, false, err
		}
	}
	p.Source = memory.source + ":" + target
	if s.sqlite() {
		// While it has the writer, no transaction is open that has written.
		err = s.inTx(ctx, s.db, func(tx bun.Tx) error {
			p.Settled, p.AsOf, err = s.unsettled(ctx, tx, target)
			return err
		})
	} else if err = s.lookBack(ctx, memory); err == nil {
		p.Settled, p.AsOf, err = s.unsettled(ctx, s.db, target)
		if memory.horizon.Before(p.Settled) {
			p.Settled = memory.horizon
		}
	}
	return p, !p.Settled.IsZero(), err
}

// source names this outbox.
func (s *Store) source(ctx context.Context) (id string, err error) {
	if _, err = s.db.ExecContext(ctx, "INSERT INTO outbox_settings (name, value) VALUES ('source', ?) ON CONFLICT (name) DO NOTHING", uuid.NewString()); err == nil {
		err = s.db.QueryRowContext(ctx, "SELECT value FROM outbox_settings WHERE name = 'source'").Scan(&id)
	}
	if err != nil {
		return "", fmt.Errorf("outbox: read the outbox's name from outbox_settings: %w", err)
	}
	return id, nil
}

// lookBack moves the horizon, as [Memory.look] does. The time comes first: what
// is stored before it by a transaction that isn't among the writers is committed.
func (s *Store) lookBack(ctx context.Context, memory *Promises) error {
	var now dbtime.Time
	if err := s.db.QueryRowContext(ctx, "SELECT "+s.now()).Scan(&now); err != nil {
		return err
	}
	writers, err := writersOf(ctx, s.db)
	if err != nil {
		return err
	}
	for range 2 {
		if slices.ContainsFunc(memory.running, func(t string) bool { return slices.Contains(writers, t) }) {
			return nil
		}
		memory.horizon = memory.noted
		memory.noted, memory.running = now.Time, writers
	}
	return nil
}

// unsettled is when the oldest row was stored that isn't settled, or is abandoned
// and may be at the broker all the same; the present, if there is none. One that
// was refused when it was first tried is not there. Rows are looked up as claims do,
// by partition and priority.
func (s *Store) unsettled(ctx context.Context, db bun.IDB, target string) (since, now time.Time, err error) {
	const (
		of      = " FROM outbox WHERE target_broker = ?0"
		largest = "SELECT max(priority)" + of + " AND finished_at IS NULL AND priority <> 0"
	)
	var oldest, at dbtime.Time
	err = db.NewRaw("WITH RECURSIVE p(n) AS (SELECT ("+largest+") UNION ALL SELECT ("+largest+" AND priority < p.n) FROM p WHERE p.n IS NOT NULL),"+
		" classes(n) AS (SELECT 0 UNION ALL SELECT n FROM p WHERE n IS NOT NULL)"+
		" SELECT "+s.now()+", (SELECT min(at) FROM (SELECT (SELECT created_at"+of+" AND partition = o.partition AND priority = c.n"+
		" AND finished_at IS NULL ORDER BY seq LIMIT 1) AS at FROM outbox_partitions AS o CROSS JOIN classes AS c WHERE o.target_broker = ?0"+
		" UNION ALL SELECT min(created_at)"+of+" AND finished_at IS NOT NULL AND published_at IS NULL AND last_attempt_at IS NOT NULL"+
		" AND NOT (attempts = 1 AND failure_class = 'permanent')) AS unsettled)", target).Scan(ctx, &at, &oldest)
	if err != nil {
		return since, now, fmt.Errorf("outbox: look for the oldest row that isn't settled: %w", err)
	}
	if !oldest.Valid {
		oldest = at
	}
	return oldest.Time, at.Time, nil
}

const promiseEvery = 15 * time.Second

// promise keeps the lane's promise. While the database doesn't answer, the last one
// stands: it says less. A stop doesn't wait for it.
func (l *lane) promise(hard context.Context) {
	stopping, cancel := context.WithCancel(hard)
	defer cancel()
	l.p.done.Go(func() {
		select {
		case <-l.p.stop:
			cancel()
		case <-stopping.Done():
		}
	})
	var memory Promises
	for {
		ctx, done := context.WithTimeout(stopping, storeTimeout)
		p, ok, err := l.p.cfg.Store.Promise(ctx, l.target, &memory)
		done()
		l.database.Note(stopping, promising, err)
		if err == nil && ok {
			l.promised.Store(&p)
		}
		if !l.p.sleep(promiseEvery) {
			return
		}
	}
}
