package kafka_test

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/kafka"
	"github.com/waybill-go/waybill/internal/waittest"
)

// transact opens an id, and closes it with the test.
func transact(t testing.TB, b *kafka.Broker, id string) (broker.Transactor, broker.Mark) {
	t.Helper()
	tx, mark, err := b.Transact(bounded(t), id)
	require.NoError(t, err)
	t.Cleanup(tx.Close)
	return tx, mark
}

func newID() string { return "test.waybill." + uuid.NewString() }

// received is what a new group gets of a topic until it has n messages and lags no more.
func received(t testing.TB, b *kafka.Broker, name string, n int) (all []string, c broker.Consumer) {
	t.Helper()
	c, err := b.Consume(bounded(t), name, uuid.NewString())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close(bounded(t))) })
	for len(all) < n {
		got, err := c.Receive(bounded(t), 100)
		require.NoError(t, err)
		for _, d := range got {
			all = append(all, string(d.Body))
		}
		require.NoError(t, c.Ack(bounded(t), got...))
	}
	require.Len(t, all, n)
	return all, c
}

func TestFromSettings_ExactlyOnce(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{"exactly_once: true": true, "exactly_once: false": false, "partitions: 1": false} {
		b, err := kafka.FromSettings(bounded(t), settings(fmt.Sprintf("{addresses: [%q], %s}", server(t), text)))
		require.NoError(t, err)
		require.Equal(t, want, b.(broker.Transactional).ExactlyOnce())
		require.Equal(t, want, broker.Prefixed(b, "p.").(broker.Transactional).ExactlyOnce())
		require.NoError(t, b.Close(bounded(t)))
	}
}

// Ends of transactions take offsets: a subscription lags and misses nothing for that, and
// what was taken back isn't received.
func TestTransact_ConsumersSeeWhatIsCommitted(t *testing.T) {
	t.Parallel()
	b := open(t, func(c *kafka.Config) { c.Partitions = 1 })
	name, id := topic(t, b), newID()
	tx, _ := transact(t, b, id)
	require.NoError(t, tx.Publish(bounded(t), broker.Mark{N: 1}, run(name, "a", 0, 3)))
	refused := append(run(name, "a", 100, 2), message("test.none."+uuid.NewString(), "b", ""))
	err := tx.Publish(bounded(t), broker.Mark{N: 2}, refused)
	failed := failures(t, err)
	require.Len(t, failed, 3)
	require.Equal(t, broker.ScopeTopic, broker.ScopeOf(failed[2]))
	require.ErrorIs(t, failed[0], broker.ErrTakenBack)
	tx, mark := transact(t, b, id)
	require.Equal(t, int64(1), mark.N)
	require.NoError(t, tx.Publish(bounded(t), broker.Mark{N: 3}, run(name, "a", 3, 3)))
	all, c := received(t, b, name, 6)
	require.Equal(t, []string{"0", "1", "2", "3", "4", "5"}, all)
	waittest.Until(t, func() bool {
		lag, err := c.(broker.Lagging).Lag(bounded(t))
		return err == nil && lag == 0
	})
	require.Zero(t, c.(broker.Stateful).State().Missed)
}

// A message that the topic takes no longer is named; the others are not to blame.
func TestTransact_ATooLargeMessageIsNamed(t *testing.T) {
	t.Parallel()
	b := open(t, func(c *kafka.Config) { c.MaxMessageBytes = 100_000 })
	// With its limit from the beginning: a broker hears of a change of it some time later.
	name, limit := "test."+uuid.NewString(), "2000"
	_, err := admin(t).CreateTopic(bounded(t), 1, -1, map[string]*string{"max.message.bytes": &limit}, name)
	require.NoError(t, err)
	require.NoError(t, b.EnsureTopics(bounded(t), name)) // Waits until it is ready.
	messages := run(name, "a", 0, 9)
	messages[4] = message(name, "a", string(make([]byte, 5000)))
	_, _ = rand.Read(messages[4].Body) // not to be compressed
	tx, _ := transact(t, b, newID())
	failed := failures(t, tx.Publish(bounded(t), broker.Mark{N: 1}, messages))
	require.Len(t, failed, 9)
	require.Equal(t, broker.Permanent, broker.ClassOf(failed[4]))
	require.Equal(t, broker.ScopeRow, broker.ScopeOf(failed[4]))
	for i, err := range failed {
		if i != 4 {
			require.Equal(t, broker.Unavailable, broker.ClassOf(err), "%d: %v", i, err)
			require.Equal(t, broker.ScopeRow, broker.ScopeOf(err))
		}
	}
}

