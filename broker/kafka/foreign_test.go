package kafka_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

// What didn't come from Watermill has an id all the same, the same each time;
// C-78: a tombstone is a message without a body.
func TestInterop_ForeignRecord_C78(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	name := topic(t, b)
	client, err := kgo.NewClient(kgo.SeedBrokers(server(t)))
	require.NoError(t, err)
	defer client.Close()
	sent, err := client.ProduceSync(bounded(t), &kgo.Record{Topic: name, Key: []byte("k")}).First()
	require.NoError(t, err)
	for _, group := range []string{"a.", "b."} {
		c, err := b.Consume(bounded(t), name, group+name)
		require.NoError(t, err)
		got, err := c.Receive(bounded(t), 1)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("%s/%d/%d/%d", name, sent.Partition, sent.Offset, sent.Timestamp.UnixMilli()), got[0].ID)
		require.Equal(t, "k", got[0].Key)
		require.Nil(t, got[0].Body)
		require.NoError(t, c.Close(bounded(t)))
	}
}
