package nats_test

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
)

// A group that reads two topics, as of two builds of a subscription of which one has another
// category, gets all of both where one stream has them: also what lies in the stream before that
// which it has had of the first. Each of its members keeps to its topic, and each topic has a
// position of its own.
func TestGroupOfTwoTopicsInOneStream(t *testing.T) {
	b := newHost(t).quick(t)
	_, err := admin(t, b).CreateStream(t.Context(), jetstream.StreamConfig{Name: "all", Subjects: []string{"ordering.>"}})
	require.NoError(t, err)
	const second = "ordering.cart"
	publishSecond := func(n int) {
		m := message("a", n)
		m.Topic = second
		require.NoError(t, b.Publish(t.Context(), []broker.Message{m}))
	}
	take := func(c broker.Consumer, first, n int) {
		got := receive(t, c, n)
		requireBodies(t, first, got)
		require.NoError(t, c.Ack(t.Context(), got...))
	}

	publishSecond(100)
	publish(t, b, 0, 3)
	c := join(t, b)
	take(c, 0, 3)
	d, err := b.Consume(t.Context(), second, "group")
	require.NoError(t, err)
	take(d, 100, 1)
	publish(t, b, 3, 5)
	publishSecond(101)
	take(c, 3, 2)
	take(d, 101, 1)

	require.NoError(t, d.Close(t.Context()))
	publishSecond(102)
	d, err = b.Consume(t.Context(), second, "group")
	require.NoError(t, err)
	take(d, 102, 1)
}
