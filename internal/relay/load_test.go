package relay_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/outbox"
)

// S3-19: a lane that may have four times the calls out has them, and each row is
// published once.
func TestProcessor_S3_19_MoreCallsAtOnce(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		for _, calls := range []int{1, 4} {
			rows := b.Insert(outboxdbtest.Numbered("k", 100)...)
			m := memory.New(memory.Config{})
			release := m.Stall()
			cfg := quick()
			cfg.Calls, cfg.BatchSize, cfg.Lease = calls, 1, 2*time.Minute
			p := processor(t, b, cfg, to(m))
			eventually(t, func() bool { return len(m.Calls()) >= calls }, "they are out")
			require.Never(t, func() bool { return len(m.Calls()) > calls }, 300*time.Millisecond, 50*time.Millisecond)
			release()
			eventually(t, func() bool { return p.Status()[target].Published == 100 }, "all are published")
			require.Len(t, m.Messages(orders), 100)
			require.Equal(t, rowsByKey(rows), byKey(m.Messages(orders)))
			require.NoError(t, p.Stop(t.Context()))
		}
	})
}

// F-22: a commit has the lane look at its partition, and nowhere else.
func TestProcessor_F_22_APokeLooksAtItsPartition(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		store := counted(b)
		m := memory.New(memory.Config{})
		p := start(t, relay.Config{Store: store, Lanes: []relay.Lane{to(m)}, Outbox: patient()})
		eventually(t, func() bool { return owned(p) == outboxdbtest.Partitions }, "it has all")
		eventually(t, func() bool { return store.looked() == outboxdbtest.Partitions }, "it has looked at all")
		waittest.Until(t, func() bool {
			store.take()
			<-time.After(100 * time.Millisecond) // the poll after it has joined is still to come
			_, n := store.take()
			return n == 0
		}, "it sleeps")

		row := b.Insert("a")[0]
		require.Empty(t, m.Messages(orders))
		p.Wake([]outbox.Poke{{Target: target, Partition: row.Partition}})
		eventually(t, func() bool { return p.Status()[target].Published == 1 }, "it is published")
		<-time.After(200 * time.Millisecond)
		store.mu.Lock()
		defer store.mu.Unlock()
		require.NotEmpty(t, store.looks)
		require.LessOrEqual(t, len(store.looks), 3)
		for _, at := range store.looks {
			require.Equal(t, row.Partition, at.Part)
		}
	})
}

// F-23: relays, takeovers, housekeeping and operators at the same rows at the
// same time. Whatever deadlock they run into, no row is lost, and in the end all
// are published.
func TestProcessor_F_23_EverybodyAtOnce(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		m := memory.New(memory.Config{})
		m.FailWhere(func(broker.Message) error {
			switch rand.IntN(20) {
			case 0:
				return refuse("not now")
			case 1:
				return broker.Classify(broker.Permanent, errors.New("never"))
			}
			return nil
		})
		cfg := quick()
		cfg.BatchSize = 10
		cfg.Retention = outbox.Retention{Abandoned: -1, Every: -1}
		first, second := processor(t, b, cfg, to(m)), processor(t, b, cfg, to(m))
		rows := everybody(t, b)
		m.FailWhere(nil)
		eventually(t, func() bool {
			for _, e := range entries(t, b) {
				if e.Status == outbox.Abandoned {
					require.NoError(t, change(t.Context(), b, outbox.VerbRetry, e.Seq))
				}
			}
			return b.Count("SELECT (SELECT count(*) FROM outbox_queue) + (SELECT count(*) FROM outbox_abandoned)") == 0
		}, "all are published")
		arrived := map[string]bool{}
		for _, msg := range m.Messages(orders) {
			arrived[msg.ID] = true
		}
		for _, row := range rows {
			require.True(t, arrived[row.MessageID], "row of key %s", row.PartitionKey)
		}
		require.Zero(t, first.Status()[target].OrderBreaks+second.Status()[target].OrderBreaks)
	})
}

