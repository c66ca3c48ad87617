package subscription

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
)

// consumptionsAtOnce is how many messages are looked up by one query.
const consumptionsAtOnce = 500

// Consumption is that a subscription is done with a message: it has taken effect
// there, or was set aside.
type Consumption struct {
	Subscription string
	At           time.Time
}

// consumptionsQuery is for n messages. It looks at one row of each subscription and message
// by the inbox's primary key, whatever the planner thinks of n: the inbox may have millions.
func consumptionsQuery(n int) string {
	return "WITH RECURSIVE names(name) AS (SELECT min(subscription) FROM inbox UNION ALL" +
		" SELECT (SELECT min(subscription) FROM inbox WHERE subscription > n.name) FROM names AS n WHERE n.name IS NOT NULL)," +
		" asked(id) AS (VALUES (?)" + strings.Repeat(", (?)", n-1) + ")," +
		" done(id, name, at) AS (SELECT a.id, n.name, (SELECT processed_at FROM inbox WHERE subscription = n.name AND message_id = a.id)" +
		" FROM names AS n CROSS JOIN asked AS a) SELECT id, name, at FROM done WHERE at IS NOT NULL ORDER BY name"
}

// FindConsumptions returns the subscriptions of a database that are done with messages,
// by message and in the order of their names.
func FindConsumptions(ctx context.Context, db bun.IDB, messageIDs []string) (map[string][]Consumption, error) {
	messages := map[string]string{} // by the id that the inbox has of them
	for _, id := range messageIDs {
		messages[indexable(id)] = id
	}
	found := map[string][]Consumption{}
	for some := range slices.Chunk(slices.Collect(maps.Keys(messages)), consumptionsAtOnce) {
		asked := make([]any, len(some))
		for i, id := range some {
			asked[i] = id
		}
		err := dbrows.Each(ctx, db, consumptionsQuery(len(some)), func(scan func(...any) error) error {
			var id string
			var c Consumption
			var at dbtime.Time
			err := scan(&id, &c.Subscription, &at)
			c.At = at.Time
			found[messages[id]] = append(found[messages[id]], c)
			return err
		}, asked...)
		if err != nil {
			return nil, fmt.Errorf("subscription: look for messages in the inbox: %w", err)
		}
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
