package relay_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/outbox"
)

// S3-07, S4-10, C-56: without a fault each row is published once. D7, A41: in the order of
// its key, over all calls.
// Conformance: A25, A40, D7.
func TestProcessor_S3_07_PublishesEachRowOnceInOrder(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		var rows []outbox.Row
		for range 10 {
			rows = append(rows, b.Insert(outboxdbtest.Numbered("k", 25)...)...)
		}
		m := memory.New(memory.Config{})
		cfg := quick()
		cfg.Calls, cfg.BatchSize = 4, 17
		p := processor(t, b, cfg, to(m))
		statuses(t, b, map[outbox.Status]int{outbox.Published: 250})
		require.Len(t, m.Messages(orders), 250)
		require.Equal(t, rowsByKey(rows), byKey(m.Messages(orders)))
		for _, size := range m.Calls() {
			require.LessOrEqual(t, size, 17) // A40
		}
		// It counts after the database has done so.
		eventually(t, func() bool { return p.Status()[target].Published == 250 }, "it counts")
		require.Zero(t, p.Status()[target].RetryRate)
	})
}

// S2-34: the same through a broker without prefix, in waves: one row of a key per call.
func TestProcessor_WavesKeepOrder(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		rows := b.Insert("a", "a", "b", "a", "b", "c")
		m := memory.New(memory.Config{NoPrefix: true})
		refuseFirst(1, m, func(msg broker.Message) bool { return msg.ID == rows[1].MessageID })
		processor(t, b, quick(), to(m))
		statuses(t, b, map[outbox.Status]int{outbox.Published: 6})
		require.Len(t, m.Messages(orders), 6)
		require.Equal(t, rowsByKey(rows), byKey(m.Messages(orders)))
	})
}

// A33, A34, S1-13, S4-14, S2-15, S2-35: one message that fails stops neither the others of the call
// nor those of other keys, and its followers wait for it unspent.
func TestProcessor_A33_A34_MixedResults(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		rows := b.Insert("a", "bad", "bad", "b")
		m := memory.New(memory.Config{})
		m.FailWhere(func(msg broker.Message) error {
			if msg.ID == rows[1].MessageID {
				return errors.New("refused")
			}
			return nil
		})
		cfg := quick()
		cfg.Retry.BaseDelay = time.Hour
		processor(t, b, cfg, to(m))
		statuses(t, b, map[outbox.Status]int{outbox.Published: 2, outbox.Failed: 1, outbox.Pending: 1})
		e := entries(t, b)
		require.Equal(t, outbox.Failed, e[1].Status)
		require.Equal(t, "refused", e[1].LastError)
		require.Equal(t, "transient", e[1].FailureClass)
		require.Equal(t, 1, e[1].Attempts)
		require.Equal(t, outbox.Pending, e[2].Status)
		require.Zero(t, e[2].Attempts)
	})
}

// S3-04, S4-02: what failed is published later, without a new request.
func TestProcessor_S3_04_RetriesUntilPublished(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		rows := b.Insert("a", "a")
		m := memory.New(memory.Config{})
		refuseFirst(2, m, func(broker.Message) bool { return true })
		p := processor(t, b, quick(), to(m))
		statuses(t, b, map[outbox.Status]int{outbox.Published: 2})
		require.Equal(t, []string{rows[0].MessageID, rows[1].MessageID}, ids(m.Messages(orders)))
		require.Equal(t, 3, entries(t, b)[0].Attempts)
		require.Equal(t, 1, entries(t, b)[1].Attempts, "followers don't pay for their head")
		eventually(t, func() bool { return p.Status()[target].Attempts == 4 }, "it counts")
		require.InDelta(t, 0.5, p.Status()[target].RetryRate, 0.01, "two of the four attempts that count were retries")
	})
}

