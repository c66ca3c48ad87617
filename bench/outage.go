package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/waybill-go/waybill/internal/netfault"
	"github.com/waybill-go/waybill/outbox"
)

const (
	outageRate = 500 // units per second
	outageTime = 10 * time.Second
	// outageRest is how long writers go on when all is caught up.
	outageRest = 5 * time.Second
)

// outageMetrics: catching up ends when everything that was committed before Kafka
// came back is published, while writers go on.
var outageMetrics = []string{"units/s", "unit p99 ms", "catch-up s", "rows/s meanwhile"}

// outage is a time without Kafka: all connections are cut and none can be made.
// If they are not, it is the same work for as long.
func outage(lasts time.Duration, cut bool) work {
	return func(ctx context.Context, w *world) (map[string]float64, error) {
		relay, err := netfault.New(ctx, w.kafka)
		if err != nil {
			return nil, err
		}
		defer relay.Close()
		brokers, end, err := w.brokersOn(ctx, w.behind(relay.Address))
		if err != nil {
			return nil, err
		}
		defer end()
		defer relay.Mend()
		if err := w.empty(ctx); err != nil {
			return nil, err
		}
		var mu sync.Mutex
		var saves []float64
		unit := func(ctx context.Context) error {
			begin := time.Now()
			err := w.papers.Save(ctx, newPaper())
			mu.Lock()
			defer mu.Unlock()
			saves = append(saves, time.Since(begin).Seconds()*1000)
			return err
		}
		got := map[string]float64{}
		var units int
		err = w.running(ctx, brokers, outbox.Config{}, func(ctx context.Context) error {
			committed, took, err := atRate(ctx, outageRate, latencyWriters, unit, func(ctx context.Context) error {
				pause(ctx, 2*warmUp)
				if cut {
					relay.Cut()
				}
				pause(ctx, lasts)
				if cut {
					if err := w.caughtUp(ctx, relay.Mend, got); err != nil {
						return err
					}
				}
				pause(ctx, outageRest)
				return ctx.Err()
			})
			if err != nil {
				return err
			}
			units = committed
			got["units/s"] = float64(committed) / took.Seconds()
			return w.settled(ctx, 2*units)
		})
		if err != nil {
			return nil, err
		}
		slices.Sort(saves)
		got["unit p99 ms"] = saves[len(saves)*99/100]
		return got, w.delivered(ctx, units, cut) // what was out when it began may come again
	}
}

// caughtUp ends an outage and waits until everything that had been committed is
// published.
func (w *world) caughtUp(ctx context.Context, mend func(), got map[string]float64) error {
	var last int64
	var waiting float64
	if err := w.sql.QueryRow(ctx, "SELECT max(seq), count(*) FROM outbox WHERE finished_at IS NULL").Scan(&last, &waiting); err != nil {
		return err
	}
	mend()
	const patience = 2 * time.Minute
	for begin := time.Now(); ctx.Err() == nil; pause(ctx, 10*time.Millisecond) {
		var left bool
		if err := w.sql.QueryRow(ctx, "SELECT EXISTS (SELECT FROM outbox WHERE finished_at IS NULL AND seq <= $1)", last).Scan(&left); err != nil {
			return err
		}
		took := time.Since(begin)
		if !left {
			got["catch-up s"], got["rows/s meanwhile"] = took.Seconds(), waiting/took.Seconds()
			return nil
		}
		if took > patience {
			return fmt.Errorf("not caught up within %v", patience)
		}
	}
	return ctx.Err()
}
