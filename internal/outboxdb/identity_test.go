package outboxdb_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/outbox"
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

// Who has the record of the identity locked isn't waited for without a bound.
func TestAcceptIdentity_DoesNotWaitForALockForLong(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		if b.DB.Dialect().Name() != dialect.PG {
			return // where the driver has its bound
		}
		b.Exec(`INSERT INTO outbox_settings (name, value) VALUES ('identity', '{"system": "1", "file": "1"}')`)
		tx, err := b.DB.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { _ = tx.Rollback() }()
		_, err = tx.ExecContext(t.Context(), "UPDATE outbox_settings SET value = value WHERE name = 'identity'")
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = b.AcceptIdentity(ctx, "ada")
		require.ErrorContains(t, err, "outbox: accept the database: it ended early, with 0 databases accepted; run it again: another session has locked one of the rows for long, pg_locks says which")
		require.NoError(t, tx.Rollback())
		moved, err := b.AcceptIdentity(t.Context(), "ada")
		require.NoError(t, err)
		require.NotEmpty(t, moved)
		require.EqualValues(t, 1, b.Count("SELECT count(*) FROM outbox_actions"))
	})
}

// A role that lost its right to the settings can't read who the database is. That isn't a server which
// tells nobody: on one nothing is asked again, so an engine would publish from a copy, too.
func TestIdentity_OfARoleThatMayNotReadTheSettings(t *testing.T) {
	t.Parallel()
	b := outboxdbtest.Open(t, outboxdbtest.PostgreSQL(t))
	var role string
	require.NoError(t, b.As.NewRaw("SELECT current_user").Scan(t.Context(), &role))
	b.Exec("REVOKE ALL ON outbox_settings FROM ?", bun.Ident(role))
	_, _, err := b.CheckIdentity(t.Context(), outbox.Stop)
	require.Equal(t, dberr.Denied, dberr.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, "outbox_settings")

	b.Exec("GRANT SELECT, INSERT ON outbox_settings TO ?", bun.Ident(role))
	is, _, err := b.CheckIdentity(t.Context(), outbox.Stop)
	require.NoError(t, err)
	require.NotEmpty(t, is, "it is asked again")
}
