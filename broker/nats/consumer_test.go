package nats_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/nats"
	"github.com/waybill-go/waybill/internal/liveness/livenesstest"
	"github.com/waybill-go/waybill/internal/waittest"
)

// publish stores messages n to m-1 of one key.
func publish(t *testing.T, b broker.Broker, n, m int) {
	t.Helper()
	for ; n < m; n++ {
		require.NoError(t, b.Publish(t.Context(), []broker.Message{message("a", n)}))
	}
}

func join(t *testing.T, b broker.Broker) broker.Consumer {
	t.Helper()
	c, err := b.Consume(t.Context(), topic, "group")
	require.NoError(t, err)
	return c
}

func receive(t *testing.T, c broker.Consumer, n int) []broker.Delivery {
	t.Helper()
	var all []broker.Delivery
	for len(all) < n {
		got, err := c.Receive(t.Context(), n-len(all))
		require.NoError(t, err)
		all = append(all, got...)
	}
	return all
}

func requireBodies(t *testing.T, first int, got []broker.Delivery) {
	t.Helper()
	for i, d := range got {
		require.Equal(t, fmt.Sprint(first+i), string(d.Body))
	}
}

func requireLost(t *testing.T, deliveries ...broker.Delivery) {
	t.Helper()
	for _, d := range deliveries {
		select {
		case <-d.Lost:
		case <-t.Context().Done():
			require.FailNow(t, "a delivery that was taken back wasn't lost")
		}
	}
}

// A member that dies without a word leaves messages that the server takes for
// being worked on. Its successor gets them first, and then the later ones.
func TestSuccessorOfADeadMember(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	one, two := h.dying(t), h.quick(t)
	require.NoError(t, one.EnsureTopics(t.Context(), topic))
	publish(t, two, 0, 5)
	dead := receive(t, join(t, one), 5)
	successor := join(t, two)
	one.Conn().Close()
	publish(t, two, 5, 10)

	got := receive(t, successor, 10)
	requireBodies(t, 0, got)
	require.Len(t, dead, 5)
	require.NoError(t, successor.Ack(t.Context(), got...))
}

// N1: who joins after kill -9 on the same host needn't wait until the server misses the
// dead one; of others nobody knows whether they are dead.
func TestSuccessor_N1_OfADeadProcessOfThisHost(t *testing.T) {
	t.Parallel()
	for name, dead := range map[string]bool{livenesstest.Dead(t): true, livenesstest.Alive(): false, "host-12-0123abcd.77.89abcdef": false} {
		h := newHost(t)
		one, err := nats.OpenEndless(t.Context(), h.client)
		require.NoError(t, err)
		t.Cleanup(func() { require.ErrorContains(t, one.Close(context.Background()), "leave the group") })
		one.Be(name)
		require.NoError(t, one.EnsureTopics(t.Context(), topic))
		two, err := nats.OpenEndless(t.Context(), h.client)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, two.Close(context.Background())) })
		publish(t, two, 0, 5)
		receive(t, join(t, one), 5)
		js, err := jetstream.New(two.Conn())
		require.NoError(t, err)
		waittest.Until(t, func() bool {
			c, err := js.Consumer(t.Context(), "ordering_order", "group")
			require.NoError(t, err)
			return strings.HasSuffix(c.CachedInfo().Config.Metadata["waybill-holder"], " "+name)
		})
		one.Conn().Close()
		patience := time.Second
		if dead {
			patience = time.Minute
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		got, err := join(t, two).Receive(ctx, 5)
		cancel()
		if !dead {
			require.ErrorIs(t, err, context.DeadlineExceeded, name)
			continue
		}
		require.NoError(t, err)
		requireBodies(t, 0, got)
		require.NotEmpty(t, got)
	}
}

