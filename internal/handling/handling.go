// Package handling tells databases which transactions are those of handlers of messages and events: what these wait for
// may be long in coming, while somebody waits for the others; and when they are over, whatever became of their process.
package handling

import (
	"context"
	"time"
)

type key struct{}

// Context returns ctx for handlers that may take so long.
func Context(ctx context.Context, atMost time.Duration) context.Context {
	return context.WithValue(ctx, key{}, atMost)
}

// Of says whether ctx is a handler's, and how long that may take.
func Of(ctx context.Context) (atMost time.Duration, ok bool) {
	atMost, ok = ctx.Value(key{}).(time.Duration)
	return atMost, ok
}
