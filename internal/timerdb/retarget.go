package timerdb

import (
	"context"
	"fmt"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/processmsg"
)

// Retarget has the timers of a context that wait sent to another broker. Their messages
// were made when they were set, perhaps long ago, for the broker that was the context's own
// then; to that one nobody publishes any more when they are due.
func Retarget(ctx context.Context, tx bun.Tx, name, from, to string) error {
	if from == to || from == "" {
		return nil
	}
	message := "json_set(message, '$.target', ?0)"
	if tx.Dialect().Name() == dialect.PG {
		message = "jsonb_set(message::jsonb, '{target}', to_jsonb(?0::text))::json"
	}
	_, err := tx.NewRaw("UPDATE timers SET message = "+message+" WHERE status = 'waiting' AND coalesce(message ->> 'target', '') = ?1 AND message ->> 'category' IN (?2)",
		to, from, bun.List([]string{domain.CommandCategory(name), processmsg.Category(name)})).Exec(ctx)
	if err != nil {
		return fmt.Errorf("timers: send those of context %s to broker %s: %w", name, to, err)
	}
	return nil
}
