package outboxdb_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
)

// Of two operators who accept a database at once, one has done it, and is on record.
func TestAcceptIdentity_OfTwoOneHasDoneIt(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		b.Exec(`INSERT INTO outbox_settings (name, value) VALUES ('identity', '{"system": "1", "file": "1"}')`)
		other := &stopAt{words: "BEGIN", cancel: func() {
			moved, err := b.AcceptIdentity(t.Context(), "bob")
			require.NoError(t, err)
			require.NotEmpty(t, moved)
		}}
		other.n.Store(1)
		moved, err := outboxdb.New(b.DB.WithQueryHook(other), b.DB).AcceptIdentity(t.Context(), "ada")
		require.NoError(t, err)
		require.Empty(t, moved)
		require.EqualValues(t, 1, b.Count("SELECT count(*) FROM outbox_actions"))
	})
}
