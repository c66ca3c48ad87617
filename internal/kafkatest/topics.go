package kafkatest

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// DeleteTopics deletes the topics whose names begin so, from whatever server client is of.
func DeleteTopics(t testing.TB, client *kgo.Client, prefix string) {
	t.Helper()
	admin := kadm.NewClient(client)
	topics, err := admin.ListTopics(context.Background())
	require.NoError(t, err)
	for _, topic := range topics.Names() {
		if strings.HasPrefix(topic, prefix) {
			_, err := admin.DeleteTopic(context.Background(), topic)
			require.NoError(t, err)
		}
	}
}
