package nats_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.yaml.in/yaml/v3"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/brokertest"
	"github.com/waybill-go/waybill/broker/nats"
	"github.com/waybill-go/waybill/broker/nats/embedded"
	"github.com/waybill-go/waybill/internal/adaptertest"
	"github.com/waybill-go/waybill/internal/waittest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// host is a server that can be stopped and started again at the same address.
type host struct {
	cfg     embedded.Config
	running *embedded.Broker
	url     string
	client  nats.Config
}

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{cfg: embedded.Config{Dir: t.TempDir(), Listen: "127.0.0.1:0"}}
	h.start(t)
	t.Cleanup(func() { h.stop(t) })
	return h
}

func (h *host) start(t *testing.T) {
	t.Helper()
	var err error
	h.running, err = embedded.Open(context.Background(), h.cfg)
	require.NoError(t, err)
	h.url = h.running.URL()
	h.client = h.running.Client()
	h.cfg.Listen = strings.TrimPrefix(h.url, "nats://") // The same again.
}

func (h *host) stop(t *testing.T) {
	t.Helper()
	require.NoError(t, h.running.Close(context.Background()))
}

func (h *host) open(t *testing.T) broker.Broker {
	t.Helper()
	b, err := nats.Open(t.Context(), h.client)
	require.NoError(t, err)
	return b
}

// quick opens a broker of little patience, and closes it after the test.
func (h *host) quick(t *testing.T) *nats.Broker {
	t.Helper()
	b, err := nats.OpenQuick(t.Context(), h.client)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close(context.Background())) })
	return b
}

// patient opens one that stays a member for as long as the test runs.
func (h *host) patient(t *testing.T) *nats.Broker {
	t.Helper()
	b, err := nats.OpenPatient(t.Context(), h.client)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close(context.Background())) })
	return b
}

// dying opens one that the test kills.
func (h *host) dying(t *testing.T) *nats.Broker {
	t.Helper()
	b, err := nats.OpenQuick(t.Context(), h.client)
	require.NoError(t, err)
	t.Cleanup(func() { require.ErrorContains(t, b.Close(context.Background()), "leave the group") })
	return b
}

func TestConformance(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	adaptertest.Run(t, "broker/nats", brokertest.Config{
		Open: h.open,
		Stop: func(t *testing.T) (start func()) {
			h.stop(t)
			return func() { h.start(t) }
		},
		TooLarge: 9 << 20,
	})
}

const topic = "ordering.order"

func message(key string, n int) broker.Message {
	return broker.Message{ID: fmt.Sprintf("%s-%d", key, n), Topic: topic, Key: key, Body: []byte(fmt.Sprint(n))}
}

// failure is what Publish says of a message alone.
func failure(t *testing.T, b broker.Broker, m broker.Message) error {
	t.Helper()
	err := b.Publish(t.Context(), []broker.Message{m})
	if partly, ok := errors.AsType[*broker.PublishError](err); ok {
		return partly.Failed[0]
	}
	return err
}

// S4-15: consumers can deduplicate by the broker's own message id.
func TestNativeFields_S4_15(t *testing.T) {
	b := newHost(t).quick(t)
	require.NoError(t, b.EnsureTopics(t.Context(), topic))
	received := make(chan *natsgo.Msg, 1)
	_, err := b.Conn().ChanSubscribe(topic, received)
	require.NoError(t, err)
	m := message("a", 1)
	m.Headers = map[string]string{"type": "T", "content-type": "text/plain"}
	require.NoError(t, b.Publish(t.Context(), []broker.Message{m}))
	got := <-received
	require.Equal(t, topic, got.Subject)
	require.Equal(t, natsgo.Header{
		"Nats-Msg-Id": {"ordering.order/a-1"}, "key": {"a"}, "type": {"T"}, "content-type": {"text/plain"},
	}, got.Header)
}

