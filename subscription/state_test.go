package subscription_test

import (
	"context"
	"errors"
	"sync"
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

	mu   sync.Mutex
	over context.CancelCauseFunc // Of the newest consumer.
}

// end has the consumer's Receive fail.
func (a *ailing) end(why error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.state.Store(&broker.State{Since: time.Now(), LastError: why})
	a.over(why)
}

type ailingConsumer struct {
	broker.Consumer
	*ailing
	alive context.Context
}

// Receive fails when the consumer has ended.
func (c ailingConsumer) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.alive, cancel)()
	got, err := c.Consumer.Receive(within, limit)
	if c.alive.Err() != nil && ctx.Err() == nil {
		return got, context.Cause(c.alive)
	}
	return got, err
}

func (a *ailing) Consume(ctx context.Context, topic, group string) (broker.Consumer, error) {
	c, err := a.Broker.Consume(ctx, topic, group)
	alive, over := context.WithCancelCause(context.WithoutCancel(ctx))
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = over
	return ailingConsumer{c, a, alive}, err
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

// B3: what a broker removed before it was consumed is counted, over all consumers of a
// runner, and the log says it once.
func TestMissedMessagesAreCounted_B3_B10(t *testing.T) {
	w := newWorld(t, openSQLite(t))
	b := &ailing{Broker: w.broker}
	b.state.Store(&broker.State{Joined: true, Since: time.Now(), Partitions: 3})
	r, _ := w.start(w.stream(), b)
	w.until(func() bool { return r.Status().Running }, "it has joined")
	require.Equal(t, 3, r.Status().Partitions)
	require.True(t, r.Status().MissedAt.IsZero())

	b.state.Store(&broker.State{Joined: true, Since: time.Now(), Missed: 15})
	w.until(func() bool { return len(w.logs.lines("never handled here")) == 1 }, "the log says so")
	require.EqualValues(t, 15, r.Status().Missed)
	require.WithinDuration(t, time.Now(), r.Status().MissedAt, time.Minute)

	// The next consumer begins to count anew.
	b.end(errors.New("the connection broke"))
	w.until(func() bool { return r.Status().Refusal != nil }, "the first has ended")
	b.state.Store(&broker.State{Joined: true, Since: time.Now(), Missed: 2})
	w.until(func() bool { return r.Status().Running && len(w.logs.lines("never handled here")) == 2 }, "the second has missed some, too")
	require.EqualValues(t, 17, r.Status().Missed)
}

// B3: a lag that can't be known is none, instead of the 0 of one who holds nothing.
func TestNoLagWhileNotJoined_B3(t *testing.T) {
	w := newWorld(t, openSQLite(t))
	b := &ailing{Broker: w.broker}
	b.state.Store(&broker.State{Joined: true, Since: time.Now()})
	r, _ := w.start(w.stream(), b)
	w.until(func() bool { _, err := r.Lag(t.Context()); return err == nil }, "the lag is known")
	b.state.Store(&broker.State{Since: time.Now(), LastError: errors.New("not allowed to join")})
	_, err := r.Lag(t.Context())
	require.ErrorContains(t, err, "not allowed to join")
	require.False(t, r.Status().Joined)
}

// B3: time in which the broker gives it nothing doesn't count for the age of what is in
// the inbox: no message could come again then.
func TestTimeWithoutTheBrokerIsNoUptime_B3(t *testing.T) {
	for name, state := range map[string]broker.State{
		"not in its group":     {LastError: errors.New("not allowed to join")},
		"in it, and cut short": {Joined: true, LastError: errors.New("one partition has no leader")},
		"still joining":        {},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, openSQLite(t))
			b := &ailing{Broker: w.broker}
			b.state.Store(&state)
			r, _ := w.start(w.stream(), b)
			w.until(func() bool { return !r.Status().Since.IsZero() }, "it has begun")
			require.False(t, r.Consuming())
			require.False(t, r.Status().Running)
			b.state.Store(&broker.State{Joined: true, Since: time.Now()})
			w.until(r.Consuming, "the broker gives it everything")
		})
	}
}
