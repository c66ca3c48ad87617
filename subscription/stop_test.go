package subscription_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/internal/dbtest"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

// A79: a handler that runs when Stop comes may end; those that wait don't begin.
// Conformance: F-80.
func TestStopLetsHandlersFinish(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		var begun atomic.Int64
		release := make(chan struct{})
		s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
			begun.Add(1)
			<-release
			return effect(ctx, e)
		}))
		s.Lanes = 2
		w.publish(orders(10)...)
		var released []string
		r, stop := w.start(s, &altered{Broker: w.broker, release: func(deliveries []broker.Delivery) {
			for _, d := range deliveries {
				released = append(released, d.Key)
			}
		}})
		w.until(func() bool { return begun.Load() == 2 && r.Status().InFlight == 10 }, "two handlers run")
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			stop()
		}()
		w.until(func() bool { return !r.Status().Running }, "the intake ends")
		close(release)
		<-stopped
		require.EqualValues(t, 2, begun.Load())
		require.EqualValues(t, 2, r.Status().Handled)
		require.Equal(t, 8, w.broker.Unacknowledged(topic, "shipping"), "what is done is acknowledged")
		require.Equal(t, []string{"o-2", "o-3", "o-4", "o-5", "o-6", "o-7", "o-8", "o-9"}, released, "and the rest given back, in order")

		again, stop := w.start(w.stream(), w.broker)
		w.until(w.acknowledged("shipping"), "the rest was given back")
		stop()
		require.EqualValues(t, 8, again.Status().Handled)
		require.Zero(t, again.Status().Duplicates)
		require.Equal(t, 10, w.allEffects())
	})
}

// A handler that listens to its context: it is no failure, and costs nothing.
// Conformance: A79.
func TestStopIsBounded(t *testing.T) {
	for name, how := range map[string]func(error) error{
		"error": func(err error) error { return err },
		"park":  subscription.Park, // as a handler might that takes any error for hopeless
		"panic": func(err error) error { panic(err) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, openSQLite(t))
			in := make(chan struct{})
			s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
				if err := effect(ctx, e); err != nil {
					return err
				}
				close(in)
				<-ctx.Done()
				return how(ctx.Err())
			}))
			w.publish(placed("o", ""))
			r, err := subscription.NewRunner(subscription.RunnerConfig{Stream: s, Broker: w.broker, Logger: slog.New(slog.DiscardHandler)})
			require.NoError(t, err)
			require.NoError(t, r.Start(t.Context()))
			<-in
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			require.ErrorIs(t, r.Stop(ctx), context.DeadlineExceeded)

			require.Zero(t, w.allEffects())
			require.Zero(t, w.inbox())
			require.Zero(t, w.deadLetters())
			status := r.Status()
			require.Empty(t, status.LastError)
			require.Zero(t, status.Retries)
			require.Zero(t, status.InFlight)

			_, stop := w.start(w.stream(), w.broker)
			w.until(w.acknowledged("shipping"), "another one handles it")
			stop()
			require.Equal(t, 1, w.allEffects())
		})
	}
}

// A handler that doesn't listen can't hold Stop, and its late work is undone.
func TestStopDoesNotWaitForTheDeaf(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		in, release, out := make(chan struct{}), make(chan struct{}), make(chan struct{})
		s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
			defer close(out)
			close(in)
			<-release
			return effect(ctx, e)
		}))
		w.publish(placed("o", ""))
		r, err := subscription.NewRunner(subscription.RunnerConfig{Stream: s, Broker: w.broker, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		require.NoError(t, r.Start(t.Context()))
		<-in
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, r.Stop(ctx), context.Canceled)
		close(release)
		<-out
		require.Equal(t, 1, w.broker.Unacknowledged(topic, "shipping"))
		_, stop := w.start(w.stream(), w.broker)
		w.until(w.acknowledged("shipping"), "another one handles it")
		stop()
		require.Equal(t, 1, w.allEffects())
	})
}

func TestARunnerRunsOnce(t *testing.T) {
	w := newWorld(t, openSQLite(t))
	r, stop := w.start(w.stream(), w.broker)
	require.ErrorContains(t, r.Start(t.Context()), "runs once")
	stop()
	require.NoError(t, r.Stop(t.Context()), "Stop may come twice")
	require.ErrorContains(t, r.Start(t.Context()), "runs once")

	never, err := subscription.NewRunner(subscription.RunnerConfig{Stream: w.stream(), Broker: w.broker})
	require.NoError(t, err)
	require.NoError(t, never.Stop(t.Context()))
	require.ErrorContains(t, never.Start(t.Context()), "runs once")
}

