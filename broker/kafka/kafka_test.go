package kafka_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.yaml.in/yaml/v3"
	"golang.org/x/sync/errgroup"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/brokertest"
	"github.com/waybill-go/waybill/broker/kafka"
	"github.com/waybill-go/waybill/internal/adaptertest"
	"github.com/waybill-go/waybill/internal/netfault"
	"github.com/waybill-go/waybill/internal/waittest"
)

// TestBroker runs the suite of all adapters; its outages are cut connections, so
// that other tests keep the server.
func TestBroker(t *testing.T) {
	t.Parallel()
	net := newNetwork()
	adaptertest.Run(t, "broker/kafka", brokertest.Config{
		Open: func(t *testing.T) broker.Broker {
			b, err := kafka.Open(bounded(t), kafka.Config{Addresses: []string{server(t)}, Dial: net.Dial})
			require.NoError(t, err)
			return b
		},
		Stop: func(*testing.T) func() {
			net.cut()
			return net.up
		},
		TooLarge: 2 << 20,
	})
}

func TestOpen_AllMistakesAtOnce(t *testing.T) {
	t.Parallel()
	_, err := kafka.Open(bounded(t), kafka.Config{
		Addresses: []string{"no-port"}, Partitions: -1, ReplicationFactor: -2, MinInSyncReplicas: -1, Compression: "zip",
		MaxMessageBytes: 1, MaxBatchBytes: -1, PublishTimeout: 1, SessionTimeout: 1, RebalanceTimeout: 1,
		TLS: kafka.TLS{CA: "/no/such/file"}, SASL: kafka.SASL{Mechanism: "x", User: "u", Password: "hush"},
	})
	for _, what := range []string{
		"no-port", "partitions is -1", "replication_factor is -2", "min_insync_replicas is -1", `compression is "zip"`, "max_message_bytes is 1",
		"max_batch_bytes is -1", "publish_timeout", "session_timeout", "rebalance_timeout", "tls.ca: ", `sasl.mechanism is "x"`,
	} {
		require.ErrorContains(t, err, what)
	}
	require.NotContains(t, err.Error(), "hush")
	_, err = kafka.Open(bounded(t), kafka.Config{})
	require.ErrorContains(t, err, "addresses is missing")
}

// What the guarantees rest on can't be loosened: most options are followed by ours,
// and those that none can follow are refused.
func TestOpen_OptionsLoosenNothing(t *testing.T) {
	t.Parallel()
	_, err := kafka.Open(bounded(t), kafka.Config{Addresses: []string{"127.0.0.1:1"}, Options: []kgo.Opt{
		kgo.DisableIdempotentWrite(), kgo.AllowIdempotentProduceCancellation(), kgo.StopProducerOnDataLossDetected(),
		kgo.DisableAutoCommit(), kgo.DefaultProduceTopicAlways(), kgo.DefaultProduceTopic("x"), kgo.ConsumerGroup("x"), kgo.ConsumeTopics("x"),
	}})
	for _, what := range []string{
		"DisableIdempotentWrite", "AllowIdempotentProduceCancellation", "StopProducerOnDataLossDetected", "DisableAutoCommit",
		"DefaultProduceTopicAlways", "ConsumerGroup",
	} {
		require.ErrorContains(t, err, "Options have "+what)
	}
	for name, bad := range map[string]kgo.Opt{"TransactionalID": kgo.TransactionalID("x"), "ConsumeRegex": kgo.ConsumeRegex()} {
		_, err = kafka.Open(bounded(t), kafka.Config{Addresses: []string{"127.0.0.1:1"}, Options: []kgo.Opt{bad}})
		require.ErrorContains(t, err, name)
	}
	c := fake(t)
	b := openFake(t, c, func(c *kafka.Config) {
		c.Options = []kgo.Opt{
			kgo.RequiredAcks(kgo.LeaderAck()), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()), kgo.ProducerLinger(30 * time.Second),
			kgo.ConsumeStartOffset(kgo.NewOffset().AtEnd()), kgo.ClientID("mine"),
		}
	})
	acks := make(chan int16, 100) // three messages may be several requests
	c.ControlKey(kmsg.Produce.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
		acks <- r.(*kmsg.ProduceRequest).Acks
		return nil, nil, false
	})
	require.NoError(t, b.Publish(bounded(t), run("topic", "key", 0, 3)))
	require.Equal(t, int16(-1), <-acks)
	require.Len(t, receive(t, join(t, b, "topic"), 3), 3, "a new group starts at the oldest message")
}

