package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/handling"
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

// However many subscriptions have handlers that wait for something else in their transactions, other units of
// work have a connection, and it is known that handlers wait.
func TestUnits_HandlersLeaveOneToOthers(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	one := uow.Statement{Query: bun.SafeQuery("SELECT 1"), Rows: -1}
	p := open(t, func(c *postgres.Config) { c.MaxConns = 20 })
	waits := p.(interface{ UnitsWait() time.Duration }).UnitsWait
	handler := handling.Context(ctx, time.Minute)
	var begun []uow.Session
	for range 17 {
		s := p.Session()
		_, err := s.DB(handler)
		require.NoError(t, err)
		begun = append(begun, s)
	}
	short, cancel := context.WithTimeout(handler, 10*time.Millisecond)
	defer cancel()
	err := p.Session().Commit(short, []uow.Statement{one})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "the 17 connections that handlers may have, of the pool's 20, were in use for as long as one was waited for: raise max_conns")

	got := make(chan error, 1)
	go func() { got <- p.Session().Commit(handler, []uow.Statement{one}) }()
	waittest.Until(t, func() bool { return postgres.UnitsWaiting(p) == 1 })
	waited := waits()
	for range 3 {
		s := p.Session()
		_, err = s.DB(ctx)
		require.NoError(t, err)
		other := make(chan error, 1)
		go func() { other <- p.Session().Commit(ctx, []uow.Statement{one}) }()
		waittest.Until(t, func() bool { return postgres.UnitsWaiting(p) == 2 })
		require.NoError(t, s.Rollback(ctx))
		require.NoError(t, <-other)
		require.Greater(t, waits(), waited, "others that got one are no handlers that did")
	}
	require.NoError(t, begun[0].Rollback(ctx))
	require.NoError(t, <-got)
	require.Zero(t, waits())
	for _, s := range begun[1:] {
		require.NoError(t, s.Commit(ctx, nil))
	}

	// Handlers that found all in use by others, and gave up, lose none.
	begun = nil
	for range 18 {
		s := p.Session()
		_, err = s.DB(ctx)
		require.NoError(t, err)
		begun = append(begun, s)
	}
	for range 20 {
		short, cancel := context.WithTimeout(handler, time.Millisecond)
		require.ErrorContains(t, p.Session().Commit(short, []uow.Statement{one}), "that units of work may have")
		cancel()
	}
	for _, s := range begun {
		require.NoError(t, s.Commit(ctx, nil))
	}
	for range 20 {
		require.NoError(t, p.Session().Commit(handler, []uow.Statement{one}))
	}
}
