package kafka

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A connection that was refused before a round began doesn't end the round: the next attempt
// may succeed, and kgo waits up to a second for it.
func TestWire_AnOutageIsOfTheRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := Config{}.wire()
		refused := errors.New("connection refused")
		gaveUp := make(chan error, 1)
		w.begin(func(err error) { gaveUp <- err })
		<-time.After(time.Millisecond)
		w.OnBrokerConnect(kgo.BrokerMetadata{}, time.Second, nil, refused)
		<-time.After(2 * outageIn)
		require.Empty(t, gaveUp)

		w.OnBrokerConnect(kgo.BrokerMetadata{}, time.Second, nil, refused)
		<-time.After(2 * outageIn)
		require.ErrorIs(t, <-gaveUp, refused)
		_, last := w.end()
		require.ErrorIs(t, last, refused)
	})
}
