package subscription_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/subscription"
)

// Who is done with a message is found among all subscriptions by the primary key
// of the inbox, whatever is in there.
func TestFindConsumptions(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		for _, row := range [][2]string{{"shipping", "m-1"}, {"shipping", "m-2"}, {"billing", "m-1"}, {"audit", "m-3"}} {
			w.exec("INSERT INTO inbox (subscription, message_id) VALUES (?, ?)", row[0], row[1])
		}
		db := w.provider.Reader()
		// They are asked for together, in more than one query, and among ids that are stored
		// as their hash.
		long := strings.Repeat("long", 100)
		w.exec("INSERT INTO inbox (subscription, message_id) VALUES ('audit', ?)", subscription.Indexable(long))
		asked := []string{"m-1", "m-3", "m-4", long}
		for i := range 1000 {
			asked = append(asked, fmt.Sprintf("other-%d", i))
		}
		found, err := subscription.FindConsumptions(t.Context(), db, asked)
		require.NoError(t, err)
		require.Len(t, found, 3)
		for message, want := range map[string][]string{"m-1": {"billing", "shipping"}, "m-3": {"audit"}, "m-4": nil, long: {"audit"}} {
			var names []string
			for _, c := range found[message] {
				names = append(names, c.Subscription)
				require.WithinDuration(t, time.Now(), c.At, time.Minute)
			}
			require.Equal(t, want, names, message)
		}
		if db.Dialect().Name() == dialect.SQLite {
			return // it has no way but the index
		}
		w.exec("INSERT INTO inbox (subscription, message_id) SELECT 'shipping', 'x-' || n FROM generate_series(1, 50000) AS n")
		w.exec("ANALYZE inbox")
		var plan []string
		require.NoError(t, db.NewRaw("EXPLAIN "+subscription.ConsumptionsQuery(3), "m-1", "m-2", "m-3").Scan(t.Context(), &plan))
		require.NotContains(t, strings.Join(plan, "\n"), "Seq Scan on inbox")
	})
}
