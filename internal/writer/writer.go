// Package writer lets outbox say to uow/sqlite what can't wait, without either
// importing the other.
package writer

import "context"

type urgentKey struct{}

// Urgent returns a context under which a transaction on a database with one
// writer goes before all that wait for it without being urgent. It is for what
// is short and has a deadline, such as the renewal of a lease.
func Urgent(ctx context.Context) context.Context {
	return context.WithValue(ctx, urgentKey{}, true)
}

// IsUrgent says whether ctx comes from Urgent.
func IsUrgent(ctx context.Context) bool { return ctx.Value(urgentKey{}) != nil }
