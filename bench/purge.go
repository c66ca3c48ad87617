package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/outbox"
)

const (
	purgeRate     = 1000 // units per second meanwhile
	purgeWriters  = 8
	purgePatience = 30 * time.Minute
	fillAtOnce    = 50_000
	sampleEvery   = 10 * time.Millisecond

	unitKind   = "unit"
	workerKind = "worker"
	purgeKind  = "purge"
)

// purgeMetrics are in milliseconds, as far as nothing else is said, and about whole
// transactions. A unit is one round trip, timed where it is waited for. Those of
// workers are claims, write-backs, leases and signals, those of the purge its
// steps; the server is asked for both.
var purgeMetrics = []string{"unit p99", "unit max", "worker max", "purge max", "units/s", "rows/s removed", "unit stalls/min", "worker stalls/min", "purge stalls/min"}

// stall is what no transaction should take.
const stall = 200.0

// timings are how long transactions took, by kind.
type timings struct {
	mu   sync.Mutex
	from time.Time // when the warm-up is over
	took map[string][]float64
}

func (t *timings) unit(begin time.Time) {
	took := time.Since(begin).Seconds() * 1000
	t.mu.Lock()
	defer t.mu.Unlock()
	if begin.After(t.from) {
		t.took[unitKind] = append(t.took[unitKind], took)
	}
}

// metrics are those since the warm-up.
func (t *timings) metrics() map[string]float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := map[string]float64{}
	for _, kind := range []string{unitKind, workerKind, purgeKind} {
		took := slices.Sorted(slices.Values(t.took[kind]))
		if len(took) == 0 {
			took = []float64{0}
		}
		limit := stall
		if kind == unitKind {
			m["unit p99"] = took[len(took)*99/100]
		} else {
			limit -= float64(sampleEvery.Milliseconds()) // it may have become that old unseen
		}
		m[kind+" max"] = took[len(took)-1]
		after, _ := slices.BinarySearch(took, limit)
		m[kind+" stalls/min"] = float64(len(took)-after) / time.Since(t.from).Minutes()
	}
	return m
}

// activeNow leaves out units of work and the bench itself. The server shows the
// statement that a transaction is at, and only the first 1 kB of its text.
const activeNow = `SELECT concat_ws(' ', pid, xact_start), query ~ $2,
		(extract(epoch FROM clock_timestamp() - xact_start) * 1000)::float8
	FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' AND state = 'active' AND xact_start IS NOT NULL
		AND pid NOT IN (pg_backend_pid(), $1) AND query !~ $3`

// aged is a transaction as it was last seen.
type aged struct {
	purge bool
	age   float64
}

// sample asks the server again and again how old transactions are, until it is
// ended: in the program, nothing that could time them sees all that workers send.
// Ages are by the server's clock and exact to the sampling interval; most of what
// is shorter is not seen at all.
func (t *timings) sample(ctx context.Context, w *world) (end func() error, err error) {
	c, err := pgx.Connect(ctx, w.dsn)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	seen := map[string]aged{}
	ended := make(chan error, 1)
	go func() {
		pause(ctx, time.Until(t.from))
		var err error
		for ticks := time.Tick(sampleEvery); err == nil && ctx.Err() == nil; {
			err = look(context.WithoutCancel(ctx), c, seen, w.sql.PgConn().PID(), product.purging, product.writing)
			select {
			case <-ticks:
			case <-ctx.Done():
			}
		}
		ended <- err
	}()
	return func() error {
		cancel()
		err := errors.Join(<-ended, c.Close(context.WithoutCancel(ctx)))
		for _, tx := range seen {
			kind := workerKind
			if tx.purge {
				kind = purgeKind
			}
			t.took[kind] = append(t.took[kind], tx.age)
		}
		return err
	}, nil
}

// look notes the transactions of the moment. COMMIT doesn't say whose it is: what
// was seen before it does, and if nothing was, it counts as a worker's.
func look(ctx context.Context, c *pgx.Conn, seen map[string]aged, args ...any) error {
	found, err := c.Query(ctx, activeNow, args...)
	if err != nil {
		return err
	}
	var id string
	var tx aged
	_, err = pgx.ForEachRow(found, []any{&id, &tx.purge, &tx.age}, func() error {
		tx.purge = tx.purge || seen[id].purge
		seen[id] = tx
		return nil
	})
	return err
}

