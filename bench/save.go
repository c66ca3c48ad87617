package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	warmUp  = time.Second
	measure = 5 * time.Second
)

// save is units of work per second: each stores a new aggregate as a document,
// and its event's two outbox rows.
func save(writers int) func(context.Context, *world) (map[string]float64, error) {
	return func(ctx context.Context, w *world) (map[string]float64, error) {
		all := make([]func() error, writers)
		for i := range all {
			all[i] = func() error { return w.papers.Save(ctx, newPaper()) }
		}
		return w.rate(ctx, all)
	}
}

// saveByHand writes the same rows with pgx, a connection per writer.
func saveByHand(writers int) func(context.Context, *world) (map[string]float64, error) {
	return func(ctx context.Context, w *world) (rate map[string]float64, err error) {
		all := make([]func() error, writers)
		for i := range all {
			c, err := pgx.Connect(ctx, w.dsn)
			if err != nil {
				return nil, err
			}
			defer c.Close(context.WithoutCancel(ctx))
			h, err := newByHand(ctx, w, c)
			if err != nil {
				return nil, err
			}
			all[i] = func() error { return h.save(ctx, newFiled(text())) }
		}
		return w.rate(ctx, all)
	}
}

// rate lets writers work side by side for a fixed time after a warm-up.
func (w *world) rate(ctx context.Context, writers []func() error) (map[string]float64, error) {
	if err := w.empty(ctx); err != nil {
		return nil, err
	}
	var units atomic.Int64
	var end atomic.Bool
	errs := make([]error, len(writers))
	var working sync.WaitGroup
	for i, unit := range writers {
		working.Go(func() {
			for !end.Load() && errs[i] == nil {
				if errs[i] = unit(); errs[i] == nil {
					units.Add(1)
				}
			}
		})
	}
	pause(ctx, warmUp)
	before, begin := units.Load(), time.Now()
	pause(ctx, measure)
	counted, took := units.Load()-before, time.Since(begin)
	end.Store(true)
	working.Wait()
	if err := errors.Join(append(errs, ctx.Err())...); err != nil {
		return nil, err
	}
	return map[string]float64{"rate": float64(counted) / took.Seconds()}, w.stored(ctx, units.Load())
}

// stored says whether the tables hold as many documents as there were units, and
// of each the two rows.
func (w *world) stored(ctx context.Context, units int64) error {
	var documents, complete, rows int64
	err := w.sql.QueryRow(ctx, `WITH pairs AS (SELECT aggregate_id, array_agg(target_broker ORDER BY seq) AS targets FROM outbox GROUP BY aggregate_id)
		SELECT (SELECT count(*) FROM documents), (SELECT count(*) FROM outbox),
			(SELECT count(*) FROM documents JOIN pairs ON aggregate_id = id WHERE targets = $1)`,
		[]string{internal, external}).Scan(&documents, &rows, &complete)
	if err == nil && (documents != units || complete != units || rows != 2*units) {
		err = fmt.Errorf("%d units left %d documents, %d of them with both rows, and %d rows", units, documents, complete, rows)
	}
	return err
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
