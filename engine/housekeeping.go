package engine

import (
	"context"
	"time"

	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/subscription"
)

// Idempotency keys are removed so many at a time, and so often.
const (
	keyBatch = 1000
	keyEvery = time.Hour
)

// forgetKeys removes idempotency keys whose time is over, now and from time to time.
// What fails is tried again then; the log has a line when that begins and one when it
// ends.
func (d *database) forgetKeys(ctx context.Context) {
	tick := time.NewTicker(keyEvery)
	defer tick.Stop()
	for failing := false; ; {
		n, err := int64(keyBatch), error(nil)
		for n == keyBatch && err == nil {
			n, err = command.PurgeKeys(ctx, d.provider.DB(), keyBatch)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !failing:
			d.log.Warn("idempotency keys could not be removed; it is tried again", "provider", d.provider.Name(), "every", keyEvery, "error", err)
		case err == nil && failing:
			d.log.Info("idempotency keys are removed again", "provider", d.provider.Name())
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
