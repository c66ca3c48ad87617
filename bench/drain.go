package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/broker/kafka"
	"github.com/waybill-go/waybill/outbox"
)

// drainage is a backlog of rows that wait for the internal broker, and the
// circumstances of its publication.
type drainage struct {
	events, keys int
	// history is how many rows are in the table that are published already.
	history int
	// snapshot is how long, at most, another transaction keeps what it sees.
	snapshot time.Duration
	// delete removes rows as they are published.
	delete bool
	// calls of the broker of each engine that may be out; 0 is the default.
	calls int
	// exact publishes in transactions.
	exact bool
	// engines beside the first one, each with connections of its own.
	others int
}

// waybill is events per second from the start of an engine to the last row being
// published, in the table too.
func (d drainage) waybill(ctx context.Context, w *world) (_ map[string]float64, err error) {
	b, end, err := w.brokerOn(ctx, kafka.Config{Addresses: []string{w.kafka}, ExactlyOnce: d.exact})
	if err != nil {
		return nil, err
	}
	defer end()
	filled, err := w.fill(ctx, d)
	if err != nil {
		return nil, err
	}
	if d.snapshot > 0 {
		release, err := w.snapshot(ctx, d.snapshot)
		if err != nil {
			return nil, err
		}
		defer release()
	}
	cfg := outbox.Config{Calls: d.calls, Retention: outbox.Retention{Delete: d.delete}}
	work := func(ctx context.Context) error { return w.drained(ctx, d.events) }
	for range d.others {
		other, end, err := w.apart(ctx, w.dsn)
		if err != nil {
			return nil, err
		}
		defer end()
		alone := work
		work = func(ctx context.Context) error { return other.running(ctx, b, cfg, alone) }
	}
	got, err := d.measure(ctx, w, func(done func()) error {
		return w.running(ctx, b, cfg, func(ctx context.Context) error {
			defer done()
			return work(ctx)
		})
	})
	if err != nil {
		return nil, err
	}
	return got, w.verify(ctx, d, filled)
}

// drainMetrics: events a second, and the processor time of an event in the backends of
// PostgreSQL and in the program that publishes. What else runs on the machine changes
// these less than the first.
var drainMetrics = []string{"rate", "server µs", "own µs"}

// measure runs a drain, which says when it is done.
func (d drainage) measure(ctx context.Context, w *world, drain func(done func()) error) (map[string]float64, error) {
	spent, err := w.spending(ctx, followClosely)
	if err != nil {
		return nil, err
	}
	events, own, begin := float64(d.events), processorTime(), time.Now()
	var took time.Duration
	err = drain(func() { took, own = time.Since(begin), processorTime()-own })
	if err != nil {
		return nil, errors.Join(err, spent.end(ctx, nil))
	}
	got := map[string]float64{drainMetrics[0]: events / took.Seconds(), drainMetrics[2]: float64(own.Microseconds()) / events}
	err = spent.end(ctx, func(s spending, _ time.Duration) {
		if s.seen {
			got[drainMetrics[1]] = float64(s.processor.Microseconds()) / events
		}
	})
	return got, err
}

// numbers are drains one after the other with several numbers of calls; run is
// whose.
func numbers(d drainage, run func(drainage) work) work {
	return func(ctx context.Context, w *world) (map[string]float64, error) {
		got := map[string]float64{}
		for i, metric := range numberMetrics {
			d.calls, d.others = 1<<i, 0
			if i == len(numberMetrics)-1 {
				d.calls, d.others = 4, 1
			}
			one, err := run(d)(ctx, w)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", metric, err)
			}
			got[metric] = one["rate"]
		}
		return got, nil
	}
}

// numberMetrics are doublings but for the last.
var numberMetrics = []string{"1 call", "2 calls", "4 calls", "8 calls", "2 engines of 4"}

// uncounted is how many messages there are where another process sends them, or some
// twice.
const uncounted = math.MaxInt

