package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/kafka"
)

// trial is one publisher of keys of its own, and what it was told.
type trial struct {
	t        *testing.T
	b        broker.Broker
	number   int
	sent     map[string]int
	answered map[string]bool // By body.
	refused  map[string]bool // Known not to be stored.
}

// call publishes the next ten messages of five keys. Of each key, what was stored is
// a leading run.
func (tr *trial) call(ctx context.Context) {
	var call []broker.Message
	for k := range 5 {
		for range 10 {
			key := fmt.Sprintf("%d-%d", tr.number, k)
			call = append(call, message("wide", key, fmt.Sprintf("%s %05d", key, tr.sent[key])))
			tr.sent[key]++
		}
	}
	failed := map[int]error{}
	if err := tr.b.Publish(ctx, call); err != nil {
		partly, ok := errors.AsType[*broker.PublishError](err)
		if !ok {
			tr.t.Error(err) // not of the test's own goroutine
			return
		}
		failed = partly.Failed
	}
	cut := map[string]bool{}
	for i, m := range call {
		switch {
		case failed[i] != nil:
			cut[m.Key] = true
			if broker.ClassOf(failed[i]) != broker.Unknown {
				tr.refused[string(m.Body)] = true
			}
		case cut[m.Key]:
			tr.t.Errorf("key %s: a message behind a failure was stored", m.Key)
		default:
			tr.answered[string(m.Body)] = true
		}
	}
}

// requireTruth compares what publishers were told with what Kafka has.
func requireTruth(t *testing.T, c *kfake.Cluster, trials []*trial) {
	t.Helper()
	have, last := map[string]bool{}, map[string]string{}
	for _, r := range inFake(t, c, "wide") {
		body := string(r.Value)
		require.False(t, have[body], "stored twice: %s", body)
		have[body] = true
		require.Less(t, last[string(r.Key)], body, "out of order")
		last[string(r.Key)] = body
	}
	stored := 0
	for _, tr := range trials {
		for body := range tr.answered {
			require.True(t, have[body], "acknowledged and not stored: %s", body)
			stored++
		}
		for body := range tr.refused {
			require.False(t, have[body], "known not to be stored, and stored: %s", body)
		}
	}
	t.Logf("%d acknowledged, %d stored", stored, len(have))
	require.NotZero(t, stored)
}

// F-28, O1: batches are refused at random, clearly and not, of many keys over several
// partitions: each key's messages are stored in order, leading runs of each call,
// none twice, and what is said of them is true.
func TestPublish_PrefixUnderRandomRefusals(t *testing.T) {
	t.Parallel()
	c := fake(t, kfake.SeedTopics(4, "wide"))
	b := openFake(t, c, func(c *kafka.Config) { c.MaxMessageBytes, c.MaxBatchBytes = 4000, 1<<20 })
	codes := []*kerr.Error{
		kerr.NotEnoughReplicas, kerr.RequestTimedOut, kerr.NotLeaderForPartition, kerr.InvalidRecord, kerr.MessageTooLarge,
		kerr.UnknownServerError, kerr.SecurityDisabled, kerr.NotEnoughReplicasAfterAppend,
	}
	for i, code := range codes {
		var seen int
		c.Fault(kfake.Fault{
			Keys: []kmsg.Key{kmsg.Produce}, Topic: "wide", Err: code, Count: -1,
			When: func(kmsg.Request) bool { seen++; return seen%27 == i*2+1 },
		})
	}
	var wg sync.WaitGroup
	var trials []*trial
	for number := range 4 {
		tr := &trial{t: t, b: b, number: number, sent: map[string]int{}, answered: map[string]bool{}, refused: map[string]bool{}}
		trials = append(trials, tr)
		wg.Go(func() {
			for range 15 {
				tr.call(context.Background())
			}
		})
	}
	wg.Wait()
	requireTruth(t, c, trials)
}

// The same with connections that break before a request, in the middle of it, and
// behind it, and calls that are given up at any moment.
func TestPublish_PrefixUnderBrokenConnectionsAndDeadlines(t *testing.T) {
	t.Parallel()
	c := fake(t, kfake.SeedTopics(4, "wide"))
	network := newNetwork()
	b := openFake(t, c, func(c *kafka.Config) { c.MaxMessageBytes, c.MaxBatchBytes, c.Dial = 4000, 1<<20, network.Dial })
	tr := &trial{t: t, b: b, sent: map[string]int{}, answered: map[string]bool{}, refused: map[string]bool{}}
	tr.call(context.Background())
	broken := errors.New("broken")
	network.on(func(request []byte) (bool, error) {
		if !produces(request) {
			return true, nil
		}
		switch rand.IntN(8) {
		case 0:
			return false, broken
		case 1:
			return false, nil // It never arrives.
		}
		return true, nil
	}, func() error {
		if rand.IntN(20) == 0 {
			return broken
		}
		return nil
	})
	for range 25 {
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond+rand.N(300*time.Millisecond))
		tr.call(ctx)
		cancel()
	}
	network.on(nil, nil)
	for k := range 5 { // What is still on its way is refused behind these.
		require.NoError(t, b.Publish(bounded(t), []broker.Message{message("wide", fmt.Sprintf("0-%d", k), fmt.Sprintf("0-%d 99999", k))}))
	}
	requireTruth(t, c, []*trial{tr})
}

// An outage is found at once, as nobody can be reached: in the spirit of a breaker,
// for which each second of a call is one in which nothing else goes out.
func TestPublish_AnOutageIsFoundAtOnce(t *testing.T) {
	t.Parallel()
	c := fake(t)
	network := newNetwork()
	b := openFake(t, c, func(conf *kafka.Config) {
		away := nobody(t)
		conf.PublishTimeout = time.Hour
		conf.Dial = network.to(func(addr string) string {
			if network.isDown() {
				return away
			}
			return addr
		})
	})
	require.NoError(t, b.Publish(bounded(t), run("topic", "key", 0, 1)))
	network.refuse()
	for range 2 {
		ctx := bounded(t)
		failed := failures(t, b.Publish(ctx, run("topic", "key", 1, 1)))
		require.NoError(t, ctx.Err(), "nothing but the outage ended it")
		require.Equal(t, broker.Unavailable, broker.ClassOf(failed[0]), "%v", failed[0])
		require.Equal(t, broker.ScopeBroker, broker.ScopeOf(failed[0]), "%v", failed[0])
		require.ErrorContains(t, failed[0], "refused")
	}
}
