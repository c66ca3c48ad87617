package outbox_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/outbox/outboxtest"
)

// S3-19: four times the workers have four times the calls out, and each row is
// published once.
func TestProcessor_S3_19_MoreWorkersMoreCalls(t *testing.T) {
	b := outboxtest.Open(t, openPostgres(t))
	out := func(workers int) (calls int) {
		b.Exec("DELETE FROM outbox")
		rows := b.Insert(outboxtest.Numbered("k", 200)...)
		m := memory.New(memory.Config{})
		release := m.Stall()
		defer release()
		cfg := quick()
		cfg.Workers, cfg.BatchSize, cfg.Lease = workers, 1, 2*time.Minute
		p := processor(t, b, cfg, lane(m))
		last := -1
		require.Eventually(t, func() bool { // no more come
			before := last
			last = len(m.Calls())
			return last > 0 && last == before && p.Status()["default"].Partitions == outboxtest.Partitions
		}, 20*time.Second, 300*time.Millisecond)
		release()
		statuses(t, b, map[outbox.Status]int{outbox.Published: 200})
		require.Len(t, m.Messages(topic), 200)
		require.Equal(t, rowsByKey(rows), byKey(m.Messages(topic)))
		require.NoError(t, p.Stop(t.Context()))
		return last
	}
	one := out(1)
	require.Positive(t, one)
	require.Equal(t, 4*one, out(4))
}

// F-22: a commit wakes the worker that holds its partition and no other; it
// looks there and nowhere else.
func TestProcessor_F_22_APokeWakesOneWorker(t *testing.T) {
	b, sent := watched(outboxtest.Open(t, openSQLite(t)))
	m := memory.New(memory.Config{})
	cfg := quick()
	cfg.Workers, cfg.PollInterval, cfg.MaxPollInterval, cfg.Lease = 4, 10*time.Minute, 10*time.Minute, time.Hour
	p := processor(t, b, cfg, lane(m))
	require.Eventually(t, func() bool { return owned(p) == outboxtest.Partitions }, 20*time.Second, time.Millisecond)
	require.Eventually(t, func() bool { return len(sent.Take()) == 0 }, 20*time.Second, 300*time.Millisecond, "all have looked, and sleep")

	row := b.Insert("a")[0]
	require.Empty(t, m.Messages(topic))
	p.Wake([]outbox.Poke{{Target: "default", Partition: row.Partition}})
	require.Eventually(t, func() bool { return p.Status()["default"].Published == 1 }, 20*time.Second, time.Millisecond)
	<-time.After(200 * time.Millisecond)
	looked := regexp.MustCompile(`partition = (\d+) AND priority = 0 AND finished_at IS NULL`).FindAllString(strings.Join(sent.Take(), "\n"), -1)
	require.NotEmpty(t, looked)
	require.LessOrEqual(t, len(looked), 3)
	for _, at := range looked {
		require.Contains(t, looked[0], at)
	}
}

// F-23: workers, takeovers, housekeeping and operators at the same rows at the
// same time. Whatever deadlock they run into, no row is lost, and in the end all
// are published.
func TestProcessor_F_23_EverybodyAtOnce(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		m := memory.New(memory.Config{})
		m.FailWhere(func(broker.Message) error {
			switch rand.IntN(20) {
			case 0:
				return errors.New("not now")
			case 1:
				return broker.Classify(broker.Permanent, errors.New("never"))
			}
			return nil
		})
		cfg := quick()
		cfg.BatchSize = 10
		cfg.Retention = outbox.Retention{Abandoned: -1, Every: -1}
		first, second := processor(t, b, cfg, lane(m)), processor(t, b, cfg, lane(m))
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		var others sync.WaitGroup
		defer others.Wait()
		do := func(what string, often time.Duration, f func() error) {
			others.Go(func() {
				for ctx.Err() == nil {
					err := f()
					_, refused := errors.AsType[*outbox.RefusedError](err)
					if err != nil && !refused && ctx.Err() == nil && !strings.Contains(err.Error(), "deadlock") {
						t.Errorf("%s: %v", what, err)
					}
					<-time.After(often)
				}
			})
		}
		pick := func(s outbox.Status) (seqs []int64) {
			found, err := b.Find(ctx, outbox.Filter{Statuses: []outbox.Status{s}, Limit: 20})
			if err != nil && ctx.Err() == nil {
				t.Error(err)
			}
			for _, e := range found {
				if rand.IntN(2) == 0 {
					seqs = append(seqs, e.Seq)
				}
			}
			return seqs
		}
		operator := func(what string, s outbox.Status, verb func(...int64) error) {
			do(what, 30*time.Millisecond, func() error {
				if seqs := pick(s); len(seqs) > 0 {
					return verb(seqs...)
				}
				return nil
			})
		}
		operator("retry", outbox.Abandoned, func(seqs ...int64) error { return b.Retry(ctx, seqs...) })
		operator("retry", outbox.Failed, func(seqs ...int64) error { return b.Retry(ctx, seqs...) })
		operator("prioritize", outbox.Pending, func(seqs ...int64) error { return b.Prioritize(ctx, 3, seqs...) })
		operator("abandon", outbox.Pending, func(seqs ...int64) error { return b.Abandon(ctx, cfg.Retention, seqs...) })
		do("purge", 50*time.Millisecond, func() error {
			for _, seq := range pick(outbox.Published) {
				if _, err := b.DB.ExecContext(ctx, "UPDATE outbox SET expires_at = ? WHERE seq = ?", "2020-01-01T00:00:00.000Z", seq); err != nil {
					return err
				}
			}
			_, err := b.Purge(ctx, outbox.Retention{Batch: 7})
			return err
		})
		do("expire", 250*time.Millisecond, func() error {
			_, err := b.DB.ExecContext(ctx, "UPDATE outbox_partitions SET locked_until = ? WHERE partition = ?", "2020-01-01T00:00:00.000Z", rand.IntN(outboxtest.Partitions))
			return err
		})
		var rows []outbox.Row
		for ctx.Err() == nil {
			rows = append(rows, b.Insert(outboxtest.Numbered("k", 20)...)...)
			<-time.After(100 * time.Millisecond)
		}
		others.Wait()
		m.FailWhere(nil)
		for deadline := time.Now().Add(time.Minute); ; <-time.After(100 * time.Millisecond) {
			unfinished := 0
			for _, e := range b.Entries() {
				if e.Status != outbox.Published {
					unfinished++
				}
				if e.Status == outbox.Abandoned {
					require.NoError(t, b.Retry(t.Context(), e.Seq))
				}
			}
			if unfinished == 0 {
				break
			}
			require.True(t, time.Now().Before(deadline), "%v", b.Statuses())
		}
		arrived := map[string]bool{}
		for _, msg := range m.Messages(topic) {
			arrived[msg.ID] = true
		}
		for _, row := range rows {
			require.True(t, arrived[row.MessageID], "row of key %s", row.PartitionKey)
		}
		require.Zero(t, first.Status()["default"].OrderBreaks+second.Status()["default"].OrderBreaks)
	})
}

