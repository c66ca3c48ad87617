package nats_test

import (
	"testing"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
)

// B1: one stream may hold several topics. JetStream deduplicates over all of a
// stream, so that a message's copy for a second topic would be dropped if its id
// were all that it looked at.
func TestOneStreamForTwoTopicsKeepsBothCopies_B1(t *testing.T) {
	b := newHost(t).quick(t)
	js, err := jetstream.New(b.Conn())
	require.NoError(t, err)
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "all", Subjects: []string{"ordering.order", "partner.ordering.order"}})
	require.NoError(t, err)

	own, partner := message("a", 1), message("a", 1)
	partner.Topic = "partner.ordering.order"
	for range 2 { // The second time they are known, which is as good as stored.
		require.NoError(t, b.Publish(t.Context(), []broker.Message{own, partner}))
	}
	info, err := stream.Info(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2, info.State.Msgs)
	for _, topic := range []string{own.Topic, partner.Topic} {
		c, err := b.Consume(t.Context(), topic, "group-of-"+topic)
		require.NoError(t, err)
		require.Equal(t, "a-1", receive(t, c, 1)[0].ID)
	}
}

// B13: a key and headers arrive as they were sent, whatever is in them.
func TestKeysAndHeadersArriveAsTheyWere_B13(t *testing.T) {
	b := newHost(t).quick(t)
	require.NoError(t, b.EnsureTopics(t.Context(), topic))
	native := make(chan *natsgo.Msg, 100)
	_, err := b.Conn().ChanSubscribe(topic, native)
	require.NoError(t, err)
	c := join(t, b)
	for value, sent := range map[string]string{
		"order 42":                  "order 42",
		"100%":                      "100%",
		"a%20b":                     "a%20b",
		" order":                    "%20order",
		"order ":                    "order%20",
		"a\nNats-Rollup: all":       "a%0ANats-Rollup:%20all",
		"a\r\nb":                    "a%0D%0Ab",
		"Übermaß 5%":                "%C3%9Cberma%C3%9F%205%25",
		"tab\there":                 "tab%09here",
		"\x00\xff":                  "%00%FF",
		string(make([]byte, 4_000)): "",
	} {
		m := message(value, 1)
		m.Headers = map[string]string{"tenant-id": value, "type": "T"}
		m.ID = sent + "."
		require.NoError(t, b.Publish(t.Context(), []broker.Message{m}))
		on := <-native
		if sent != "" {
			require.Equal(t, sent, on.Header.Get("key"), "%q", value)
			require.Equal(t, sent, on.Header.Get("tenant-id"), "%q", value)
		}
		got := receive(t, c, 1)[0]
		require.Equal(t, value, got.Key)
		require.Equal(t, m.Headers, got.Headers)
		require.NoError(t, c.Ack(t.Context(), got))
	}
}

// B13, B1: what an earlier version or another publisher sent is read as it is.
func TestWhatOthersSentIsReadAsItIs_B13_B1(t *testing.T) {
	b := newHost(t).quick(t)
	require.NoError(t, b.EnsureTopics(t.Context(), topic))
	js, err := jetstream.New(b.Conn())
	require.NoError(t, err)
	for _, header := range []natsgo.Header{
		{"Nats-Msg-Id": {"0199"}, "key": {"a%20b"}, "tenant-id": {"Übermaß"}},
		{"Nats-Msg-Id": {"ordering/0199"}, "key": {"broken%2"}, "waybill-encoded": {"key,missing"}},
	} {
		_, err = js.PublishMsg(t.Context(), &natsgo.Msg{Subject: topic, Header: header})
		require.NoError(t, err)
	}
	got := receive(t, join(t, b), 2)
	require.Equal(t, "0199", got[0].ID)
	require.Equal(t, "a%20b", got[0].Key)
	require.Equal(t, "Übermaß", got[0].Headers["tenant-id"])
	require.Equal(t, "ordering/0199", got[1].ID, "the topic is another")
	require.Equal(t, "broken%2", got[1].Key)
	require.Empty(t, got[1].Headers)
}

// B13: what the server takes at most is known without asking for it.
func TestTheServersLimitIsKnown_B13(t *testing.T) {
	b := newHost(t).quick(t)
	require.EqualValues(t, b.Conn().MaxPayload(), b.MaxMessage())
	require.Positive(t, b.MaxMessage())
}

// What a broker keeps of calls ends with them, or it would grow with each.
func TestNothingIsKeptOfCallsThatEnded(t *testing.T) {
	b := newHost(t).quick(t)
	require.NoError(t, b.EnsureTopics(t.Context(), topic))
	publish(t, b, 0, 5)
	c := join(t, b)
	require.NoError(t, c.Ack(t.Context(), receive(t, c, 5)...))
	_, watches := b.Kept()
	require.Positive(t, watches, "of a member")
	require.NoError(t, c.Close(t.Context()))
	calls, watches := b.Kept()
	require.Zero(t, calls)
	require.Zero(t, watches)
}
