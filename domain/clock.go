package domain

import (
	"context"
	"time"

	"github.com/waybill-go/waybill/internal/testclock"
)

// Now is the time, UTC, by the clock that ctx carries, or by the machine's. Handlers
// that ask here can be tested with a clock that a test moves.
func Now(ctx context.Context) time.Time {
	if now, ok := testclock.From(ctx); ok {
		return now().UTC()
	}
	return time.Now().UTC()
}

// WithClock returns a context under which Now asks another clock.
func WithClock(ctx context.Context, now func() time.Time) context.Context {
	return testclock.With(ctx, now)
}
