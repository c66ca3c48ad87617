package kafka

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill/broker"
)

// client is what kgo does for a member.
type client struct {
	marked  []int64
	commits int
	paused  bool
}

func (c *client) MarkCommitOffsets(offsets map[string]map[int32]kgo.EpochOffset) {
	c.marked = append(c.marked, offsets["topic"][3].Offset)
}

func (c *client) CommitMarkedOffsets(context.Context) error {
	c.commits++
	return nil
}

func (c *client) PauseFetchPartitions(map[string][]int32) map[string][]int32 {
	c.paused = true
	return nil
}

func (c *client) ResumeFetchPartitions(map[string][]int32) { c.paused = false }

// member is a consumer that has one partition. end takes the partition away, and
// ended says that it was given back.
func member(t *testing.T) (c *consumer, g *client, end func(), ended chan struct{}) {
	g = &client{}
	c = &consumer{
		broker: &Broker{conf: Config{RebalanceTimeout: 30 * time.Second}}, topic: "topic", group: g,
		logger: slog.New(slog.DiscardHandler), wake: make(chan struct{}, 1), health: health{stuck: map[int32]stuck{}},
	}
	c.ctx, c.stop = context.WithCancel(t.Context())
	c.assigned([]int32{3})
	ended = make(chan struct{})
	return c, g, func() {
		go func() {
			defer close(ended)
			c.revoked(t.Context(), []int32{3}, true)
		}()
	}, ended
}

// fetch is what polling does.
func fetch(c *consumer, records ...*kgo.Record) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fetched(kgo.FetchPartition{Partition: 3, Records: records})
	c.signal()
}

func fetched(offset int64) *kgo.Record {
	return &kgo.Record{Topic: "topic", Partition: 3, Offset: offset, Key: []byte("key"), Value: []byte("body")}
}

func receive(t *testing.T, c *consumer, n int) []broker.Delivery {
	t.Helper()
	var all []broker.Delivery
	for len(all) < n {
		got, err := c.Receive(t.Context(), n-len(all))
		require.NoError(t, err)
		all = append(all, got...)
	}
	return all
}

func offsets(deliveries []broker.Delivery) []int64 {
	var all []int64
	for _, d := range deliveries {
		all = append(all, d.Token.(*entry).at.Offset-1)
	}
	return all
}

// C-73, F-69, F-70: whatever the order of acknowledgements, nothing is committed
// beyond the first message that lacks one; offsets may have gaps.
func TestPartition_C73_NeverCommitsAheadOfInFlightOffset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, g, end, ended := member(t)
		for _, offset := range []int64{10, 11, 15, 16, 20} {
			fetch(c, fetched(offset))
		}
		got := receive(t, c, 5)
		ack := func(i ...int) {
			for _, i := range i {
				require.NoError(t, c.Ack(t.Context(), got[i]))
			}
		}
		ack(1, 2, 4)
		require.Empty(t, g.marked)
		ack(0)
		require.Equal(t, []int64{16}, g.marked)
		ack(0, 1, 2) // Again.
		ack(3)
		require.Equal(t, []int64{16, 21}, g.marked)
		end()
		<-ended
	})
}

// C-76: what is released comes again from memory, in order and before what
// wasn't delivered yet, and is not committed.
func TestPartition_C76_Release(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, g, end, ended := member(t)
		for offset := range int64(5) {
			fetch(c, fetched(offset))
		}
		got := receive(t, c, 4)
		require.NoError(t, c.Ack(t.Context(), got[0], got[3]))
		require.NoError(t, c.Release(t.Context(), got[2], got[1]))
		require.Equal(t, []int64{1}, g.marked)
		again := receive(t, c, 3)
		require.Equal(t, []int64{1, 2, 4}, offsets(again))
		require.Equal(t, 1, again[0].Redelivered)
		require.Equal(t, 0, again[2].Redelivered)
		require.NoError(t, c.Ack(t.Context(), again...))
		require.Equal(t, []int64{1, 2, 4, 5}, g.marked)
		end()
		<-ended
	})
}

