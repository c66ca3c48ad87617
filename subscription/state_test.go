package subscription_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
)

// ailing is a broker whose consumers tell how they fare.
type ailing struct {
	broker.Broker
	state atomic.Pointer[broker.State]
}

type ailingConsumer struct {
	broker.Consumer
	*ailing
}

func (a *ailing) Consume(ctx context.Context, topic, group string) (broker.Consumer, error) {
	c, err := a.Broker.Consume(ctx, topic, group)
	return ailingConsumer{c, a}, err
}

// Close is the consumer's, not the broker's.
func (c ailingConsumer) Close(ctx context.Context) error { return c.Consumer.Close(ctx) }

func (c ailingConsumer) State() broker.State { return *c.ailing.state.Load() }

// B9: a consumer that gets nothing because it may not, or can't, is no running
// one, although Receive just waits.
func TestConsumerThatCannotReceiveIsNotRunning_B9(t *testing.T) {
	w := newWorld(t, openSQLite(t))
	b := &ailing{Broker: w.broker}
	fine := &broker.State{Joined: true, Since: time.Now()}
	b.state.Store(fine)
	r, _ := w.start(w.stream(), b)
	w.until(func() bool { return r.Status().Running }, "it has joined")

	b.state.Store(&broker.State{Since: time.Now(), LastError: errors.New("not allowed to receive")})
	w.until(func() bool { return !r.Status().Running }, "it says that it doesn't run")
	require.Equal(t, "not allowed to receive", r.Status().LastError)
	w.until(func() bool { return len(w.logs.lines("the broker fails")) == 1 }, "the log says so, once")

	b.state.Store(fine)
	w.until(func() bool { return r.Status().Running }, "it says that it runs again")
	w.until(func() bool { return len(w.logs.lines("the broker answers again")) == 1 }, "the log says so, once")
	require.Len(t, w.logs.lines("the broker fails"), 1)
}