func TestWhatCannotTravelIsPermanent(t *testing.T) {
	b := newHost(t).quick(t)
	require.NoError(t, b.EnsureTopics(t.Context(), topic))
	for name, change := range map[string]func(*broker.Message){
		"no id":                  func(m *broker.Message) { m.ID = "" },
		"no key":                 func(m *broker.Message) { m.Key = "" },
		"line break in the id":   func(m *broker.Message) { m.ID = "a\r\nNats-Rollup: all" },
		"header's name":          func(m *broker.Message) { m.Headers = map[string]string{"tenant id": "a"} },
		"header of our own":      func(m *broker.Message) { m.Headers = map[string]string{"waybill-encoded": "key"} },
		"headers above 64 KiB":   func(m *broker.Message) { m.Key = strings.Repeat("k", 1<<16) },
		"header that orders":     func(m *broker.Message) { m.Headers = map[string]string{"nats-rollup": "all"} },
		"header that ends pulls": func(m *broker.Message) { m.Headers = map[string]string{"Status": "409"} },
	} {
		t.Run(name, func(t *testing.T) {
			m := message("a", 1)
			change(&m)
			err := failure(t, b, m)
			require.Error(t, err)
			require.Equal(t, broker.Permanent, broker.ClassOf(err), "%v", err)
			require.Equal(t, broker.ScopeRow, broker.ScopeOf(err), "%v", err)
		})
	}
}

// O1: a topic that can't be one is for somebody to correct, in a prefix or a rule,
// and no message pays for it.
func TestWrongTopicIsOfItsTopic(t *testing.T) {
	b := newHost(t).quick(t)
	for _, wrong := range []string{"ordering.*", "$JS.API.STREAM.DELETE.x"} {
		m := message("a", 1)
		m.Topic = wrong
		err := failure(t, b, m)
		require.ErrorContains(t, err, "no NATS subject")
		require.Equal(t, broker.Unavailable, broker.ClassOf(err), "%v", err)
		require.Equal(t, broker.ScopeTopic, broker.ScopeOf(err), "%v", err)
	}
}

// F-28: a subject that no stream holds is refused, and not mistaken for an
// outage, which would be waited for.
func TestMissingStreamIsTransient_F28(t *testing.T) {
	b := newHost(t).quick(t)
	err := failure(t, b, message("a", 1))
	require.ErrorContains(t, err, "no stream holds topic")
	require.Equal(t, broker.Transient, broker.ClassOf(err))
	require.Equal(t, broker.ScopeTopic, broker.ScopeOf(err))
}

// O1: no right to write is for somebody to give, and no message pays for it.
func TestForbiddenSubjectIsOfItsTopic(t *testing.T) {
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true,
		Users: []*server.User{{Username: "u", Password: "p", Permissions: &server.Permissions{
			Publish: &server.SubjectPermission{Deny: []string{"secret"}},
		}}},
	})
	require.NoError(t, err)
	s.Start()
	defer func() {
		s.Shutdown()
		s.WaitForShutdown()
	}()
	b, err := nats.Open(t.Context(), nats.Config{URL: strings.Replace(s.ClientURL(), "nats://", "nats://u:p@", 1)})
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Close(context.Background())) }()
	require.NoError(t, b.EnsureTopics(t.Context(), topic, "secret"))

	denied := message("b", 1)
	denied.Topic = "secret"
	failed, ok := errors.AsType[*broker.PublishError](b.Publish(t.Context(), []broker.Message{message("a", 1), denied}))
	require.True(t, ok)
	require.Len(t, failed.Failed, 1)
	require.Equal(t, broker.Transient, broker.ClassOf(failed.Failed[1]))
	require.Equal(t, broker.ScopeTopic, broker.ScopeOf(failed.Failed[1]))
	require.ErrorContains(t, failed.Failed[1], "not authorised")
}

// O1: a stream that takes no more is for somebody to enlarge, and no message pays for
// it.
func TestFullStreamIsOfItsTopic(t *testing.T) {
	b := newHost(t).quick(t)
	js, err := jetstream.New(b.Conn())
	require.NoError(t, err)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "full", Subjects: []string{topic}, MaxMsgs: 1, Discard: jetstream.DiscardNew})
	require.NoError(t, err)
	publish(t, b, 0, 1)
	err = failure(t, b, message("b", 1))
	require.Equal(t, broker.Unavailable, broker.ClassOf(err), "%v", err)
	require.Equal(t, broker.ScopeTopic, broker.ScopeOf(err), "%v", err)
}

// openAt opens a broker at a server with options of its own.
func openAt(t *testing.T, o server.Options) *nats.Broker {
	t.Helper()
	o.Host, o.Port, o.NoSigs, o.NoLog = "127.0.0.1", server.RANDOM_PORT, true, true
	s, err := server.NewServer(&o)
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	b, err := nats.Open(t.Context(), nats.Config{URL: s.ClientURL()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close(context.Background())) })
	return b
}