// B11: nobody there, or somebody who never answers: that is an outage, also when
// it begins before the program does. Once a server is there, everything works.
func TestOpen_B11_NoServerIsAnOutage(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { silent.Close() })
	relay, err := netfault.New(t.Context(), server(t))
	require.NoError(t, err)
	t.Cleanup(relay.Close)
	relay.Cut()
	for what, address := range map[string]string{"nobody": relay.Address, "silent": silent.Addr().String()} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b, err := kafka.Open(bounded(t), kafka.Config{Addresses: []string{address}})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, b.Close(bounded(t))) })
			err = b.EnsureTopics(deadline(t), "test."+uuid.NewString())
			require.ErrorContains(t, err, "topics")
			require.NotEqual(t, broker.Permanent, broker.ClassOf(err))
			err = b.Publish(bounded(t), []broker.Message{message("test", "key", "body")})
			failed, ok := errors.AsType[*broker.PublishError](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, broker.Unavailable, broker.ClassOf(failed.Failed[0]), "%v", err)

			if what == "silent" {
				return
			}
			relay.Mend()
			name := topic(t, b)
			waittest.Until(t, func() bool { // A new topic's leader may be another for a moment.
				return b.Publish(bounded(t), []broker.Message{message(name, "key", "body")}) == nil
			})
			require.NotEmpty(t, stored(t, name))
		})
	}
}

// B11: whoever gives up is told so.
func TestOpen_B11_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { silent.Close() })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = kafka.Open(ctx, kafka.Config{Addresses: []string{silent.Addr().String()}})
	require.ErrorIs(t, err, context.Canceled)
}

type settings string

func (s settings) Decode(into any) error {
	d := yaml.NewDecoder(strings.NewReader(string(s)))
	d.KnownFields(true)
	return d.Decode(into)
}

// logging is settings that say where to log.
type logging struct {
	settings
	logger *slog.Logger
}

func (l logging) Logger() *slog.Logger { return l.logger }

func TestConfigFrom_TheLoggerIsTheProgramsOwn(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	conf, err := kafka.ConfigFrom(logging{"{addresses: [\"127.0.0.1:1\"]}", log})
	require.NoError(t, err)
	require.Same(t, log, conf.Logger)
	conf, err = kafka.ConfigFrom(settings("{addresses: [\"127.0.0.1:1\"]}"))
	require.NoError(t, err)
	require.Nil(t, conf.Logger)
}

func TestFromSettings(t *testing.T) {
	t.Parallel()
	b, err := kafka.FromSettings(bounded(t), settings(fmt.Sprintf(
		"{addresses: [%q], partitions: 3, replication_factor: 1, compression: zstd, max_message_bytes: 100000, publish_timeout: 10s}", server(t))))
	require.NoError(t, err)
	name := topic(t, b)
	require.NoError(t, b.Publish(bounded(t), []broker.Message{message(name, "key", "body")}))
	require.Len(t, stored(t, name), 1)
	require.Equal(t, 3, partitions(t, name))
	require.NoError(t, b.Close(bounded(t)))

	b, err = kafka.FromSettings(bounded(t), settings("{adresses: [x]}"))
	require.ErrorContains(t, err, "adresses")
	require.Nil(t, b)
	b, err = kafka.FromSettings(bounded(t), settings("{partitions: -1}"))
	require.ErrorContains(t, err, "addresses")
	require.Nil(t, b)
}

// F-29: a message is acknowledged by all in-sync replicas or not at all.
func TestFromSettings_F_29_OnlyAllAcks(t *testing.T) {
	t.Parallel()
	for _, acks := range []string{"0", "1", "-1", "leader"} {
		_, err := kafka.FromSettings(bounded(t), settings("{addresses: [\"127.0.0.1:1\"], acks: "+acks+"}"))
		require.EqualError(t, err, fmt.Sprintf("kafka: acks is %q: with less than all, an acknowledged message is lost when its leader fails; write acks: all, or leave it out", acks))
	}
	b, err := kafka.FromSettings(bounded(t), settings(fmt.Sprintf("{addresses: [%q], acks: all}", server(t))))
	require.NoError(t, err)
	require.NoError(t, b.Close(bounded(t)))
}

