package kafka_test

import (
	"fmt"
	"testing"

	"github.com/IBM/sarama"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	wm "github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
)

// A stock Watermill subscriber, with its own defaults, reads what we publish.
func TestInterop_StockSubscriberReadsOurs(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	name := topic(t, b)
	conf := wmkafka.DefaultSaramaSubscriberConfig()
	conf.Consumer.Offsets.Initial = sarama.OffsetOldest
	subscriber, err := wmkafka.NewSubscriber(wmkafka.SubscriberConfig{
		Brokers: []string{server(t)}, ConsumerGroup: "group." + name, OverwriteSaramaConfig: conf,
	}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, subscriber.Close()) })
	arrived, err := subscriber.Subscribe(bounded(t), name)
	require.NoError(t, err)

	sent := map[string]broker.Message{}
	var call []broker.Message
	for i := range 50 {
		m := message(name, fmt.Sprint("key-", i%7), fmt.Sprint(i))
		call, sent[m.ID] = append(call, m), m
	}
	require.NoError(t, b.Publish(bounded(t), call))
	for range len(call) {
		var got *wm.Message
		select {
		case got = <-arrived:
		case <-bounded(t).Done():
			t.Fatal("not all came")
		}
		want := sent[got.UUID]
		require.Equal(t, string(want.Body), string(got.Payload))
		require.Equal(t, want.Headers, map[string]string(got.Metadata))
		got.Ack()
		delete(sent, got.UUID)
	}
	require.Empty(t, sent)
}

// We read what stock Watermill publishers send, with a key and without.
func TestInterop_WeReadStockPublisher(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	name := topic(t, b)
	c, err := b.Consume(bounded(t), name, "group."+name)
	require.NoError(t, err)
	for _, marshaler := range []wmkafka.Marshaler{
		wmkafka.DefaultMarshaler{},
		wmkafka.NewWithPartitioningMarshaler(func(_ string, m *wm.Message) (string, error) { return m.Metadata["k"], nil }),
	} {
		publisher, err := wmkafka.NewPublisher(wmkafka.PublisherConfig{Brokers: []string{server(t)}, Marshaler: marshaler}, nil)
		require.NoError(t, err)
		sent := wm.NewMessage("some-id", []byte("payload"))
		sent.Metadata = wm.Metadata{"k": "the key", "type": "Test.Happened.v1"}
		require.NoError(t, publisher.Publish(name, sent))
		require.NoError(t, publisher.Close())

		got, err := c.Receive(bounded(t), 10)
		require.NoError(t, err)
		require.Len(t, got, 1)
		require.Equal(t, "some-id", got[0].ID)
		require.Equal(t, name, got[0].Topic)
		require.Equal(t, "payload", string(got[0].Body))
		require.Equal(t, map[string]string(sent.Metadata), got[0].Headers)
		if _, keyless := marshaler.(wmkafka.DefaultMarshaler); keyless {
			require.Empty(t, got[0].Key)
		} else {
			require.Equal(t, "the key", got[0].Key)
		}
		require.NoError(t, c.Ack(bounded(t), got...))
	}
}

// What didn't come from Watermill has an id all the same, the same each time;
// C-78: a tombstone is a message without a body.
func TestInterop_ForeignRecord_C78(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	name := topic(t, b)
	conf := sarama.NewConfig()
	conf.Producer.Return.Successes = true
	producer, err := sarama.NewSyncProducer([]string{server(t)}, conf)
	require.NoError(t, err)
	partition, offset, err := producer.SendMessage(&sarama.ProducerMessage{Topic: name, Key: sarama.StringEncoder("k")})
	require.NoError(t, err)
	require.NoError(t, producer.Close())
	for _, group := range []string{"a.", "b."} {
		c, err := b.Consume(bounded(t), name, group+name)
		require.NoError(t, err)
		got, err := c.Receive(bounded(t), 1)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("%s/%d/%d", name, partition, offset), got[0].ID)
		require.Equal(t, "k", got[0].Key)
		require.Nil(t, got[0].Body)
		require.NoError(t, c.Close(bounded(t)))
	}
}
