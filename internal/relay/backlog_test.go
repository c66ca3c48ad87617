package relay_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/outbox"
)

// insertTo stores n rows of a topic, of a key each, and returns them.
func insertTo(b *outboxdbtest.Bench, topic, prefix string, n int) (rows []outbox.Row) {
	for _, key := range outboxdbtest.Numbered(prefix, n) {
		row := outboxdbtest.Row(key)
		row.Topic = topic
		rows = append(rows, row)
	}
	for some := range slices.Chunk(rows, 1000) {
		b.InsertRows(some...)
	}
	return rows
}

// O1: what concerns a topic abandons nothing, whatever its class: nobody may write to it,
// or it misses replicas. It costs no attempt, and it goes when that is over.
func TestBacklog_O1_ATopicThatIsRefusedAbandonsNothing(t *testing.T) {
	for name, err := range map[string]error{
		"not authorised":      broker.Scoped(broker.Permanent, broker.ScopeTopic, errors.New("TOPIC_AUTHORIZATION_FAILED")),
		"not enough replicas": broker.Scoped(broker.Transient, broker.ScopeTopic, errors.New("NOT_ENOUGH_REPLICAS")),
		"after the append":    broker.Scoped(broker.Unknown, broker.ScopeTopic, errors.New("NOT_ENOUGH_REPLICAS_AFTER_APPEND")),
	} {
		t.Run(name, func(t *testing.T) {
			outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
				rows := insertTo(b, "dead", "d", 1000)
				m := memory.New(memory.Config{})
				var away atomic.Bool
				away.Store(true)
				m.FailWhere(func(msg broker.Message) error {
					if away.Load() && msg.Topic == "dead" {
						return err
					}
					return nil
				})
				cfg := quick()
				cfg.Retry.MaxAttempts = 1
				p := processor(t, b, cfg, to(m))
				insertTo(b, "live", "l", 100)
				eventually(t, func() bool { return len(m.Messages("live")) == 100 }, "others go on")
				eventually(t, func() bool { return slices.Equal(p.Status()[target].OpenTopics, []string{"dead"}) }, "its breaker opens")
				require.Contains(t, p.Status()[target].TopicError, err.Error())
				calls := len(m.Calls())
				eventually(t, func() bool { return len(m.Calls()) >= calls+2 }, "it is tried again")
				require.EqualValues(t, 1000, b.Count("SELECT count(*) FROM outbox_queue WHERE attempts = 0 AND losses = 0"))
				away.Store(false)
				eventually(t, func() bool { return len(m.Messages("dead")) == 1000 }, "it is back")
				require.Equal(t, rowsByKey(rows), byKey(m.Messages("dead")))
				require.Zero(t, b.Count("SELECT count(*) FROM outbox_abandoned"))
			})
		})
	}
}

// O2, O3: 20,000 rows of a dead topic in front keep no other topic waiting, also after a
// restart, when nothing is known of it; and once it is known they aren't read again.
func TestBacklog_O2_O3_ADeadTopicInFrontDelaysNoOther(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		const dead = 20_000
		insertTo(b, "dead", "d", dead)
		insertTo(b, "live", "before", 10)
		m := memory.New(memory.Config{})
		m.SetTopicOutage("dead", true)
		published := 10
		for run := range 2 {
			store := counted(b)
			cfg := quick()
			cfg.PollInterval, cfg.MaxPollInterval = time.Second, time.Second
			p := start(t, relay.Config{Store: store, Lanes: []relay.Lane{to(m)}, Outbox: cfg})
			calls := len(m.Calls())
			eventually(t, func() bool { return len(m.Messages("live")) == published }, "run %d: all of the live topic", run)
			require.Less(t, len(m.Calls())-calls, 20, "the dead topic costs few calls")
			eventually(t, func() bool { steps, _ := store.take(); return steps["look"] == 0 }, "run %d: it was read", run)
			for n := range 10 { // commits of one row, one after the other
				key := fmt.Sprintf("run-%d-%d", run, n)
				insertTo(b, "live", key, 1)
				published++
				p.Wake(poke(key + "-0"))
				eventually(t, func() bool { return len(m.Messages("live")) == published }, key)
			}
			steps, _ := store.take()
			require.Less(t, steps["look"], 100, steps)
			require.Less(t, steps["fetch"], 100, steps)
			require.NoError(t, p.Stop(t.Context()))
			require.EqualValues(t, dead, b.Count("SELECT count(*) FROM outbox_queue WHERE attempts = 0"))
		}
	})
}