// The same without anything new to deliver: then no delivery tells the successor
// that it is one.
func TestSuccessorWithoutNewMessages(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	one, two := h.dying(t), h.quick(t)
	require.NoError(t, one.EnsureTopics(t.Context(), topic))
	publish(t, two, 0, 5)
	receive(t, join(t, one), 5)
	successor := join(t, two)
	one.Conn().Close()
	requireBodies(t, 0, receive(t, successor, 5))
}

// A member whose place was taken, because it had been silent for too long, is
// told so.
func TestDisplacedMemberIsTold(t *testing.T) {
	h := newHost(t)
	one, two := h.quick(t), h.quick(t)
	require.NoError(t, one.EnsureTopics(t.Context(), topic))
	publish(t, one, 0, 3)
	displaced := join(t, one)
	held := receive(t, displaced, 3)
	successor := join(t, two)
	js, err := jetstream.New(one.Conn())
	require.NoError(t, err)
	stream, err := js.Stream(t.Context(), "ordering_order")
	require.NoError(t, err)
	// The server may choose either of them next.
	for lost := false; !lost; {
		require.NoError(t, stream.UnpinConsumer(t.Context(), "group", "members"))
		select {
		case <-held[0].Lost:
			lost = true
		case <-time.After(100 * time.Millisecond):
		}
	}
	requireLost(t, held...)
	require.NoError(t, displaced.Ack(t.Context(), held[2]), "it may have been in time")
	require.NoError(t, displaced.Release(t.Context(), held[1]), "nothing is to be given back")
	require.NoError(t, displaced.Close(t.Context()))
	requireBodies(t, 0, receive(t, successor, 2))
}

// A delivery that got lost on its way mustn't be overtaken by the next.
func TestLostDeliveryIsMissed(t *testing.T) {
	b := newHost(t).quick(t)
	require.NoError(t, b.EnsureTopics(t.Context(), topic))
	publish(t, b, 0, 1)
	c := join(t, b)
	first := receive(t, c, 1)
	require.NoError(t, c.Ack(t.Context(), first...))

	// Somebody else takes the next one in this member's name.
	js, err := jetstream.New(b.Conn())
	require.NoError(t, err)
	consumer, err := js.Consumer(t.Context(), "ordering_order", "group")
	require.NoError(t, err)
	request, err := json.Marshal(map[string]any{
		"batch": 1, "group": "members", "id": consumer.CachedInfo().PriorityGroups[0].PinnedClientID,
	})
	require.NoError(t, err)
	stolen := make(chan *natsgo.Msg, 10)
	_, err = b.Conn().ChanSubscribe("thief", stolen)
	require.NoError(t, err)
	for n := 1; ; {
		require.NoError(t, b.Conn().PublishRequest("$JS.API.CONSUMER.MSG.NEXT.ordering_order."+"group", "thief", request))
		publish(t, b, n, n+10)
		n += 10
		got := receive(t, c, 10)
		requireBodies(t, n-10, got)
		require.NoError(t, c.Ack(t.Context(), got...))
		if len(stolen) > 0 {
			break
		}
	}
}

// With the connection, deliveries and acknowledgements are lost. All that isn't
// acknowledged comes again, at once and in order.
func TestReconnect(t *testing.T) {
	t.Parallel()
	b := newHost(t).quick(t)
	require.NoError(t, b.EnsureTopics(t.Context(), topic))
	publish(t, b, 0, 10)
	c := join(t, b)
	held := receive(t, c, 5)
	require.NoError(t, c.Ack(t.Context(), held[:2]...))
	require.NoError(t, b.Conn().ForceReconnect())
	requireLost(t, held[2:]...)
	got := receive(t, c, 8)
	requireBodies(t, 2, got)
	require.NoError(t, c.Release(t.Context(), held[2:]...), "they are with who has got them since")
	publish(t, b, 10, 11)
	got = append(got, receive(t, c, 1)...)
	requireBodies(t, 2, got)
	require.NoError(t, c.Ack(t.Context(), got...))
	require.NoError(t, c.Close(t.Context()))
	publish(t, b, 11, 12)
	requireBodies(t, 11, receive(t, join(t, b), 1))
}

