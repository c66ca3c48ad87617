package outboxdb_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/outbox"
)

var errEnough = errors.New("enough")

// stopAt is a hook that ends a context before the n-th statement that begins with
// some words.
type stopAt struct {
	words  string
	n      atomic.Int64
	cancel func()
}

func (h *stopAt) BeforeQuery(ctx context.Context, e *bun.QueryEvent) context.Context {
	if strings.HasPrefix(e.Query, h.words) && h.n.Add(-1) == 0 {
		h.cancel()
	}
	return ctx
}

func (*stopAt) AfterQuery(context.Context, *bun.QueryEvent) {}

// A command that is killed between any two statements leaves either nothing or
// all of a transaction, and the next one goes on from there.
// Conformance: A70.
func TestBackfill_KilledInTheMiddle(t *testing.T) {
	for _, at := range []struct {
		words  string
		n      int64
		copied int
	}{
		{"INSERT INTO outbox_settings", 2, 500}, // behind the rows of the second batch, before its cursor
		{"SELECT b.seq, b.partition_key", 3, 1000},
		{"DELETE FROM outbox_settings", 1, 1000}, // in the last transaction
		{"INSERT INTO outbox_settings", 2, 1000}, // the same, behind the cursor
	} {
		t.Run(at.words, func(t *testing.T) {
			eachBygone(t, func(t *testing.T, p *bygone) {
				p.happen(1100, 5)
				p.joins()
				if at.copied == 1000 && at.n < 3 {
					// The first transaction has the rest.
					p.Exec("UPDATE outbox_settings SET value = (SELECT CAST(min(seq) + 999 AS text) FROM outbox_messages) WHERE name LIKE 'backfill:%'")
					p.copyAsBefore(1000)
				}
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				hook := &stopAt{words: at.words, cancel: func() { cancel(errEnough) }}
				hook.n.Store(at.n)
				hooked := p.As.WithQueryHook(hook)
				_, err := outboxdb.New(hooked, hooked).BackfillAtOnce(ctx, toPartner)
				require.Regexp(t, `back-fill of partner, after \d+ events; run it again to continue from there`, err.Error())
				require.Equal(t, []string{"partner"}, p.joining())
				require.GreaterOrEqual(t, len(p.got()), at.copied)
				p.backfill()
				require.Equal(t, p.ids("default"), p.got())
			})
		})
	}
}

// copyAsBefore gives partner rows for the first n events.
func (p *bygone) copyAsBefore(n int) {
	p.T.Helper()
	found, err := p.Find(p.T.Context(), outbox.Filter{Limit: n})
	require.NoError(p.T, err)
	rows := make([]outbox.Row, n)
	for i, e := range found {
		rows[i] = e.Row
		rows[i].ID, rows[i].TargetBroker, rows[i].Payload = uuid.NewString(), "partner", []byte("{}")
	}
	p.InsertRows(rows...)
}

// forget removes rows of partner, as its retention would.
func (p *bygone) forget() {
	p.T.Helper()
	for _, table := range []string{"outbox_queue", "outbox_messages"} {
		p.Exec("DELETE FROM " + table + " WHERE lane = (SELECT id FROM outbox_lanes WHERE target = 'partner')")
	}
}

// Two commands at once share the work: none copies what the other has copied.
// Conformance: A70.
func TestBackfill_TwoAtOnce(t *testing.T) {
	eachBygone(t, func(t *testing.T, p *bygone) {
		p.happen(1700, 7)
		p.joins()
		var events atomic.Int64
		run := func(s *outboxdb.Store) error {
			done, err := s.BackfillAtOnce(t.Context(), toPartner)
			events.Add(done.Events)
			return err
		}
		// The first is in the middle of a transaction, with the cursor read, when the
		// second comes.
		var second sync.WaitGroup
		var err error
		hook := &stopAt{words: "SELECT b.seq, b.partition_key", cancel: func() {
			second.Go(func() { err = run(p.Store) })
			if p.DB.Dialect().Name().String() == "pg" {
				waittest.Until(t, func() bool {
					var waiting bool
					scan := p.DB.NewRaw("SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%backfill:ordering:partner%')").Scan(context.Background(), &waiting)
					return scan == nil && waiting
				})
			}
		}}
		hook.n.Store(2)
		hooked := p.As.WithQueryHook(hook)
		require.NoError(t, run(outboxdb.New(hooked, hooked)))
		second.Wait()
		require.NoError(t, err)
		require.EqualValues(t, 1700, events.Load())
		require.Equal(t, p.ids("default"), p.got())
		require.Empty(t, p.joining())
	})
}

