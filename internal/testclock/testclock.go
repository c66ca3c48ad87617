// Package testclock is the time that package waybilltest moves: that of timers, of
// deadlines and of domain.Now; and what tests don't wait for. Nothing else makes a
// [Clock], so that outside of tests there is none, and its methods do nothing.
package testclock

import (
	"context"
	"sync/atomic"
	"time"
)

// Clock stands until it is moved, so that a test finds the same on a slow machine. Nil is
// the machine's. It is safe for concurrent use.
type Clock struct{ milliseconds atomic.Int64 } // as databases keep them

// New returns a clock that shows the present.
func New() *Clock {
	c := &Clock{}
	c.MoveTo(time.Now())
	return c
}

// Now is the time.
func (c *Clock) Now() time.Time { return c.Of(time.Now()) }

// Of is the time of something that happened under the machine's clock.
func (c *Clock) Of(at time.Time) time.Time {
	if c == nil {
		return at
	}
	return time.UnixMilli(c.milliseconds.Load()).UTC()
}

// MoveTo moves the clock to the first millisecond that isn't before at, and never back.
func (c *Clock) MoveTo(at time.Time) {
	to := at.Add(time.Millisecond - 1).UnixMilli()
	for now := c.milliseconds.Load(); now < to && !c.milliseconds.CompareAndSwap(now, to); {
		now = c.milliseconds.Load()
	}
}

// quick is the first wait between the attempts at a message in a test.
const quick = 2 * time.Millisecond

// Backoff is a wait between attempts that doubles: in a test nobody waits long to see
// that a message is parked.
func (c *Clock) Backoff(d time.Duration) time.Duration {
	if c == nil {
		return d
	}
	return min(d, quick)
}

// Context returns ctx with the clock, unless it has one.
func (c *Clock) Context(ctx context.Context) context.Context {
	if c == nil {
		return ctx
	}
	if _, ok := From(ctx); ok {
		return ctx
	}
	return With(ctx, c.Now)
}

// Of returns the clock of a database's provider, which is nil outside of tests.
func Of(provider any) *Clock {
	if p, ok := provider.(interface{ TestClock() *Clock }); ok {
		return p.TestClock()
	}
	return nil
}

type key struct{}

// With returns a context with a clock.
func With(ctx context.Context, now func() time.Time) context.Context {
	return context.WithValue(ctx, key{}, now)
}

// From returns the clock of a context.
func From(ctx context.Context) (now func() time.Time, ok bool) {
	now, ok = ctx.Value(key{}).(func() time.Time)
	return now, ok
}
