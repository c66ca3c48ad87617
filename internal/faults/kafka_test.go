package faults

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill/internal/chaos"
	"github.com/waybill-go/waybill/internal/kafkatest"
	"github.com/waybill-go/waybill/internal/verdict"
)

// delivered is all that Kafka has, read without the adapter, in the order of each
// partition.
func (w *world) delivered() []verdict.Delivery {
	w.t.Helper()
	return append(slices.Clone(w.gone), w.inKafka(w.prefix)...)
}

// inKafka is what topics have, by how their names begin.
func (w *world) inKafka(prefix string) []verdict.Delivery {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	all, err := chaos.Delivered(ctx, w.connection, prefix)
	require.NoError(w.t, err)
	all = slices.DeleteFunc(all, func(d verdict.Delivery) bool { return w.told[d.ID] })
	for i := range all {
		all[i].Life = w.lives[all[i].Topic]
	}
	return all
}

// client waits for a busy Kafka.
func (w *world) client(opts ...kgo.Opt) *kgo.Client {
	w.t.Helper()
	client, err := w.connection(opts...)
	require.NoError(w.t, err)
	return client
}

func (w *world) connection(opts ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(strings.Split(w.kafka, ",")...), kgo.RetryTimeout(patience)}, opts...)...)
}

func (w *world) admin() *kadm.Client {
	w.t.Helper()
	client := w.client()
	w.t.Cleanup(client.Close)
	admin := kadm.NewClient(client)
	admin.SetTimeoutMillis(int32(patience.Milliseconds()))
	return admin
}

// tell publishes what no outbox has, of a type that nobody knows.
func (w *world) tell() {
	w.t.Helper()
	require.NoError(w.t, w.tryToTell(chaos.AccountTopic))
}

func (w *world) tryToTell(topic string) error {
	w.t.Helper()
	client := w.client(kgo.RecordRetries(0), kgo.ProduceRequestTimeout(patience), kgo.RecordDeliveryTimeout(patience))
	defer client.Close()
	id := uuid.NewString()
	w.told[id] = true
	return client.ProduceSync(context.Background(), &kgo.Record{
		Topic:   w.prefix + topic,
		Headers: []kgo.RecordHeader{{Key: "id", Value: []byte(id)}},
		Value:   fmt.Appendf(nil, `{"data": {}, "metadata": {"headers": {"id": %q, "type": "nobodys.v1"}}}`, id),
	}).FirstErr()
}

// partitions is how many a topic has, as an engine makes it: who knows of fewer sends
// keys elsewhere.
const partitions = 8

// createTopic creates a topic before an engine does, which on a busy machine
// may count as an outage at first.
func (w *world) createTopic(name string, maxMessageBytes int) {
	w.t.Helper()
	limit := strconv.Itoa(maxMessageBytes)
	_, err := w.admin().CreateTopic(context.Background(), partitions, -1, map[string]*string{"max.message.bytes": &limit}, w.prefix+name)
	require.NoError(w.t, err)
}

func (w *world) deleteTopics() {
	client := w.client()
	defer client.Close()
	kafkatest.DeleteTopics(w.t, client, w.prefix)
}