// A70, D12: what the partner got and its outbox has forgotten doesn't come again,
// neither while it is joining nor later.
func TestBackfill_A70_D12_NothingComesAgain(t *testing.T) {
	eachBygone(t, func(t *testing.T, p *bygone) {
		p.happen(600, 3)
		p.joins()
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		b := toPartner
		b.Progress = func(outbox.Backfilled, string) { cancel(errEnough) } // after the first transaction
		_, err := p.BackfillAtOnce(ctx, b)
		require.Error(t, err)
		require.Equal(t, []string{"partner"}, p.joining())
		first := p.got()
		require.Len(t, first, 500)
		p.forget()

		require.EqualValues(t, 100, p.backfill())
		require.Len(t, p.got(), 100)
		require.NotContains(t, p.got(), first[499])
		p.forget()
		require.Zero(t, p.backfill())
		require.Empty(t, p.got())
	})
}

// A70: while a target is joining, nothing that it has not got is removed: not by a
// purge, and not when it is published in a database that removes it then. What had to
// stay is removed later, and counted.
func TestBackfill_A70_RetentionWaitsForTheCursor(t *testing.T) {
	for name, remove := range map[string]bool{"removed when published": true, "expired": false} {
		t.Run(name, func(t *testing.T) {
			eachBygone(t, func(t *testing.T, p *bygone) {
				m := p.worker("w1")
				publish := func() {
					s := m.settlement(m.claim(100), published)
					s.Delete = remove
					require.True(t, m.Settle(s))
					clear(m.keys)
				}
				left := func() int {
					p.aged()
					p.purge(outbox.Retention{Published: time.Minute, Delete: remove})
					return len(p.ids("default"))
				}
				p.happen(2, 1)
				publish()
				require.Zero(t, left(), "nobody is joining")

				p.joins()
				p.happen(5, 2)
				publish()
				require.Equal(t, 5, left())
				want := p.ids("default")
				require.EqualValues(t, 5, p.backfill())
				require.Equal(t, want, p.got())
				p.happen(1, 1)
				publish()
				require.Zero(t, left())
				require.EqualValues(t, 8, p.stats("default").Counts[outbox.Published])
			})
		})
	}
}

// Rows that a target has from before it was taken out stay, and are not copied, nor counted as
// if they were; of those that were given up people are told.
func TestBackfill_ATargetComesBack(t *testing.T) {
	eachBygone(t, func(t *testing.T, p *bygone) {
		for range 2 {
			p.InsertRows(p.rows(p.event("OrderPlaced", "a"), toPartner.Target)...)
		}
		p.Exec("DELETE FROM outbox_queue") // they are published, but for one that was given up
		p.Exec("INSERT INTO outbox_abandoned (seq, lane, part, key, attempts, losses, maybe_delivered) SELECT max(seq), lane, 1, 1, 1, 0, FALSE FROM outbox_messages" +
			" WHERE lane = (SELECT id FROM outbox_lanes WHERE target = 'partner') GROUP BY lane")
		p.happen(2, 1)
		p.joins()
		found, err := p.CountBackfill(t.Context(), toPartner)
		require.NoError(t, err)
		require.EqualValues(t, 2, found.Events)
		done, err := p.BackfillAtOnce(t.Context(), toPartner)
		require.NoError(t, err)
		require.Equal(t, []int64{2, 1}, []int64{done.Events, done.Abandoned})
		require.Equal(t, p.ids("default"), p.got())
	})
}

// CountBackfill says beforehand what Backfill does.
func TestBackfill_Count(t *testing.T) {
	eachBygone(t, func(t *testing.T, p *bygone) {
		p.happen(3, 1)
		p.InsertRows(p.rows(p.event("OrderNoted", "a"))...)
		count := func() outbox.Backfilled {
			found, err := p.CountBackfill(t.Context(), toPartner)
			require.NoError(t, err)
			return found
		}
		want := outbox.Backfilled{Events: 3, Oldest: time.Date(2026, 1, 2, 3, 4, 0, 1e6, time.UTC), Latest: time.Date(2026, 1, 2, 3, 4, 0, 3e6, time.UTC)}
		require.Equal(t, want, count(), "before it joins")
		p.joins()
		require.Equal(t, want, count())
		p.Exec("UPDATE outbox_settings SET value = (SELECT CAST(min(seq) AS text) FROM outbox_messages) WHERE name LIKE 'backfill:%'")
		require.EqualValues(t, 2, count().Events)
		p.backfill()
		require.Zero(t, count())
	})
}