// purges are the two sides of a scenario: orders while an engine with default
// settings removes what has expired, beside orders over the same table while
// nothing is removed. Both are measured in the first, so that the table is filled
// once. It gets so many rows, published and past their retention.
func purges(expired int, quietTime time.Duration) (with, without func(context.Context, *world) (map[string]float64, error)) {
	var quiet map[string]float64
	with = func(ctx context.Context, w *world) (got map[string]float64, err error) {
		if err := w.fillExpired(ctx, expired); err != nil {
			return nil, err
		}
		w.log("without a purge, for %v", quietTime)
		quiet, err = w.orders(ctx, outbox.Retention{Every: -1}, func(ctx context.Context) error {
			pause(ctx, quietTime)
			return ctx.Err()
		})
		if err != nil {
			return nil, err
		}
		if _, err := w.sql.Exec(ctx, "CHECKPOINT"); err != nil {
			return nil, err
		}
		w.log("with a purge")
		began := time.Now()
		var took time.Duration
		got, err = w.orders(ctx, outbox.Retention{}, func(ctx context.Context) error {
			err := w.purged(ctx, expired)
			took = time.Since(began)
			return err
		})
		if err != nil {
			return nil, err
		}
		got["rows/s removed"] = float64(expired) / took.Seconds()
		return got, nil
	}
	return with, func(context.Context, *world) (map[string]float64, error) { return quiet, nil }
}

// fillExpired fills the table with rows that were published eight days ago.
func (w *world) fillExpired(ctx context.Context, expired int) error {
	if err := w.empty(ctx); err != nil {
		return err
	}
	w.log("filling the table with %d rows", expired)
	if err := w.each(ctx, product.forget...); err != nil {
		return err
	}
	if err := w.add(ctx, lot{rows: expired, keys: expired, name: "past-", state: published, ago: 8 * 24 * time.Hour}); err != nil {
		return err
	}
	return w.each(ctx, "VACUUM (ANALYZE) "+product.names[0], "SELECT pg_stat_reset_single_table_counters('"+product.names[0]+"'::regclass)", "CHECKPOINT")
}

// purged waits until what had expired is gone.
func (w *world) purged(ctx context.Context, expired int) error {
	for begin := time.Now(); ; pause(ctx, 100*time.Millisecond) {
		var left bool
		// Nothing else is removed, so the server's own count will do: a look at the
		// table would pass all that was removed.
		err := w.sql.QueryRow(ctx, "SELECT n_tup_del < $2 FROM pg_stat_user_tables WHERE relid = $1::regclass", product.names[0], expired).Scan(&left)
		switch {
		case err != nil || !left:
			return err
		case time.Since(begin) > purgePatience:
			return fmt.Errorf("not done within %v", purgePatience)
		}
	}
}

// orders commits units at a fixed rate while an engine publishes them, until do
// returns, and says whether each was delivered once.
func (w *world) orders(ctx context.Context, retention outbox.Retention, do func(context.Context) error) (map[string]float64, error) {
	b, end, err := w.broker(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	t := &timings{from: time.Now().Add(2 * warmUp), took: map[string][]float64{}}
	watch := newStopwatch()
	unit := func(ctx context.Context) error {
		p, begin := newPaper(), time.Now()
		err := w.papers.Save(ctx, p)
		t.unit(begin)
		if err == nil {
			watch.commit(p.ID(), time.Now())
		}
		return err
	}
	var committed int
	var took time.Duration
	err = w.running(ctx, watched{b, watch}, outbox.Config{Retention: retention}, func(ctx context.Context) error {
		sampled, err := t.sample(ctx, w)
		if err != nil {
			return err
		}
		committed, took, err = atRate(ctx, purgeRate, purgeWriters, unit, do)
		for deadline := time.Now().Add(time.Minute); err == nil && watch.missing() > 0 && ctx.Err() == nil && time.Now().Before(deadline); {
			pause(ctx, 10*time.Millisecond)
		}
		return errors.Join(err, sampled())
	})
	if err != nil {
		return nil, err
	}
	got := t.metrics()
	got["units/s"] = float64(committed) / took.Seconds()
	got["rows/s removed"] = 0
	return got, w.delivered(ctx, committed, false)
}

// atRate lets writers take turns at a fixed rate until do returns.
func atRate(ctx context.Context, perSecond, writers int, unit, do func(context.Context) error) (committed int, took time.Duration, err error) {
	step := time.Second / time.Duration(perSecond)
	over, cancel := context.WithCancel(ctx)
	defer cancel()
	begin := time.Now()
	counts, errs := make([]int, writers), make([]error, writers)
	var working sync.WaitGroup
	for i := range writers {
		working.Go(func() {
			for n := i; errs[i] == nil; n += writers {
				pause(over, time.Until(begin.Add(time.Duration(n)*step)))
				if over.Err() != nil {
					return
				}
				if errs[i] = unit(ctx); errs[i] != nil {
					cancel()
					return
				}
				counts[i]++
			}
		})
	}
	err = do(over)
	cancel()
	took = time.Since(begin)
	working.Wait()
	for _, n := range counts {
		committed += n
	}
	return committed, took, errors.Join(append(errs, err)...)
}