// O6: 5,000 priorities, and a prioritised row that is held, cost no more than none, but
// for a look ahead at some of the first once a second.
func TestBacklog_O6_ManyPrioritiesCostLittle(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		steps := func(prefix string, priority func(i int) int) (made map[string]int) {
			var rows []outbox.Row
			for i, key := range outboxdbtest.Numbered(prefix, 5000) {
				rows = append(rows, outboxdbtest.Row(key))
				rows[i].Priority = priority(i)
			}
			for some := range slices.Chunk(rows, 1000) {
				b.InsertRows(some...)
			}
			m := memory.New(memory.Config{})
			failKey(m, prefix+"-0", broker.Scoped(broker.Permanent, broker.ScopeRow, errors.New("never")))
			store := counted(b)
			cfg := quick()
			cfg.OnAbandoned, cfg.PollInterval, cfg.MaxPollInterval = outbox.Hold, time.Second, time.Second
			cfg.BatchSize = 250 // What is fetched one by one is claimed before it makes larger batches.
			p := start(t, relay.Config{Store: store, Lanes: []relay.Lane{to(m)}, Outbox: cfg})
			eventually(t, func() bool { return len(m.Messages(orders)) == 4999 }, prefix)
			require.NoError(t, p.Stop(t.Context()))
			made, _ = store.take()
			return made
		}
		usual := steps("usual", func(int) int { return 0 })
		many := steps("many", func(i int) int { return 5000 - i })
		for _, step := range []string{"look", "claim", "due"} {
			require.LessOrEqual(t, many[step], 2*usual[step]+10, step)
		}
		require.LessOrEqual(t, many["fetch"], 64*outboxdbtest.Partitions*many["first"]+20)
		require.LessOrEqual(t, many["first"], 10)
		require.EqualValues(t, 2, b.Count("SELECT count(*) FROM outbox_queue WHERE held"))
	})
}

// O7: while a database doesn't let a row of quarantine be settled, another database's rows
// go on: the gate is the call's, not the settle's.
func TestQuarantine_O7_ADatabaseThatIsAwayHoldsUpNoOther(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		other := outboxdbtest.Open(t, outboxdbtest.SQLite(t))
		b.Insert("lost")
		for range 2 {
			victim := b.Join("victim", time.Minute, outboxdbtest.Partitions)
			require.Len(t, victim.ClaimAll(), 1)
			b.Expire()
			_, err := b.Reap(t.Context(), victim.ID, false)
			require.NoError(t, err)
		}
		m, gate := memory.New(memory.Config{}), relay.NewGate()
		b.Exec("ALTER TABLE outbox_log RENAME COLUMN retries TO gone")
		p := start(t, relay.Config{Store: b.Store, Lanes: []relay.Lane{to(m)}, Outbox: quick(), Gate: gate})
		eventually(t, func() bool { return p.Status()[target].Database != nil }, "its settle fails")
		start(t, relay.Config{Store: other.Store, Lanes: []relay.Lane{to(m)}, Outbox: quick(), Gate: gate})
		other.Insert(outboxdbtest.Numbered("o", 100)...)
		statuses(t, other, map[outbox.Status]int{outbox.Published: 100})
		require.EqualValues(t, 1, b.Count("SELECT count(*) FROM outbox_queue"))
		b.Exec("ALTER TABLE outbox_log RENAME COLUMN gone TO retries")
		statuses(t, b, map[outbox.Status]int{outbox.Published: 1})
		require.Len(t, m.Messages(orders), 101, "settled, not published again")
	})
}

// slow takes as long as a broker far away for each call, and stores what it was given
// also if its time is up by then.
type slow struct {
	broker.Broker
	takes time.Duration
}

func (s slow) Publish(ctx context.Context, messages []broker.Message) error {
	<-time.After(s.takes)
	return s.Broker.Publish(context.WithoutCancel(ctx), messages)
}

// unsettled is a store that settles nothing before it is let.
type unsettled struct {
	*outboxdb.Store
	let chan struct{}
}

func (s *unsettled) Settle(ctx context.Context, t relay.Settlement) (bool, error) {
	select {
	case <-s.let:
	case <-ctx.Done():
		return false, ctx.Err()
	}
	return s.Store.Settle(ctx, t)
}

// What is called and not answered is two batches. What is being settled keeps no broker busy:
// beside it a batch more is called, and no more than that.
func TestInHand_WhatIsSettledKeepsNoBrokerBusy(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		cfg := patient()
		cfg.Calls = 8
		insertTo(b, "", "k", 1600)
		m := memory.New(memory.Config{})
		hangs := &hanging{Broker: m, let: make(chan struct{})}
		store := &unsettled{b.Store, make(chan struct{})}
		start(t, relay.Config{Store: store, Lanes: []relay.Lane{to(hangs)}, Outbox: cfg})
		has := func(most int64, what string) {
			eventually(t, func() bool { return hangs.has.Load() == most }, what)
			require.Never(t, func() bool { return hangs.has.Load() > most }, 300*time.Millisecond, 10*time.Millisecond)
		}
		has(1000, "two batches")
		close(hangs.let)
		has(1500, "a third beside those that are settled")
		close(store.let)
		eventually(t, func() bool { return b.Count("SELECT count(*) FROM outbox_queue") == 0 }, "all is settled")
		require.Len(t, m.Messages(orders), 1600)
	})
}

