package outboxdb_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/relay"
)

// Where somebody has emptied outbox_lanes, a broker has another number in what is stored from
// then on, and its old one may become another broker's: whoever holds that ends, and can't join.
func TestRenew_ANumberThatIsNotTheTargetsEndsItsMembers(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		m := b.Join("one", time.Minute, 100)
		renewed := func() []relay.Renewed {
			all, err := b.Renew(t.Context(), []relay.Renewal{{Member: m.ID, Target: "default", Healthy: true}}, time.Minute)
			require.NoError(t, err)
			return all
		}
		require.Len(t, renewed(), 1)
		b.Exec("UPDATE outbox_lanes SET target = 'partner' WHERE id = ?", m.Lane)
		require.Empty(t, renewed(), "it is another target's")
		b.Exec("DELETE FROM outbox_lanes")
		require.Empty(t, renewed(), "it is nobody's")
		joined, err := b.Store.Join(t.Context(), "one", []relay.Joining{{Lane: m.Lane, Target: "default"}}, time.Minute)
		require.NoError(t, err)
		require.Equal(t, []relay.MemberID{0}, joined)
	})
}