// S3-17: after max_attempts a row is abandoned with the broker's words, and its key
// goes on, or is held.
func TestProcessor_AbandonsAfterMaxAttempts(t *testing.T) {
	for _, policy := range []outbox.OnAbandoned{outbox.Skip, outbox.Hold} {
		t.Run(string(policy), func(t *testing.T) {
			outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
				rows := b.Insert("a", "a", "b")
				m := memory.New(memory.Config{})
				m.FailWhere(func(msg broker.Message) error {
					if msg.ID == rows[0].MessageID {
						return refuse("never")
					}
					return nil
				})
				cfg := quick()
				cfg.OnAbandoned, cfg.Retry.MaxAttempts = policy, 3
				processor(t, b, cfg, to(m))
				want := map[outbox.Status]int{outbox.Abandoned: 1, outbox.Published: 2}
				if policy == outbox.Hold {
					want = map[outbox.Status]int{outbox.Abandoned: 1, outbox.Published: 1, outbox.Pending: 1}
				}
				statuses(t, b, want)
				e := entries(t, b)[0]
				require.Equal(t, 3, e.Attempts)
				waittest.Until(t, func() bool { return entries(t, b)[0].MaxAttempts == 3 }) // Housekeeping writes it, beside the lanes.
				require.Equal(t, "never", e.LastError)
				require.Equal(t, policy == outbox.Hold, e.Held)
			})
		})
	}
}

// A51, A52, S2-45, C-59: a permanent error abandons at once, and the others of the
// call go on.
func TestProcessor_PermanentErrorAbandonsAtOnce(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		b.Insert("a", "b")
		m := memory.New(memory.Config{})
		failKey(m, "a", broker.Classify(broker.Permanent, errors.New("too large")))
		processor(t, b, quick(), to(m))
		statuses(t, b, map[outbox.Status]int{outbox.Abandoned: 1, outbox.Published: 1})
		require.Equal(t, 1, entries(t, b)[0].Attempts)
		require.Equal(t, "permanent", entries(t, b)[0].FailureClass)
	})
}

// S3-05, S4-05, C-61: an outage burns no attempts, shows, and the lane goes on by itself.
func TestProcessor_S3_05_OutageCostsNothingButTime(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		rows := b.Insert(outboxdbtest.Numbered("k", 50)...)
		m := memory.New(memory.Config{})
		m.SetOutage(true)
		p := processor(t, b, quick(), to(m))
		eventually(t, func() bool { return p.Status()[target].Breaker != "closed" }, "the breaker opens")
		require.NotEmpty(t, p.Status()[target].LastError)
		require.Equal(t, "probing", p.Status()[target].Doing)
		eventually(t, func() bool { return len(m.Calls()) >= 3 }, "it is tried")
		for _, e := range entries(t, b) {
			require.Zero(t, e.Attempts)
			require.Contains(t, []outbox.Status{outbox.Pending, outbox.Processing}, e.Status)
		}
		m.SetOutage(false)
		statuses(t, b, map[outbox.Status]int{outbox.Published: 50})
		require.Len(t, m.Messages(orders), 50)
		require.Equal(t, rowsByKey(rows), byKey(m.Messages(orders)))
		for _, e := range entries(t, b) {
			require.Equal(t, 1, e.Attempts, "those of the outage don't count")
		}
		eventually(t, func() bool { s := p.Status()[target]; return s.Breaker == "closed" && s.Doing == "" }, "it is over")
	})
}

// S3-11, A56: a partner's outage doesn't touch the internal row.
func TestProcessor_S3_11_A56_TargetsFailApart(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		mine := outboxdbtest.Row("a")
		theirs := mine
		theirs.ID, theirs.TargetBroker = outboxdbtest.Row("a").ID, "partner"
		b.InsertRows(mine, theirs)
		internal, partner := memory.New(memory.Config{}), memory.New(memory.Config{})
		refuseFirst(2, partner, func(broker.Message) bool { return true })
		p := processor(t, b, quick(), to(internal), relay.Lane{Target: "partner", Broker: partner, External: true})
		statuses(t, b, map[outbox.Status]int{outbox.Published: 2})
		e := entries(t, b)
		require.Equal(t, 1, e[0].Attempts)
		require.Equal(t, 3, e[1].Attempts)
		require.Equal(t, []string{mine.MessageID}, ids(internal.Messages(orders)))
		require.Equal(t, []string{mine.MessageID}, ids(partner.Messages(orders)), "the same id at every broker")
		require.Equal(t, "outbox-processor-default-to-default", p.Status()[target].Name)
		require.Equal(t, "outbox-processor-default-to-partner-external", p.Status()["partner"].Name)
	})
}