// everybody has units of work, operators, housekeeping and the end of leases work at once
// for three seconds, and returns what was inserted.
func everybody(t *testing.T, b *outboxdbtest.Bench) (rows []outbox.Row) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	var others sync.WaitGroup
	defer others.Wait()
	do := func(what string, often time.Duration, f func() error) {
		others.Go(func() {
			for ctx.Err() == nil {
				if err := f(); err != nil && ctx.Err() == nil && !strings.Contains(err.Error(), "deadlock") {
					t.Errorf("%s: %v", what, err)
				}
				<-time.After(often)
			}
		})
	}
	operator := func(verb outbox.Verb, s outbox.Status) {
		do(string(verb), 30*time.Millisecond, func() error {
			found, err := b.Find(ctx, outbox.Filter{Statuses: []outbox.Status{s}, Limit: 20})
			var seqs []int64
			for _, e := range found {
				if rand.IntN(2) == 0 {
					seqs = append(seqs, e.Seq)
				}
			}
			if err != nil || len(seqs) == 0 {
				return err
			}
			return change(ctx, b, verb, seqs...)
		})
	}
	operator(outbox.VerbRetry, outbox.Abandoned)
	operator(outbox.VerbRetry, outbox.Failed)
	operator(outbox.VerbAbandon, outbox.Pending)
	do("purge", 50*time.Millisecond, func() error {
		_, err := b.Purge(ctx, outbox.Retention{Published: 200 * time.Millisecond, Abandoned: -1})
		return err
	})
	do("expire", 250*time.Millisecond, func() error {
		_, err := b.DB.ExecContext(ctx, "UPDATE outbox_members SET until = ? WHERE member % 2 = ?", "2020-01-01T00:00:00.000Z", rand.IntN(2))
		return err
	})
	for ctx.Err() == nil {
		rows = append(rows, b.Insert(outboxdbtest.Numbered("k", 20)...)...)
		<-time.After(100 * time.Millisecond)
	}
	return rows
}

// F-24: whoever holds a partition or a row locked holds up nobody, or the call of that row
// at most.
// Conformance: S3-21.
func TestProcessor_F_24_LocksHoldUpNobodyElse(t *testing.T) {
	t.Parallel()
	b := outboxdbtest.Open(t, outboxdbtest.PostgreSQL(t))
	m := memory.New(memory.Config{})
	cfg := quick()
	cfg.Calls, cfg.Lease = 8, time.Minute
	p := processor(t, b, cfg, to(m))
	eventually(t, func() bool { return owned(p) == outboxdbtest.Partitions }, "it has all")
	locked := outbox.PartitionOf("locked", outboxdbtest.Partitions)
	published := 0
	publishes := func(keys ...string) {
		t.Helper()
		b.Insert(keys...)
		published += len(keys)
		eventually(t, func() bool { return len(m.Messages(orders)) == published }, "they are published")
	}
	hold := func(query string) bun.Tx {
		tx := begin(t, b)
		_, err := tx.ExecContext(t.Context(), query, locked)
		require.NoError(t, err)
		return tx
	}
	partition := hold("SELECT 1 FROM outbox_partitions WHERE part = ? FOR NO KEY UPDATE")
	publishes(append(outboxdbtest.Numbered("k", 50), "locked", "locked")...)
	eventually(t, func() bool { return b.Count("SELECT count(*) FROM outbox_queue") == 0 }, "and settled")
	require.NoError(t, partition.Rollback())

	release := m.Stall()
	b.Insert("locked")
	published++
	eventually(t, func() bool { return p.Status()[target].InFlight == 1 }, "it is out")
	row := hold("SELECT 1 FROM outbox_queue WHERE part = ? FOR UPDATE")
	release()
	eventually(t, func() bool { return len(m.Messages(orders)) == published }, "it is stored")
	publishes(outboxdbtest.Numbered("k", 50)...)
	require.NoError(t, row.Rollback())
	statuses(t, b, map[outbox.Status]int{outbox.Published: published})
	require.Len(t, m.Messages(orders), published, "nothing twice")
}

// F-31: what can't be sent is neither called for nor looked at all the time,
// whatever the broker says of it, and the others go on.
// Conformance: U-06.
func TestProcessor_F_31_UnsendableDoesNotSpin(t *testing.T) {
	for _, class := range []broker.Class{broker.Transient, broker.Permanent, broker.Unknown, broker.Unavailable} {
		t.Run(class.String(), func(t *testing.T) {
			outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
				store := counted(b)
				for range 20 {
					b.Insert("bad")
				}
				b.Insert(outboxdbtest.Numbered("k", 20)...)
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
				p := start(t, relay.Config{Store: store, Lanes: []relay.Lane{to(m)}, Outbox: cfg})
				eventually(t, func() bool { return p.Status()[target].Published == 20 }, "the others are published")
				store.take()
				calls.Store(0)
				begin := time.Now()
				<-time.After(2 * time.Second)
				bad := calls.Load()
				steps, all := store.take()
				seconds := time.Since(begin).Seconds() // a busy machine's are more
				require.LessOrEqual(t, float64(bad), 2*seconds)
				require.Less(t, float64(all), 40*seconds, steps)
				require.Len(t, m.Messages(orders), 20)
			})
		})
	}
}
