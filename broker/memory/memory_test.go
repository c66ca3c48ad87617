package memory_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/brokertest"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/internal/adaptertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	for name, cfg := range map[string]memory.Config{
		"broker/memory":           {},
		"broker/memory, NoPrefix": {NoPrefix: true},
		"broker/memory, Dedup":    {Dedup: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := memory.New(cfg)
			fail := func(class broker.Class) func(*testing.T, broker.Broker, string) {
				return func(t *testing.T, _ broker.Broker, id string) {
					t.Cleanup(func() { b.FailWhere(nil) })
					b.FailWhere(func(m broker.Message) error {
						if m.ID != id {
							return nil
						}
						return broker.Classify(class, errors.New("told to fail"))
					})
				}
			}
			adaptertest.Run(t, name, brokertest.Config{
				Open: func(*testing.T) broker.Broker { return b.Connect() },
				Stop: func(*testing.T) func() {
					b.SetOutage(true)
					return func() { b.SetOutage(false) }
				},
				Fail: map[broker.Class]func(*testing.T, broker.Broker, string){
					broker.Transient:   fail(broker.Transient),
					broker.Unavailable: fail(broker.Unavailable),
					broker.Unknown:     fail(broker.Unknown),
					broker.Permanent:   fail(broker.Permanent),
				},
			})
		})
	}
}

func message(key, body string) broker.Message {
	return broker.Message{ID: key + body, Topic: "topic", Key: key, Body: []byte(body)}
}

func stored(b *memory.Broker) []string {
	var all []string
	for _, m := range b.Messages("topic") {
		all = append(all, m.ID)
	}
	return all
}

func TestFailNextFailsWholeCalls(t *testing.T) {
	b := memory.New(memory.Config{})
	call := []broker.Message{message("a", "1"), message("b", "1")}
	b.FailNext(2, broker.Transient)
	for range 2 {
		require.Equal(t, broker.Transient, broker.ClassOf(b.Publish(t.Context(), call)))
	}
	require.Empty(t, stored(b))
	require.NoError(t, b.Publish(t.Context(), call))
	require.Equal(t, []string{"a1", "b1"}, stored(b))
	require.Equal(t, []int{2, 2, 2}, b.Calls())
}

// O1: faults have the scope of what they stand for.
func TestFaultsHaveAScope(t *testing.T) {
	b := memory.New(memory.Config{})
	other := broker.Message{ID: "o1", Topic: "other", Key: "o"}
	call := []broker.Message{message("a", "1"), other, message("a", "2"), {Topic: "other"}}
	b.SetTopicOutage("topic", true)
	failed, ok := errors.AsType[*broker.PublishError](b.Publish(t.Context(), call))
	require.True(t, ok)
	require.Len(t, failed.Failed, 3)
	for i, want := range map[int]struct {
		class broker.Class
		scope broker.Scope
	}{
		0: {broker.Transient, broker.ScopeTopic},
		2: {broker.Unavailable, broker.ScopeRow},
		3: {broker.Permanent, broker.ScopeRow},
	} {
		require.Equal(t, want.class, broker.ClassOf(failed.Failed[i]))
		require.Equal(t, want.scope, broker.ScopeOf(failed.Failed[i]))
	}
	b.SetTopicOutage("topic", false)
	require.NoError(t, b.Publish(t.Context(), call[:1]))
	require.Equal(t, []string{"a1"}, stored(b))

	b.SetOutage(true)
	require.Equal(t, broker.ScopeBroker, broker.ScopeOf(b.Publish(t.Context(), call[:1])))
	b.SetOutage(false)
	b.FailNext(1, broker.Transient)
	require.Equal(t, broker.ScopeUnknown, broker.ScopeOf(b.Publish(t.Context(), call[:1])))
}

func TestLostAckStoresAndAnswersUnknown(t *testing.T) {
	b := memory.New(memory.Config{})
	call := []broker.Message{message("a", "1")}
	b.LoseAcks(1)
	require.Equal(t, broker.Unknown, broker.ClassOf(b.Publish(t.Context(), call)))
	require.NoError(t, b.Publish(t.Context(), call))
	require.Equal(t, []string{"a1", "a1"}, stored(b), "duplicates show")
}

func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New(memory.Config{})
		require.NoError(t, b.Publish(t.Context(), []broker.Message{message("a", "1")}))
		c, err := b.Consume(t.Context(), "topic", "group")
		require.NoError(t, err)
		b.SetOutage(true)

		for _, err := range []error{
			b.Publish(t.Context(), []broker.Message{message("a", "2")}),
			b.EnsureTopics(t.Context(), "other"),
			c.Ack(t.Context()),
		} {
			require.Error(t, err)
			require.Equal(t, broker.Unavailable, broker.ClassOf(err))
		}
		var got []broker.Delivery
		var wg sync.WaitGroup
		wg.Go(func() { got, err = c.Receive(t.Context(), 10) })
		synctest.Wait()
		require.Empty(t, got, "Receive waits for the broker")
		b.SetOutage(false)
		wg.Wait()
		require.NoError(t, err)
		require.Len(t, got, 1)
	})
}

func TestStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New(memory.Config{})
		release := b.Stall()

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.Equal(t, broker.Unknown, broker.ClassOf(b.Publish(ctx, []broker.Message{message("a", "1")})))

		var err error
		var wg sync.WaitGroup
		wg.Go(func() { err = b.Publish(t.Context(), []broker.Message{message("a", "2")}) })
		synctest.Wait()
		require.Equal(t, []int{1, 1}, b.Calls(), "a stalled call is seen")
		require.Empty(t, stored(b))
		release()
		wg.Wait()
		require.NoError(t, err)
		require.Equal(t, []string{"a2"}, stored(b), "what was given up isn't stored later")
		require.NoError(t, b.Publish(t.Context(), []broker.Message{message("a", "3")}))
	})
}

func TestRevokeTellsTheHolder(t *testing.T) {
	b := memory.New(memory.Config{})
	require.NoError(t, b.Publish(t.Context(), []broker.Message{message("a", "1"), message("b", "1")}))
	c, err := b.Consume(t.Context(), "topic", "group")
	require.NoError(t, err)
	first, err := c.Receive(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, first, 2)
	require.NoError(t, c.Ack(t.Context(), first[1]))

	b.Revoke("topic", "group")
	<-first[0].Lost
	require.NoError(t, c.Ack(t.Context(), first[0]))
	require.Equal(t, 1, b.Unacknowledged("topic", "group"), "what was taken back can't be acknowledged")
	again, err := c.Receive(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, again, 1)
	require.Equal(t, 1, again[0].Redelivered)
	require.NoError(t, c.Ack(t.Context(), again...))
	require.Zero(t, b.Unacknowledged("topic", "group"))
}

func TestKeyStaysWithOneMember(t *testing.T) {
	b := memory.New(memory.Config{})
	for i := range 4 {
		require.NoError(t, b.Publish(t.Context(), []broker.Message{message("a", fmt.Sprint(i)), message("b", fmt.Sprint(i))}))
	}
	one, err := b.Consume(t.Context(), "topic", "group")
	require.NoError(t, err)
	two, err := b.Connect().Consume(t.Context(), "topic", "group")
	require.NoError(t, err)
	first, err := one.Receive(t.Context(), 1) // a0
	require.NoError(t, err)
	others, err := two.Receive(t.Context(), 10)
	require.NoError(t, err)
	for _, d := range others {
		require.Equal(t, "b", d.Key, "a is with the other member")
	}
	require.NoError(t, one.Ack(t.Context(), first...))
	rest, err := two.Receive(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, "a1", rest[0].ID, "a is free again")
}

func TestStoredMessagesAreCopies(t *testing.T) {
	b := memory.New(memory.Config{})
	m := message("a", "1")
	require.NoError(t, b.Publish(t.Context(), []broker.Message{m}))
	m.Body[0] = 'x'
	b.Messages("topic")[0].Body[0] = 'y'
	require.Equal(t, "1", string(b.Messages("topic")[0].Body))
}

func TestClose(t *testing.T) {
	b := memory.New(memory.Config{})
	other := b.Connect()
	require.NoError(t, b.Publish(t.Context(), []broker.Message{message("a", "1")}))
	c, err := b.Consume(t.Context(), "topic", "group")
	require.NoError(t, err)
	_, err = c.Receive(t.Context(), 1)
	require.NoError(t, err)
	require.NoError(t, b.Close(t.Context()))
	require.NoError(t, b.Close(t.Context()))

	require.Equal(t, broker.Unavailable, broker.ClassOf(b.Publish(t.Context(), nil)))
	_, err = c.Receive(t.Context(), 1)
	require.Error(t, err)
	require.Len(t, b.Messages("topic"), 1, "what was stored can still be looked at")
	next, err := other.Consume(t.Context(), "topic", "group")
	require.NoError(t, err)
	again, err := next.Receive(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, "a1", again[0].ID)
}

func TestInvalidMessagesArePermanent(t *testing.T) {
	b := memory.New(memory.Config{NoPrefix: true})
	err := b.Publish(t.Context(), []broker.Message{{ID: "1", Topic: "topic"}, message("a", "1"), message("a", "2")})
	failed, ok := errors.AsType[*broker.PublishError](err)
	require.True(t, ok)
	require.Len(t, failed.Failed, 2)
	require.Equal(t, broker.Permanent, broker.ClassOf(failed.Failed[0]))
	require.Equal(t, broker.Permanent, broker.ClassOf(failed.Failed[2]), "two messages of a key without Prefix")
	require.Equal(t, []string{"a1"}, stored(b))
}