// A32: no transaction is open while the broker is called.
func TestProcessor_A32_NoTransactionDuringTheCall(t *testing.T) {
	t.Parallel()
	b := outboxdbtest.Open(t, outboxdbtest.PostgreSQL(t))
	b.Insert("a")
	m := memory.New(memory.Config{})
	release := m.Stall()
	defer release()
	cfg := quick()
	cfg.Lease = time.Minute
	processor(t, b, cfg, to(m))
	eventually(t, func() bool { return len(m.Calls()) == 1 }, "it is called")
	require.Equal(t, outbox.Processing, entries(t, b)[0].Status)
	// What was open by now ends while the call is out: it is none of the call's.
	var called string
	require.NoError(t, b.DB.NewRaw("SELECT clock_timestamp()::text").Scan(t.Context(), &called))
	eventually(t, func() bool {
		return b.Count("SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) JOIN pg_class AS c ON c.oid = relation"+
			" WHERE relnamespace = current_schema()::regnamespace AND xact_start < ?::timestamptz", called) == 0
	}, "no transaction is open")
	release()
	statuses(t, b, map[outbox.Status]int{outbox.Published: 1})
}

// A36: a process that dies between the broker's answer and
// the write-back is followed by another, which publishes again under the same id.
// Conformance: S3-07, S4-05.
func TestProcessor_A36_RedeliversAfterACrash(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		rows := b.Insert("a", "a", "b")
		m := memory.New(memory.Config{})
		first := processor(t, b, quick(), to(mute{m}))
		eventually(t, func() bool { return len(m.Messages(orders)) == 3 }, "all are stored")
		kill(t, first)
		require.True(t, has(t, b, outbox.Processing))
		b.Expire()

		release := m.Stall()
		defer release()
		calls := len(m.Calls())
		p := processor(t, b, quick(), to(m))
		eventually(t, func() bool { return len(m.Calls()) > calls }, "they are taken over")
		for _, e := range entries(t, b) {
			require.Equal(t, 1, e.Losses, "claims that nobody settled are counted")
		}
		require.EqualValues(t, 3, p.Status()[target].TakenOver)
		release()
		statuses(t, b, map[outbox.Status]int{outbox.Published: 3})
		require.Len(t, m.Messages(orders), 6, "each was stored before the crash, and comes again under its id")
		require.Equal(t, rowsByKey(rows), byKey(m.Messages(orders)))
	})
}

// mute stores what it is given and never answers.
type mute struct{ broker.Broker }

func (m mute) Publish(ctx context.Context, messages []broker.Message) error {
	if err := m.Broker.Publish(ctx, messages); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

// A35, S2-07: the database fails when the answer is written back; the row stays in
// hand until it is.
func TestProcessor_A35_SettlesWhenTheDatabaseIsBack(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		b.Insert("a")
		m := memory.New(memory.Config{})
		release := m.Stall()
		defer release()
		cfg := quick()
		cfg.Lease = time.Minute
		p := processor(t, b, cfg, to(m))
		eventually(t, func() bool { return len(m.Calls()) == 1 }, "it is called")
		b.Exec("ALTER TABLE outbox_log RENAME COLUMN retries TO gone")
		release()
		eventually(t, func() bool { return len(m.Messages(orders)) == 1 }, "it is stored")
		eventually(t, func() bool { return p.Status()[target].Database != nil }, "it shows")
		require.Zero(t, p.Status()[target].Published)
		b.Exec("ALTER TABLE outbox_log RENAME COLUMN gone TO retries")
		statuses(t, b, map[outbox.Status]int{outbox.Published: 1})
		require.Len(t, m.Messages(orders), 1, "settled, not published again")
	})
}