// F-24: whoever holds a row or a partition locked holds up its owner at most: a
// locked partition is left out, and a locked row keeps the workers of other
// partitions from nothing.
func TestProcessor_F_24_LocksHoldUpNobodyElse(t *testing.T) {
	b := outboxtest.Open(t, openPostgres(t))
	m := memory.New(memory.Config{})
	cfg := quick()
	cfg.Workers, cfg.Lease = outboxtest.Partitions, time.Minute // a partition each
	p := processor(t, b, cfg, lane(m))
	require.Eventually(t, func() bool { return owned(p) == outboxtest.Partitions }, 20*time.Second, time.Millisecond)
	locked := outbox.PartitionOf("locked", outboxtest.Partitions)
	elsewhere := map[int]string{}
	for _, key := range outboxtest.Numbered("k", 100) {
		elsewhere[outbox.PartitionOf(key, outboxtest.Partitions)] = key
	}
	require.Len(t, elsewhere, outboxtest.Partitions)
	delete(elsewhere, locked)
	published := 0
	others := func() {
		t.Helper()
		for _, key := range elsewhere {
			b.Insert(key, key)
			published += 2
		}
		require.Eventually(t, func() bool { return len(m.Messages(topic)) == published }, 10*time.Second, 10*time.Millisecond)
	}
	hold := func(query string) bun.Tx {
		tx := begin(t, b)
		_, err := tx.ExecContext(t.Context(), query, locked)
		require.NoError(t, err)
		return tx
	}
	partition := hold("SELECT 1 FROM outbox_partitions WHERE partition = ? FOR NO KEY UPDATE")
	rows := b.Insert("locked", "locked")
	others()
	row := hold("SELECT 1 FROM outbox WHERE partition = ? AND finished_at IS NULL ORDER BY seq LIMIT 1 FOR UPDATE")
	require.NoError(t, partition.Rollback())
	others()
	require.NoError(t, row.Rollback())
	statuses(t, b, map[outbox.Status]int{outbox.Published: published + 2})
	require.Equal(t, rowsByKey(rows)["locked"], byKey(m.Messages(topic))["locked"])
	require.Len(t, m.Messages(topic), published+2)
}

// F-31: what can't be sent is neither called for nor looked at all the time,
// whatever the broker says of it, and the others go on.
func TestProcessor_F_31_UnsendableDoesNotSpin(t *testing.T) {
	t.Parallel()
	for _, class := range []broker.Class{broker.Transient, broker.Permanent, broker.Unknown, broker.Unavailable} {
		t.Run(class.String(), func(t *testing.T) {
			t.Parallel()
			b, sent := watched(outboxtest.Open(t, openSQLite(t)))
			for range 20 {
				b.Insert("bad")
			}
			b.Insert(outboxtest.Numbered("k", 20)...)
			m := memory.New(memory.Config{})
			var calls atomic.Int64
			m.FailWhere(func(msg broker.Message) error {
				if msg.Key != "bad" {
					return nil
				}
				calls.Add(1)
				return broker.Classify(class, errors.New("no"))
			})
			cfg := quick()
			cfg.PollInterval, cfg.MaxPollInterval, cfg.Retry.BaseDelay = 100*time.Millisecond, 200*time.Millisecond, time.Hour
			cfg.OnAbandoned, cfg.Retry.MaxAttempts, cfg.Retention.Published = outbox.Hold, 1000, -1
			p := processor(t, b, cfg, lane(m))
			require.Eventually(t, func() bool { return p.Status()["default"].Published == 20 }, 20*time.Second, 5*time.Millisecond)
			sent.Take()
			calls.Store(0)
			const window = 2 * time.Second
			<-time.After(window)
			require.LessOrEqual(t, calls.Load(), int64(4))
			// Two workers and the keeper of their leases, at their intervals.
			require.Less(t, len(sent.Take()), 200)
			require.Len(t, m.Messages(topic), 20)
		})
	}
}
