package engine

import (
	"context"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/subscription"
)

// What may be forgotten is removed so many rows at a time, and so often.
const (
	forgetBatch = 1000
	forgetEvery = time.Hour
)

// forget removes rows whose time is over, now and from time to time. What fails is tried
// again then; the log has a line when that begins and one when it ends.
func (d *database) forget(ctx context.Context, what string, purge func(ctx context.Context, db *bun.DB, limit int) (int64, error)) {
	tick := time.NewTicker(forgetEvery)
	defer tick.Stop()
	for failing := false; ; {
		n, err := int64(forgetBatch), error(nil)
		for n == forgetBatch && err == nil {
			n, err = purge(ctx, d.provider.DB(), forgetBatch)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !failing:
			d.log.Warn("rows whose time is over could not be removed; it is tried again", "rows", what, "provider", d.provider.Name(), "every", forgetEvery, "error", err)
		case err == nil && failing:
			d.log.Info("rows whose time is over are removed again", "rows", what, "provider", d.provider.Name())
		}
		failing = err != nil
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// housekeeping removes dead letters that are over, also those of subscriptions that
// run nowhere any more, once per interval over all processes. What fails is tried
// again an interval later; the log has a line when that begins and one when it ends.
func (d *database) housekeeping(ctx context.Context, r subscription.DeadLetterRetention) {
	r = r.WithDefaults()
	if r.Every < 0 || r.Resolved < 0 {
		return
	}
	letters, failing := subscription.NewDeadLetters(d.provider), false
	tick := time.NewTicker(r.Every)
	defer tick.Stop()
	for {
		begin := time.Now()
		n, err := letters.CleanUp(ctx, r)
		if ctx.Err() != nil {
			return
		}
		if n > 0 {
			d.log.Info("dead letters that were over were removed", "provider", d.provider.Name(), "letters", n, "took", time.Since(begin).Round(time.Millisecond))
		}
		switch {
		case err != nil && !failing:
			d.log.Warn("dead letters could not be cleaned up; it is tried again", "provider", d.provider.Name(), "every", r.Every, "error", err)
		case err == nil && failing:
			d.log.Info("dead letters are cleaned up again", "provider", d.provider.Name())
		}
		failing = err != nil
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
