package subscription

import (
	"context"
	"fmt"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
)

// Consumption is that a subscription is done with a message: it has taken effect
// there, or was set aside.
type Consumption struct {
	Subscription string
	At           time.Time
}

// FindConsumptions returns the subscriptions of a database that are done with a
// message, by name. It looks at one row of each: the inbox may have millions.
func FindConsumptions(ctx context.Context, db bun.IDB, messageID string) ([]Consumption, error) {
	var found []Consumption
	err := dbrows.Each(ctx, db, "WITH RECURSIVE names(name) AS (SELECT min(subscription) FROM inbox UNION ALL"+
		" SELECT (SELECT min(subscription) FROM inbox WHERE subscription > n.name) FROM names AS n WHERE n.name IS NOT NULL)"+
		" SELECT i.subscription, i.processed_at FROM names AS n JOIN inbox AS i ON i.subscription = n.name AND i.message_id = ? ORDER BY 1",
		func(scan func(...any) error) error {
			var c Consumption
			var at dbtime.Time
			err := scan(&c.Subscription, &at)
			c.At = at.Time
			found = append(found, c)
			return err
		}, indexable(messageID))
	if err != nil {
		return nil, fmt.Errorf("subscription: look for %s in the inbox: %w", messageID, err)
	}
	return found, nil
}

// FindLetters returns the dead letters of messages, and of those that say that they
// have a correlation, in the order of parking, at most limit of them. It goes through
// the whole table, of which retention keeps the size.
func FindLetters(ctx context.Context, db bun.IDB, correlation string, messageIDs []string, limit int) ([]DeadLetter, error) {
	header := "d.headers->>'correlation-id'"
	if db.Dialect().Name() == dialect.SQLite {
		header = `json_extract(d.headers, '$."correlation-id"')`
	}
	var found []DeadLetter
	err := dbrows.Each(ctx, db, "SELECT "+letterColumns+" FROM dead_letters AS d WHERE d.message_id IN (?) OR "+header+" = ? ORDER BY d.seq LIMIT ?",
		func(scan func(...any) error) error {
			var l DeadLetter
			err := l.scan(scan)
			found = append(found, l)
			return err
		}, bun.List(append([]string{""}, messageIDs...)), correlation, limit)
	if err != nil {
		return nil, fmt.Errorf("subscription: look for dead letters of correlation %s: %w", correlation, err)
	}
	return found, nil
}