// The answer to a commit, or the commit itself, is lost: who opens the id again knows.
func TestTransact_TheMarkDecidesAnUnansweredCommit(t *testing.T) {
	t.Parallel()
	for name, arrives := range map[string]bool{"it arrived": true, "it didn't": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			net := newNetwork()
			b := open(t, func(c *kafka.Config) { c.Dial = net.Dial })
			topic, id := topic(t, b), newID()
			tx, _ := transact(t, b, id)
			require.NoError(t, tx.Publish(bounded(t), broker.Mark{N: 1}, run(topic, "a", 0, 2)))
			var ended atomic.Bool
			net.on(func(request []byte) (bool, error) {
				if len(request) > 6 && int16(binary.BigEndian.Uint16(request[4:])) == kmsg.EndTxn.Int16() {
					ended.Store(true)
					return arrives, nil
				}
				return true, nil
			}, func() error {
				if ended.Load() {
					return errors.New("connection reset")
				}
				return nil
			})
			ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
			defer cancel()
			require.ErrorIs(t, tx.Publish(ctx, broker.Mark{N: 2, Note: "n"}, run(topic, "a", 2, 2)), broker.ErrUndecided)
			net.on(nil, nil)
			young, mark := transact(t, b, id)
			want := broker.Mark{N: 1}
			if arrives {
				want = broker.Mark{N: 2, Note: "n"}
			}
			require.Equal(t, want, mark)
			require.NoError(t, young.Publish(bounded(t), broker.Mark{N: 3}, run(topic, "a", 4, 1)))
			all, _ := received(t, b, topic, int(mark.N)*2+1)
			require.Equal(t, "4", all[len(all)-1])
		})
	}
}

// The mark is read behind the fence: what the old owner commits until then is in it, and
// after that it commits nothing more. (MARKERFIRST in model/tx.pml)
func TestTransact_TheMarkIsReadBehindTheFence(t *testing.T) {
	t.Parallel()
	net := newNetwork()
	old, young := open(t, nil), open(t, func(c *kafka.Config) { c.Dial = net.Dial })
	topic, id := topic(t, old), newID()
	owner, _ := transact(t, old, id)
	require.NoError(t, owner.Publish(bounded(t), broker.Mark{N: 1}, run(topic, "a", 0, 1)))
	var once sync.Once
	var late error
	net.on(func(request []byte) (bool, error) {
		if len(request) > 6 && int16(binary.BigEndian.Uint16(request[4:])) == kmsg.InitProducerID.Int16() {
			once.Do(func() { late = owner.Publish(bounded(t), broker.Mark{N: 2, Note: "late"}, run(topic, "a", 1, 1)) })
		}
		return true, nil
	}, nil)
	_, mark := transact(t, young, id)
	require.NoError(t, late)
	require.Equal(t, broker.Mark{N: 2, Note: "late"}, mark)
	require.Error(t, owner.Publish(bounded(t), broker.Mark{N: 3}, run(topic, "a", 2, 1)))
	all, _ := received(t, young, topic, 2)
	require.Equal(t, []string{"0", "1"}, all)
}

// While nobody answers, an id isn't opened, and nothing is published with one that was: both
// are told soon, and nothing of it comes later.
func TestTransact_WhileKafkaIsAway(t *testing.T) {
	t.Parallel()
	net := newNetwork()
	b := open(t, func(c *kafka.Config) { c.Dial = net.Dial })
	name, id := topic(t, b), newID()
	tx, _ := transact(t, b, id)
	require.NoError(t, tx.Publish(bounded(t), broker.Mark{N: 1}, run(name, "a", 0, 1)))
	net.cut()
	for _, err := range failures(t, tx.Publish(bounded(t), broker.Mark{N: 2}, run(name, "a", 1, 1))) {
		require.Equal(t, broker.Unavailable, broker.ClassOf(err))
		require.Equal(t, broker.ScopeBroker, broker.ScopeOf(err))
	}
	_, _, err := b.Transact(deadline(t), id)
	require.Equal(t, broker.Unavailable, broker.ClassOf(err), "%v", err)
	net.up()
	_, mark := transact(t, b, id)
	require.Equal(t, int64(1), mark.N)
	received(t, b, name, 1)
}

