package kafka_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/IBM/sarama"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"golang.org/x/sync/errgroup"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/brokertest"
	"github.com/waybill-go/waybill/broker/kafka"
	"github.com/waybill-go/waybill/internal/netfault"
)

// TestBroker runs the suite of all adapters; its outages are cut connections, so
// that other tests keep the server.
func TestBroker(t *testing.T) {
	net := newNetwork()
	brokertest.Run(t, brokertest.Harness{
		Open: func(t *testing.T) broker.Broker {
			b, err := kafka.Open(bounded(t), kafka.Config{Addresses: []string{server(t)}, Tune: net.tune})
			require.NoError(t, err)
			return b
		},
		Stop: func(*testing.T) func() {
			net.cut()
			return net.up
		},
		TooLarge:  2 << 20,
		Scopes:    true,
		Lag:       true,
		Published: true,
		Partition: true,
	})
}

func TestOpen_AllMistakesAtOnce(t *testing.T) {
	t.Parallel()
	_, err := kafka.Open(bounded(t), kafka.Config{
		Addresses: []string{"no-port"}, Partitions: -1, ReplicationFactor: -2, Compression: "zip",
		MaxMessageBytes: 1, PublishTimeout: 1,
		Tune: func(c *sarama.Config) {
			c.Producer.RequiredAcks = sarama.WaitForLocal
			c.Producer.Idempotent = false
			c.Net.MaxOpenRequests = 5
			c.Producer.Transaction.ID = "x"
			c.Producer.Interceptors = make([]sarama.ProducerInterceptor, 1)
			c.Producer.Partitioner = sarama.NewRandomPartitioner
			c.Producer.MaxMessageBytes = 5
			c.Consumer.Offsets.Initial = sarama.OffsetNewest
			c.Consumer.Offsets.AutoCommit.Enable = false
			c.Version = sarama.V1_0_0_0
		},
	})
	for _, what := range []string{
		"no-port", "partitions is -1", "replication_factor is -2", `compression is "zip"`, "max_message_bytes is 1",
		"publish_timeout", "RequiredAcks", "Idempotent", "MaxOpenRequests", "Transaction", "Interceptors", "Partitioner",
		"use MaxMessageBytes", "Offsets.Initial", "AutoCommit", "Version",
	} {
		require.ErrorContains(t, err, what)
	}
	_, err = kafka.Open(bounded(t), kafka.Config{})
	require.ErrorContains(t, err, "addresses is missing")
	_, err = kafka.Open(bounded(t), kafka.Config{Addresses: []string{"127.0.0.1:1"}, Tune: func(c *sarama.Config) { c.Consumer.Fetch.Min = -1 }})
	require.ErrorContains(t, err, "Consumer.Fetch.Min")
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
			require.NoError(t, b.Publish(bounded(t), []broker.Message{message(name, "key", "body")}))
			require.Len(t, stored(t, name), 1)
		})
	}
}

// B11: what a server says is wrong is no outage.
func TestOpen_B11_ALoginThatIsRefused(t *testing.T) {
	t.Parallel()
	for _, answers := range []map[string]sarama.MockResponse{
		{"SaslHandshakeRequest": sarama.NewMockSaslHandshakeResponse(t).SetError(sarama.ErrUnsupportedSASLMechanism)},
		{
			"SaslHandshakeRequest":    sarama.NewMockSaslHandshakeResponse(t).SetEnabledMechanisms([]string{sarama.SASLTypePlaintext}),
			"SaslAuthenticateRequest": sarama.NewMockSaslAuthenticateResponse(t).SetError(sarama.ErrSASLAuthenticationFailed),
		},
	} {
		s := script(t, 1)
		s.servers[0].SetHandlerByMap(answers)
		_, err := kafka.Open(bounded(t), kafka.Config{Addresses: []string{s.servers[0].Addr()}, Tune: func(c *sarama.Config) {
			c.ApiVersionsRequest = false
			c.Net.SASL.Enable, c.Net.SASL.User, c.Net.SASL.Password = true, "orders", "wrong"
		}})
		require.ErrorContains(t, err, "refuses the login")
		require.ErrorContains(t, err, s.servers[0].Addr())
		require.Equal(t, broker.Permanent, broker.ClassOf(err))
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
	_, err = kafka.Open(bounded(t), kafka.Config{Addresses: []string{"127.0.0.1:1"}, Tune: func(c *sarama.Config) { c.Producer.RequiredAcks = sarama.WaitForLocal }})
	require.ErrorContains(t, err, "Tune set Producer.RequiredAcks to 1: only WaitForAll keeps messages when a leader fails")
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
	client, err := sarama.NewClient([]string{server(t)}, sarama.NewConfig())
	require.NoError(t, err)
	defer client.Close()
	all, err := client.Partitions(topic)
	require.NoError(t, err)
	return len(all)
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
	b, err := kafka.Open(bounded(t), kafka.Config{Addresses: []string{server(t)}, Tune: network.tune})
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
