package faults

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

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
func (w *world) inKafka(prefix string) (all []verdict.Delivery) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	admin := w.admin()
	topics, err := admin.ListTopics(ctx)
	require.NoError(w.t, err)
	var names []string
	for _, name := range topics.Names() {
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	ends, err := admin.ListEndOffsets(ctx, names...)
	require.NoError(w.t, err)
	require.NoError(w.t, ends.Error())
	left := map[string]map[int32]int64{}
	n := 0
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset == 0 {
			return
		}
		if left[o.Topic] == nil {
			left[o.Topic] = map[int32]int64{}
		}
		left[o.Topic][o.Partition] = o.Offset
		n++
	})
	all = w.read(ctx, names, left, n)
	slices.SortStableFunc(all, func(a, b verdict.Delivery) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Offset, b.Offset))
	})
	return all
}

// read reads n partitions up to where they end.
func (w *world) read(ctx context.Context, topics []string, ends map[string]map[int32]int64, n int) (all []verdict.Delivery) {
	w.t.Helper()
	client := w.client(kgo.ConsumeTopics(topics...), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords()) // these end a partition with transactions
	defer client.Close()
	for n > 0 {
		fetches := client.PollFetches(ctx)
		require.NoError(w.t, ctx.Err(), "Kafka doesn't hand out what it has: %d partitions of %v", n, topics)
		fetches.EachRecord(func(r *kgo.Record) {
			end := ends[r.Topic][r.Partition]
			if r.Offset >= end {
				return
			}
			if r.Offset == end-1 {
				n--
			}
			if r.Attrs.IsControl() {
				return
			}
			d := verdict.Delivery{Topic: r.Topic, Life: w.lives[r.Topic], Partition: r.Partition, Offset: r.Offset, Key: string(r.Key), Body: r.Value}
			for _, h := range r.Headers {
				if h.Key == "id" {
					d.ID = string(h.Value)
				}
			}
			if !w.told[d.ID] {
				all = append(all, d)
			}
		})
	}
	return all
}

// client waits for a busy Kafka.
func (w *world) client(opts ...kgo.Opt) *kgo.Client {
	w.t.Helper()
	client, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(strings.Split(w.kafka, ",")...), kgo.RetryTimeout(patience)}, opts...)...)
	require.NoError(w.t, err)
	return client
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
	require.NoError(w.t, w.tryToTell(accountTopic))
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
