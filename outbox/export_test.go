package outbox

import (
	"context"
	"log/slog"
)

// AtOnce is b without the wait for writers with an old list of targets.
func (b Backfill) AtOnce() Backfill {
	b.atOnce = true
	return b
}

// NewOutage returns what notes the answers of a database.
func NewOutage(log *slog.Logger) func(error) {
	o := &outage{log: log}
	return func(err error) { o.note(context.Background(), err) }
}
