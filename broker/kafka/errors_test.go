package kafka

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/waybill-go/waybill/broker"
)

// O1: what Kafka says of a topic or of itself is never said of a message, and only
// what a message is can be permanent.
func TestRefusals_SayWhomTheyConcern(t *testing.T) {
	for scope, codes := range map[broker.Scope][]*kerr.Error{
		broker.ScopeRow: {kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord},
		broker.ScopeTopic: {
			kerr.NotEnoughReplicas, kerr.NotEnoughReplicasAfterAppend, kerr.UnknownTopicOrPartition,
			kerr.LeaderNotAvailable, kerr.NotLeaderForPartition, kerr.TopicAuthorizationFailed,
		},
		broker.ScopeBroker: {kerr.ClusterAuthorizationFailed, kerr.SaslAuthenticationFailed},
	} {
		for _, code := range codes {
			require.Equal(t, scope, refusals[codeOf(fmt.Errorf("more: %w", code))].scope, "%v", code)
		}
	}
	for code, r := range refusals {
		require.Equal(t, r.class == broker.Permanent, r.scope == broker.ScopeRow, "%v", code)
		require.False(t, r.stays && r.unclear, "%v", code)
	}
	require.Equal(t, broker.ScopeUnknown, refusals[codeOf(errors.New("no code"))].scope)
}
