package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
// and its event's outbox row.
func save(writers int) func(context.Context, *world) (map[string]float64, error) {
	return func(ctx context.Context, w *world) (map[string]float64, error) {
		return w.rate(ctx, w.writers(ctx, writers))
	}
}

// writers each store a new aggregate.
func (w *world) writers(ctx context.Context, n int) []func() error {
	return slices.Repeat([]func() error{func() error { return w.papers.Save(ctx, newPaper()) }}, n)
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

// rate is what writers reach on empty tables, which they leave complete.
func (w *world) rate(ctx context.Context, writers []func() error) (map[string]float64, error) {
	if err := w.empty(ctx); err != nil {
		return nil, err
	}
	units, rate, err := flatOut(ctx, writers, measure)
	if err != nil {
		return nil, err
	}
	return map[string]float64{"rate": rate}, w.stored(ctx, units)
}

// flatOut lets writers work side by side for a fixed time after a warm-up. It
// returns how many units they have done in all, and how many per second.
func flatOut(ctx context.Context, writers []func() error, lasts time.Duration) (all int64, rate float64, err error) {
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
	pause(ctx, lasts)
	counted, took := units.Load()-before, time.Since(begin)
	end.Store(true)
	working.Wait()
	return units.Load(), float64(counted) / took.Seconds(), errors.Join(append(errs, ctx.Err())...)
}

// stored says whether the tables hold as many documents as there were units, and
// of each the row.
func (w *world) stored(ctx context.Context, units int64) error {
	var documents, complete, rows int64
	err := w.sql.QueryRow(ctx, `SELECT (SELECT count(*) FROM documents), (SELECT count(*) FROM outbox),
		(SELECT count(*) FROM documents AS d WHERE EXISTS (SELECT FROM outbox WHERE aggregate_id = d.id AND target_broker = $1))`, internal).Scan(&documents, &rows, &complete)
	if err == nil && (documents != units || complete != units || rows != units) {
		err = fmt.Errorf("%d units left %d documents, %d of them with a row, and %d rows", units, documents, complete, rows)
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
