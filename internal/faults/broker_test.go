package faults

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/chaos"
	"github.com/waybill-go/waybill/internal/verdict"
	"github.com/waybill-go/waybill/outbox"
)

// C-65, F-32, S4-21, S1-01, S1-03, S1-06, S1-12: Kafka is away for two minutes, with 20,000 rows waiting: gone, or
// there and silent. No row pays for it, and when Kafka is back, all are published
// soon and in order. Commits don't notice.
//
// It takes longest, and stands in the first file so that it begins first.
//
// Conformance: S1-01, S1-03, S1-06, S1-12, S2-02, S4-21.
//
//nolint:tparallel // Its parts share a Kafka that each of them stops.
func TestOutage_C_65_F_05_F_32(t *testing.T) {
	t.Parallel()
	t.Run("refuses connections", func(t *testing.T) {
		outage(t, func() { ownKafka.signal(t, syscall.SIGKILL) }, func() { ownKafka.up(t) })
	})
	t.Run("accepts connections and answers nothing", func(t *testing.T) {
		outage(t, func() { ownKafka.signal(t, syscall.SIGSTOP) }, func() { ownKafka.signal(t, syscall.SIGCONT) })
	})
	t.Run("falls silent under load", silence)
	t.Run("stalls while units commit", stalled)
	t.Run("is killed while transactions are open", exactOutage)
	t.Run("refuses some topics", unwritable)
	t.Run("refuses some topics in a storm of kills", storm)
}

func outage(t *testing.T, down, up func()) {
	rows, away := 2000, 15*time.Second
	if long() {
		rows, away = 20000, 2*time.Minute
	}
	w := newWorldOn(t, ownKafka.up(t), 20, 1<<20)
	e := w.engine(func(n *nodeConfig) {
		n.Outbox.Lease, n.Outbox.PublishTimeout, n.Outbox.BatchSize = 20*time.Second, 3*time.Second, 500
	})
	w.drain()
	over := time.After(away)
	fault, since := verdict.Incident{Kind: "silence", From: time.Now()}, w.now()
	t.Cleanup(up) // whatever happens, for those that come after
	down()
	w.move(20, rows/20)
	<-over
	tried, paid := w.calls("= 'default'", since)
	require.Positive(t, tried)
	require.Zero(t, paid, "nobody pays")
	require.Zero(t, w.count("outbox WHERE status = 'abandoned'"))
	require.Equal(t, rows, w.waiting())
	up()
	back := time.Now()
	w.drain()
	t.Logf("all is published %v after Kafka is back", time.Since(back))
	fault.Until = time.Now()
	w.note(fault)
	r := w.check()
	require.Equal(t, rows+20, r.Events)
	e.terminate()
}

// silence comes under load, with calls out, again and again: what Kafka took
// without saying so comes twice, and nothing comes out of order.
func silence(t *testing.T) {
	rounds := 2
	if long() {
		rounds = 12
	}
	w := newWorldOn(t, ownKafka.up(t), 30, 1<<20)
	quick := func(n *nodeConfig) { n.Outbox.Lease, n.Outbox.PublishTimeout = 8*time.Second, 3*time.Second }
	w.engine(quick)
	w.engine(quick)
	writer := w.writer(30, 4, 20*time.Millisecond)
	t.Cleanup(func() { ownKafka.signal(t, syscall.SIGCONT) })
	for range rounds {
		w.publishes(100)
		fault := verdict.Incident{Kind: "silence", From: time.Now()}
		ownKafka.signal(t, syscall.SIGSTOP)
		since := w.now()
		eventually(t, func() bool {
			return w.count("witness WHERE old = 'processing' AND new IN ('pending', 'failed') AND at > $1::timestamptz", since) > 0
		}, "a row shows the outage")
		ownKafka.signal(t, syscall.SIGCONT)
		fault.Until = time.Now().Add(5 * time.Second) // what is out when it comes back may still end late
		w.note(fault)
	}
	writer.terminate()
	w.drain()
	w.check()
}

// F-07, C-62, F-30: of 1,000 messages of ten keys the broker refuses one as too
// large, and Waybill another: both are abandoned at once, with the words of whoever
// refused, their keys go on or are held, and all others are published in order.
// Conformance: U-05.
func TestTooLarge_F_07_C_62_F_30(t *testing.T) {
	t.Parallel()
	for _, policy := range []outbox.OnAbandoned{outbox.Skip, outbox.Hold} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			w := newWorldOn(t, environment(t, "WAYBILL_KAFKA"), 10, 20_000)
			w.move(10, 49)
			large := map[string]string{}
			for i, size := range map[int]int{3: 30_000, 7: 100_000} {
				noise := make([]byte, size)
				_, _ = rand.Read(noise) // never fails, says its documentation
				require.NoError(t, w.update(t.Context(), i, base64.StdEncoding.EncodeToString(noise)))
				large[chaos.AccountID(i)] = w.strings("SELECT message_id::text FROM outbox ORDER BY seq DESC LIMIT 1")[0]
			}
			w.move(10, 49)
			for i := range 10 {
				if i != 3 && i != 7 {
					require.NoError(t, w.update(context.Background(), i, ""))
				}
			}
			w.engine(lease(time.Minute), func(c *nodeConfig) { c.Outbox.OnAbandoned, c.MaxMessageBytes = policy, 60_000 })
			waiting := 0
			if policy == outbox.Hold {
				waiting = 2 * 49
			}
			eventually(t, func() bool {
				return w.published() == 998-waiting && w.count("outbox WHERE status = 'abandoned'") == 2
			}, "the others are published")
			r := w.check(large[chaos.AccountID(3)], large[chaos.AccountID(7)])
			require.Zero(t, r.Odd())
			require.Equal(t, 998-waiting, r.Deliveries-r.Duplicates)
			why := func(i int) string {
				return strings.Join(w.strings("SELECT failure_class || ', ' || attempts || ': ' || last_error FROM outbox WHERE message_id = $1", large[chaos.AccountID(i)]), "")
			}
			require.Regexp(t, "^permanent, 1: kafka: topic .* larger than", why(3))
			require.Regexp(t, "^permanent, 1: kafka: message .* the limit is 60000", why(7))
			require.Equal(t, waiting, w.count("outbox WHERE status = 'pending' AND attempts = 0"))
		})
	}
}
