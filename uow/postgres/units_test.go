package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
)

// Units of work leave connections of the pool to others, and wait for each other: who waits in vain
// hears what helps, and all that they had comes back.
func TestUnits_LeaveConnectionsToOthers(t *testing.T) {
	one := uow.Statement{Query: bun.SafeQuery("SELECT 1"), Rows: -1}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	p := open(t, func(c *postgres.Config) { c.MaxConns = 9 })
	waits := p.(interface{ UnitsWait() time.Duration }).UnitsWait
	begin := func(ctx context.Context) (uow.Session, error) {
		s := p.Session()
		_, err := s.DB(ctx)
		return s, err
	}
	var begun []uow.Session
	for range 8 {
		s, err := begin(ctx)
		require.NoError(t, err)
		begun = append(begun, s)
	}
	require.Zero(t, waits())
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	_, err := begin(short)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "the 8 connections that units of work may have, of the pool's 9, were in use for as long as one was waited for: raise max_conns")
	ended, end := context.WithCancel(ctx)
	end()
	err = p.Session().Commit(ended, []uow.Statement{one})
	require.ErrorIs(t, err, context.Canceled)
	require.NotContains(t, err.Error(), "max_conns")
	require.Zero(t, waits(), "nobody waits any more")
	_, err = p.DB().ExecContext(ctx, "SELECT 1")
	require.NoError(t, err, "the ninth is for others")

	got := make(chan bool, 2)
	for i := range 2 {
		go func() {
			defer func() { got <- true }()
			s, err := begin(ctx)
			if err == nil {
				err = s.Rollback(ctx)
			}
			if err != nil {
				t.Error(err)
			}
		}()
		waittest.Until(t, func() bool { return postgres.UnitsWaiting(p) == i+1 })
	}
	require.Positive(t, waits())
	require.NoError(t, begun[0].Rollback(ctx))
	<-got
	<-got
	require.NoError(t, begun[1].Commit(ctx, nil))
	for _, s := range begun[2:] {
		require.NoError(t, s.Rollback(ctx))
	}
	for range 20 { // none is lost by a unit that fails, or that is one round trip
		require.Error(t, p.Session().Commit(ctx, []uow.Statement{{Query: bun.SafeQuery("no statement"), Rows: -1}}))
		require.NoError(t, p.Session().Commit(ctx, []uow.Statement{one}))
		_, err := begin(ended)
		require.Error(t, err)
	}
	require.Zero(t, waits())
}
