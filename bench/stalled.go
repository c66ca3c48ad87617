package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/internal/netfault"
	"github.com/waybill-go/waybill/outbox"
)

const stalledRate = 100 // units per second

// commits is how long Save takes at a fixed rate of units per second, in a process
// that publishes too, while Kafka takes connections and answers nothing, or while
// it does answer. In both cases a relay is in between. In the end everything is
// published.
func commits(stall bool, lasts time.Duration) work {
	return func(ctx context.Context, w *world) (got map[string]float64, err error) {
		relay, b, end, err := w.relayed(ctx)
		if err != nil {
			return nil, err
		}
		defer end()
		var units int
		err = w.running(ctx, b, outbox.Config{}, func(ctx context.Context) error {
			warm, err := w.commit(ctx, 2*warmUp)
			if err != nil {
				return err
			}
			if stall {
				relay.Stall()
			}
			took, err := w.commit(ctx, lasts)
			relay.Mend()
			if err != nil {
				return err
			}
			units = len(warm) + len(took)
			slices.Sort(took)
			at := func(p float64) float64 { return took[int(p*float64(len(took)-1))].Seconds() * 1000 }
			got = map[string]float64{"p50": at(0.5), "p99": at(0.99), "max": at(1), "units/s": float64(len(took)) / lasts.Seconds()}
			return w.settled(ctx, units)
		})
		if err != nil {
			return nil, err
		}
		return got, w.delivered(ctx, units, true) // what was out when Kafka fell silent may come again
	}
}

// relayed is the broker behind a relay, with empty tables, and the end of both.
func (w *world) relayed(ctx context.Context) (_ *netfault.Relay, _ broker.Broker, end func(), err error) {
	if err := w.empty(ctx); err != nil {
		return nil, nil, nil, err
	}
	relay, err := netfault.New(ctx, w.kafka)
	if err != nil {
		return nil, nil, nil, err
	}
	b, closing, err := w.brokerOn(ctx, w.behind(relay.Address))
	if err != nil {
		relay.Close()
		return nil, nil, nil, err
	}
	return relay, b, func() {
		relay.Mend()
		closing()
		relay.Close()
	}, nil
}

// commit saves at the fixed rate for a time, and returns how long each took.
func (w *world) commit(ctx context.Context, lasts time.Duration) (took []time.Duration, err error) {
	const step = time.Second / stalledRate
	begin := time.Now()
	var mu sync.Mutex
	errs := make([]error, latencyWriters)
	var working sync.WaitGroup
	for i := range errs {
		working.Go(func() {
			for n := i; errs[i] == nil && ctx.Err() == nil; n += latencyWriters {
				pause(ctx, time.Until(begin.Add(time.Duration(n)*step)))
				at := time.Now()
				if at.Sub(begin) >= lasts {
					return
				}
				errs[i] = w.papers.Save(ctx, newPaper())
				mu.Lock()
				took = append(took, time.Since(at))
				mu.Unlock()
			}
		})
	}
	working.Wait()
	if err := errors.Join(append(errs, ctx.Err())...); err != nil {
		return nil, err
	}
	if len(took) == 0 {
		return nil, errors.New("nothing was committed")
	}
	return took, nil
}

// settled waits until so many rows are published.
func (w *world) settled(ctx context.Context, rows int) error {
	have := 0
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline) && ctx.Err() == nil; pause(ctx, 100*time.Millisecond) {
		if err := w.sql.QueryRow(ctx, "SELECT count(*) FROM outbox WHERE status = 'published'").Scan(&have); err != nil || have == rows {
			return err
		}
	}
	return fmt.Errorf("of %d rows %d are published", rows, have)
}
