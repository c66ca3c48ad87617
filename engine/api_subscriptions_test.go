package engine

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/subscription"
)

// S3-28: what this process knows of its subscriptions, and null for what it
// can't know.
func TestAPI_S3_28_Subscriptions(t *testing.T) {
	b := setup(t)
	cfg := b.config()
	s := b.orders(func(_ context.Context, sold Sold) error {
		if sold.Amount == 1 {
			return errors.New("no such parcel")
		}
		return nil
	})
	s.MaxAttempts = 2
	cfg.Subscriptions, cfg.Server.Token = []subscription.Stream{s}, token
	e := b.make(cfg)
	before := e.subscriptionsState(t.Context(), fresh).Subscriptions["parcels"]
	require.False(t, before.Running)
	require.Nil(t, before.LagMessages, "it isn't in its group")
	require.Nil(t, before.LagSeconds)

	require.NoError(t, e.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, e.Stop(context.Background())) })
	b.sell(2)
	var got subscriptionsReport
	eventually(t, func() bool {
		require.Equal(t, 200, get(t, e, "/api/subscriptions", &got))
		s := got.Subscriptions["parcels"]
		return s.Handled == 1 && s.Parked == 1 && s.LagMessages != nil && *s.LagMessages == 0 && s.DeadLetters != nil && *s.DeadLetters == 1
	})
	state := got.Subscriptions["parcels"]
	require.True(t, state.Running)
	require.Equal(t, "default", state.Provider)
	require.EqualValues(t, 1, state.Retries)
	require.Contains(t, *state.LastError, "no such parcel")
	require.Zero(t, *state.LagSeconds)

	require.NoError(t, e.Pause("parcels"))
	require.Equal(t, 200, get(t, e, "/api/subscriptions", &got))
	require.True(t, got.Subscriptions["parcels"].Paused)
	var wrong map[string]string
	require.Equal(t, 400, get(t, e, "/api/subscriptions?name=parcels", &wrong))
	require.Contains(t, wrong["error"], `no parameter "name"`)
}