// B6: what a member holds neither keeps other messages from coming nor comes
// again, however long it is held, and holding it costs nothing.
func TestHeldMessagesKeepNoOthersFromComing_B6(t *testing.T) {
	t.Parallel()
	const waiting = 8_192 // As many as a subscription holds.
	b := newHost(t).patient(t)
	require.NoError(t, b.EnsureTopics(t.Context(), topic))
	for n := 0; n < waiting; n += 512 {
		call := make([]broker.Message, 512)
		for i := range call {
			call[i] = message(fmt.Sprint("waiting-", n+i), 0)
		}
		require.NoError(t, b.Publish(t.Context(), call))
	}
	c := join(t, b)
	held := receive(t, c, waiting)

	before := b.Conn().Stats().OutMsgs
	<-time.After(4 * nats.QuickCheck)
	require.Less(t, b.Conn().Stats().OutMsgs-before, uint64(waiting/8), "requests, and no word on each that is held")

	publish(t, b, 0, 1_000)
	others := receive(t, c, 1_000)
	requireBodies(t, 0, others)
	require.NoError(t, c.Ack(t.Context(), others...))
	js, err := jetstream.New(b.Conn())
	require.NoError(t, err)
	consumer, err := js.Consumer(t.Context(), "ordering_order", "group")
	require.NoError(t, err)
	require.Zero(t, consumer.CachedInfo().NumRedelivered)
	require.Equal(t, waiting, consumer.CachedInfo().NumAckPending)
	require.NoError(t, c.Ack(t.Context(), held...))
}

// A member that takes requests for open that have ended asks again, instead of sending
// probes for ever.
func TestMiscountedRequestsEnd(t *testing.T) {
	b := newHost(t).quick(t)
	require.NoError(t, b.EnsureTopics(t.Context(), topic))
	publish(t, b, 0, 1)
	c := join(t, b)
	require.NoError(t, c.Ack(t.Context(), receive(t, c, 1)...))
	nats.Miscount(c)
	for n := 1; n < 4; n++ { // the requests that are open bring the first ones
		publish(t, b, n, n+1)
		got := receive(t, c, 1)
		requireBodies(t, n, got)
		require.NoError(t, c.Ack(t.Context(), got...))
		<-time.After(2 * nats.QuickCheck)
	}
}

func TestReleasedComesFirst(t *testing.T) {
	b := newHost(t).quick(t)
	require.NoError(t, b.EnsureTopics(t.Context(), topic))
	publish(t, b, 0, 6)
	c := join(t, b)
	held := receive(t, c, 4)
	require.NoError(t, c.Release(t.Context(), held[3], held[1]))
	require.NoError(t, c.Release(t.Context(), held[1]), "again, to no effect")
	got := receive(t, c, 4)
	for i, want := range []string{"1", "3", "4", "5"} {
		require.Equal(t, want, string(got[i].Body))
	}
	require.Equal(t, 1, got[0].Redelivered)
	require.Zero(t, got[2].Redelivered)
}

// A publisher that knows nothing of keys and ids is read all the same.
func TestForeignPublisher(t *testing.T) {
	b := newHost(t).quick(t)
	require.NoError(t, b.EnsureTopics(t.Context(), topic))
	js, err := jetstream.New(b.Conn())
	require.NoError(t, err)
	_, err = js.Publish(t.Context(), topic, []byte("plain"))
	require.NoError(t, err)
	_, err = js.PublishMsg(t.Context(), &natsgo.Msg{Subject: topic, Header: natsgo.Header{"id": {"own"}, "key": {"k"}}})
	require.NoError(t, err)
	got := receive(t, join(t, b), 2)
	require.Regexp(t, `^ordering_order:1:\d{13}$`, got[0].ID, "with its time: a stream that is made again counts from 1")
	require.Empty(t, got[0].Key)
	require.Equal(t, "own", got[1].ID)
	require.Equal(t, "k", got[1].Key)
	require.Equal(t, map[string]string{"id": "own"}, got[1].Headers)
}

