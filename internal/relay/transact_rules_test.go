package relay_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/internal/relay/relaytest"
	"github.com/waybill-go/waybill/outbox"
)

// firstSlot begins the numbers of claims of a member's first slot.
const firstSlot = 1 << 48

// other is a member that a test plays, with all partitions, for a while.
type other struct {
	*world

	id   relay.MemberID
	lane relay.LaneID
}

func (w *world) other() *other {
	w.Helper()
	lanes, parts, err := w.store.Lanes(w.Context(), []string{target})
	require.NoError(w, err)
	ids, err := w.store.Join(w.Context(), "another", []relay.Joining{{Lane: lanes[0], Target: target}}, 10*time.Second)
	require.NoError(w, err)
	taken, err := w.store.Take(w.Context(), ids[0], lanes[0], parts)
	require.NoError(w, err)
	require.Len(w, taken, parts)
	return &other{w, ids[0], lanes[0]}
}

// claims claims rows by their seqs under a number.
func (o *other) claims(n int64, seqs ...int64) []relay.Claimed {
	o.Helper()
	var rows []relay.RowRef
	for _, seq := range seqs {
		row, _, ok := o.store.Queued(seq)
		require.True(o, ok)
		rows = append(rows, relay.RowRef{Part: row.Part, Seq: seq, Key: row.Key})
	}
	c, err := o.store.Claim(o.Context(), relay.ClaimRequest{Member: o.id, Lane: o.lane, N: n, Rows: rows, Durable: true})
	require.NoError(o, err)
	return c.Rows
}

// commits publishes rows under a mark.
func (o *other) commits(n int64, rows []relay.Claimed) {
	o.Helper()
	tx, _, err := o.broker.Transact(o.Context(), relay.TransactionalID("another", o.id, 0))
	require.NoError(o, err)
	var messages []broker.Message
	for _, row := range rows {
		messages = append(messages, broker.Message{ID: row.MessageID, Topic: row.Topic, Key: row.PartitionKey, Body: row.Payload})
	}
	require.NoError(o, tx.Publish(o.Context(), broker.Mark{N: n}, messages))
}

// The switch UPTO of the model: a mark says of an earlier claim of its slot nothing. That one
// was not answered, came late, and was never sent.
func TestTransact_AMarkIsOfItsOwnClaimOnly(t *testing.T) {
	inWorld(t, func(w *world) {
		ids := w.commit(nil, 1, 2)
		seqs := w.store.Undelivered()
		o := w.other()
		o.claims(firstSlot+1, seqs[0])
		o.commits(firstSlot+2, o.claims(firstSlot+2, seqs[1]))
		w.exactly()
		w.delivered(time.Minute)
		w.once(ids)
	})
}

// A relay that publishes at least once by now decides about what was begun otherwise.
func TestTransact_IsDecidedAlsoByWhoHasNone(t *testing.T) {
	inWorld(t, func(w *world) {
		ids := w.commit(nil, 1, 2)
		seqs := w.store.Undelivered()
		o := w.other()
		o.claims(firstSlot+1, seqs[0])
		o.commits(firstSlot+2, o.claims(firstSlot+2, seqs[1]))
		w.exactly(func(e *exact) { e.off = true })
		w.delivered(time.Minute)
		w.once(ids)
	})
}

// answersNothing has transactions committed, and nobody hear of it; stored: one was.
func (e *exact) answersNothing() (stored *atomic.Bool) {
	stored = new(atomic.Bool)
	e.sends(func(ctx context.Context, tx broker.Transactor, mark broker.Mark, messages []broker.Message) error {
		err := tx.Publish(ctx, mark, messages)
		stored.Store(true)
		<-ctx.Done()
		return errors.Join(broker.ErrUndecided, err)
	})
	return stored
}

// The switch WHOLE of the model: of a claim, what isn't in the transaction isn't published.
func TestTransact_AMarkSaysWhichRowsAreInIt(t *testing.T) {
	inWorld(t, func(w *world) {
		bad, good := relaytest.Row(target, topic, "bad"), relaytest.Row(target, topic, "good")
		bad.CloudEvent = "no JSON"
		a, conn := w.exactly()
		w.ready(map[*process]int{a: 8})
		stored := conn.answersNothing()
		a.Wake(w.store.Insert(bad, good))
		w.until(time.Minute, "stored", stored.Load)
		w.vanish(a)
		w.exactly()
		w.delivered(2 * time.Minute)
		require.Equal(t, []string{good.MessageID}, w.ids("good"))
		require.Len(t, w.store.Abandoned(), 1)
		require.Len(t, w.store.Log(), 1)
	})
}

