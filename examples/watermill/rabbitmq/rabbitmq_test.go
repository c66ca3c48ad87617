package rabbitmq_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/brokertest"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/examples/ordering/ordering"
	"github.com/waybill-go/waybill/internal/adaptertest"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/sqlite"

	"github.com/waybill-go/waybill/examples/watermill/internal/servertest"
	"github.com/waybill-go/waybill/examples/watermill/rabbitmq"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, c rabbitmq.Config) *rabbitmq.Broker {
	t.Helper()
	b, err := rabbitmq.Open(t.Context(), c)
	require.NoError(t, err)
	return b
}

func suite(t *testing.T, server *servertest.Server, name string, c rabbitmq.Config) {
	c.URL = server.URL
	adaptertest.Run(t, name, brokertest.Config{
		Open: func(t *testing.T) broker.Broker { return open(t, c) },
		Stop: func(t *testing.T) func() { return server.Kill(t) },
		CreateGroup: func(t *testing.T, topic, group string) {
			b := open(t, c)
			defer func() { require.NoError(t, b.Close(context.Background())) }()
			require.NoError(t, b.Declare(topic, group))
		},
	})
}

// The suite of all adapters, with a kill of the server under load (S1-12, F-28, F-29).
func TestBroker_S1_12_F_28_F_29(t *testing.T) {
	server := servertest.Start(t, "rabbitmq")
	suite(t, server, "examples/watermill/rabbitmq", rabbitmq.Config{Subscriptions: 100})
}

// In order, one message at a time.
func TestOrdered_S1_12_F_28_F_29(t *testing.T) {
	server := servertest.Start(t, "rabbitmq")
	suite(t, server, "examples/watermill/rabbitmq, Ordered", rabbitmq.Config{Ordered: true})
	_, err := rabbitmq.Open(t.Context(), rabbitmq.Config{Ordered: true, Subscriptions: 2})
	require.ErrorContains(t, err, "ordered goes with one subscription")
}

// S1-11, F-28: what no queue takes is a failure, alone, and nobody keeps it. What the
// publisher calls mandatory makes no difference: it ignores what the broker returns.
func TestPublish_F_28_S1_11(t *testing.T) {
	server := servertest.Start(t, "rabbitmq")
	b := open(t, rabbitmq.Config{URL: server.URL})
	defer func() { require.NoError(t, b.Close(context.Background())) }()
	require.NoError(t, b.EnsureTopics(t.Context(), "nobody"))
	require.NoError(t, b.Declare("somebody", "group"))
	all := []broker.Message{{ID: "1", Topic: "somebody", Key: "a"}, {ID: "2", Topic: "nobody", Key: "b", Headers: map[string]string{"content-type": "text/plain"}}, {ID: "3", Topic: "somebody", Key: "c"}}
	var partly *broker.PublishError
	require.ErrorAs(t, b.Publish(t.Context(), all), &partly)
	require.Len(t, partly.Failed, 1)
	require.ErrorContains(t, partly.Failed[1], "delivery not confirmed")
	require.Equal(t, map[string]int{"somebody_group": 2, rabbitmq.Unroutable: 0}, lengths(t, server.URL, "somebody_group", rabbitmq.Unroutable))

	require.NoError(t, b.Declare("nobody", "group"))
	require.NoError(t, b.Publish(t.Context(), all[1:2]))
	require.Equal(t, map[string]int{"nobody_group": 1}, lengths(t, server.URL, "nobody_group"))

	connection, err := amqp.Dial(server.URL)
	require.NoError(t, err)
	defer connection.Close()
	channel, err := connection.Channel()
	require.NoError(t, err)
	m, ok, err := channel.Get("nobody_group", false)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, "2", m.MessageId)
	require.Equal(t, "text/plain", m.ContentType)
	require.Equal(t, amqp.Persistent, m.DeliveryMode)
}

// lengths are how many messages queues have.
func lengths(t *testing.T, url string, queues ...string) map[string]int {
	t.Helper()
	connection, err := amqp.Dial(url)
	require.NoError(t, err)
	defer connection.Close()
	channel, err := connection.Channel()
	require.NoError(t, err)
	all := map[string]int{}
	for _, name := range queues {
		q, err := channel.QueueDeclarePassive(name, false, false, false, false, nil)
		require.NoError(t, err)
		all[name] = q.Messages
	}
	return all
}

// S1-12, F-28: rows that no queue takes are never published. When there is one they
// all are, also those whose confirms a kill of the broker swallows, and each of them
// is received.
func TestOutbox_S1_12_F_28(t *testing.T) {
	const size = 500
	server := servertest.Start(t, "rabbitmq")
	b := open(t, rabbitmq.Config{URL: server.URL})
	defer func() { require.NoError(t, b.Close(context.Background())) }()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	db, err := sqlite.Open(ctx, sqlite.Config{Path: filepath.Join(t.TempDir(), "db")})
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	units, err := uow.New(uow.Config{Domain: ordering.Domain, Providers: []uow.Provider{db}})
	require.NoError(t, err)
	require.NoError(t, engine.Migrate(ctx, units))
	orders := repository.New[*ordering.Order](units)
	place := func(n int) {
		for i := range n {
			o, err := ordering.Place(fmt.Sprint(i), ordering.Line{Article: "book", Quantity: 1, Amount: 100})
			require.NoError(t, err)
			require.NoError(t, orders.Save(ctx, o))
		}
	}
	eng, err := engine.New(engine.Config{
		Units: []*uow.Manager{units}, Brokers: map[string]broker.Broker{"default": b},
		Outbox: outbox.Config{Lease: 4 * time.Second, Retry: outbox.RetryPolicy{BaseDelay: 100 * time.Millisecond}},
	})
	require.NoError(t, err)
	require.NoError(t, eng.Start(ctx))
	defer func() { require.NoError(t, eng.Stop(context.Background())) }()

	store := outboxdb.New(db.DB(), db.Reader())
	counts := func() map[outbox.Status]int64 {
		stats, err := store.Stats(ctx)
		require.NoError(t, err)
		return stats["default"].Counts
	}
	place(size / 2)
	require.Eventually(t, func() bool { return counts()[outbox.Failed] > 0 }, time.Minute, 50*time.Millisecond)
	require.Zero(t, counts()[outbox.Published])

	topic := outbox.DefaultTopic("ordering::order")
	require.NoError(t, b.Declare(topic, "audit"))
	require.Eventually(t, func() bool { return counts()[outbox.Published] > 0 }, time.Minute, time.Millisecond)
	start := server.Kill(t)
	place(size / 2)
	start()
	require.Eventually(t, func() bool { return counts()[outbox.Published] == size }, 2*time.Minute, 50*time.Millisecond, "%v", counts())

	c, err := b.Consume(ctx, topic, "audit")
	require.NoError(t, err)
	for got := map[string]bool{}; len(got) < size; {
		deliveries, err := c.Receive(ctx, 100)
		require.NoError(t, err)
		for _, d := range deliveries {
			got[d.ID] = true
		}
		require.NoError(t, c.Ack(ctx, deliveries...))
	}
}
