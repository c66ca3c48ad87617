package relay_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/internal/relay/relaytest"
	"github.com/waybill-go/waybill/outbox"
)

func TestNew_SaysAllMistakesTogether(t *testing.T) {
	_, err := relay.New(relay.Config{
		Lanes: []relay.Lane{{Target: "a"}, {Target: "b", Broker: memory.New(memory.Config{})}, {Target: "b", Broker: memory.New(memory.Config{})}}, Outbox: outbox.Config{BatchSize: -1},
	})
	for _, mistake := range []string{"outbox.batch_size is -1", "provider's name is missing", "store is missing", `lane "a" needs`, `lane "b" is named twice`} {
		require.ErrorContains(t, err, mistake)
	}
}

func TestStart_FailsWithoutADatabaseAndMayBeCalledAgain(t *testing.T) {
	inWorld(t, func(w *world) {
		w.store.SetOutage(true)
		r, err := relay.New(relay.Config{Provider: "test", Store: w.store, Lanes: []relay.Lane{{Target: target, Broker: w.broker}}})
		require.NoError(t, err)
		require.ErrorContains(t, r.Start(w.Context()), `relay "test" can't start`)
		w.store.SetOutage(false)
		require.NoError(t, r.Start(w.Context()))
		require.ErrorContains(t, r.Start(w.Context()), "was started before")
		w.insert(nil, "a")
		w.delivered(10 * time.Second)
		require.NoError(t, r.Stop(w.Context()))
		require.Empty(t, w.store.Members())
	})
}

func TestRelay_PublishesInOrderAndSettles(t *testing.T) {
	inWorld(t, func(w *world) {
		p := w.start()
		ids := w.commit(p, 50, 20)
		w.delivered(time.Minute)
		w.inOrder(ids)
		require.Len(t, w.broker.Messages(topic), 1000, "nothing twice")
		status := p.Status()[target]
		require.Equal(t, int64(1000), status.Published)
		require.Equal(t, 8, status.Partitions)
		require.Equal(t, "closed", status.Breaker)
		require.True(t, status.Running)
		require.NotNil(t, status.Latency)
	})
}

func TestWake_OneRowGoesAtOnce(t *testing.T) {
	inWorld(t, func(w *world) {
		p := w.start()
		w.until(time.Minute, "ready", func() bool { return p.Status()[target].Partitions == 8 })
		begin := time.Now()
		w.insert(p, "a")
		w.delivered(time.Second)
		require.Less(t, time.Since(begin), 50*time.Millisecond)
		require.Equal(t, []outbox.Poke{{Target: "other", Partition: 3}}, p.Wake([]outbox.Poke{{Target: "other", Partition: 3}}))
	})
}

// F-01, F-02: a row of a slow transaction appears below others that were looked at before.
// Conformance: U-01.
func TestLook_ARowThatAppearsBelowOthersIsFound(t *testing.T) {
	inWorld(t, func(w *world) {
		p := w.start()
		slow := w.store.Begin()
		slow.Insert(relaytest.Row(target, topic, "a"))
		w.commit(p, 3, 3)
		w.delivered(10 * time.Second)
		slow.Commit()
		w.delivered(10 * time.Second)
		require.Len(t, w.ids("a"), 1)
	})
}

// Conformance: S1-26.
func TestStop_WaitsForCallsAndGivesAllBack(t *testing.T) {
	inWorld(t, func(w *world) {
		p := w.start()
		release := w.broker.Stall()
		w.insert(p, "a", "b")
		w.until(time.Second, "in flight", func() bool { return p.Status()[target].InFlight == 2 })
		time.AfterFunc(time.Second, release)
		require.NoError(t, p.Stop(w.Context()))
		require.Empty(t, w.store.Undelivered())
		require.Zero(t, w.store.Tokens())
		require.Empty(t, w.store.Members())
		require.False(t, p.Status()[target].Running)
	})
}

// A broker whose call ignores its context keeps no process from stopping.
func TestStop_EndsWhileTheBrokerHangs(t *testing.T) {
	inWorld(t, func(w *world) {
		hanging := make(chan struct{})
		p := w.start()
		p.broker.through(func(context.Context, []broker.Message) error { <-hanging; return nil })
		w.insert(p, "a")
		w.until(time.Second, "in flight", func() bool { return p.Status()[target].InFlight == 1 })
		ctx, cancel := context.WithTimeout(w.Context(), 3*time.Second)
		defer cancel()
		begin := time.Now()
		require.ErrorContains(t, p.Stop(ctx), "stopped in the middle of its work")
		require.Less(t, time.Since(begin), 4*time.Second)
		close(hanging)
		require.Len(t, w.store.Undelivered(), 1)
	})
}

// A transaction that stays open holds up what looks may pass: the log names it.
func TestLook_ATransactionThatStaysOpenIsNamed(t *testing.T) {
	inWorld(t, func(w *world) {
		p := w.start()
		slow := w.store.Begin()
		slow.Insert(relaytest.Row(target, topic, "a"))
		w.insert(p, "b")
		w.delivered(10 * time.Second)
		time.Sleep(3 * time.Minute) //nolint:forbidigo // in a bubble
		require.Equal(t, 1, w.logs.count("a transaction that writes to the outbox has been open for long"))
		slow.Rollback()
		time.Sleep(time.Minute) //nolint:forbidigo // in a bubble
		require.Equal(t, 1, w.logs.count("a transaction that writes"))
	})
}

func TestHousekeeping_PurgesInItsTurn(t *testing.T) {
	inWorld(t, func(w *world) {
		p := w.start()
		w.insert(p, "a", "b")
		w.delivered(time.Second)
		time.Sleep(61 * time.Minute) //nolint:forbidigo // in a bubble
		require.Equal(t, 1, w.logs.count(`msg="expired rows were removed from the outbox"`))
	})
}
