package nats_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/nats"
	"github.com/waybill-go/waybill/internal/waittest"
)

// restricted is a server with the users admin, who may do everything, and u, who
// may not do what deny says. Both have the password p.
func restricted(t *testing.T, deny server.Permissions) (admin, user string) {
	t.Helper()
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true,
		Users: []*server.User{{Username: "admin", Password: "p"}, {Username: "u", Password: "p", Permissions: &deny}},
	})
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	url := func(user string) string {
		return strings.Replace(s.ClientURL(), "nats://", "nats://"+user+":p@", 1)
	}
	return url("admin"), url("u")
}

func openQuick(t *testing.T, url string) *nats.Broker {
	t.Helper()
	b, err := nats.OpenQuick(t.Context(), nats.Config{URL: url})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close(context.Background())) })
	return b
}

// state waits for a state that is as wanted.
func state(t *testing.T, c broker.Consumer, wanted func(broker.State) bool) broker.State {
	t.Helper()
	var last broker.State
	waittest.Until(t, func() bool {
		last = c.(broker.Stateful).State()
		return wanted(last)
	})
	return last
}

func ill(s broker.State) bool { return !s.Joined && s.LastError != nil }

// B9: a member that may not ask for messages says so, instead of waiting in
// silence; and it doesn't ask again and again at once.
func TestRefusedRequestsShow_B9(t *testing.T) {
	t.Parallel()
	deny := &server.SubjectPermission{Deny: []string{"$JS.API.CONSUMER.MSG.NEXT.>"}}
	admin, user := restricted(t, server.Permissions{Publish: deny})
	require.NoError(t, openQuick(t, admin).EnsureTopics(t.Context(), topic))
	b := openQuick(t, user)
	began := time.Now()
	c := join(t, b)
	s := state(t, c, ill)
	require.ErrorIs(t, s.LastError, natsgo.ErrPermissionViolation)
	require.ErrorContains(t, s.LastError, "$JS.API.CONSUMER.MSG.NEXT.ordering_order.group")
	require.WithinRange(t, s.Since, began, time.Now())

	sent, since := b.Conn().Stats().OutMsgs, time.Now()
	<-time.After(time.Second)
	asked := b.Conn().Stats().OutMsgs - sent
	require.Less(t, float64(asked), 20*time.Since(since).Seconds())
	require.False(t, c.(broker.Stateful).State().Joined)
}

// B9: joining without the right to it fails at once, and says what is missing.
func TestRefusedJoinFailsAtOnce_B9(t *testing.T) {
	for denied, act := range map[string]func(context.Context, *nats.Broker) error{
		"$JS.API.STREAM.NAMES":      func(ctx context.Context, b *nats.Broker) error { return b.EnsureTopics(ctx, topic) },
		"$JS.API.CONSUMER.CREATE.>": func(ctx context.Context, b *nats.Broker) error { _, err := b.Consume(ctx, topic, "group"); return err },
		"$JS.API.STREAM.CREATE.>":   func(ctx context.Context, b *nats.Broker) error { return b.EnsureTopics(ctx, "other") },
	} {
		t.Run(denied, func(t *testing.T) {
			admin, user := restricted(t, server.Permissions{Publish: &server.SubjectPermission{Deny: []string{denied}}})
			require.NoError(t, openQuick(t, admin).EnsureTopics(t.Context(), topic))
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			err := act(ctx, openQuick(t, user))
			require.NoError(t, ctx.Err(), "nobody waits for an answer, for which there is a minute")
			require.ErrorIs(t, err, natsgo.ErrPermissionViolation)
			require.Equal(t, broker.Permanent, broker.ClassOf(err))
		})
	}
}

// B9: a server that is away shows, and so does its return.
func TestLostConnectionShows_B9(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	b := h.quick(t)
	require.NoError(t, b.EnsureTopics(t.Context(), topic))
	c := join(t, b)
	require.True(t, c.(broker.Stateful).State().Joined)
	h.stop(t)
	// A server that ends may first answer that it has no consumers any more.
	away := state(t, c, func(s broker.State) bool { return ill(s) && strings.Contains(s.LastError.Error(), "no connection") })
	require.False(t, away.Joined)
	h.start(t)
	back := state(t, c, func(s broker.State) bool { return s.Joined })
	require.NoError(t, back.LastError)
	publish(t, b, 0, 1)
	requireBodies(t, 0, receive(t, c, 1))
}

