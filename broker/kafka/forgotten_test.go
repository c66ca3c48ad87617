package kafka_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/kafka"
)

// What is published is stored also if a call before it ended while kgo was asking for the
// topic's partitions. kgo forgets the topic then; if it is told of the partitions later, it
// numbers the next batch from 0 and, once it has asked again, the one behind that, too: Kafka
// takes that for the first one, says that it is stored and doesn't store it.
func TestPublish_ACallThatEndsWhileItsTopicIsUnknownLosesNothing(t *testing.T) {
	t.Parallel()
	net := newNetwork()
	b, other := open(t, func(c *kafka.Config) { c.Dial = net.Dial }), open(t, nil)
	known, name := topic(t, other), topic(t, other)
	require.NoError(t, b.Publish(bounded(t), run(known, "a", 0, 1)))
	asked, release := make(chan struct{}, 100), make(chan struct{})
	net.on(func(request []byte) (bool, error) {
		if len(request) > 6 && int16(binary.BigEndian.Uint16(request[4:])) == kmsg.Metadata.Int16() && bytes.Contains(request, []byte(name)) {
			asked <- struct{}{}
			<-release
		}
		return true, nil
	}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.Publish(ctx, run(name, "a", 0, 1)) }()
	<-asked
	cancel()
	require.Error(t, <-ended)
	go func() { ended <- b.Publish(bounded(t), run(name, "a", 0, 1)) }()
	<-time.After(100 * time.Millisecond) // until kgo has the message: nothing tells when
	close(release)
	require.NoError(t, <-ended)
	for i := 1; i < 4; i++ {
		require.NoError(t, b.Publish(bounded(t), run(name, "a", i, 1)))
	}
	var bodies []string
	for _, r := range stored(t, name) {
		bodies = append(bodies, string(r.Value))
	}
	require.Equal(t, []string{"0", "1", "2", "3"}, bodies)
}

// An acknowledgement that is of an earlier message is none: here of a server that gives the
// id of a producer to the next one, too.
func TestPublish_TheAcknowledgementOfAnotherMessageIsNone(t *testing.T) {
	t.Parallel()
	c := fake(t)
	b := openFake(t, c, nil)
	require.NoError(t, b.Publish(bounded(t), run("topic", "a", 0, 1)))
	first := inFake(t, c, "topic")[0]
	c.ControlKey(kmsg.InitProducerID.Int16(), func(request kmsg.Request) (kmsg.Response, error, bool) {
		answer := request.ResponseKind().(*kmsg.InitProducerIDResponse)
		answer.ProducerID, answer.ProducerEpoch = first.ProducerID, first.ProducerEpoch
		return answer, nil, true
	})
	require.Error(t, b.Publish(bounded(t), run("missing", "a", 0, 1))) // The next call gets a new producer.
	err := b.Publish(bounded(t), run("topic", "a", 1, 1))
	require.ErrorContains(t, err, "kafka: topic topic, partition 0: the acknowledgement is not of this message")
	require.Equal(t, broker.Unknown, broker.ClassOf(failures(t, err)[0]))
	require.Len(t, inFake(t, c, "topic"), 1)
	require.NoError(t, b.Publish(bounded(t), run("topic", "a", 1, 1)))
	require.Len(t, inFake(t, c, "topic"), 2)
}