// A transaction for whose end kgo sends nothing, here as nothing was sent in it, isn't taken
// for one that is committed.
func TestTransact_WhatIsNotEndedIsNotCommitted(t *testing.T) {
	t.Parallel()
	b := openFake(t, fake(t), nil)
	id := newID()
	tx, _ := transact(t, b, id)
	err := tx.Publish(bounded(t), broker.Mark{N: 1}, nil)
	require.ErrorContains(t, err, "has not ended the transaction")
	require.Equal(t, broker.Unavailable, broker.ClassOf(err))
	tx.Close()
	tx, mark := transact(t, b, id)
	require.Zero(t, mark.N)
	require.NoError(t, tx.Publish(bounded(t), broker.Mark{N: 2}, run("topic", "a", 0, 1)))
}

// Kafka has forgotten an id that was idle for longer than transactional.id.expiration.ms, and
// its producer's number with it. Nothing of the call is stored, no row pays, and who opens
// the id again goes on behind its mark.
// Conformance: O1.
func TestTransact_AnIDThatExpiredIsOpenedAgain(t *testing.T) {
	t.Parallel()
	for _, key := range []kmsg.Key{kmsg.AddPartitionsToTxn, kmsg.AddOffsetsToTxn, kmsg.TxnOffsetCommit, kmsg.EndTxn} {
		t.Run(key.Name(), func(t *testing.T) {
			t.Parallel()
			c := fake(t)
			b := openFake(t, c, func(conf *kafka.Config) { conf.Options = []kgo.Opt{toldIfFailed(t)} })
			id := newID()
			tx, _ := transact(t, b, id)
			require.NoError(t, tx.Publish(bounded(t), broker.Mark{N: 1}, run("topic", "a", 0, 2)))
			top := key == kmsg.AddOffsetsToTxn || key == kmsg.EndTxn
			forgotten := c.Fault(kfake.Fault{Keys: []kmsg.Key{key}, TopLevel: top, Err: kerr.InvalidProducerIDMapping, Count: -1})
			err := tx.Publish(bounded(t), broker.Mark{N: 2}, run("topic", "a", 2, 2))
			require.Error(t, err)
			require.Positive(t, forgotten.Hits())
			if !errors.Is(err, broker.ErrUndecided) { // Then the mark says.
				failed := map[int]error{0: err}
				if partly, ok := errors.AsType[*broker.PublishError](err); ok {
					failed = partly.Failed
				}
				for _, err := range failed {
					require.Equal(t, broker.Unavailable, broker.ClassOf(err), "%v", err)
				}
			}
			t.Log(err)
			forgotten.Remove()
			tx.Close()
			tx, mark := transact(t, b, id)
			require.Equal(t, int64(1), mark.N)
			require.NoError(t, tx.Publish(bounded(t), broker.Mark{N: 3}, run("topic", "a", 4, 1)))
			all, _ := received(t, b, "topic", 3)
			require.Equal(t, []string{"0", "1", "4"}, all)
		})
	}
}

// The topic of the marks is gone, as where an empty Kafka has taken the place of another: it is
// made again, and not waited for.
func TestTransact_TheTopicOfTheMarksIsMadeAgain(t *testing.T) {
	t.Parallel()
	b := open(t, func(c *kafka.Config) { c.Partitions = 1 })
	prefix := "test." + uuid.NewString() + "."
	name, id := topic(t, b), prefix+"waybill.x"
	tx, _ := transact(t, b, id)
	require.NoError(t, tx.Publish(bounded(t), broker.Mark{N: 1}, run(name, "a", 0, 1)))
	_, err := admin(t).DeleteTopic(bounded(t), prefix+kafka.MarkTopic)
	require.NoError(t, err)
	waittest.Until(t, func() bool {
		return tx.Publish(bounded(t), broker.Mark{N: 2}, run(name, "a", 100, 1)) != nil // Kafka may take some until it has heard of it.
	})
	waittest.Until(t, func() bool {
		tx, _ := transact(t, b, id)
		return tx.Publish(bounded(t), broker.Mark{N: 3}, run(name, "a", 1, 1)) == nil // It may be listed for a moment, as well.
	})
}

// On a new Kafka who asks first for a mark comes before the coordinators of groups are there.
func TestTransact_WaitsForACoordinatorThatIsYetToCome(t *testing.T) {
	t.Parallel()
	c := fake(t)
	b := openFake(t, c, nil)
	id := newID()
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.FindCoordinator}, Group: id, Err: kerr.CoordinatorNotAvailable, Count: 10})
	_, mark := transact(t, b, id)
	require.Zero(t, mark)
}
