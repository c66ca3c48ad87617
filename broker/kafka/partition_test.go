package kafka

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
)

// session and claim are what sarama gives a handler.
type session struct {
	sarama.ConsumerGroupSession
	ctx    context.Context
	expire context.CancelFunc
	marked []int64
}

func (s *session) Context() context.Context { return s.ctx }

func (s *session) MarkOffset(_ string, _ int32, offset int64, _ string) {
	s.marked = append(s.marked, offset)
}

type claim struct {
	sarama.ConsumerGroupClaim
	messages chan *sarama.ConsumerMessage
}

func (c claim) Topic() string                            { return "topic" }
func (c claim) Partition() int32                         { return 3 }
func (c claim) InitialOffset() int64                     { return 0 }
func (c claim) HighWaterMarkOffset() int64               { return 100 }
func (c claim) Messages() <-chan *sarama.ConsumerMessage { return c.messages }

type group struct {
	sarama.ConsumerGroup
	paused bool
}

func (g *group) Pause(map[string][]int32)  { g.paused = true }
func (g *group) Resume(map[string][]int32) { g.paused = false }

// member is a consumer that has one partition. end takes the partition away, and
// ended says that it was given back.
func member(t *testing.T) (c *consumer, s *session, messages chan *sarama.ConsumerMessage, end func(), ended chan struct{}) {
	messages = make(chan *sarama.ConsumerMessage)
	c = &consumer{group: &group{}, logger: slog.New(slog.DiscardHandler), conf: sarama.NewConfig(), wake: make(chan struct{}, 1)}
	c.ctx, c.stop = context.WithCancel(t.Context())
	s = &session{}
	s.ctx, s.expire = context.WithCancel(c.ctx)
	ended = make(chan struct{})
	go func() {
		defer close(ended)
		_ = c.ConsumeClaim(s, claim{messages: messages})
	}()
	return c, s, messages, func() { close(messages) }, ended
}

func fetched(offset int64) *sarama.ConsumerMessage {
	return &sarama.ConsumerMessage{Topic: "topic", Partition: 3, Offset: offset, Key: []byte("key"), Value: []byte("body")}
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
		all = append(all, d.Token.(*entry).offset)
	}
	return all
}

// C-73, F-69, F-70: whatever the order of acknowledgements, nothing is committed
// beyond the first message that lacks one; offsets may have gaps.
func TestPartition_C73_NeverCommitsAheadOfInFlightOffset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s, messages, end, ended := member(t)
		for _, offset := range []int64{10, 11, 15, 16, 20} {
			messages <- fetched(offset)
		}
		got := receive(t, c, 5)
		ack := func(i ...int) {
			for _, i := range i {
				require.NoError(t, c.Ack(t.Context(), got[i]))
			}
		}
		ack(1, 2, 4)
		require.Empty(t, s.marked)
		ack(0)
		require.Equal(t, []int64{16}, s.marked)
		ack(0, 1, 2) // Again.
		ack(3)
		require.Equal(t, []int64{16, 21}, s.marked)
		end()
		<-ended
	})
}

// C-76: what is released comes again from memory, in order and before what
// wasn't delivered yet, and is not committed.
func TestPartition_C76_Release(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s, messages, end, ended := member(t)
		for offset := range int64(5) {
			messages <- fetched(offset)
		}
		got := receive(t, c, 4)
		require.NoError(t, c.Ack(t.Context(), got[0], got[3]))
		require.NoError(t, c.Release(t.Context(), got[2], got[1]))
		require.Equal(t, []int64{1}, s.marked)
		again := receive(t, c, 3)
		require.Equal(t, []int64{1, 2, 4}, offsets(again))
		require.Equal(t, 1, again[0].Redelivered)
		require.Equal(t, 0, again[2].Redelivered)
		require.NoError(t, c.Ack(t.Context(), again...))
		require.Equal(t, []int64{1, 2, 4, 5}, s.marked)
		end()
		<-ended
	})
}

// A partition that is taken away waits for what is being handled, delivers
// nothing more, and then hasn't lost anything.
func TestPartition_DrainsBeforeItIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s, messages, end, ended := member(t)
		for offset := range int64(3) {
			messages <- fetched(offset)
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
		require.Equal(t, []int64{1}, s.marked)
	})
}

// lost is a message that was received, and how long after the end it and its
// partition are lost.
func lost(t *testing.T, c *consumer, messages chan<- *sarama.ConsumerMessage, ended <-chan struct{}, end func()) ([]broker.Delivery, time.Duration) {
	t.Helper()
	messages <- fetched(0)
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
		c, s, messages, end, ended := member(t)
		got, after := lost(t, c, messages, ended, end)
		require.Equal(t, drainIn, after)
		require.NoError(t, c.Ack(t.Context(), got...))
		require.NoError(t, c.Release(t.Context(), got...))
		require.Empty(t, s.marked)
		require.Empty(t, c.partitions)
	})
}

// F-70: once the group has gone on without this member, nothing is waited for:
// others have its partitions.
func TestPartition_F70_LostWithTheMembership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s, messages, _, ended := member(t)
		_, after := lost(t, c, messages, ended, s.expire)
		require.Zero(t, after)
	})
}

// Closing doesn't wait for anybody.
func TestPartition_ClosingDoesNotDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, messages, end, ended := member(t)
		_, after := lost(t, c, messages, ended, func() {
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
		c, _, messages, end, ended := member(t)
		g := c.group.(*group)
		large := make([]byte, fetchAhead/4)
		for offset := range int64(6) {
			m := fetched(offset)
			m.Value = large
			messages <- m
		}
		synctest.Wait()
		require.True(t, g.paused)
		got := receive(t, c, 6)
		require.False(t, g.paused)
		require.NoError(t, c.Release(t.Context(), got...))
		messages <- fetched(6)
		synctest.Wait()
		require.True(t, g.paused)
		end()
		<-ended
		require.False(t, g.paused)
	})
}

// What ends transactions is passed, and messages never are.
func TestLag_PassesOnlyMarks(t *testing.T) {
	batch := func(first int64, control bool) *sarama.Records {
		return &sarama.Records{RecordBatch: &sarama.RecordBatch{FirstOffset: first, LastOffsetDelta: 1, Control: control}}
	}
	mark, data := true, false
	require.Equal(t, int64(5), behindMarks(5, nil))
	require.Equal(t, int64(9), behindMarks(5, []*sarama.Records{batch(5, mark), batch(7, mark)}))
	require.Equal(t, int64(7), behindMarks(5, []*sarama.Records{batch(5, mark), batch(7, data), batch(9, mark)}))
	require.Equal(t, int64(6), behindMarks(6, []*sarama.Records{batch(5, data), batch(7, mark)}))
	require.Equal(t, int64(5), behindMarks(5, []*sarama.Records{{MsgSet: &sarama.MessageSet{}}}))
}