func TestConsumeWhatDoesNotExist(t *testing.T) {
	b := newHost(t).quick(t)
	_, err := b.Consume(t.Context(), "nowhere", "group")
	require.ErrorIs(t, err, jetstream.ErrStreamNotFound)
	_, err = b.Consume(t.Context(), topic, "")
	require.ErrorContains(t, err, "a group is required")
}

// A consumer that an operator deleted doesn't come back by waiting.
func TestReceiveSaysThatItsConsumerIsGone(t *testing.T) {
	b := newHost(t).quick(t)
	require.NoError(t, b.EnsureTopics(t.Context(), topic))
	c := join(t, b)
	js, err := jetstream.New(b.Conn())
	require.NoError(t, err)
	require.NoError(t, js.DeleteConsumer(t.Context(), "ordering_order", "group"))
	_, err = c.Receive(t.Context(), 1)
	require.ErrorIs(t, err, jetstream.ErrConsumerNotFound)
}

// Who works on a message while its stream is deleted and made again acknowledges nothing of
// the new one, in which another message has its place: that is with another member, which
// dies with it, and whoever comes next gets it.
func TestAcknowledgementsAreOfTheirStream(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	one, two := h.quick(t), h.dying(t)
	require.NoError(t, one.EnsureTopics(t.Context(), topic))
	publish(t, one, 0, 3)
	member := join(t, one)
	old := receive(t, member, 3)
	js, err := jetstream.New(one.Conn())
	require.NoError(t, err)
	require.NoError(t, js.DeleteStream(t.Context(), "ordering_order"))
	requireLost(t, old...)
	require.NoError(t, one.EnsureTopics(t.Context(), topic))
	publish(t, one, 10, 13)
	other := join(t, two)
	requireBodies(t, 10, receive(t, other, 3))
	require.NoError(t, member.Ack(t.Context(), old...))
	two.Conn().Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	got, err := join(t, one).Receive(ctx, 3)
	require.NoError(t, err)
	requireBodies(t, 10, got)
}

func TestCloseEndsConsumers(t *testing.T) {
	h := newHost(t)
	b, err := nats.OpenQuick(t.Context(), h.client)
	require.NoError(t, err)
	require.NoError(t, b.EnsureTopics(t.Context(), topic))
	publish(t, b, 0, 1)
	c := join(t, b)
	held := receive(t, c, 1)
	require.NoError(t, b.Close(t.Context()))
	requireLost(t, held...)
	_, err = c.Receive(t.Context(), 1)
	require.ErrorContains(t, err, "closed")
	require.NoError(t, c.Close(context.Background()))
	_, err = b.Consume(t.Context(), topic, "group")
	require.Equal(t, broker.Unavailable, broker.ClassOf(err))
	require.Equal(t, broker.Unavailable, broker.ClassOf(failure(t, b, message("a", 1))))
}

func TestDurableName(t *testing.T) {
	require.Equal(t, "shipping", nats.DurableName("shipping"))
	require.Regexp(t, `^partner_shipping-[0-9a-f]{8}$`, nats.DurableName("partner.shipping"))
	require.NotEqual(t, nats.DurableName("a.b"), nats.DurableName("a/b"))
	require.NotEqual(t, nats.DurableName("a.b"), nats.DurableName("a_b"))
}

func TestOldServersAreRefused(t *testing.T) {
	for _, version := range []string{"2.14.0", "2.15.2", "3.0.0-beta", "dev"} {
		require.NoError(t, nats.CheckVersion(version), version)
	}
	for _, version := range []string{"2.13.9", "2.9.1", "1.99.0"} {
		require.ErrorContains(t, nats.CheckVersion(version), "2.14 or later", version)
	}
}
