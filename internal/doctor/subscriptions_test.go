package doctor

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/dbtime"
)

// B14: a subscription that was not seen for 30 days and left something is found,
// with the command that removes it.
func TestSubscriptions_B14(t *testing.T) {
	each(t, func(t *testing.T, p *patient) {
		d := p.DB().Dialect()
		at := func(ago time.Duration) any { return dbtime.Value(d, time.Now().Add(-ago)) }
		_, err := p.DB().ExecContext(t.Context(), "INSERT INTO inbox (subscription, message_id, processed_at) VALUES ('old', 'm', ?0), ('young', 'm', ?1)", at(41*24*time.Hour+time.Minute), at(29*24*time.Hour))
		require.NoError(t, err)
		p.has(t, "subscriptions", Warning, "subscription old", "it was not seen for 41 days, and left 1 row in its inbox and 0 dead letters", "waybill subscriptions retire old --dry-run")
		_, err = p.DB().ExecContext(t.Context(), "INSERT INTO subscription_runs (subscription, run) VALUES ('old', 'r')")
		require.NoError(t, err)
		require.Empty(t, p.examine(t))
	})
}

// Two services that know nothing of each other have the same topics: their subscriptions share
// them out. A stream of another context is published by others alone, and a context may have
// several databases.
func TestSubscriptions_HearOfTwoOutboxes(t *testing.T) {
	each(t, func(t *testing.T, p *patient) {
		p.outboxes = []string{"here", "beside"}
		p.exec(t, "INSERT INTO inbox_marks (subscription, partition, source) VALUES ('ours', '1', 'here:default'), ('ours', '2', 'beside:default'), ('foreign', '1', 'theirs:default'), ('foreign', '1', 'more:default')")
		require.Empty(t, p.examine(t))
		p.exec(t, "INSERT INTO inbox_marks (subscription, partition, source) VALUES ('ours', '2', 'theirs:default')")
		p.has(t, "sources", Warning, "subscription ours", "its topic has events of our own and of another database's outbox, the last at 20", "topic_prefix")
		p.outboxes = nil
		require.Empty(t, p.examine(t))
		p.outboxes = []string{"here", "beside"}
		_, err := p.DB().ExecContext(t.Context(), "UPDATE inbox_marks SET seen_at = ? WHERE source = 'theirs:default'", dbtime.Value(p.DB().Dialect(), time.Now().Add(-2*time.Hour)))
		require.NoError(t, err)
		require.Empty(t, p.examine(t))
	})
}
