package kafka

import (
	"errors"
	"fmt"
	"testing"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
)

// O1: what Kafka says of a topic or of itself is never said of a message, and only
// what a message is can be permanent.
func TestRefusals_SayWhomTheyConcern(t *testing.T) {
	for scope, codes := range map[broker.Scope][]sarama.KError{
		broker.ScopeRow: {sarama.ErrMessageSizeTooLarge, sarama.ErrMessageSetSizeTooLarge, sarama.ErrInvalidRecord},
		broker.ScopeTopic: {
			sarama.ErrNotEnoughReplicas, sarama.ErrNotEnoughReplicasAfterAppend, sarama.ErrUnknownTopicOrPartition,
			sarama.ErrLeaderNotAvailable, sarama.ErrNotLeaderForPartition, sarama.ErrTopicAuthorizationFailed,
		},
		broker.ScopeBroker: {sarama.ErrClusterAuthorizationFailed, sarama.ErrSASLAuthenticationFailed},
	} {
		for _, code := range codes {
			require.Equal(t, scope, scopeOf(fmt.Errorf("more: %w", code)), "%v", code)
		}
	}
	for code, r := range refusals {
		require.Equal(t, r.class == broker.Permanent, r.scope == broker.ScopeRow, "%v", code)
		require.False(t, r.stays && r.again, "%v", code)
	}
	require.Equal(t, broker.ScopeUnknown, scopeOf(errors.New("no code")))
	require.Equal(t, broker.ScopeTopic, scopeOf(leaderless(sarama.ErrClusterAuthorizationFailed)), "what is known of it before its code")
}
