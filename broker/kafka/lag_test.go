package kafka_test

import (
	"errors"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/internal/waittest"
)

// lags waits until the shares of members add up to want.
func lags(t testing.TB, want int, members ...broker.Consumer) {
	t.Helper()
	waittest.Until(t, func() bool {
		sum := 0
		for _, c := range members {
			lag, err := c.(broker.Lagging).Lag(bounded(t))
			if err != nil {
				return false // At first it isn't known.
			}
			sum += int(lag)
		}
		return sum == want
	}, "want %d", want)
}

// Each member knows of its own partitions, and together they know of all, one that
// has none included.
func TestLag_SharesAddUp(t *testing.T) {
	t.Parallel()
	b := open(t, brisk(2))
	name := topic(t, b)
	group := []broker.Consumer{join(t, b, name), join(t, b, name), join(t, b, name)}
	members(t, name, 3)
	lags(t, 0, group...)
	require.NoError(t, b.Publish(bounded(t), spread(name, 100)))
	// Until the group has come to rest, one may still have all of it.
	waittest.Until(t, func() bool {
		sum, standby := int64(0), 0
		for _, c := range group {
			lag, err := c.(broker.Lagging).Lag(bounded(t))
			if err != nil {
				return false
			}
			sum += lag
			if lag == 0 {
				standby++
			}
		}
		return sum == 100 && standby == 1
	})
}

// A new group on partitions whose messages Kafka has deleted has nothing to do.
func TestLag_NothingIsLeft(t *testing.T) {
	t.Parallel()
	b := open(t, brisk(2))
	name := topic(t, b)
	require.NoError(t, b.Publish(bounded(t), spread(name, 100)))
	n := len(bodiesOf(stored(t, name), 0))
	require.NotZero(t, n)
	require.NoError(t, remove(t, name, map[int32]int64{0: int64(n), 1: 3}))
	c := join(t, b, name)
	lags(t, 100-n-3, c)
	require.NoError(t, c.Ack(bounded(t), receive(t, c, 100-n-3)...))
	lags(t, 0, c)
}

// remove has Kafka delete what is before offsets.
func remove(t testing.TB, topic string, before map[int32]int64) error {
	t.Helper()
	offsets := kadm.Offsets{}
	for id, at := range before {
		offsets.Add(kadm.Offset{Topic: topic, Partition: id, At: at})
	}
	done, err := admin(t).DeleteRecords(bounded(t), offsets)
	return errors.Join(err, done.Error())
}

func bodiesOf(messages []*kgo.Record, partition int32) []string {
	var all []string
	for _, m := range messages {
		if m.Partition == partition {
			all = append(all, string(m.Value))
		}
	}
	return all
}

// The ends of transactions take offsets and are no messages, neither between
// messages nor behind the last one.
func TestLag_Transactions(t *testing.T) {
	t.Parallel()
	b := open(t, brisk(1))
	name := topic(t, b)
	transact := transactional(t, name)
	c := join(t, b, name)
	for round := range 3 {
		transact(10)
		lags(t, 10, c)
		got := receive(t, c, 10)
		require.NoError(t, c.Ack(bounded(t), got...))
		lags(t, 0, c)
		commits(t, name, map[int32]int64{0: int64(11*round + 11)}) // The mark is passed, too.
	}
	require.NoError(t, c.Close(bounded(t)))
	again := join(t, b, name)
	lags(t, 0, again)
	transact(5)
	lags(t, 5, again)
}

// transactional publishes n messages of one transaction.
func transactional(t testing.TB, topic string) func(n int) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(server(t)), kgo.TransactionalID(topic))
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return func(n int) {
		t.Helper()
		require.NoError(t, client.BeginTransaction())
		for range n {
			require.NoError(t, client.ProduceSync(bounded(t), &kgo.Record{Topic: topic, Key: []byte("key"), Value: []byte("body")}).FirstErr())
		}
		require.NoError(t, client.EndTransaction(bounded(t), kgo.TryCommit))
	}
}

// Before the group is joined the lag is not known, which is not none.
func TestLag_NotJoined(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	c := join(t, b, "test.missing."+uuid.NewString())
	_, err := c.(broker.Lagging).Lag(bounded(t))
	require.ErrorContains(t, err, "doesn't have its partitions yet")
	require.Equal(t, broker.Unavailable, broker.ClassOf(err))
}
