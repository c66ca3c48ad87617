package outbox

import (
	"github.com/waybill-go/waybill/internal/pipeline"
)

// AtOnce is b without the wait for writers with an old list of targets.
func (b Backfill) AtOnce() Backfill {
	b.atOnce = true
	return b
}

// Observe tells f of statements that hooks of the database don't see, before they are
// sent: their queries with $1, $2 … for their values.
func (s *Store) Observe(f func(query string, values []any)) {
	s.observe = func(statements []pipeline.Statement) {
		for _, statement := range statements {
			f(statement.Query, statement.Values)
		}
	}
}