// A message that the broker took back is nobody's failure; it comes again and
// has its effect, in its place.
func TestLostDeliveries(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		var runs, cancelled atomic.Int64
		in := make(chan struct{})
		s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
			if runs.Add(1) == 1 {
				close(in)
				<-ctx.Done()
				cancelled.Add(1)
				return ctx.Err()
			}
			return effect(ctx, e)
		}))
		var want []string
		for i := range 20 {
			want = append(want, fmt.Sprint(i))
			w.publish(placed("o", fmt.Sprint(i)))
		}
		r, stop := w.start(s, w.broker)
		<-in
		w.broker.Revoke(topic, "shipping")
		w.until(w.acknowledged("shipping"), "all are acknowledged")
		stop()
		require.EqualValues(t, 1, cancelled.Load())
		require.Equal(t, want, w.effects("o"))
		require.Zero(t, r.Status().Retries)
		require.Empty(t, r.Status().LastError)
		require.Empty(t, w.logs.lines("level=WARN"))
	})
}

func TestLostAgainAndAgain(t *testing.T) {
	w := newWorld(t, openSQLite(t))
	const keys, rounds = 10, 30
	var want []string
	for round := range rounds {
		want = append(want, fmt.Sprint(round))
		for key := range keys {
			w.publish(placed(fmt.Sprintf("key-%d", key), fmt.Sprint(round)))
		}
	}
	_, stop := w.start(w.stream(), w.broker)
	before := 0
	w.until(func() bool {
		n := w.allEffects()
		if n >= before+7 {
			before = n
			w.broker.Revoke(topic, "shipping")
		}
		return n == keys*rounds
	}, "all take effect")
	w.until(w.acknowledged("shipping"), "all are acknowledged")
	stop()
	for key := range keys {
		require.Equal(t, want, w.effects(fmt.Sprintf("key-%d", key)))
	}
}

func TestBrokerOutage(t *testing.T) {
	w := newWorld(t, openSQLite(t))
	w.broker.SetOutage(true)
	r, stop := w.start(w.stream(), w.broker) // it needn't be there at the start
	w.until(func() bool { return r.Status().LastError != "" }, "joining fails")
	require.False(t, r.Status().Running)
	w.broker.SetOutage(false)
	w.publish(orders(20)...)
	w.until(w.acknowledged("shipping"), "it joins")
	require.True(t, r.Status().Running)

	w.broker.SetOutage(true)
	w.broker.SetOutage(false)
	w.publish(orders(20)...)
	w.until(w.acknowledged("shipping"), "it goes on")
	stop()
	require.Equal(t, 40, w.allEffects())
	require.Len(t, w.logs.lines("the broker fails"), 1)
	require.Len(t, w.logs.lines("the broker answers again"), 1)
}

// The broker goes while messages are being handled: they take effect, and are
// acknowledged when it is back.
func TestBrokerOutageUnderHandlers(t *testing.T) {
	w := newWorld(t, openSQLite(t))
	in, release := make(chan struct{}, 10), make(chan struct{})
	s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
		in <- struct{}{}
		<-release
		return effect(ctx, e)
	}))
	w.publish(orders(10)...)
	r, stop := w.start(s, w.broker)
	for range 10 {
		<-in
	}
	w.broker.SetOutage(true)
	close(release)
	w.until(func() bool { return r.Status().Handled == 10 && r.Status().LastError != "" }, "acknowledging fails")
	w.broker.SetOutage(false)
	w.until(w.acknowledged("shipping"), "it succeeds")
	stop()
	require.Equal(t, 10, w.allEffects())
	require.Zero(t, r.Status().Duplicates, "a short outage costs nothing")
	require.Len(t, w.logs.lines("the broker fails"), 1)
}

