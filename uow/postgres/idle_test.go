package postgres_test

import (
	"context"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/handling"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
)

// A process that is frozen in the middle of a handler, and a machine that is gone, would keep the rows of the
// transaction from those that took over. PostgreSQL ends it when its handler's time is over, unless the server or the
// role has a time of its own.
func TestHandlers_TheirTransactionsAreNotIdleForEver(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	with := func(idle string) uow.Provider {
		return open(t, func(c *postgres.Config) {
			u, err := url.Parse(c.DSN)
			require.NoError(t, err)
			q := u.Query()
			q.Set("idle_in_transaction_session_timeout", idle)
			u.RawQuery = q.Encode()
			c.DSN = u.String()
		})
	}
	p := with("0")
	bound := func(p uow.Provider, ctx context.Context) (setting string) {
		s := p.Session()
		db, err := s.DB(ctx)
		require.NoError(t, err)
		require.NoError(t, db.NewRaw("SELECT current_setting('idle_in_transaction_session_timeout')").Scan(ctx, &setting))
		require.NoError(t, s.Commit(ctx, nil))
		return setting
	}
	require.Equal(t, "90s", bound(p, handling.Context(ctx, time.Minute)))
	require.Equal(t, "0", bound(p, ctx), "it is of that transaction alone, and of handlers")
	require.Equal(t, "2147483647ms", bound(p, handling.Context(ctx, 10_000*time.Hour)), "more than PostgreSQL can")
	require.Equal(t, "10min", bound(with("600000"), handling.Context(ctx, time.Minute)))

	const lock = "SELECT pg_advisory_xact_lock(hashtext(current_schema() || 'idle'))"
	frozen := p.Session()
	db, err := frozen.DB(handling.Context(ctx, 100*time.Millisecond-postgres.IdleGrace))
	require.NoError(t, err)
	_, err = db.ExecContext(ctx, lock)
	require.NoError(t, err)
	_, err = p.DB().ExecContext(ctx, lock)
	require.NoError(t, err, "it is free")
	require.Error(t, frozen.Commit(ctx, nil))
	require.Equal(t, "90s", bound(p, handling.Context(ctx, time.Minute)))
}
