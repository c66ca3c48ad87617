package outboxtest

import (
	"context"
	"regexp"
	"strconv"
	"strings"
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

// Note adds a query that hooks don't see, with $1, $2 … for its values.
func (q *Queries) Note(query string, values []any) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.sent = append(q.sent, parameter.ReplaceAllStringFunc(query, func(p string) string {
		n, _ := strconv.Atoi(p[1:])
		return Literal(values[n-1])
	}))
}

var parameter = regexp.MustCompile(`\$\d+`)

// Literal is such a value in SQL.
func Literal(value any) string {
	if value == nil {
		return "NULL"
	}
	return "'" + strings.ReplaceAll(value.(string), "'", "''") + "'"
}

// Take returns what was sent since the last time.
func (q *Queries) Take() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	sent := q.sent
	q.sent = nil
	return sent
}
