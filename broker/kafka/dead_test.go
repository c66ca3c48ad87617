package kafka

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill/internal/liveness/livenesstest"
)

// N1: only what is known to be dead is: neither the living, nor members of other hosts,
// nor other programs.
func TestProcess_N1_WhoIsDead(t *testing.T) {
	t.Parallel()
	client, err := kgo.NewClient(kgo.ClientID(clientID))
	require.NoError(t, err)
	defer client.Close()
	p := processOf(client)
	require.True(t, p.dead(clientID+"-"+livenesstest.Dead(t)))
	for _, other := range []string{
		p.clientID, clientID + "-" + livenesstest.Alive(), clientID + "-host-12-0123abcd.77.89abcdef",
		clientID, clientID + "-", livenesstest.Dead(t), "mine",
	} {
		require.False(t, p.dead(other), other)
	}
}

// A client id of one's own stays as it is: quotas may be bound to it.
func TestProcess_AClientIDOfOnesOwnStays(t *testing.T) {
	t.Parallel()
	client, err := kgo.NewClient(kgo.ClientID("mine"))
	require.NoError(t, err)
	defer client.Close()
	require.Empty(t, processOf(client).options())
}
