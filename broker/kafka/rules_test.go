package kafka

import (
	"context"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/waybill-go/waybill/broker"
)

// settled is what becomes of a message of which kgo says err.
func settled(err error, f fate) (*producer, *call) {
	c, p := newCall(1<<20, []broker.Message{{ID: "1", Topic: "orders", Key: "a"}}), &producer{}
	r := &c.records[0]
	r.err = err
	p.settle(c, 0, ending{account: account{places: map[place]*fate{r.place(): &f}}})
	return p, c
}

// kgo's word that a message is stored counts if Kafka was heard to say so of this message. Where
// it wasn't, whether it is stored isn't known, and the client that mistook it is not used again.
func TestSettle_KgosWordAloneIsNone(t *testing.T) {
	for name, test := range map[string]struct {
		fate fate
		want state
	}{
		"Kafka took it":              {fate{sent: 1, answered: 1}, stored},
		"Kafka has it from before":   {fate{sent: 2, answered: 2, last: kerr.DuplicateSequenceNumber}, stored},
		"Kafka refused it":           {fate{sent: 1, answered: 1, last: kerr.NotLeaderForPartition}, failed},
		"nobody answered":            {fate{sent: 1}, failed},
		"it was not sent":            {fate{}, failed},
		"Kafka has another one":      {fate{sent: 1, answered: 1, reused: true}, failed},
		"Kafka has another one, too": {fate{sent: 2, answered: 2, reused: true}, failed},
	} {
		t.Run(name, func(t *testing.T) {
			p, c := settled(nil, test.fate)
			require.Equal(t, test.want, c.records[0].state)
			require.Equal(t, test.want == failed, p.stale)
			if test.want == failed {
				require.Equal(t, broker.Unknown, broker.ClassOf(c.failed[0]))
			}
		})
	}
}

// Of a topic that is gone, by its name or by the id that it had, the client would ask for ever.
func TestSettle_WhoAskedForATopicThatIsGoneIsNotUsedAgain(t *testing.T) {
	for _, err := range []error{kerr.UnknownTopicOrPartition, kerr.UnknownTopicID} {
		p, c := settled(err, fate{})
		require.True(t, p.stale, "%v", err)
		require.ErrorContains(t, c.failed[0], "create it, or let EnsureTopics do so")
	}
}

// openTransactor opens an id at a Kafka in this process.
func openTransactor(t *testing.T, c *kfake.Cluster) *transactor {
	t.Helper()
	b, err := Open(t.Context(), Config{Addresses: c.ListenAddrs(), Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close(context.Background())) })
	x, _, err := b.Transact(t.Context(), "test.waybill.rules")
	require.NoError(t, err)
	t.Cleanup(x.Close)
	return x.(*transactor)
}

// A mark that is being committed is waited for: one from before it would have its claim published
// again.
func TestTransact_AMarkThatIsBeingCommittedIsWaitedFor(t *testing.T) {
	t.Parallel()
	c, err := kfake.NewCluster(kfake.NumBrokers(1))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	waits := make(chan bool, 10)
	c.ControlKey(kmsg.OffsetFetch.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		waits <- r.(*kmsg.OffsetFetchRequest).RequireStable
		return nil, nil, false
	})
	openTransactor(t, c)
	require.True(t, <-waits)
}

// With an epoch that kgo has asked for in between, which fences nobody who has opened the id since,
// nothing is published that was claimed before. Nor is with a transactor that has failed.
func TestTransact_AnotherEpochPublishesNothing(t *testing.T) {
	t.Parallel()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "topic"))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	x := openTransactor(t, c)
	x.epoch--
	messages := []broker.Message{{ID: "1", Topic: "topic", Key: "a"}}
	err = x.Publish(t.Context(), broker.Mark{N: 1}, messages)
	require.ErrorContains(t, err, "the producer has another epoch by now")
	require.Equal(t, broker.ScopeRow, broker.ScopeOf(err), "the rows are another's")
	x.epoch++
	require.ErrorContains(t, x.Publish(t.Context(), broker.Mark{N: 1}, messages), "has failed before: open its id again")
}

// A message counts once, however often it is acknowledged, and one that was released only when it
// was delivered again: what is in hand is known when the partition goes.
func TestPartition_EachIsSettledOnce(t *testing.T) {
	t.Parallel()
	c, g, _, _ := member(t)
	fetch(c, fetched(0), fetched(1), fetched(2))
	got := receive(t, c, 3)
	require.NoError(t, c.Ack(t.Context(), got[0], got[0]))
	require.NoError(t, c.Release(t.Context(), got[1], got[1]))
	require.NoError(t, c.Ack(t.Context(), got[1]))
	p := c.partitions[0]
	require.Equal(t, []any{1, int64(2)}, []any{p.out, p.unacked})
	require.Equal(t, []int64{1}, g.marked, "what comes again isn't committed")
}

// Behind a message that isn't acknowledged only so many are kept.
func TestPartition_WhatIsBehindAMessageIsBounded(t *testing.T) {
	t.Parallel()
	c, g, _, _ := member(t)
	fetch(c, fetched(0))
	first := receive(t, c, 1)
	at := int64(1)
	for !g.paused {
		records := make([]*kgo.Record, 1000)
		for i := range records {
			records[i] = fetched(at)
			at++
		}
		fetch(c, records...)
		require.NoError(t, c.Ack(t.Context(), receive(t, c, len(records))...))
		require.LessOrEqual(t, len(c.partitions[0].entries), window+len(records))
	}
	require.Empty(t, c.take(1))
	require.True(t, g.paused, "acknowledging those behind it makes no room")
	require.NoError(t, c.Ack(t.Context(), first...))
	require.Empty(t, c.take(1))
	require.False(t, g.paused)
	require.Equal(t, at, g.marked[len(g.marked)-1])
}

// That a partition isn't handed out is told of until it is, or is another member's.
func TestState_ARefusalEndsWithItsPartition(t *testing.T) {
	t.Parallel()
	c, _, _, _ := member(t)
	c.wire = Config{}.wire()
	tooLarge := &kgo.ErrDecompressTooLarge{Topic: "topic", Partition: 3, NextOffset: 9}
	refuse(c, tooLarge)
	require.ErrorAs(t, c.State().LastError, &tooLarge)
	fetch(c, fetched(9))
	require.NoError(t, c.State().LastError)
	refuse(c, tooLarge)
	require.Error(t, c.State().LastError)
	c.revoked(t.Context(), []int32{3}, false)
	require.NoError(t, c.State().LastError)
}

// A partition that isn't fetched, as it is full or about to go, has not missed what Kafka removes
// meanwhile before it is asked for. And a member without partitions may wait for a topic that is
// yet to be made.
func TestRemoved_WhoDoesNotAskMissesNothing(t *testing.T) {
	t.Parallel()
	c, _, _, _ := member(t)
	fetch(c, fetched(0))
	starts := map[int32]kadm.ListedOffset{3: {Partition: 3, Offset: 10, LeaderEpoch: 1}}
	for _, flag := range []*bool{&c.partitions[0].paused, &c.partitions[0].ending} {
		*flag = true
		var waiting map[*partition]int64
		for range 3 {
			waiting = c.compare(starts, waiting)
		}
		require.Zero(t, c.health.missed)
		*flag = false
	}
	c.revoked(t.Context(), []int32{3}, false)
	for range 3 {
		c.looked(true)
	}
	require.False(t, c.isGone(0))
}