// B9: members that stand by have joined; the one that works, too, whether
// something comes or not.
func TestIdleMembersHaveJoined_B9(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	one, two := h.patient(t), h.patient(t)
	require.NoError(t, one.EnsureTopics(t.Context(), topic))
	publish(t, one, 0, 1)
	members := []broker.Consumer{join(t, one), join(t, two)}
	for range 15 {
		<-time.After(100 * time.Millisecond)
		for _, m := range members {
			s := m.(broker.Stateful).State()
			require.True(t, s.Joined)
			require.NoError(t, s.LastError)
		}
	}
}

// B9: a consumer or a stream that somebody deleted is no silence.
func TestDeletedConsumerOrStreamShows_B9(t *testing.T) {
	for what, remove := range map[string]func(jetstream.JetStream) error{
		"consumer": func(js jetstream.JetStream) error { return js.DeleteConsumer(t.Context(), "ordering_order", "group") },
		"stream":   func(js jetstream.JetStream) error { return js.DeleteStream(t.Context(), "ordering_order") },
	} {
		t.Run(what, func(t *testing.T) {
			b := newHost(t).quick(t)
			require.NoError(t, b.EnsureTopics(t.Context(), topic))
			c := join(t, b)
			js, err := jetstream.New(b.Conn())
			require.NoError(t, err)
			require.NoError(t, remove(js))
			require.Error(t, state(t, c, ill).LastError)
			_, err = c.Receive(t.Context(), 1)
			require.Error(t, err)
		})
	}
}

// A group whose consumer somebody has paused gets nothing, which the server tells nobody who
// asks for messages: that is no silence, and over when it goes on.
func TestPausedConsumerShows(t *testing.T) {
	t.Parallel()
	b := newHost(t).patient(t)
	require.NoError(t, b.EnsureTopics(t.Context(), topic))
	c := join(t, b)
	js, err := jetstream.New(b.Conn())
	require.NoError(t, err)
	for n, holds := range []bool{false, true} { // A member that has had messages hears of it in another way.
		if holds {
			require.NoError(t, c.Ack(t.Context(), receive(t, c, 1)...))
		}
		_, err = js.PauseConsumer(t.Context(), "ordering_order", "group", time.Now().Add(time.Hour))
		require.NoError(t, err)
		s := state(t, c, func(s broker.State) bool { return s.LastError != nil })
		require.True(t, s.Joined)
		require.ErrorContains(t, s.LastError, "nats consumer resume ordering_order group")
		publish(t, b, n, n+1)
		_, err = js.ResumeConsumer(t.Context(), "ordering_order", "group")
		require.NoError(t, err)
		state(t, c, func(s broker.State) bool { return s.LastError == nil && s.Joined })
	}
	requireBodies(t, 1, receive(t, c, 1))
}

// limit has the topic's stream keep so many messages.
func limit(t *testing.T, b *nats.Broker, messages int64) {
	t.Helper()
	js, err := jetstream.New(b.Conn())
	require.NoError(t, err)
	stream, err := js.Stream(t.Context(), "ordering_order")
	require.NoError(t, err)
	cfg := stream.CachedInfo().Config
	cfg.MaxMsgs = messages
	_, err = js.UpdateStream(t.Context(), cfg)
	require.NoError(t, err)
}

func missed(c broker.Consumer) int64 { return c.(broker.Stateful).State().Missed }