func TestEnsureTopics(t *testing.T) {
	t.Parallel()
	eight, three := open(t, nil), open(t, func(c *kafka.Config) { c.Partitions = 3 })
	exists := topic(t, three)
	name := "test." + uuid.NewString()
	require.NoError(t, eight.EnsureTopics(bounded(t), exists, name))
	require.Equal(t, 3, partitions(t, exists), "left as it is")
	require.Equal(t, 8, partitions(t, name))

	var g errgroup.Group
	raced := "test." + uuid.NewString()
	for range 4 {
		g.Go(func() error { return eight.EnsureTopics(bounded(t), raced) })
	}
	require.NoError(t, g.Wait(), "processes that start together")
	require.ErrorContains(t, eight.EnsureTopics(bounded(t), "not a topic"), "not a topic")
}

func partitions(t *testing.T, topic string) int {
	t.Helper()
	all, err := admin(t).ListTopics(bounded(t), topic)
	require.NoError(t, err)
	return len(all[topic].Partitions)
}

func TestClose(t *testing.T) {
	t.Parallel()
	b, err := kafka.Open(bounded(t), kafka.Config{Addresses: []string{server(t)}})
	require.NoError(t, err)
	name := topic(t, b)
	c, err := b.Consume(bounded(t), name, "group")
	require.NoError(t, err)
	require.NoError(t, b.Close(bounded(t)))
	require.NoError(t, b.Close(bounded(t)), "again")
	_, err = c.Receive(bounded(t), 1)
	require.ErrorIs(t, err, kafka.ErrClosed)
	require.ErrorIs(t, b.Publish(bounded(t), run(name, "key", 0, 1)), kafka.ErrClosed)
	require.ErrorIs(t, b.EnsureTopics(bounded(t), name), kafka.ErrClosed)
	_, err = b.Consume(bounded(t), name, "group")
	require.ErrorIs(t, err, kafka.ErrClosed)
}

// Close waits for a call under way, but only as long as its context says.
func TestClose_EndsCalls(t *testing.T) {
	t.Parallel()
	network := newNetwork()
	b, err := kafka.Open(bounded(t), kafka.Config{Addresses: []string{server(t)}, Dial: network.Dial})
	require.NoError(t, err)
	name := topic(t, b)
	sent := make(chan struct{})
	network.on(func(request []byte) (bool, error) {
		if produces(request) {
			close(sent)
			return false, nil
		}
		return true, nil
	}, nil)
	result := make(chan error, 1)
	go func() { result <- b.Publish(context.Background(), run(name, "key", 0, 1)) }()
	<-sent
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.NoError(t, b.Close(ctx))
	failed := failures(t, <-result)
	require.ErrorIs(t, failed[0], kafka.ErrClosed)
	require.Equal(t, broker.Unknown, broker.ClassOf(failed[0]))
}

// A body as large as the outbox lets through fits a topic of our making, with
// key and headers.
func TestEnsureTopics_TakesTheLargestBodyOfAnOutbox(t *testing.T) {
	b := open(t, nil)
	name := topic(t, b)
	body := make([]byte, 1<<20)
	_, _ = rand.Read(body)
	require.NoError(t, b.Publish(t.Context(), []broker.Message{{
		ID: "1", Topic: name, Key: "k", Body: body, Headers: map[string]string{"type": "Ordering.OrderPlaced.v1"},
	}}))
}

// Which cluster it is, is known once a server has answered, and another one that takes its
// place by its own name.
func TestCluster(t *testing.T) {
	t.Parallel()
	id := open(t, nil).Cluster()
	require.NotEmpty(t, id)
	require.Equal(t, id, broker.Prefixed(open(t, nil), "p.").(broker.Clustered).Cluster())

	c := fake(t)
	port, err := strconv.Atoi(strings.TrimPrefix(c.ListenAddrs()[0], "127.0.0.1:"))
	require.NoError(t, err)
	c.Close()
	b := openAs(t, kafka.Config{Addresses: []string{fmt.Sprint("127.0.0.1:", port)}, Logger: slog.New(slog.DiscardHandler)})
	require.Empty(t, b.Cluster(), "no server has told")
	for _, id := range []string{"one", "another"} {
		c = fake(t, kfake.Ports(port), kfake.ClusterID(id))
		waittest.Until(t, func() bool { return b.EnsureTopics(bounded(t), "topic") == nil && b.Cluster() == id })
		c.Close()
		require.Equal(t, id, b.Cluster(), "as it was known last")
	}
}
