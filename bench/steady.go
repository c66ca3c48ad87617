package main

import (
	"context"
	"time"

	"github.com/waybill-go/waybill/outbox"
)

const steadyWriters = 8

// steadyMetrics are what writers reach; when they stop, the rows that wait, in
// seconds of writing; and how long it takes until none does.
var steadyMetrics = []string{"units/s", "behind s", "empty after s"}

// steady is units of work per second at full speed, in the process that also
// publishes them.
func steady(lasts time.Duration) work {
	return func(ctx context.Context, w *world) (map[string]float64, error) {
		b, end, err := w.broker(ctx)
		if err != nil {
			return nil, err
		}
		defer end()
		if err := w.empty(ctx); err != nil {
			return nil, err
		}
		var units, waiting int64
		var rate, after float64
		err = w.running(ctx, b, outbox.Config{}, func(ctx context.Context) (err error) {
			if units, rate, err = flatOut(ctx, w.writers(ctx, steadyWriters), lasts); err != nil {
				return err
			}
			begin := time.Now()
			if err := w.sql.QueryRow(ctx, "SELECT count(*) FROM outbox WHERE status <> 'published'").Scan(&waiting); err != nil {
				return err
			}
			err = w.drained(ctx, int(units))
			after = time.Since(begin).Seconds()
			return err
		})
		if err != nil {
			return nil, err
		}
		if err := w.stored(ctx, "outbox", units); err != nil {
			return nil, err
		}
		return map[string]float64{"units/s": rate, "behind s": float64(waiting) / rate, "empty after s": after}, w.delivered(ctx, int(units), false)
	}
}

// unattended is the same without an engine.
func unattended(lasts time.Duration) work {
	return func(ctx context.Context, w *world) (map[string]float64, error) {
		if err := w.empty(ctx); err != nil {
			return nil, err
		}
		units, rate, err := flatOut(ctx, w.writers(ctx, steadyWriters), lasts)
		if err != nil {
			return nil, err
		}
		return map[string]float64{"units/s": rate}, w.stored(ctx, "outbox", units)
	}
}
