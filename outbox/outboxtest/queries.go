package outboxtest

import (
	"context"
	"sync"

	"github.com/uptrace/bun"
)

// Queries is a query hook that keeps what a database is sent, with its arguments.
// It is safe for concurrent use.
type Queries struct {
	mu   sync.Mutex
	sent []string
}

// BeforeQuery implements bun.QueryHook.
func (q *Queries) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context { return ctx }

// AfterQuery implements bun.QueryHook.
func (q *Queries) AfterQuery(_ context.Context, e *bun.QueryEvent) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.sent = append(q.sent, e.Query)
}

// Take returns what was sent since the last time.
func (q *Queries) Take() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	sent := q.sent
	q.sent = nil
	return sent
}