// S4-10, C-40: two processes share the partitions; when one stops, the other takes its part.
// Conformance: C-40, F-25, S4-10.
func TestProcessor_ProcessesShareThePartitions(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		m := memory.New(memory.Config{})
		first := processor(t, b, quick(), to(m))
		eventually(t, func() bool { return owned(first) == outboxdbtest.Partitions }, "the first has all")
		second := processor(t, b, quick(), to(m))
		eventually(t, func() bool {
			return owned(first) == outboxdbtest.Partitions/2 && owned(second) == outboxdbtest.Partitions/2
		}, "they share")
		rows := b.Insert(outboxdbtest.Numbered("k", 200)...)
		statuses(t, b, map[outbox.Status]int{outbox.Published: 200})
		require.Len(t, m.Messages(orders), len(rows))
		for _, p := range []*relay.Relay{first, second} {
			eventually(t, func() bool { return p.Status()[target].Published > 0 }, "both publish")
		}
		require.NoError(t, first.Stop(t.Context()))
		eventually(t, func() bool { return owned(second) == outboxdbtest.Partitions }, "the second has all")
	})
}

func owned(r *relay.Relay) int { return r.Status()[target].Partitions }

// C-56, S2-28: a poke wakes a lane that would have slept.
func TestProcessor_WakesAtOnce(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		m := memory.New(memory.Config{})
		p := processor(t, b, patient(), to(m))
		eventually(t, func() bool { return owned(p) == outboxdbtest.Partitions }, "it is ready")
		b.Insert("a")
		p.Wake(append([]outbox.Poke{{Target: "elsewhere"}}, poke("a")...))
		statuses(t, b, map[outbox.Status]int{outbox.Published: 1})
	})
}

// A27: names of members are unique, also within one process.
func TestProcessor_A27_WorkerNamesAreUnique(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		for range 3 {
			processor(t, b, quick(), to(memory.New(memory.Config{})))
		}
		eventually(t, func() bool { return b.Count("SELECT count(DISTINCT name) FROM outbox_members") == 3 }, "they have joined")
	})
}

func TestProcessor_StartWithoutTablesSaysWhatToDo(t *testing.T) {
	for name, db := range map[string]outboxdbtest.Database{"SQLite": outboxdbtest.SQLite(t), "PostgreSQL": outboxdbtest.PostgreSQL(t)} {
		t.Run(name, func(t *testing.T) {
			p, err := relay.New(relay.Config{Provider: "default", Store: outboxdb.New(db.DB(), db.Reader()), Lanes: []relay.Lane{to(memory.New(memory.Config{}))}})
			require.NoError(t, err)
			require.ErrorContains(t, p.Start(t.Context()), "waybill migrate")
		})
	}
}

// F-41, C-56: a drain is not one round trip per message: calls hold batches, and as many
// are out at once as may be.
// Conformance: U-20.
func TestProcessor_F41_CallsAreBatchesAndOverlap(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		b.Insert(outboxdbtest.Numbered("k", 400)...)
		m := memory.New(memory.Config{})
		release := m.Stall()
		defer release()
		cfg := quick()
		cfg.Calls, cfg.BatchSize, cfg.Lease = 4, 100, time.Minute
		p := processor(t, b, cfg, to(m))
		eventually(t, func() bool { return len(m.Calls()) == 4 }, "four calls are out")
		require.Equal(t, 400, p.Status()[target].InFlight)
		release()
		statuses(t, b, map[outbox.Status]int{outbox.Published: 400})
		require.Len(t, m.Calls(), 4)
	})
}

// S4-03: whatever reaches the broker was committed before: another connection
// sees its row, claimed.
func TestProcessor_S4_03_PublishesOnlyWhatIsCommitted(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		m := memory.New(memory.Config{})
		m.FailWhere(func(msg broker.Message) error {
			found, err := b.Find(context.Background(), outbox.Filter{MessageID: msg.ID})
			if err != nil || len(found) != 1 || found[0].Status != outbox.Processing {
				return broker.Classify(broker.Permanent, fmt.Errorf("published too early: %v %w", found, err))
			}
			return nil
		})
		p := processor(t, b, quick(), to(m))
		for i := range 20 {
			tx, err := b.DB.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			insertIn(t, b, tx, "k")
			p.Wake(poke("k")) // too early, on purpose
			if i%2 == 0 {
				require.NoError(t, tx.Rollback())
			} else {
				require.NoError(t, tx.Commit())
			}
		}
		statuses(t, b, map[outbox.Status]int{outbox.Published: 10})
		require.Len(t, m.Messages(orders), 10)
	})
}