// B10: what the stream's limits removed while a member was behind is counted, once.
func TestMissedWhileBehind_B10(t *testing.T) {
	t.Parallel()
	b := newHost(t).patient(t)
	require.NoError(t, b.EnsureTopics(t.Context(), topic))
	large := make([]byte, 1<<20)
	send := func(n, m int) {
		for ; n < m; n++ {
			call := message("a", n)
			call.Body = large
			require.NoError(t, b.Publish(t.Context(), []broker.Message{call}))
		}
	}
	send(0, 1)
	c := join(t, b)
	require.NoError(t, c.Ack(t.Context(), receive(t, c, 1)...))
	send(1, 10) // Two of these wait in it.
	limit(t, b, 3)
	held := receive(t, c, 1)
	for held[len(held)-1].ID != "a-9" {
		held = append(held, receive(t, c, 1)...)
	}
	require.Less(t, len(held), 9)
	require.EqualValues(t, 9-len(held), missed(c))
	require.NoError(t, b.Conn().ForceReconnect())
	requireLost(t, held...)
	receive(t, c, 3)
	require.EqualValues(t, 9-len(held), missed(c), "what comes again isn't missed again")
}

// B10: what was removed while nobody was there is counted by who comes next, also
// where the server asks for a new start; what other members got is none of it.
func TestMissedWhileAway_B10(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	one, two := h.patient(t), h.patient(t)
	require.NoError(t, one.EnsureTopics(t.Context(), topic))
	publish(t, one, 0, 10)
	c := join(t, one)
	require.NoError(t, c.Ack(t.Context(), receive(t, c, 10)...))
	require.Zero(t, missed(c))
	require.NoError(t, c.Close(t.Context()))
	limit(t, one, 15)
	publish(t, one, 10, 40)

	c = join(t, one)
	got := receive(t, c, 15)
	requireBodies(t, 25, got)
	require.EqualValues(t, 15, missed(c))
	successor := join(t, two)
	require.NoError(t, c.Ack(t.Context(), got...))
	publish(t, one, 40, 50)
	require.NoError(t, c.Ack(t.Context(), receive(t, c, 5)...))
	require.NoError(t, c.Close(t.Context()))
	require.EqualValues(t, 15, missed(c), "it doesn't fall")
	requireBodies(t, 45, receive(t, successor, 5))
	require.Zero(t, missed(successor))
}

// B10: what was removed after a member's death is counted, too.
func TestMissedAfterADeath_B10(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	one, two := h.dying(t), h.quick(t)
	require.NoError(t, one.EnsureTopics(t.Context(), topic))
	publish(t, two, 0, 10)
	c := join(t, one)
	require.NoError(t, c.Ack(t.Context(), receive(t, c, 10)[:5]...))
	one.Conn().Close()
	limit(t, two, 15)
	publish(t, two, 10, 40)
	successor := join(t, two)
	requireBodies(t, 25, receive(t, successor, 1))
	require.EqualValues(t, 15, missed(successor), "and not the five that were in hand")
}

// B10: in a stream of several topics nobody knows what of it was this one's.
func TestMissedIsNotToldOfASharedStream_B10(t *testing.T) {
	t.Parallel()
	b := newHost(t).patient(t)
	js, err := jetstream.New(b.Conn())
	require.NoError(t, err)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "all", Subjects: []string{topic, "other"}})
	require.NoError(t, err)
	c := join(t, b)
	for n := range 5 {
		publish(t, b, n, n+1)
		other := message("a", n)
		other.Topic = "other"
		require.NoError(t, b.Publish(t.Context(), []broker.Message{other}))
	}
	requireBodies(t, 0, receive(t, c, 5))
	require.Zero(t, missed(c))
}

// B10: who may not look at the stream consumes all the same.
func TestMissedNeedsTheStream_B10(t *testing.T) {
	t.Parallel()
	admin, user := restricted(t, server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"$JS.API.STREAM.INFO.>"}}})
	a := openQuick(t, admin)
	require.NoError(t, a.EnsureTopics(t.Context(), topic))
	publish(t, a, 0, 1)
	b, err := nats.OpenQuick(t.Context(), nats.Config{URL: user})
	require.NoError(t, err)
	requireBodies(t, 0, receive(t, join(t, b), 1))
	require.ErrorContains(t, b.Close(t.Context()), `leave the group: nats: permissions violation: Permissions Violation for Publish to "$JS.API.STREAM.INFO.ordering_order"`)
}
