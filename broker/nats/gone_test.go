package nats_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/nats"
)

// again joins as a subscription does whose consumer has failed, and reads what there is.
func again(t *testing.T, b *nats.Broker, failed broker.Consumer, n int) []broker.Delivery {
	t.Helper()
	require.NoError(t, failed.Close(t.Context()))
	require.NoError(t, b.EnsureTopics(t.Context(), topic))
	c := join(t, b)
	got := receive(t, c, n)
	require.NoError(t, c.Ack(t.Context(), got...))
	return got
}

func admin(t *testing.T, b *nats.Broker) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(b.Conn())
	require.NoError(t, err)
	return js
}

// What a group had not received of a stream that is deleted, also if it is there again at once, or
// whose server comes back without it, is lost: the member says so and how many, at least, and the
// group reads the new stream from its start.
func TestMissedWithItsStream_B10(t *testing.T) {
	t.Parallel()
	for what, remove := range map[string]func(*testing.T, *host, *nats.Broker){
		"deleted": func(t *testing.T, _ *host, b *nats.Broker) {
			require.NoError(t, admin(t, b).DeleteStream(t.Context(), "ordering_order"))
		},
		"made again": func(t *testing.T, _ *host, b *nats.Broker) {
			require.NoError(t, admin(t, b).DeleteStream(t.Context(), "ordering_order"))
			require.NoError(t, b.EnsureTopics(t.Context(), topic))
		},
		"lost": func(t *testing.T, h *host, _ *nats.Broker) {
			h.stop(t)
			require.NoError(t, os.RemoveAll(filepath.Join(h.cfg.Dir, "jetstream")))
			h.start(t)
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			b := h.patient(t)
			require.NoError(t, b.EnsureTopics(t.Context(), topic))
			for n := range 9 { // of which two wait in the member
				m := message("a", n)
				m.Body = make([]byte, 1<<20)
				require.NoError(t, b.Publish(t.Context(), []broker.Message{m}))
			}
			c := join(t, b)
			held := receive(t, c, 1)
			remove(t, h, b)
			requireLost(t, held...)
			s := state(t, c, func(s broker.State) bool { return s.Missed > 0 && s.LastError != nil })
			require.EqualValues(t, 9-len(held), s.Missed)
			require.ErrorContains(t, s.LastError, "stream ordering_order was deleted, or its server has lost it, with what the group had not received, at least 8 messages")
			_, err := c.Receive(t.Context(), 1)
			require.ErrorContains(t, err, "have the sender publish them again")

			require.NoError(t, b.EnsureTopics(t.Context(), topic))
			publish(t, b, 20, 22)
			requireBodies(t, 20, again(t, b, c, 2))
		})
	}
}

// Nothing is lost with a consumer: the next one begins at the start, and inboxes know what they had.
func TestNothingIsMissedWithAConsumer_B10(t *testing.T) {
	b := newHost(t).quick(t)
	require.NoError(t, b.EnsureTopics(t.Context(), topic))
	publish(t, b, 0, 3)
	c := join(t, b)
	require.NoError(t, c.Ack(t.Context(), receive(t, c, 3)...))
	require.NoError(t, admin(t, b).DeleteConsumer(t.Context(), "ordering_order", "group"))
	_, err := c.Receive(t.Context(), 1)
	require.ErrorContains(t, err, "consumer group of stream ordering_order was deleted: the next one begins with the oldest message")
	require.Zero(t, missed(c))
	publish(t, b, 3, 4)
	requireBodies(t, 0, again(t, b, c, 4))
}

// A topic that somebody gives to another stream is read on there, once all of the first is handled:
// a consumer of the first would get nothing any more, and nothing would tell.
func TestTopicThatMovesToAnotherStream(t *testing.T) {
	b := newHost(t).quick(t)
	require.NoError(t, b.EnsureTopics(t.Context(), topic))
	publish(t, b, 0, 5)
	c := join(t, b)
	held := receive(t, c, 3)
	js := admin(t, b)
	old, err := js.Stream(t.Context(), "ordering_order")
	require.NoError(t, err)
	cfg := old.CachedInfo().Config
	cfg.Subjects = []string{"old"}
	_, err = js.UpdateStream(t.Context(), cfg)
	require.NoError(t, err)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "new", Subjects: []string{topic}})
	require.NoError(t, err)
	publish(t, b, 5, 7)
	held = append(held, receive(t, c, 2)...)
	requireBodies(t, 0, held)
	require.NoError(t, nats.Moved(t.Context(), c), "what is in hand would be taken back")
	require.NoError(t, c.Ack(t.Context(), held...))
	_, err = c.Receive(t.Context(), 1)
	require.ErrorContains(t, err, "the topic has another stream, new, and the group has handled all of stream ordering_order")
	require.Zero(t, missed(c))
	requireBodies(t, 5, again(t, b, c, 2))
}

// What nobody takes says why: nobody looks for a stream where the server has no JetStream, and who
// looks for a stream that is missing reads what helps.
func TestWhyNobodyTakesAMessage(t *testing.T) {
	b := newHost(t).quick(t)
	require.ErrorContains(t, failure(t, b, message("a", 1)), "restart an engine that may make it, which calls EnsureTopics, or make it: nats stream add --subjects ordering.order")

	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true})
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	err = failure(t, openQuick(t, s.ClientURL()), message("a", 1))
	require.ErrorContains(t, err, "the stream of topic \"ordering.order\" doesn't answer: the server has no JetStream for this user, or not yet")
	require.Equal(t, broker.ScopeBroker, broker.ScopeOf(err))
}
