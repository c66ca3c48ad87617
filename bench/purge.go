package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
)

const (
	purgeRate      = 1000 // units per second meanwhile
	purgeWriters   = 8
	purgePatience  = 30 * time.Minute
	fillAtOnce     = 50_000
	purgeStatement = "purge"
	otherStatement = "worker"
	unitStatement  = "unit"
)

// purgeMetrics are in milliseconds, as far as nothing else is said. Statements of
// workers are those of claims, write-backs and leases, commits included; a unit is
// one round trip that is a whole transaction.
var purgeMetrics = []string{"unit p99", "unit max", "worker p99", "worker max", "purge p99", "purge max", "units/s", "rows/s removed", "unit stalls/min", "worker stalls/min", "purge stalls/min"}

// stall is what no statement should take.
const stall = 200.0

// timings are how long statements took, by kind.
type timings struct {
	mu   sync.Mutex
	from time.Time
	took map[string][]float64
	// ended is how many statements of the purge the server has ended early.
	ended atomic.Int64
}

func (t *timings) add(kind string, begin time.Time) {
	took := time.Since(begin).Seconds() * 1000
	t.mu.Lock()
	defer t.mu.Unlock()
	if begin.After(t.from) {
		t.took[kind] = append(t.took[kind], took)
	}
}

func (t *timings) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context { return ctx }

func (t *timings) AfterQuery(_ context.Context, e *bun.QueryEvent) {
	kind := otherStatement
	if strings.Contains(e.Query, "expires_at <= ") || strings.Contains(e.Query, "statement_timeout") {
		kind = purgeStatement
	}
	if kind == purgeStatement && e.Err != nil {
		t.ended.Add(1)
	}
	t.add(kind, e.StartTime)
}

// metrics are those of what began since the warm-up.
func (t *timings) metrics() map[string]float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := map[string]float64{}
	for _, kind := range []string{unitStatement, otherStatement, purgeStatement} {
		took := slices.Sorted(slices.Values(t.took[kind]))
		if len(took) == 0 {
			took = []float64{0}
		}
		m[kind+" p99"], m[kind+" max"] = took[len(took)*99/100], took[len(took)-1]
		after, _ := slices.BinarySearch(took, stall)
		m[kind+" stalls/min"] = float64(len(took)-after) / time.Since(t.from).Minutes()
	}
	return m
}

// timedProvider is a provider whose statements are timed.
type timedProvider struct {
	uow.Provider
	db *bun.DB
}

func (p timedProvider) DB() *bun.DB     { return p.db }
func (p timedProvider) Reader() *bun.DB { return p.db }

// purges are the two sides of a scenario: orders while an engine with default
// settings removes what has expired, beside orders over the same table while
// nothing is removed. Both are measured in the first, so that the table is filled
// once. It gets so many rows for the internal broker, published and past their
// retention.
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
	for _, statement := range []string{"DELETE FROM outbox_jobs", "DELETE FROM outbox_published"} {
		if _, err := w.sql.Exec(ctx, statement); err != nil {
			return err
		}
	}
	for n := 0; n < expired; n += fillAtOnce {
		_, err := w.sql.Exec(ctx, `INSERT INTO outbox (id, message_id, target_broker, stream, stream_category, partition_key, partition, message_type, aggregate_type, aggregate_id,
				aggregate_version, payload, content_type, occurred_at, status, attempts, last_attempt_at, published_at, finished_at, expires_at)
			SELECT gen_random_uuid(), gen_random_uuid(), $1, 'desk::paper-' || n, $2, n, n % 64, 'Desk.PaperFiled.v1', 'paper', n,
				1, substr($3::bytea, 1 + n % 1000, 1200), 'application/json', at, 'published', 1, at, at, at, at + interval '7 days'
			FROM generate_series($4::int + 1, $4 + $5) AS n, (SELECT now() - interval '8 days' AS at) AS past`,
			internal, category, []byte(noise[:3000]), n, fillAtOnce)
		if err != nil {
			return err
		}
	}
	for _, statement := range []string{"VACUUM (ANALYZE) outbox", "SELECT pg_stat_reset_single_table_counters('outbox'::regclass)", "CHECKPOINT"} {
		if _, err := w.sql.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// purged waits until what had expired is gone.
func (w *world) purged(ctx context.Context, expired int) error {
	for begin := time.Now(); ; pause(ctx, 100*time.Millisecond) {
		var left bool
		// Nothing else is removed, so the server's own count will do: a look at the
		// table would pass all that was removed.
		err := w.sql.QueryRow(ctx, "SELECT n_tup_del < $1 FROM pg_stat_user_tables WHERE relname = 'outbox'", expired).Scan(&left)
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
func (w *world) orders(ctx context.Context, retention outbox.Retention, do func(context.Context) error) (_ map[string]float64, err error) {
	brokers, end, err := w.brokers(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	t := &timings{from: time.Now().Add(2 * warmUp), took: map[string][]float64{}}
	units, err := uow.New(uow.Config{
		Domain:    desk,
		Providers: []uow.Provider{timedProvider{w.provider, w.provider.DB().WithQueryHook(t)}},
		External:  []outbox.Target{{Broker: external}},
	})
	if err != nil {
		return nil, err
	}
	papers := repository.New[*Paper](units)
	watch := newStopwatch()
	for target, b := range brokers {
		brokers[target] = watched{b, target, watch}
	}
	e, err := engine.New(engine.Config{
		Units: []*uow.Manager{units}, Brokers: brokers, Outbox: outbox.Config{Retention: retention},
		Logger: slog.New(slog.NewTextHandler(w.out, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return nil, err
	}
	if err := e.Start(ctx); err != nil {
		return nil, err
	}
	committed, took, err := atRate(ctx, purgeRate, purgeWriters, func(ctx context.Context) error {
		p, begin := newPaper(), time.Now()
		err := papers.Save(ctx, p)
		t.add(unitStatement, begin)
		if err == nil {
			watch.commit(p.ID(), time.Now())
		}
		return err
	}, do)
	for deadline := time.Now().Add(time.Minute); err == nil && watch.missing() > 0 && ctx.Err() == nil && time.Now().Before(deadline); {
		pause(ctx, 10*time.Millisecond)
	}
	if err := errors.Join(err, e.Stop(context.WithoutCancel(ctx))); err != nil {
		return nil, err
	}
	got := t.metrics()
	got["units/s"] = float64(committed) / took.Seconds()
	got["rows/s removed"] = 0
	if n := t.ended.Load(); n > 0 {
		w.log("%d statements of the purge took too long and were ended", n)
	}
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