// hanging answers nothing before it is let, and counts what it has.
type hanging struct {
	broker.Broker
	has atomic.Int64
	let chan struct{}
}

func (s *hanging) Publish(ctx context.Context, messages []broker.Message) error {
	s.has.Add(int64(len(messages)))
	select {
	case <-s.let:
	case <-ctx.Done():
	}
	return s.Broker.Publish(ctx, messages)
}

// O8: without prefix a key's rows go one by one. What there is no time for is handed back:
// it pays nothing and is published without a pause.
func TestProcessor_O8_WavesKeepToTheirTime(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		rows := b.Insert(slices.Repeat([]string{"k"}, 200)...)
		m := memory.New(memory.Config{NoPrefix: true})
		cfg := quick()
		cfg.PublishTimeout, cfg.Retry.BaseDelay = 500*time.Millisecond, time.Hour
		p := processor(t, b, cfg, to(slow{m, 10 * time.Millisecond}))
		statuses(t, b, map[outbox.Status]int{outbox.Published: 200})
		require.Equal(t, rowsByKey(rows), byKey(m.Messages(orders)))
		require.Len(t, m.Messages(orders), 200)
		require.Zero(t, p.Status()[target].Retries)
	})
}

// O11: a key is that of its category: what is held of one aggregate's type holds up no
// other that has the same id.
func TestProcessor_O11_AKeyHasItsCategory(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		of := func(category string) outbox.Row {
			row := outboxdbtest.Row("42")
			row.StreamCategory, row.Stream = category, category+"-42"
			return row
		}
		b.InsertRows(of("ordering::order"), of("ordering::order"), of("billing::invoice"), of("billing::invoice"))
		m := memory.New(memory.Config{})
		m.FailWhere(func(msg broker.Message) error {
			if msg.Topic == orders {
				return broker.Scoped(broker.Permanent, broker.ScopeRow, errors.New("never"))
			}
			return nil
		})
		cfg := quick()
		cfg.OnAbandoned = outbox.Hold
		processor(t, b, cfg, to(m))
		statuses(t, b, map[outbox.Status]int{outbox.Abandoned: 1, outbox.Pending: 1, outbox.Published: 2})
		require.Len(t, m.Messages("billing.invoice"), 2)
	})
}

// silent answers nothing while it is away, and counts calls with an answer.
type silent struct {
	broker.Broker
	away     atomic.Bool
	answered atomic.Int64
}

func (s *silent) Publish(ctx context.Context, messages []broker.Message) error {
	if s.away.Load() {
		<-ctx.Done()
		return broker.Classify(broker.Unknown, ctx.Err())
	}
	s.answered.Add(1)
	return s.Broker.Publish(ctx, messages)
}

// After an outage the backlog goes at full speed: 10,000 rows leave in no more than twice
// the usual calls, although those that may be out at once were in calls that nobody
// answered; the lane's state says what it does. That 10,000 such rows do, too, is tested
// of the breakers.
func TestBacklog_AfterAnOutageItGoesAtFullSpeed(t *testing.T) {
	const rows = 10_000
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		drain := func(prefix string, outage bool) (calls int64) {
			inserted := insertTo(b, "", prefix, rows)
			m := memory.New(memory.Config{})
			s := &silent{Broker: m}
			s.away.Store(outage)
			cfg := quick()
			cfg.Calls, cfg.PublishTimeout = 8, 500*time.Millisecond
			p := processor(t, b, cfg, to(s))
			if outage {
				eventually(t, func() bool { return p.Status()[target].Doing == "probing" }, "it says so")
				<-time.After(3 * time.Second) // and probes go on
				require.Equal(t, "probing", p.Status()[target].Doing)
				s.away.Store(false)
			}
			doing := map[string]bool{}
			eventually(t, func() bool {
				if d := p.Status()[target].Doing; len(d) > 8 {
					doing[d[:8]] = true
				}
				return len(m.Messages(orders)) >= rows
			}, "all are published")
			require.Len(t, m.Messages(orders), rows)
			require.Equal(t, rowsByKey(inserted), byKey(m.Messages(orders)))
			eventually(t, func() bool { return b.Count("SELECT count(*) FROM outbox_queue") == 0 }, "and settled")
			require.Equal(t, outage, doing["checking"], doing)
			require.Empty(t, p.Status()[target].Doing)
			require.Zero(t, p.Status()[target].Retries)
			require.NoError(t, p.Stop(t.Context()))
			return s.answered.Load()
		}
		usual := drain("usual", false)
		after := drain("after", true)
		t.Logf("%d rows: %d calls usually, %d after an outage", rows, usual, after)
		require.LessOrEqual(t, after, 2*usual)
	})
}
