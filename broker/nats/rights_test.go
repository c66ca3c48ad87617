package nats_test

import (
	"testing"

	natsgo "github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/internal/natstest"
)

// B9: the users of the guide have the rights that a sender and a reader need.
func TestRights_TheGuidesUsersHaveWhatTheyNeed(t *testing.T) {
	t.Parallel()
	url := natstest.Serve(t, natstest.Guide(t))
	ordering := openQuick(t, url("ordering"))
	require.NoError(t, ordering.EnsureTopics(t.Context(), topic))
	publish(t, ordering, 0, 2)

	billing := openQuick(t, url("billing"))
	join := func() broker.Consumer {
		c, err := billing.Consume(t.Context(), topic, "billing")
		require.NoError(t, err)
		return c
	}
	c := join()
	got := receive(t, c, 2)
	require.NoError(t, c.Ack(t.Context(), got[0]))
	require.NoError(t, c.Close(t.Context())) // gives the other one back
	again := join()
	requireBodies(t, 1, receive(t, again, 1))
	lags, err := again.(broker.Lagging).Lag(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, lags)

	require.ErrorContains(t, failure(t, billing, message("a", 3)), "not authorised for subject ordering.order")
	_, err = ordering.Consume(t.Context(), topic, "billing")
	require.ErrorIs(t, err, natsgo.ErrPermissionViolation)
	require.ErrorContains(t, ordering.EnsureTopics(t.Context(), "other"), "give the user that right, or have somebody make the stream")
}