// The same of a row that an operator took back when it was chosen and not claimed yet: its
// token has it, and who reaps leaves it held.
func TestTransact_AMarkKnowsOfRowsThatWaitedAtTheirClaim(t *testing.T) {
	inWorld(t, func(w *world) {
		a, conn := w.exactly()
		w.ready(map[*process]int{a: 8})
		first, held := relaytest.Row(target, topic, "a"), relaytest.Row(target, topic, "a")
		stored := conn.answersNothing()
		var once sync.Once
		a.store.Before(func(step relaytest.Step) {
			if step == relaytest.Claim {
				once.Do(func() { require.True(t, w.store.Hold(2)) })
			}
		})
		a.Wake(w.store.Insert(first, held))
		w.until(time.Minute, "stored", stored.Load)
		w.vanish(a)
		w.exactly()
		w.until(2*time.Minute, "reaped", func() bool { return w.store.Tokens() == 0 })
		require.Equal(t, []int64{2}, w.store.Undelivered())
		require.True(t, w.store.Retry(2))
		w.delivered(2 * time.Minute)
		require.Equal(t, []string{first.MessageID, held.MessageID}, w.ids("a"))
	})
}

// A commit that isn't answered is decided by its mark, and the membership goes on.
func TestTransact_AnUnansweredCommitIsDecidedByItsMark(t *testing.T) {
	inWorld(t, func(w *world) {
		p, _ := w.exactly()
		w.ready(map[*process]int{p: 8})
		w.broker.LoseAcks(3)
		ids := w.commit(p, 20, 10)
		w.delivered(time.Minute)
		w.once(ids)
		require.Equal(t, 8, partitions(p))
		require.Equal(t, 1, w.store.Calls(relaytest.Join)+p.store.Calls(relaytest.Join), "it has its first membership")
		require.Zero(t, p.Status()[target].Retries, "nobody paid")
	})
}

// A broker that doesn't say what became of the dead's transactions holds their rows up, which
// is told; it isn't passed over.
func TestTransact_AReapWaitsForTheBroker(t *testing.T) {
	inWorld(t, func(w *world) {
		ids := w.commit(nil, 1, 3)
		seqs := w.store.Undelivered()
		o := w.other()
		o.commits(firstSlot+1, o.claims(firstSlot+1, seqs...))
		theirs := relay.TransactionalID("another", o.id, 0)
		p, conn := w.exactly(func(e *exact) {
			e.open = func(id string) error {
				if id == theirs {
					return errDown
				}
				return nil
			}
		})
		w.until(time.Minute, "told", func() bool { return w.logs.count("wait until it is known what became of its transactions") > 0 })
		require.Contains(t, p.Status()[target].LastError, "broker is down")
		require.Zero(t, partitions(p))
		require.Equal(t, seqs, w.store.Undelivered())
		conn.mu.Lock()
		conn.open = nil
		conn.mu.Unlock()
		w.delivered(time.Minute)
		w.once(ids)
		w.ready(map[*process]int{p: 8})
	})
}

// A row that is refused takes its transaction back; it pays, waits, and the others go on.
func TestTransact_ARefusedRowCostsNoOther(t *testing.T) {
	inWorld(t, func(w *world) {
		p, _ := w.exactly()
		w.ready(map[*process]int{p: 8})
		failKey(w.broker, "key-3", refuse("not this one"))
		ids := w.commit(p, 3, 10)
		w.until(10*time.Second, "the others", func() bool { return len(w.store.Undelivered()) == 3 })
		require.Empty(t, w.ids("key-3"))
		require.Equal(t, "closed", p.Status()[target].Breaker)
		require.Empty(t, p.Status()[target].OpenTopics)
		w.broker.FailWhere(nil)
		w.delivered(5 * time.Minute)
		w.once(ids)
		require.EqualValues(t, 1, p.Status()[target].Retries)
	})
}

