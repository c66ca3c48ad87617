package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/waybill-go/waybill/outbox"
)

const (
	outageRate = 500 // units per second
	// outageRest is how long writers go on when all is caught up.
	outageRest = 5 * time.Second
)

// outageMetrics: from the moment at which Kafka is back it takes so long until
// something is published, and until everything is that was committed before, while
// writers go on; in between so many rows are published.
var outageMetrics = []string{"units/s", "unit p99 ms", "first after s", "caught up after s", "rows/s between"}

// outage is a time without Kafka: all connections are cut and none can be made.
// If they are not, it is the same work for as long.
func outage(lasts time.Duration, cut bool) work {
	return func(ctx context.Context, w *world) (map[string]float64, error) {
		relay, b, end, err := w.relayed(ctx)
		if err != nil {
			return nil, err
		}
		defer end()
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
		err = w.running(ctx, b, outbox.Config{}, func(ctx context.Context) error {
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
			return w.settled(ctx, units)
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
	var back time.Time
	if err := w.sql.QueryRow(ctx, "SELECT max(seq), clock_timestamp() FROM outbox").Scan(&last, &back); err != nil {
		return err
	}
	mend()
	const patience = 2 * time.Minute
	for begin, left := time.Now(), true; left; pause(ctx, 20*time.Millisecond) {
		if time.Since(begin) > patience {
			return fmt.Errorf("not caught up within %v", patience)
		}
		if err := w.sql.QueryRow(ctx, product.leftTo, last).Scan(&left); err != nil {
			return err
		}
	}
	var first, caughtUp time.Time
	var rows float64
	err := w.sql.QueryRow(ctx, `WITH since AS (SELECT seq, published_at FROM outbox WHERE published_at > $1),
		ends AS (SELECT min(published_at) AS first, max(published_at) FILTER (WHERE seq <= $2) AS last FROM since)
		SELECT ends.first, ends.last, (SELECT count(*) FROM since WHERE published_at <= ends.last) FROM ends`, back, last).Scan(&first, &caughtUp, &rows)
	if err != nil {
		return err
	}
	got["first after s"], got["caught up after s"] = first.Sub(back).Seconds(), caughtUp.Sub(back).Seconds()
	got["rows/s between"] = rows / caughtUp.Sub(first).Seconds()
	return nil
}