// What is missing is said, with its remedy.
func TestBackfill_Refused(t *testing.T) {
	eachBygone(t, func(t *testing.T, p *bygone) {
		b := toPartner
		b.Published = nil
		_, err := p.BackfillAtOnce(t.Context(), b)
		require.EqualError(t, err, "outbox: in the database context ordering sends to default and not to partner: stop all its processes,"+
			" run `waybill migrate --set-targets ordering=default,partner --history copy`, and start them with partner in their configuration")
		p.joins()
		_, err = p.BackfillAtOnce(t.Context(), b)
		require.ErrorContains(t, err, "does not know which events of context ordering are published; its program writes them down")
		require.NoError(t, outboxdb.WritePublished(t.Context(), p.DB, "ordering", []string{"OrderPlaced"}))
		require.NoError(t, outboxdb.WritePublished(t.Context(), p.DB, "ordering", []string{"OrderPlaced"}))
		p.happen(1, 1)
		done, err := p.BackfillAtOnce(t.Context(), b)
		require.NoError(t, err)
		require.EqualValues(t, 1, done.Events)

		p.Exec("DELETE FROM outbox_queue WHERE lane = (SELECT id FROM outbox_lanes WHERE target = 'partner')") // it is published

		// What a unit refuses, a back-fill refuses: nothing is left out in silence.
		require.NoError(t, outboxdb.SetTargets(t.Context(), p.DB, "ordering", outbox.Targets{Broker: "default"}, "mia"))
		e := p.event("OrderPlaced", "b")
		e.Extensions = map[string]string{"ключ": "x"}
		p.InsertRows(p.rows(e)...)
		p.joins()
		b.Target.Envelope, b.Target.Extensions = outbox.CloudEvents, []string{"ключ"}
		_, err = p.BackfillAtOnce(t.Context(), b)
		require.ErrorContains(t, err, "from there: row ")
		require.ErrorContains(t, err, "can't be a CloudEvent for broker partner")
		b.Target.Extensions = []string{"region"}
		done, err = p.BackfillAtOnce(t.Context(), b)
		require.NoError(t, err)
		require.EqualValues(t, 1, done.Events)

		b.Context = "shipping"
		_, err = p.BackfillAtOnce(t.Context(), b)
		require.ErrorContains(t, err, "the database does not know context shipping")
	})
}

// Who is joining stays so until its back-fill has ended or it is taken out.
func TestTargets_Joining(t *testing.T) {
	eachBygone(t, func(t *testing.T, p *bygone) {
		set := func(joining []string, external ...string) error {
			return outboxdb.SetTargets(t.Context(), p.DB, "ordering", outbox.Targets{Broker: "default", External: external, Joining: joining}, "mia")
		}
		cursors := func() (names []string) {
			require.NoError(t, p.DB.NewRaw("SELECT name FROM outbox_settings WHERE name LIKE 'backfill:%' ORDER BY name").Scan(t.Context(), &names))
			return names
		}
		p.joins()
		require.NoError(t, outboxdb.CheckTargets(t.Context(), p.DB, "ordering", outbox.Targets{Broker: "default", External: []string{"partner"}}), "whoever has it runs")
		var other *outbox.TargetsError
		require.ErrorAs(t, outboxdb.CheckTargets(t.Context(), p.DB, "ordering", outbox.Targets{Broker: "default"}), &other)
		require.NoError(t, set(nil, "partner"))
		require.Equal(t, []string{"partner"}, p.joining(), "said again, it is still joining")
		require.NoError(t, set([]string{"second"}, "partner", "second"))
		require.Equal(t, []string{"partner", "second"}, p.joining())
		require.Equal(t, []string{"backfill:ordering:partner", "backfill:ordering:second"}, cursors())
		require.EqualValues(t, 0, func() int64 {
			n, err := p.BackfillAtOnce(t.Context(), toPartner)
			require.NoError(t, err)
			return n.Events
		}())
		require.Equal(t, []string{"second"}, p.joining())
		require.ErrorContains(t, set([]string{"partner"}, "partner", "second"), "partner can't join the targets of context ordering, it is one already")
		require.ErrorContains(t, set([]string{"third"}, "partner"), `"third" can't join, as it is not an external broker of them`)
		require.NoError(t, set(nil, "partner"))
		require.Empty(t, p.joining())
		require.Empty(t, cursors())
	})
}