// drained waits until no row is unfinished. Who asks the database shares the cores with
// what is measured: until the last broker has stored as many messages it is asked every
// second only, as those of calls that failed in part are not counted.
func (w *world) drained(ctx context.Context, messages int) error {
	const patience = 5 * time.Minute
	begin := time.Now()
	for looked := begin; ctx.Err() == nil; pause(ctx, 2*time.Millisecond) {
		if w.acknowledged.Load() < int64(messages) && time.Since(looked) < time.Second {
			continue
		}
		var left bool
		err := w.sql.QueryRow(ctx, product.left).Scan(&left)
		switch looked = time.Now(); {
		case err != nil:
			return err
		case !left:
			return nil
		case time.Since(begin) > patience:
			return fmt.Errorf("not done within %v", patience)
		}
	}
	return ctx.Err()
}

// fill puts a backlog into the outbox, rows as the library makes them, and
// returns them in their order.
func (w *world) fill(ctx context.Context, d drainage) ([]outbox.Row, error) {
	if err := w.empty(ctx); err != nil {
		return nil, err
	}
	if err := w.add(ctx, lot{rows: d.history, keys: max(d.history, 1), name: "past-", state: published, ago: time.Hour}); err != nil {
		return nil, err
	}
	rows, err := w.backlog(ctx, d)
	if err != nil {
		return nil, err
	}
	if err := w.insert(ctx, rows); err != nil {
		return nil, err
	}
	return rows, w.tidy(ctx, product.names...)
}

// tidy is for what was inserted, so that nobody else pays for it.
func (w *world) tidy(ctx context.Context, tables ...string) error {
	return w.each(ctx, "VACUUM (ANALYZE) "+strings.Join(tables, ", "), "CHECKPOINT")
}

// backlog is the rows of a drainage, in their order.
func (w *world) backlog(ctx context.Context, d drainage) ([]outbox.Row, error) {
	partitions, err := w.partitions(ctx)
	if err != nil {
		return nil, err
	}
	return sample(partitions, d.events, d.keys)
}

// verify says whether all rows are published, or gone if they were to be, and the
// topic has each of them once, those of a key in their order.
func (w *world) verify(ctx context.Context, d drainage, filled []outbox.Row) error {
	stay := d.history
	if !d.delete {
		stay += len(filled)
	}
	if err := w.finished(ctx, stay); err != nil {
		return err
	}
	return w.published(ctx, filled)
}

// finished says whether the table has so many published rows, and no others.
func (w *world) finished(ctx context.Context, want int) error {
	var published, others int
	err := w.sql.QueryRow(ctx, "SELECT count(*) FILTER (WHERE status = 'published'), count(*) FILTER (WHERE status <> 'published') FROM outbox").Scan(&published, &others)
	if err != nil {
		return err
	}
	return mustBe(published, others, want)
}

// published says whether the topic has each of these rows once, those of a key in
// their order, and nothing else.
func (w *world) published(ctx context.Context, rows []outbox.Row) error {
	records, err := w.read(ctx, w.prefix()+topic)
	if err != nil {
		return err
	}
	return check(rows, records)
}

// arrived says whether the topic has each of these rows at least once.
func (w *world) arrived(ctx context.Context, rows []outbox.Row) error {
	records, err := w.read(ctx, w.prefix()+topic)
	if err != nil {
		return err
	}
	have := map[string]bool{}
	for _, r := range records {
		have[header(r, "id")] = true
	}
	if len(have) != len(rows) {
		return fmt.Errorf("of %d messages %d are in the topic", len(rows), len(have))
	}
	return nil
}

// snapshot opens a transaction that keeps seeing what is there now, until it is
// released or has lasted so long.
func (w *world) snapshot(ctx context.Context, lasts time.Duration) (release func(), err error) {
	c, err := pgx.Connect(ctx, w.dsn)
	if err != nil {
		return nil, err
	}
	_, err = c.Exec(ctx, fmt.Sprintf(`BEGIN ISOLATION LEVEL REPEATABLE READ;
		SET LOCAL idle_in_transaction_session_timeout = %d; SELECT FROM outbox LIMIT 1`, lasts.Milliseconds()))
	if err != nil {
		return nil, errors.Join(err, c.Close(ctx))
	}
	return func() { _ = c.Close(context.WithoutCancel(ctx)) }, nil
}
