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

const warmUp = time.Second

// save is units of work per second: each stores a new aggregate as a document,
// and its event's outbox row.
func save(writers int, lasts time.Duration) work {
	return func(ctx context.Context, w *world) (map[string]float64, error) {
		units, rate, err := w.rate(ctx, w.writers(ctx, writers), lasts)
		if err != nil {
			return nil, err
		}
		return rate, w.stored(ctx, "outbox", units)
	}
}

// writers each store a new aggregate.
func (w *world) writers(ctx context.Context, n int) []func() error {
	return slices.Repeat([]func() error{func() error { return w.papers.Save(ctx, newPaper()) }}, n)
}

// saveByHand writes the same rows with pgx, a connection per writer.
func saveByHand(n int, lasts time.Duration) func(*tables) work {
	return func(t *tables) work {
		return func(ctx context.Context, w *world) (map[string]float64, error) {
			writers, end, err := w.hands(ctx, t, n, func(string) {})
			if err != nil {
				return nil, err
			}
			defer end()
			units, rate, err := w.rate(ctx, writers, lasts)
			if err != nil {
				return nil, err
			}
			return rate, w.stored(ctx, t.names[0], units)
		}
	}
}

// hands are writers by hand, each with a connection, and the end of these. Each
// commit is told.
func (w *world) hands(ctx context.Context, t *tables, n int, committed func(id string)) (writers []func() error, end func(), err error) {
	var conns []*pgx.Conn
	end = func() {
		for _, c := range conns {
			_ = c.Close(context.WithoutCancel(ctx))
		}
	}
	for range n {
		c, err := pgx.Connect(ctx, w.dsn)
		if err != nil {
			end()
			return nil, nil, err
		}
		conns = append(conns, c)
		h, err := newByHand(ctx, t, c)
		if err != nil {
			end()
			return nil, nil, err
		}
		writers = append(writers, func() error {
			f := newFiled(text())
			err := h.save(ctx, f)
			if err == nil {
				committed(f.id)
			}
			return err
		})
	}
	return writers, end, nil
}

// rate is what writers reach on empty tables, and how much they have written.
func (w *world) rate(ctx context.Context, writers []func() error, lasts time.Duration) (units int64, rate map[string]float64, err error) {
	if err := w.empty(ctx); err != nil {
		return 0, nil, err
	}
	units, each, err := flatOut(ctx, writers, lasts)
	return units, map[string]float64{"rate": each}, err
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

// stored says whether there are as many documents as there were units, and of each
// the row in the table.
func (w *world) stored(ctx context.Context, table string, units int64) error {
	var documents, complete, rows int64
	err := w.sql.QueryRow(ctx, fmt.Sprintf(`SELECT (SELECT count(*) FROM documents), (SELECT count(*) FROM %[1]s),
		(SELECT count(*) FROM documents AS d WHERE EXISTS (SELECT FROM %[1]s AS row WHERE row.aggregate_id = d.id))`, table)).Scan(&documents, &rows, &complete)
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