// A partition that is taken away waits for what is being handled, delivers
// nothing more, and then hasn't lost anything.
func TestPartition_DrainsBeforeItIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, g, end, ended := member(t)
		for offset := range int64(3) {
			fetch(c, fetched(offset))
		}
		got := receive(t, c, 2)
		end()
		synctest.Wait()
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.Receive(short, 1)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, c.Ack(t.Context(), got[0]))
		require.NoError(t, c.Release(t.Context(), got[1]))
		synctest.Wait()
		select {
		case <-ended:
		default:
			t.Fatal("all is settled, and the partition isn't given back")
		}
		require.Equal(t, []int64{1}, g.marked)
	})
}

// lost is a message that was received, and how long after the end it and its
// partition are lost.
func lost(t *testing.T, c *consumer, ended <-chan struct{}, end func()) ([]broker.Delivery, time.Duration) {
	t.Helper()
	fetch(c, fetched(0))
	got := receive(t, c, 1)
	start := time.Now()
	end()
	<-got[0].Lost
	<-ended
	return got, time.Since(start)
}

// F-70: the wait is bounded; what isn't settled then is lost, and a late
// acknowledgement is not committed.
func TestPartition_LostAfterAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, g, end, ended := member(t)
		got, after := lost(t, c, ended, end)
		require.Equal(t, drainIn, after)
		require.NoError(t, c.Ack(t.Context(), got...))
		require.NoError(t, c.Release(t.Context(), got...))
		require.Empty(t, g.marked)
		require.Empty(t, c.partitions)
	})
}

// F-70: once the group has gone on without this member, nothing is waited for:
// others have its partitions.
func TestPartition_F70_LostWithTheMembership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, _, ended := member(t)
		_, after := lost(t, c, ended, func() {
			c.revoked(t.Context(), []int32{3}, false)
			close(ended)
		})
		require.Zero(t, after)
	})
}

// Closing doesn't wait for anybody.
func TestPartition_ClosingDoesNotDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, end, ended := member(t)
		_, after := lost(t, c, ended, func() {
			c.stop()
			end()
		})
		require.Zero(t, after)
	})
}

// Fetching pauses when enough waits, and goes on when it has been received. A
// partition that is given back while paused isn't paused when it returns.
func TestPartition_Pauses_F73(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, g, end, ended := member(t)
		large := make([]byte, fetchAhead/4)
		for offset := range int64(6) {
			m := fetched(offset)
			m.Value = large
			fetch(c, m)
		}
		synctest.Wait()
		require.True(t, g.paused)
		got := receive(t, c, 6)
		require.False(t, g.paused)
		require.NoError(t, c.Release(t.Context(), got...))
		fetch(c, fetched(6))
		synctest.Wait()
		require.True(t, g.paused)
		end()
		<-ended
		require.False(t, g.paused)
	})
}

// refuse is what polling says of the partition when Kafka refuses it.
func refuse(c *consumer, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fetched(kgo.FetchPartition{Partition: 3, Err: err})
	c.signal()
}

// What is acknowledged of a topic that Kafka doesn't know any more is not committed, as it
// would count for the one that is created under its name. That the topic is gone is said
// when that lasts, whatever was refused before.
func TestPartition_NothingOfADeletedTopicIsCommitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, g, end, ended := member(t)
		fetch(c, fetched(0), fetched(1))
		got := receive(t, c, 2)
		require.NoError(t, c.Ack(t.Context(), got[0]))
		require.Equal(t, []int64{1}, g.marked)
		refuse(c, kerr.TopicAuthorizationFailed)
		<-time.After(2 * goneFor)
		refuse(c, kerr.UnknownTopicID)
		require.False(t, c.isGone(goneFor), "for a moment, a topic that was just created isn't known either")
		require.NoError(t, c.Ack(t.Context(), got[1]))
		require.Equal(t, []int64{1}, g.marked)
		<-time.After(goneFor)
		refuse(c, kerr.UnknownTopicID)
		_, err := c.Receive(t.Context(), 1)
		require.ErrorContains(t, err, "was deleted, and may have been created again")
		end()
		<-ended
		require.Zero(t, g.commits)
	})
}

