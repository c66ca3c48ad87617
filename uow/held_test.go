package uow_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/uow"
)

// A unit that holds the one writer for so long that no lease can be renewed is
// warned of, once.
func TestDo_WarnsOfAHeldWriter(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		var log bytes.Buffer
		leased := func(lease time.Duration) *world {
			return newWorld(t, open, func(c *uow.Config) {
				c.Lease = lease
				c.Logger = slog.New(slog.NewTextHandler(&log, nil))
			})
		}
		hold := func(w *world, d time.Duration, touch func(context.Context) error) {
			require.NoError(t, w.units.Do(t.Context(), func(ctx context.Context) error {
				err := touch(ctx)
				<-time.After(d)
				return err
			}))
		}
		begin := func(ctx context.Context) error {
			_, err := uow.DB(ctx)
			return err
		}
		w := leased(600 * time.Millisecond)
		hold(w, 250*time.Millisecond, none)
		hold(leased(time.Hour), 250*time.Millisecond, begin)
		require.Empty(t, log.String(), "it takes nothing, or not for long")
		for range 2 {
			hold(w, 250*time.Millisecond, begin)
		}
		if w.db.DB().Dialect().Name() == dialect.PG {
			require.Empty(t, log.String())
			return
		}
		require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
		require.Contains(t, log.String(), "level=WARN")
		require.Contains(t, log.String(), "raise outbox.lease")
		require.Contains(t, log.String(), "context=bank provider=default held=")
		require.Contains(t, log.String(), "lease=600ms")
	})
}