func TestStopDuringAnOutage(t *testing.T) {
	w := newWorld(t, openSQLite(t))
	in, release := make(chan struct{}, 10), make(chan struct{})
	s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
		in <- struct{}{}
		<-release
		return effect(ctx, e)
	}))
	w.publish(orders(10)...)
	_, stop := w.start(s, w.broker)
	for range 10 {
		<-in
	}
	w.broker.SetOutage(true)
	close(release)
	stop()
	require.Equal(t, 10, w.allEffects())
	w.broker.SetOutage(false)
	again, stop := w.start(w.stream(), w.broker)
	w.until(w.acknowledged("shipping"), "what could not be acknowledged comes again")
	stop()
	require.EqualValues(t, 10, again.Status().Duplicates)
	require.Equal(t, 10, w.allEffects())
}

// A consumer that fails is replaced, and what it had lent comes again.
func TestConsumerThatFailsIsReplaced(t *testing.T) {
	w := newWorld(t, openSQLite(t))
	w.publish(orders(50)...)
	b := &breaking{Broker: w.broker}
	r, stop := w.start(w.stream(), b)
	w.until(func() bool { return b.consumers.Load() > 3 }, "it joins again and again")
	b.healthy.Store(true)
	w.until(w.acknowledged("shipping"), "all are acknowledged")
	w.until(func() bool { return r.Status().Running }, "and well")
	stop()
	require.Equal(t, 50, w.allEffects())
}

// breaking is a broker whose consumers fail at their second Receive.
type breaking struct {
	broker.Broker
	healthy   atomic.Bool
	consumers atomic.Int64
}

func (b *breaking) Consume(ctx context.Context, topic, group string) (broker.Consumer, error) {
	b.consumers.Add(1)
	c, err := b.Broker.Consume(ctx, topic, group)
	return &breakingConsumer{Consumer: c, b: b}, err
}

type breakingConsumer struct {
	broker.Consumer
	b     *breaking
	calls int
}

func (c *breakingConsumer) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	if c.calls++; c.calls > 1 && !c.b.healthy.Load() {
		return nil, broker.Classify(broker.Unavailable, errors.New("broken"))
	}
	return c.Consumer.Receive(ctx, min(limit, 5))
}

// An outage of the database isn't the messages' fault: one line tells of it, and
// they go on at once when it is over.
func TestDatabaseOutage(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		p := &faulty{Provider: w.provider}
		s := w.stream()
		s.Units = w.unitsOn(p)
		s.Backoff = time.Hour // which nobody may have to wait
		in, release := make(chan struct{}, 100), make(chan struct{})
		s.Handlers = []subscription.Handler{subscription.On(func(ctx context.Context, e OrderPlaced) error {
			in <- struct{}{}
			<-release
			return effect(ctx, e)
		})}
		w.publish(orders(40)...)
		r, stop := w.start(s, w.broker)
		for range 16 {
			<-in
		}
		p.down.Store(true)
		close(release)
		w.until(func() bool { return !r.Status().Running }, "the outage shows")
		require.Regexp(t, "look into the inbox|look for replays|look for what older builds have parked", r.Status().LastError, "whichever asks first")
		p.down.Store(false)
		w.until(w.acknowledged("shipping"), "all are acknowledged")
		stop()
		require.Equal(t, 40, w.allEffects())
		require.Zero(t, r.Status().Retries)
		require.Len(t, w.logs.lines("level=WARN"), 1)
		require.Len(t, w.logs.lines("the database answers again"), 1)
	})
}

// The log hears of a failure at once, then ever less often, and what one message
// costs in lines doesn't depend on what others do.
func TestFailuresAreLoggedSparingly(t *testing.T) {
	w := newWorld(t, openSQLite(t))
	s := w.streamOf(subscription.On(func(context.Context, OrderPlaced) error { return errors.New("not yet") }))
	w.publish(placed("o", ""))
	r, stop := w.start(s, w.broker)
	w.until(func() bool { return r.Status().Retries >= 8 }, "it is tried again")
	stop()
	require.Len(t, w.logs.lines("level=WARN"), 3, "the first, fourth and eighth failure")
}

func TestStartNeedsTheTables(t *testing.T) {
	p := dbtest.SQLite(t)
	units, err := uow.New(uow.Config{Domain: shipping, Providers: []uow.Provider{p}})
	require.NoError(t, err)
	w := &world{t: t, provider: p, owner: p, units: units}
	r, err := subscription.NewRunner(subscription.RunnerConfig{Stream: w.stream(), Broker: memory.New(memory.Config{})})
	require.NoError(t, err)
	require.ErrorContains(t, r.Start(t.Context()), "tables of subscription are missing; run `waybill migrate`")
}