// A topic that isn't there in two looks in a row is gone, though nothing of it is refused.
func TestPartition_ATopicThatLooksDoNotFindIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, g, end, ended := member(t)
		fetch(c, fetched(0))
		got := receive(t, c, 1)
		for _, lacks := range []bool{true, false, true} {
			c.looked(lacks)
			require.False(t, c.isGone(0), "for a moment, a topic that was just created isn't known either")
		}
		c.looked(true)
		require.NoError(t, c.Ack(t.Context(), got...))
		require.Empty(t, g.marked)
		_, err := c.Receive(t.Context(), 1)
		require.ErrorContains(t, err, "was deleted, and may have been created again")
		end()
		<-ended
	})
}

// What was delivered of a topic that was deleted is nowhere else: the member isn't over, and
// joined again without it, before it is settled. What Kafka had beside it is counted, and so
// is what is not settled in time.
func TestPartition_WhatWasFetchedOfADeletedTopicIsHandled(t *testing.T) {
	for name, settles := range map[string]bool{"settled": true, "not settled": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, _, end, ended := member(t)
				c.mu.Lock()
				c.fetched(kgo.FetchPartition{Partition: 3, Records: []*kgo.Record{fetched(0), fetched(1)}, HighWatermark: 5})
				c.mu.Unlock()
				got := receive(t, c, 2)
				over := make(chan error, 1)
				go func() {
					_, err := c.Receive(t.Context(), 1)
					over <- err
				}()
				refusing := func(d time.Duration) {
					for began := time.Now(); time.Since(began) < d; <-time.After(time.Second) {
						refuse(c, kerr.UnknownTopicID)
					}
					synctest.Wait()
				}
				refusing(10 * goneFor)
				require.Empty(t, over, "what was delivered is still worked on")
				lost := func() int64 {
					c.mu.Lock()
					defer c.mu.Unlock()
					return c.health.missed
				}
				require.Zero(t, lost())
				missed := 5
				if settles {
					require.NoError(t, c.Ack(t.Context(), got...))
					missed = 3
				}
				refusing(goneFor + settleIn)
				require.ErrorContains(t, <-over, "was deleted, and may have been created again")
				require.EqualValues(t, missed, lost())
				_, err := c.Receive(t.Context(), 1)
				require.ErrorContains(t, err, "was deleted")
				require.EqualValues(t, missed, lost(), "once")
				end()
				<-ended
			})
		})
	}
}

// joining is told of a client before it joins.
type joining func(*kgo.Client)

func (j joining) OnNewClient(client *kgo.Client) { j(client) }

// On a busy machine kgo joined before NewClient returned, and what it called back found no
// client: the process ended. assigned, which comes first, waits until there is one.
func TestJoin_WhatIsCalledBackFindsTheClient(t *testing.T) {
	t.Parallel()
	c, _, _, _ := member(t)
	waits := false
	c.broker.conf = Config{Addresses: []string{"127.0.0.1:1"}, Options: []kgo.Opt{kgo.WithHooks(joining(func(*kgo.Client) {
		if waits = !c.mu.TryLock(); !waits {
			c.mu.Unlock()
		}
	}))}}.withDefaults()
	c.wire = c.broker.conf.wire()
	require.NoError(t, c.join("group"))
	defer c.client.Close()
	require.True(t, waits)
}

// What was fetched before Kafka removed it may be on its way when Kafka is asked where the
// partition begins: only who stands still has missed something, and what is in hand is
// settled before that is passed.
func TestPartition_WhoStandsStillHasMissedWhatWasRemoved(t *testing.T) {
	t.Parallel()
	c, g, _, _ := member(t)
	fetch(c, fetched(0), fetched(1))
	starts := map[int32]kadm.ListedOffset{3: {Partition: 3, Offset: 10, LeaderEpoch: 1}}
	waiting := c.compare(starts, nil)
	fetch(c, fetched(2))
	waiting = c.compare(starts, waiting)
	require.Zero(t, c.health.missed)
	waiting = c.compare(starts, waiting)
	require.EqualValues(t, 7, c.health.missed)
	require.Empty(t, c.compare(starts, waiting))
	require.EqualValues(t, 7, c.health.missed)
	require.Empty(t, g.marked)
	require.NoError(t, c.Ack(t.Context(), receive(t, c, 3)...))
	require.Equal(t, int64(10), g.marked[len(g.marked)-1])
}