// While the broker opens no transaction nothing is claimed, and the lane says so.
func TestTransact_ABrokerThatIsAwayIsTold(t *testing.T) {
	inWorld(t, func(w *world) {
		p, conn := w.exactly(func(e *exact) { e.open = func(string) error { return errDown } })
		w.ready(map[*process]int{p: 8})
		ids := w.commit(p, 1, 3)
		w.until(time.Minute, "sick", func() bool { return !p.Status()[target].Healthy })
		require.Contains(t, p.Status()[target].Trouble, "broker is down")
		require.Positive(t, w.logs.count("the broker opens no transaction"))
		require.Zero(t, p.store.Calls(relaytest.Claim))
		conn.mu.Lock()
		conn.open = nil
		conn.mu.Unlock()
		w.delivered(time.Minute)
		w.once(ids)
		require.True(t, p.Status()[target].Healthy)
	})
}

// A member has no more transactional ids than calls, and opens them as it needs them.
func TestTransact_IdsAreOpenedAsTheyAreNeeded(t *testing.T) {
	inWorld(t, func(w *world) {
		p, _ := w.exactly()
		w.ready(map[*process]int{p: 8})
		require.Empty(t, w.broker.Marks(broker.TransactionalPrefix))
		w.commit(p, 1, 1)
		w.delivered(time.Minute)
		require.Len(t, w.broker.Marks(broker.TransactionalPrefix), 1)
		w.commit(p, 300, 20)
		w.delivered(time.Minute)
		require.LessOrEqual(t, len(w.broker.Marks(broker.TransactionalPrefix)), outbox.Config{}.WithDefaults().Calls)
	})
}

// saved notes what is to survive a crash of the database.
type saved struct {
	*relaytest.Store
	steps, durable atomic.Int64
}

func (s *saved) note(durable bool) {
	s.steps.Add(1)
	if durable {
		s.durable.Add(1)
	}
}

func (s *saved) Claim(ctx context.Context, c relay.ClaimRequest) (relay.Claim, error) {
	s.note(c.Durable)
	return s.Store.Claim(ctx, c)
}

func (s *saved) Settle(ctx context.Context, t relay.Settlement) (bool, error) {
	s.note(t.Durable)
	return s.Store.Settle(ctx, t)
}

// The switch UNSAVED of the model: a token that a crash of the database brings back would have
// another claim's mark by then.
func TestTransact_TokensAndWhatSettlesThemAreDurable(t *testing.T) {
	for name, off := range map[string]bool{"exactly once": false, "at least once": true} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				s := &saved{}
				p := w.start(func(p *process, cfg *relay.Config) {
					s.Store = p.store
					cfg.Store, cfg.Lanes[0].Broker = s, &exact{connection: p.broker, off: off}
				})
				w.ready(map[*process]int{p: 8})
				w.commit(p, 5, 5)
				w.delivered(time.Minute)
				require.Positive(t, s.steps.Load())
				require.Equal(t, map[bool]int64{true: 0, false: s.steps.Load()}[off], s.durable.Load())
			})
		})
	}
}

// The switch REINIT of the model: a transaction's id is opened before its claim. One that was
// opened behind it could be committed after a reap has read the mark.
func TestTransact_IsOpenedBeforeItsClaim(t *testing.T) {
	inWorld(t, func(w *world) {
		var mu sync.Mutex
		var steps []string
		note := func(step string) {
			mu.Lock()
			defer mu.Unlock()
			steps = append(steps, step)
		}
		tries := 0
		p := w.start(func(p *process, cfg *relay.Config) {
			p.store.Before(func(step relaytest.Step) {
				if step == relaytest.Claim {
					note("claim")
				}
			})
			cfg.Outbox.Calls = 1
			cfg.Lanes[0].Broker = &exact{
				connection: p.broker,
				open:       func(string) error { note("open"); return nil },
				send: func(ctx context.Context, tx broker.Transactor, mark broker.Mark, messages []broker.Message) error {
					note("send")
					if tries++; tries%3 == 1 {
						return errors.Join(broker.ErrUndecided, tx.Publish(ctx, mark, messages))
					} else if tries%3 == 2 {
						return errDown
					}
					return tx.Publish(ctx, mark, messages)
				},
			}
		})
		w.ready(map[*process]int{p: 8})
		for range 6 {
			w.commit(p, 1, 5)
			w.delivered(time.Minute)
		}
		mu.Lock()
		defer mu.Unlock()
		require.GreaterOrEqual(t, tries, 4)
		for i, step := range steps {
			if step == "send" {
				require.Equal(t, "claim", steps[i-1], "%v", steps)
			}
		}
	})
}
