package subscription_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

// stopTakes is more than any Stop may take whose time is up, on a busy machine.
const stopTakes = time.Minute

// startAlone starts a runner that the test stops itself.
func (w *world) startAlone(s subscription.Stream, b broker.Broker) *subscription.Runner {
	w.t.Helper()
	r, err := subscription.NewRunner(subscription.RunnerConfig{Stream: s, Broker: b, Logger: slog.New(slog.NewTextHandler(w.logs, nil))})
	require.NoError(w.t, err)
	require.NoError(w.t, r.Start(w.t.Context()))
	return r
}

// stopSoon stops a runner that can't end by itself.
func stopSoon(t *testing.T, r *subscription.Runner) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	stopped := make(chan error, 1)
	go func() { stopped <- r.Stop(ctx) }()
	select {
	case err := <-stopped:
		return err
	case <-time.After(stopTakes):
		require.FailNow(t, "Stop doesn't return")
		return nil
	}
}

// B5: a handler of a replayed message that doesn't listen to its context can't hold Stop.
// It is logged and counted, its late work is undone, and it writes nothing more.
func TestStopDoesNotWaitForADeafReplay_B5(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		in, release, out := make(chan struct{}), make(chan struct{}), make(chan struct{})
		s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
			if !subscription.Replayed(ctx) {
				return subscription.Park(errBad)
			}
			defer close(out)
			close(in)
			<-release
			return effect(ctx, e)
		}))
		w.publish(placed("o", ""))
		r := w.startAlone(s, w.broker)
		w.until(w.acknowledged("shipping"), "it is parked")
		w.ask("o")
		<-in
		require.ErrorIs(t, stopSoon(t, r), context.DeadlineExceeded)
		require.EqualValues(t, 1, r.Status().Left)
		require.Len(t, w.logs.lines("a handler is still running although its context is done"), 1)
		require.Contains(t, w.logs.lines("a handler is still running although its context is done")[0], w.parked()[0].MessageID)
		close(release)
		<-out

		_, stop := w.start(w.stream(), w.broker)
		w.until(func() bool { return w.statuses("o")["replayed"] == 1 }, "another one handles it")
		stop()
		require.Equal(t, 1, w.allEffects())
		require.Equal(t, 2, w.parked()[0].Attempts, "the one that was left behind doesn't count")
	})
}

// hanging is a broker with calls that don't listen to their contexts.
type hanging struct {
	broker.Broker
	call    string
	release chan struct{}
	calls   sync.WaitGroup
	reached chan struct{} // Closed when the call hangs.
	once    sync.Once
}

func (b *hanging) hang(call string) {
	if call != b.call {
		return
	}
	b.calls.Add(1)
	defer b.calls.Done()
	b.once.Do(func() { close(b.reached) })
	<-b.release
}

func (b *hanging) EnsureTopics(ctx context.Context, topics ...string) error {
	b.hang("EnsureTopics")
	return b.Broker.EnsureTopics(ctx, topics...)
}

func (b *hanging) Consume(ctx context.Context, topic, group string) (broker.Consumer, error) {
	b.hang("Consume")
	c, err := b.Broker.Consume(ctx, topic, group)
	return &hangingConsumer{c, b}, err
}

type hangingConsumer struct {
	broker.Consumer
	b *hanging
}

func (c *hangingConsumer) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	deliveries, err := c.Consumer.Receive(ctx, limit)
	if err == nil {
		c.b.hang("Receive")
	}
	return deliveries, err
}

func (c *hangingConsumer) Ack(ctx context.Context, deliveries ...broker.Delivery) error {
	c.b.hang("Ack")
	return c.Consumer.Ack(ctx, deliveries...)
}

func (c *hangingConsumer) Release(ctx context.Context, deliveries ...broker.Delivery) error {
	c.b.hang("Release")
	return c.Consumer.Release(ctx, deliveries...)
}

func (c *hangingConsumer) Close(ctx context.Context) error {
	c.b.hang("Close")
	return c.Consumer.Close(ctx)
}

// B5: nor can a broker's client that doesn't listen, wherever it hangs.
func TestStopDoesNotWaitForABroker_B5(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"EnsureTopics", "Consume", "Receive", "Ack", "Release", "Close"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, openSQLite(t))
			b := &hanging{Broker: w.broker, call: call, release: make(chan struct{}), reached: make(chan struct{})}
			s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
				if e.Note == "wait" {
					return subscription.RetryAfter(errNotYet, time.Hour)
				}
				return effect(ctx, e)
			}))
			w.publish(placed("waits", "wait"), placed("o", ""))
			r := w.startAlone(s, b)
			switch call {
			case "Release", "Close":
				w.until(func() bool { return w.allEffects() == 1 && r.Status().Waiting == 1 }, "one is to be given back")
			default:
				<-b.reached
			}
			begin := time.Now()
			_ = stopSoon(t, r)
			t.Logf("stopped after %v", time.Since(begin).Round(time.Millisecond))
			<-b.reached
			close(b.release)
			b.calls.Wait()
		})
	}
}