// O1: a server without JetStream takes nothing of anybody.
func TestNoJetStreamIsOfTheBroker(t *testing.T) {
	b := openAt(t, server.Options{})
	err := failure(t, b, message("a", 1))
	require.Equal(t, broker.Unavailable, broker.ClassOf(err), "%v", err)
	require.Equal(t, broker.ScopeBroker, broker.ScopeOf(err), "%v", err)
}

// Where JetStream's room is used up, the error says what helps: the server's own words don't.
func TestFullServerSaysWhatHelps(t *testing.T) {
	b := openAt(t, server.Options{JetStream: true, StoreDir: t.TempDir(), JetStreamMaxStore: 4096})
	require.NoError(t, b.EnsureTopics(t.Context(), topic))
	var err error
	for n := 0; err == nil && n < 1000; n++ {
		err = b.Publish(t.Context(), []broker.Message{message("a", n)})
	}
	failed, ok := errors.AsType[*broker.PublishError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, broker.Unavailable, broker.ClassOf(failed.Failed[0]), "%v", failed.Failed[0])
	require.Equal(t, broker.ScopeTopic, broker.ScopeOf(failed.Failed[0]))
	require.ErrorContains(t, failed.Failed[0], "make room on its disk and restart it, or raise max_file_store")
}

// S2-42, C-60
func TestUnknownWhenNobodyAnswers(t *testing.T) {
	b := newHost(t).quick(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// A listener that doesn't answer stands for a stream that is stuck.
	_, err := b.Conn().Subscribe(topic, func(*natsgo.Msg) { cancel() })
	require.NoError(t, err)
	failed, ok := errors.AsType[*broker.PublishError](b.Publish(ctx, []broker.Message{message("a", 1)}))
	require.True(t, ok)
	require.Equal(t, broker.Unknown, broker.ClassOf(failed.Failed[0]))
	require.ErrorIs(t, failed.Failed[0], context.Canceled)
}

func TestUnknownWhenTheConnectionBreaks(t *testing.T) {
	h := newHost(t)
	b := h.quick(t)
	arrived := make(chan struct{})
	_, err := b.Conn().Subscribe(topic, func(*natsgo.Msg) { close(arrived) })
	require.NoError(t, err)
	go func() {
		<-arrived
		_ = b.Conn().ForceReconnect()
	}()
	err = failure(t, b, message("a", 1))
	require.Equal(t, broker.Unknown, broker.ClassOf(err))
	require.ErrorContains(t, err, "the connection broke")
}

func TestForeignAnswerIsUnknown(t *testing.T) {
	b := newHost(t).quick(t)
	for _, answer := range []string{"hello", "{}", `{"ok":true}`} {
		sub, err := b.Conn().Subscribe(topic, func(m *natsgo.Msg) { _ = m.Respond([]byte(answer)) })
		require.NoError(t, err)
		err = failure(t, b, message("a", 1))
		require.Equal(t, broker.Unknown, broker.ClassOf(err), answer)
		require.ErrorContains(t, err, "something other than JetStream")
		require.NoError(t, sub.Unsubscribe())
	}
}

// B11: a server that is away is an outage, also when a broker is opened: it
// connects by itself.
func TestOpenWithoutServerConnectsLater_B11(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.stop(t)
	b := h.quick(t)
	err := failure(t, b, message("a", 1))
	require.Equal(t, broker.Unavailable, broker.ClassOf(err), "%v", err)
	require.Equal(t, broker.ScopeBroker, broker.ScopeOf(err), "%v", err)
	_, refused := b.Consume(t.Context(), topic, "group")
	for _, err := range []error{b.EnsureTopics(t.Context(), topic), refused} {
		require.Equal(t, broker.Unavailable, broker.ClassOf(err), "%v", err)
		require.Equal(t, broker.ScopeBroker, broker.ScopeOf(err), "%v", err)
		require.ErrorContains(t, err, "nats: no connection", "and not of a buffer that is full")
	}

	h.start(t)
	waittest.Until(t, func() bool { return b.EnsureTopics(t.Context(), topic) == nil })
	publish(t, b, 0, 1)
	c := join(t, b)
	requireBodies(t, 0, receive(t, c, 1))
	require.True(t, c.(broker.Stateful).State().Joined)
}

// B11: nobody waits for longer than told for a server that takes the connection
// and says nothing.
func TestOpenIsBoundedByItsContext_B11(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = nats.Open(ctx, nats.Config{URL: "nats://" + silent.Addr().String()})
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// B11: what the server refuses, and what no server could be, doesn't mend itself.
// S11: and no error shows a password.
func TestWrongConfigurationFailsAtOnce_B11_S11(t *testing.T) {
	admin, _ := restricted(t, server.Permissions{})
	const password = "correct-horse"
	for what, url := range map[string]string{
		"wrong password": strings.Replace(admin, "admin:p@", "admin:"+password+"@", 1),
		"no URL":         "nats://admin:" + password + "@ 127.0.0.1",
	} {
		t.Run(what, func(t *testing.T) {
			_, err := nats.Open(t.Context(), nats.Config{URL: url})
			require.Error(t, err)
			require.NotContains(t, err.Error(), password)
		})
	}
}

func TestConfigErrorsComeAtOnce(t *testing.T) {
	_, err := nats.Open(t.Context(), nats.Config{Replicas: 9, MaxAge: -5})
	for _, what := range []string{"url is missing", "replicas is 9", "max_age is -5ns"} {
		require.ErrorContains(t, err, what)
	}
}

// settings are what the configuration file says.
type settings string

func (s settings) Decode(into any) error {
	d := yaml.NewDecoder(strings.NewReader(string(s)))
	d.KnownFields(true)
	return d.Decode(into)
}

func TestFromSettings(t *testing.T) {
	h := newHost(t)
	b, err := nats.FromSettings(t.Context(), settings("{url: '"+h.url+"', nkey: '"+h.client.NKey+"', max_age: 48h}"))
	require.NoError(t, err)
	require.NoError(t, b.Close(t.Context()))
	for file, remedy := range map[string]string{
		"{embedded: ./data}":                    "register embedded.FromSettings",
		"{}":                                    "url is missing",
		"{url: 'nats://x', exactly_once: true}": "exactly_once is for kafka",
		"{uri: 'nats://x'}":                     "uri",
	} {
		b, err := nats.FromSettings(t.Context(), settings(file))
		require.ErrorContains(t, err, remedy)
		require.Nil(t, b)
	}
}

func TestStreams(t *testing.T) {
	h := newHost(t)
	b, err := nats.Open(t.Context(), nats.Config{URL: h.url, NKey: h.client.NKey, MaxAge: time.Minute})
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Close(context.Background())) }()
	js, err := jetstream.New(b.Conn())
	require.NoError(t, err)

	require.NoError(t, b.EnsureTopics(t.Context(), topic))
	stream, err := js.Stream(t.Context(), "ordering_order")
	require.NoError(t, err)
	cfg := stream.CachedInfo().Config
	require.Equal(t, []string{topic}, cfg.Subjects)
	require.Equal(t, jetstream.FileStorage, cfg.Storage)
	require.Equal(t, jetstream.LimitsPolicy, cfg.Retention)
	require.Equal(t, time.Minute, cfg.MaxAge)
	require.Equal(t, time.Minute, cfg.Duplicates, "no longer than messages are kept")

	require.ErrorContains(t, b.EnsureTopics(t.Context(), "ordering_order"), "rename the topic")
	require.ErrorContains(t, b.EnsureTopics(t.Context(), "ordering.>"), "no NATS subject")

	// A stream of somebody's own may hold more than the topic.
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "all", Subjects: []string{"shipping.>"}})
	require.NoError(t, err)
	require.NoError(t, b.EnsureTopics(t.Context(), "shipping.shipment"))
	_, err = js.Stream(t.Context(), "shipping_shipment")
	require.ErrorIs(t, err, jetstream.ErrStreamNotFound)
	for _, topic := range []string{"shipping.label", "shipping.shipment"} {
		require.NoError(t, b.Publish(t.Context(), []broker.Message{{ID: topic, Topic: topic, Key: "a"}}))
	}
	c, err := b.Consume(t.Context(), "shipping.shipment", "group")
	require.NoError(t, err)
	got, err := c.Receive(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, got, 1)
	require.Equal(t, "shipping.shipment", got[0].Topic)
}

func TestDedupWindow(t *testing.T) {
	b := newHost(t).quick(t)
	require.NoError(t, b.EnsureTopics(t.Context(), topic))
	js, err := jetstream.New(b.Conn())
	require.NoError(t, err)
	stream, err := js.Stream(t.Context(), "ordering_order")
	require.NoError(t, err)
	require.Equal(t, nats.DedupWindow, stream.CachedInfo().Config.Duplicates)
	require.Zero(t, stream.CachedInfo().Config.MaxAge)
}
