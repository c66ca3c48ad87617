package subscription_test

import (
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
		for message, want := range map[string][]string{"m-1": {"billing", "shipping"}, "m-3": {"audit"}, "m-4": nil} {
			found, err := subscription.FindConsumptions(t.Context(), db, message)
			require.NoError(t, err)
			var names []string
			for _, c := range found {
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
		require.NoError(t, db.NewRaw("EXPLAIN WITH RECURSIVE names(name) AS (SELECT min(subscription) FROM inbox UNION ALL"+
			" SELECT (SELECT min(subscription) FROM inbox WHERE subscription > n.name) FROM names AS n WHERE n.name IS NOT NULL)"+
			" SELECT i.subscription, i.processed_at FROM names AS n JOIN inbox AS i ON i.subscription = n.name AND i.message_id = 'm-1' ORDER BY 1").Scan(t.Context(), &plan))
		require.NotContains(t, strings.Join(plan, "\n"), "Seq Scan on inbox")
	})
}
