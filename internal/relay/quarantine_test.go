package relay_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/outbox"
)

// poisoned panics when it is called with a poisonous message. It notes the calls
// in which that happened and what else was in flight.
type poisoned struct {
	broker.Broker
	is func(m broker.Message) bool

	mu      sync.Mutex
	flying  int
	most    int // calls at once
	crashes []crash
}

type crash struct{ rows, others int }

func (p *poisoned) Publish(ctx context.Context, messages []broker.Message) error {
	p.mu.Lock()
	p.flying++
	p.most = max(p.most, p.flying)
	kills := slices.ContainsFunc(messages, p.is)
	if kills {
		p.crashes = append(p.crashes, crash{len(messages), p.flying - 1})
	}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.flying--
		p.mu.Unlock()
	}()
	if kills {
		panic("poison")
	}
	<-time.After(20 * time.Millisecond) // as a broker far away: calls overlap
	return p.Broker.Publish(ctx, messages)
}

func (p *poisoned) atOnce() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.most
}

func (p *poisoned) seen() []crash {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.crashes)
}

// D2, A30: a row that crashes whoever publishes it does so five times, the last
// three of them alone, with nothing else in flight in the process; then it is
// abandoned, and nobody else with it. The lanes of other providers of the
// process stand still too while it is out.
func TestProcessor_D2_A30_PoisonGoesAloneAndEnds(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		other := outboxdbtest.Open(t, outboxdbtest.SQLite(t))
		rows := b.Insert(append(outboxdbtest.Numbered("k", 30), "poison", "poison")...)
		poison := rows[30].MessageID
		m := memory.New(memory.Config{})
		p := &poisoned{Broker: m, is: func(m broker.Message) bool { return m.ID == poison }}
		cfg := quick()
		cfg.BatchSize = 10
		gate := relay.NewGate()
		for _, bench := range []*outboxdbtest.Bench{b, other} {
			start(t, relay.Config{Store: bench.Store, Lanes: []relay.Lane{to(p)}, Outbox: cfg, Gate: gate})
		}
		// The other database is never without work meanwhile, nor has more and more.
		done := make(chan struct{})
		var feeding sync.WaitGroup
		feeding.Go(func() {
			for {
				select {
				case <-done:
					return
				case <-time.After(20 * time.Millisecond):
					var waiting int
					if err := other.DB.NewRaw("SELECT count(*) FROM outbox_queue").Scan(t.Context(), &waiting); err != nil {
						t.Error(err)
						return
					}
					if waiting < 20 {
						other.Insert(outboxdbtest.Numbered("o", 5)...)
					}
				}
			}
		})
		statuses(t, b, map[outbox.Status]int{outbox.Published: 31, outbox.Abandoned: 1})
		eventually(t, func() bool { return p.atOnce() > 1 }, "the others overlap")
		close(done)
		feeding.Wait()
		for i, e := range entries(t, b) {
			if e.MessageID != poison {
				require.Equal(t, outbox.Published, e.Status, i)
				continue
			}
			require.Equal(t, outbox.Abandoned, e.Status)
			require.Equal(t, "crash", e.FailureClass)
			require.Equal(t, 5, e.Losses)
		}
		crashes := p.seen()
		require.Len(t, crashes, 5)
		for _, c := range crashes[2:] {
			require.Equal(t, crash{rows: 1}, c, "alone in its call and in the process")
		}
		published := byKey(m.Messages(orders))
		maps.DeleteFunc(published, func(key string, _ []string) bool { return strings.HasPrefix(key, "o-") })
		require.True(t, maps.EqualFunc(rowsByKey(slices.Delete(rows, 30, 31)), published, slices.Equal))
	})
}

// A healthy row that was lost with others goes alone, and goes on: also when
// there is always something else to do.
func TestProcessor_QuarantineComesItsTurn(t *testing.T) {
	b := outboxdbtest.Open(t, outboxdbtest.PostgreSQL(t))
	b.Insert("lost")
	for range 2 {
		victim := b.Join("victim", time.Minute, outboxdbtest.Partitions)
		require.Len(t, victim.ClaimAll(), 1)
		b.Expire()
		_, err := b.Reap(t.Context(), victim.ID, false)
		require.NoError(t, err)
	}
	// From now on there is always more than one batch to do.
	cfg := quick()
	cfg.Calls, cfg.BatchSize, cfg.MaxPollInterval = 1, 2, 200*time.Millisecond
	m := memory.New(memory.Config{})
	b.Insert(outboxdbtest.Numbered("k", 200)...)
	p := processor(t, b, cfg, to(m))
	for {
		all, err := b.Find(t.Context(), outbox.Filter{PartitionKey: "lost"})
		require.NoError(t, err)
		if all[0].Status == outbox.Published {
			break
		}
		if pending, err := b.Find(t.Context(), outbox.Filter{Statuses: []outbox.Status{outbox.Pending}, Limit: 50}); err != nil || len(pending) < 50 {
			require.NoError(t, err)
			b.Insert(outboxdbtest.Numbered("k", 200)...)
		}
	}
	pending, err := b.Find(t.Context(), outbox.Filter{Statuses: []outbox.Status{outbox.Pending}})
	require.NoError(t, err)
	require.NotEmpty(t, pending, "others were still waiting")
	require.Positive(t, p.Status()[target].Published)
}
