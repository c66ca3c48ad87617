package watermill_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/watermill"
)

// B3: a server that can be asked whether it is there makes consumers that say how they
// fare; without that they say nothing, instead of that all is well.
func TestConsumerSaysWhetherItsServerIsThere_B3(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pubsub := gochannel.NewGoChannel(gochannel.Config{}, nil)
		defer func() { require.NoError(t, pubsub.Close()) }()
		var down atomic.Bool
		conf := watermill.Config{
			Publisher:  pubsub,
			Subscriber: func(string) (message.Subscriber, error) { return shared{pubsub}, nil },
		}
		silent, err := watermill.New(conf)
		require.NoError(t, err)
		c, err := silent.Consume(t.Context(), "topic", "group")
		require.NoError(t, err)
		require.NotImplements(t, (*broker.Stateful)(nil), c)
		require.NoError(t, silent.Close(context.Background()))

		conf.Alive = func(context.Context) error {
			if down.Load() {
				return errors.New("connection refused")
			}
			return nil
		}
		b, err := watermill.New(conf)
		require.NoError(t, err)
		c, err = b.Consume(t.Context(), "topic", "group")
		require.NoError(t, err)
		state := c.(broker.Stateful).State
		since := time.Now()
		for _, turn := range []bool{false, true, false} {
			if turn {
				since = time.Now()
			}
			down.Store(turn)
			<-time.After(5 * time.Second)
			require.Equal(t, !turn, state().Joined)
			require.Equal(t, turn, state().LastError != nil)
			require.False(t, state().Since.Before(since))
		}
		require.NoError(t, b.Close(context.Background()))
		require.False(t, state().Joined)
		require.ErrorIs(t, state().LastError, watermill.ErrClosed)
	})
}