// B5: nor a database that doesn't, in what a runner does beside its messages.
func TestStopDoesNotWaitForTheDatabase_B5(t *testing.T) {
	t.Parallel()
	for name, statement := range map[string]string{"row of the run": "DELETE FROM subscription_runs", "evictor": "SELECT evicted FROM subscription_evictions"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, openSQLite(t))
			deaf := &stuckOn{statement: statement, release: make(chan struct{}), ended: make(chan struct{})}
			s := w.stream()
			s.Units = w.unitsOn(&stuckProvider{w.provider, deaf})
			w.publish(placed("o", ""))
			r := w.startAlone(s, w.broker)
			w.until(w.acknowledged("shipping"), "it is handled")
			require.NoError(t, stopSoon(t, r))
			require.Len(t, w.logs.lines("leaves behind what doesn't end"), 1)
			close(deaf.release)
			<-deaf.ended
		})
	}
}

type stuckProvider struct {
	uow.Provider
	hook *stuckOn
}

func (p *stuckProvider) DB() *bun.DB     { return p.Provider.DB().WithQueryHook(p.hook) }
func (p *stuckProvider) Reader() *bun.DB { return p.Provider.Reader().WithQueryHook(p.hook) }

// stuckOn holds a statement until release is closed.
type stuckOn struct {
	statement      string
	release, ended chan struct{}
	once           sync.Once
}

func (h *stuckOn) BeforeQuery(ctx context.Context, e *bun.QueryEvent) context.Context {
	if strings.Contains(e.Query, h.statement) {
		<-h.release
	}
	return ctx
}

func (h *stuckOn) AfterQuery(_ context.Context, e *bun.QueryEvent) {
	if strings.Contains(e.Query, h.statement) {
		h.once.Do(func() { close(h.ended) })
	}
}

// expire ends what runs have reserved, as if they stood still for that long.
func (w *world) expire() {
	w.exec("UPDATE dead_letters SET taken_until = first_at WHERE taken_until > first_at")
}

// B12: a runner that stands still in the middle of a replay loses it to another, which
// handles it. Nobody is blamed, and when it wakes up it can't commit any more.
func TestPausedReplayIsNotBlamed_B12(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		in, wake, woken := make(chan struct{}), make(chan struct{}), make(chan struct{})
		park := w.streamOf(subscription.On(func(context.Context, OrderPlaced) error { return subscription.Park(errBad) }))
		park.OnParked = subscription.Hold
		w.publish(placed("o", "first"), placed("o", "second"))
		_, stop := w.start(park, w.broker)
		w.until(w.acknowledged("shipping"), "it is parked, with one behind")
		stop()

		paused := w.stream()
		paused.OnParked = subscription.Hold
		paused.Handlers = []subscription.Handler{subscription.On(func(ctx context.Context, e OrderPlaced) error {
			defer close(woken)
			close(in)
			<-wake
			return effect(ctx, e)
		})}
		w.ask("o")
		one := w.startAlone(paused, w.broker)
		<-in
		other, stop := w.start(w.holding(), w.broker)
		w.until(func() bool {
			w.expire()
			return w.statuses("o")["replayed"] == 2
		}, "another takes it over, and what is behind it")
		close(wake)
		<-woken
		require.NoError(t, one.Stop(t.Context()))
		stop()
		require.Equal(t, []string{"first", "second"}, w.effects("o"))
		require.EqualValues(t, 2, other.Status().Replayed)
		require.Zero(t, one.Status().Replayed)
		for _, d := range w.parked() {
			require.NotEqual(t, "crashed", d.Reason)
		}
	})
}

// B12: one that wakes up while another is at it takes the suspicion back.
func TestPausedReplayClearsItself_B12(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		park := w.streamOf(subscription.On(func(context.Context, OrderPlaced) error { return subscription.Park(errBad) }))
		w.publish(placed("o", ""))
		_, stop := w.start(park, w.broker)
		w.until(w.acknowledged("shipping"), "it is parked")
		stop()
		slow := func(in, wake chan struct{}) subscription.Stream {
			s := w.stream()
			s.Handlers = []subscription.Handler{subscription.On(func(ctx context.Context, e OrderPlaced) error {
				close(in)
				<-wake
				return effect(ctx, e)
			})}
			return s
		}
		crashes := func() int { return w.count("SELECT crashes FROM dead_letters") }
		var in, wake [2]chan struct{}
		for i := range in {
			in[i], wake[i] = make(chan struct{}), make(chan struct{})
		}
		w.ask("o")
		one := w.startAlone(slow(in[0], wake[0]), w.broker)
		<-in[0]
		other := w.startAlone(slow(in[1], wake[1]), w.broker)
		w.until(func() bool {
			if crashes() == 0 {
				w.expire()
			}
			return crashes() == 1
		}, "another takes it over")
		<-in[1]
		close(wake[0])
		w.until(func() bool { return crashes() == 0 }, "who is not dead says so")
		require.NoError(t, one.Stop(t.Context()))
		close(wake[1])
		w.until(func() bool { return w.statuses("o")["replayed"] == 1 }, "the other goes on")
		require.NoError(t, other.Stop(t.Context()))
		require.Equal(t, 1, w.allEffects())
		require.Equal(t, 2, w.parked()[0].Attempts, "the one that failed, and the one that succeeded")
	})
}

func (w *world) holding() subscription.Stream {
	s := w.stream()
	s.OnParked = subscription.Hold
	return s
}
