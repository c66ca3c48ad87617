// Package handling tells databases which transactions are those of handlers of messages and events: what these wait for
// may be long in coming, while somebody waits for the others.
package handling

import "context"

type key struct{}

// Context returns ctx for a handler.
func Context(ctx context.Context) context.Context { return context.WithValue(ctx, key{}, true) }

// Is says whether ctx is a handler's.
func Is(ctx context.Context) bool { return ctx.Value(key{}) != nil }
