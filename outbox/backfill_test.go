package outbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/outbox/outboxtest"
)

type (
	order          struct{ domain.Root }
	OrderPlaced    struct{ N int }
	OrderCancelled struct{ N int }
	OrderNoted     struct{ N int }
)

var ordering = domain.MustNew("ordering", domain.Aggregate[*order]("order",
	domain.Event[OrderPlaced](domain.Published()), domain.Event[OrderCancelled](domain.Published()), domain.Event[OrderNoted]()))

// past is a bench whose context ordering has sent to its own broker only.
type past struct {
	*outboxtest.Bench
	n int
}

func newPast(b *outboxtest.Bench) *past {
	b.T.Helper()
	require.NoError(b.T, outbox.InitTargets(b.T.Context(), b.DB, "ordering", outbox.Targets{Broker: "default"}))
	return &past{Bench: b}
}

// event is the n-th event of all, of an order.
func (p *past) event(name, order string) outbox.Event {
	p.n++
	data, err := json.Marshal(OrderPlaced{N: p.n})
	require.NoError(p.T, err)
	return outbox.Event{
		Metadata: domain.Metadata{
			Origin: domain.Origin{CorrelationID: "c", TenantID: "acme", Extensions: map[string]string{"region": "eu", "secret": "?"}, Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
			ID:     uuid.Must(uuid.NewV7()).String(), Type: "Ordering." + name + ".v1", Time: time.Date(2026, 1, 2, 3, 4, p.n/1000, p.n%1000*1e6, time.UTC),
			Stream: "ordering::order-" + order, Category: "ordering::order", Context: "ordering", Aggregate: "order", AggregateID: order,
			Version: int64(p.n), Sequence: fmt.Sprintf("%d.1", p.n), Priority: 50,
		},
		Data: data,
	}
}

// rows are an event's rows for the context's own broker and for external ones.
func (p *past) rows(e outbox.Event, external ...outbox.Target) []outbox.Row {
	p.T.Helper()
	w := outbox.Writer{Domain: ordering, Internal: "default", External: external}
	rows, err := w.Rows([]outbox.Event{e}, outboxtest.Partitions)
	require.NoError(p.T, err)
	return rows
}

// happen stores events of some orders, one after the other.
func (p *past) happen(n, orders int) {
	p.T.Helper()
	var all []outbox.Row
	for i := range n {
		all = append(all, p.rows(p.event("OrderPlaced", fmt.Sprint("o", i%orders)))...)
	}
	p.InsertRows(all...)
}

// join lets partner join.
func (p *past) join() {
	p.T.Helper()
	require.NoError(p.T, outbox.SetTargets(p.T.Context(), p.DB, "ordering", outbox.Targets{Broker: "default", External: []string{"partner"}, Joining: []string{"partner"}}))
}

func (p *past) joining() []string {
	p.T.Helper()
	all, err := outbox.ReadTargets(p.T.Context(), p.DB)
	require.NoError(p.T, err)
	return all["ordering"].Joining
}

var toPartner = outbox.Backfill{Context: "ordering", Target: outbox.Target{Broker: "partner"}, Published: []string{"OrderPlaced", "OrderCancelled"}}.AtOnce()

// backfill makes partner live, and returns how many events it got.
func (p *past) backfill() int64 {
	p.T.Helper()
	done, err := p.Backfill(p.T.Context(), toPartner)
	require.NoError(p.T, err)
	require.Empty(p.T, p.joining())
	return done.Events
}

// got are the ids of partner's rows, in their order.
func (p *past) got() []string { return p.ids("partner") }

func (p *past) ids(target string) (ids []string) {
	p.T.Helper()
	for _, e := range p.Entries() {
		if e.TargetBroker == target {
			ids = append(ids, e.MessageID)
		}
	}
	return ids
}

func eachPast(t *testing.T, f func(t *testing.T, p *past)) {
	each(t, func(t *testing.T, b *outboxtest.Bench) { f(t, newPast(b)) })
}

// A copied row is the one that a unit would have written, byte for byte: body,
// topic, tenant, key. Which events go there, and in which form, is the target's
// decision; events of old versions go as they are, those that aren't published
// and those of other contexts not at all.
func TestBackfill_RowsAreThoseOfAUnit(t *testing.T) {
	for _, envelope := range outbox.Envelopes() {
		t.Run(string(envelope), func(t *testing.T) {
			eachPast(t, func(t *testing.T, p *past) { rowsAreThoseOfAUnit(t, p, envelope) })
		})
	}
}

func rowsAreThoseOfAUnit(t *testing.T, p *past, envelope outbox.Envelope) {
	target := outbox.Target{Broker: "partner", Envelope: envelope, Events: []string{"OrderPlaced"}, Extensions: []string{"region", "tenant_id"}, Topics: map[string]string{"ordering::order": "orders.eu"}}
	events := []outbox.Event{p.event("OrderPlaced", "a"), p.event("OrderNoted", "a"), p.event("OrderCancelled", "a"), p.event("OrderPlaced", "b")}
	events[3].Key = "customer-1"
	var want []outbox.Row
	for _, e := range events {
		p.InsertRows(p.rows(e)...)
		want = append(want, p.rows(e, target)[1:]...)
	}
	old := p.rows(events[0])[0]
	old.MessageID, old.MessageType = uuid.NewString(), "Ordering.OrderPlaced.v7"
	old.Payload = []byte(strings.NewReplacer(events[0].ID, old.MessageID, ".v1", ".v7", `"version":1`, `"version":7`).Replace(string(old.Payload)))
	foreign := outboxtest.Row("s")
	foreign.StreamCategory = "ordering_too::order"
	p.InsertRows(old, foreign)

	p.join()
	b := toPartner
	b.Target = target
	done, err := p.Backfill(t.Context(), b)
	require.NoError(t, err)
	require.EqualValues(t, 3, done.Events)
	require.Equal(t, events[0].Time, done.Oldest)
	require.Equal(t, events[3].Time, done.Latest)
	require.Len(t, want, 2)

	got, bodies := p.sent()
	require.Len(t, got, 3)
	p.Exec("DELETE FROM outbox WHERE target_broker = 'partner'")
	p.InsertRows(want...)
	live, liveBodies := p.sent()
	for i, e := range live {
		// What the database gives a row.
		e.Seq, e.ID, e.CreatedAt, e.AvailableAt = got[i].Seq, got[i].ID, got[i].CreatedAt, got[i].AvailableAt
		require.Equal(t, e, got[i])
	}
	require.Equal(t, liveBodies, bodies[:2])
	require.Equal(t, old.MessageID, got[2].MessageID)
	require.Equal(t, "Ordering.OrderPlaced.v7", got[2].MessageType)
}

// A70: what has nothing to copy does nothing, also a second time.
func TestBackfill_A70_NothingToDo(t *testing.T) {
	eachPast(t, func(t *testing.T, p *past) {
		p.join()
		require.Zero(t, p.backfill())
		require.Empty(t, p.Entries())
		p.InsertRows(p.rows(p.event("OrderPlaced", "a"), toPartner.Target)...)
		require.Zero(t, p.backfill(), "it is live")
		require.Len(t, p.got(), 1)
	})
}

// Per key, the partner's rows are in the order of the events, those that come
// later behind them, and each is there once, over many transactions.
func TestBackfill_OrderPerKey(t *testing.T) {
	eachPast(t, func(t *testing.T, p *past) {
		p.happen(1700, 7)
		p.join()
		p.happen(10, 3)
		var told []int64
		b := toPartner
		b.Progress = func(done outbox.Backfilled, _ string) { told = append(told, done.Events) }
		_, err := p.Backfill(t.Context(), b)
		require.NoError(t, err)
		p.InsertRows(p.rows(p.event("OrderPlaced", "o1"), b.Target)...)
		require.Equal(t, p.ids("default"), p.got())
		require.Equal(t, []int64{500, 1000, 1500, 1710}, told)
	})
}

// A70: a row that commits late, below those that were copied already, is found.
// Nothing goes live meanwhile, and others aren't kept from writing for long.
func TestBackfill_A70_HoleBehindANewerRow(t *testing.T) {
	t.Parallel()
	p := newPast(outboxtest.Open(t, openPostgres(t)))
	p.happen(3, 3)
	p.join()
	tx, commit := p.late()
	defer func() { _ = tx.Rollback() }()
	p.happen(3, 3)

	ended := p.start(toPartner, "a transaction that has been writing to the outbox for long")
	require.Empty(t, p.got(), "nothing is known to be below the hole")
	p.happen(1, 1) // while it waits and tries again
	require.Equal(t, []string{"partner"}, p.joining())
	commit()
	require.NoError(t, <-ended)
	require.Equal(t, p.ids("default"), p.got())
	require.Len(t, p.got(), 8)
}

// The lock of the last transaction waits for a unit that has read that the target
// is joining, and has written.
func TestBackfill_AUnitIsOpenDuringTheFlip(t *testing.T) {
	t.Parallel()
	p := newPast(outboxtest.Open(t, openPostgres(t)))
	p.join()
	tx, err := p.DB.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	known, err := outbox.HoldTargets(t.Context(), tx, "ordering", outbox.Targets{Broker: "default", External: []string{"partner"}})
	require.NoError(t, err)
	require.Equal(t, []string{"partner"}, known.Joining)

	ended := p.start(toPartner, "a transaction that has been writing to the outbox for long") // though no row is there yet
	query, err := outbox.Insert(p.rows(p.event("OrderPlaced", "a"))).AppendQuery(p.DB.QueryGen(), nil)
	require.NoError(t, err)
	_, err = tx.ExecContext(t.Context(), string(query))
	require.NoError(t, err)
	require.NoError(t, tx.Commit())
	require.NoError(t, <-ended)
	require.Equal(t, p.ids("default"), p.got())
}

// late begins a transaction that has drawn a seq.
func (p *past) late() (tx bun.Tx, commit func()) {
	p.T.Helper()
	tx, err := p.DB.BeginTx(p.T.Context(), nil)
	require.NoError(p.T, err)
	query, err := outbox.Insert(p.rows(p.event("OrderPlaced", "late"))).AppendQuery(p.DB.QueryGen(), nil)
	require.NoError(p.T, err)
	_, err = tx.ExecContext(p.T.Context(), string(query))
	require.NoError(p.T, err)
	return tx, func() { require.NoError(p.T, tx.Commit()) }
}

// start runs a back-fill beside the test, and returns when it waits for something.
func (p *past) start(b outbox.Backfill, forWhat string) (ended chan error) {
	p.T.Helper()
	waits, ended := make(chan string, 1), make(chan error, 1)
	b.Progress = func(_ outbox.Backfilled, text string) {
		if text != "" {
			select {
			case waits <- text:
			default:
			}
		}
	}
	go func() {
		_, err := p.Backfill(p.T.Context(), b)
		ended <- err
	}()
	select {
	case text := <-waits:
		require.Equal(p.T, forWhat, text)
	case err := <-ended:
		require.Fail(p.T, "it has ended", "%v", err)
	}
	return ended
}

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
func TestBackfill_KilledInTheMiddle(t *testing.T) {
	for _, at := range []struct {
		words  string
		n      int64
		copied int
	}{
		{"UPDATE outbox_settings", 2, 500}, // behind the rows of the second batch, before its cursor
		{"SELECT seq, partition_key", 3, 1000},
		{"DELETE FROM outbox_settings", 1, 1000}, // in the last transaction, which has copied the rest
		{"INSERT INTO outbox_settings", 1, 1000},
	} {
		t.Run(at.words, func(t *testing.T) {
			eachPast(t, func(t *testing.T, p *past) {
				p.happen(1100, 5)
				p.join()
				if at.copied == 1000 && at.n == 1 {
					// So that the last transaction has something to copy.
					p.Exec("UPDATE outbox_settings SET value = (SELECT CAST(min(seq) + 999 AS text) FROM outbox) WHERE name LIKE 'backfill:%'")
					p.copyAsBefore(1000)
				}
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				hook := &stopAt{words: at.words, cancel: func() { cancel(errEnough) }}
				hook.n.Store(at.n)
				hooked := p.As.WithQueryHook(hook)
				_, err := outbox.NewStore(hooked, hooked).Backfill(ctx, toPartner)
				require.ErrorContains(t, err, "back-fill of partner; when it is run again, it goes on from there")
				require.Equal(t, []string{"partner"}, p.joining())
				require.GreaterOrEqual(t, len(p.got()), at.copied)
				p.backfill()
				require.Equal(t, p.ids("default"), p.got())
			})
		})
	}
}

// copyAsBefore gives partner rows for the first n events.
func (p *past) copyAsBefore(n int) {
	p.T.Helper()
	columns := "message_id, stream, stream_category, topic, partition_key, partition, message_type, aggregate_type, aggregate_id, aggregate_version, payload, content_type, occurred_at"
	id := "gen_random_uuid()"
	if p.DB.Dialect().Name().String() == "sqlite" {
		id = "hex(randomblob(16))"
	}
	p.Exec("INSERT INTO outbox (id, target_broker, " + columns + ") SELECT " + id + ", 'partner', " + columns + " FROM outbox WHERE target_broker = 'default' ORDER BY seq LIMIT " + fmt.Sprint(n))
}

// Two commands at once share the work: none copies what the other has copied.
func TestBackfill_TwoAtOnce(t *testing.T) {
	eachPast(t, func(t *testing.T, p *past) {
		p.happen(1700, 7)
		p.join()
		var events atomic.Int64
		run := func(s *outbox.Store) error {
			done, err := s.Backfill(t.Context(), toPartner)
			events.Add(done.Events)
			return err
		}
		// The first is in the middle of a transaction, with the cursor read, when the
		// second comes.
		var second sync.WaitGroup
		var err error
		hook := &stopAt{words: "SELECT seq, partition_key", cancel: func() {
			second.Go(func() { err = run(p.Store) })
			if p.DB.Dialect().Name().String() == "pg" {
				require.Eventually(t, func() bool {
					var waiting bool
					scan := p.DB.NewRaw("SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE 'SELECT value FROM outbox_settings WHERE name = ''backfill:ordering:partner'' FOR UPDATE')").Scan(context.Background(), &waiting)
					return scan == nil && waiting
				}, 10*time.Second, 5*time.Millisecond)
			}
		}}
		hook.n.Store(2)
		hooked := p.As.WithQueryHook(hook)
		require.NoError(t, run(outbox.NewStore(hooked, hooked)))
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
	eachPast(t, func(t *testing.T, p *past) {
		p.happen(600, 3)
		p.join()
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		b := toPartner
		b.Progress = func(outbox.Backfilled, string) { cancel(errEnough) } // after the first transaction
		_, err := p.Backfill(ctx, b)
		require.Error(t, err)
		require.Equal(t, []string{"partner"}, p.joining())
		first := p.got()
		require.Len(t, first, 500)
		p.Exec("DELETE FROM outbox WHERE target_broker = 'partner'")

		require.EqualValues(t, 100, p.backfill())
		require.Len(t, p.got(), 100)
		require.NotContains(t, p.got(), first[499])
		p.Exec("DELETE FROM outbox WHERE target_broker = 'partner'")
		require.Zero(t, p.backfill())
		require.Empty(t, p.got())
	})
}

// A70: while a target is joining, nothing that it has not got is removed: not by
// a purge, and not when it is published in a database that removes it then. What
// had to stay is removed later, and counted.
func TestBackfill_A70_RetentionWaitsForTheCursor(t *testing.T) {
	for name, retention := range map[string]outbox.Retention{"removed when published": {Delete: true}, "expired": {Published: time.Nanosecond}} {
		t.Run(name, func(t *testing.T) {
			eachPast(t, func(t *testing.T, p *past) {
				w := p.Worker("w1", outboxtest.Partitions, time.Hour)
				publish := func() {
					for c := w.Claim(100); len(c.Rows) > 0; c = w.Claim(100) {
						stale, err := p.Settle(t.Context(), outbox.Settlement{Claim: c.ID, Target: "default", Retention: retention, Outcomes: outboxtest.All(c, outbox.Outcome{Status: outbox.Published})})
						require.NoError(t, err)
						require.Zero(t, stale)
					}
				}
				left := func() int {
					_, err := p.Purge(t.Context(), retention)
					require.NoError(t, err)
					return len(p.ids("default"))
				}
				p.happen(2, 1)
				publish()
				require.Eventually(t, func() bool { return left() == 0 }, 10*time.Second, 5*time.Millisecond, "nobody is joining")

				p.join()
				p.happen(5, 2)
				publish()
				require.Equal(t, 5, left())
				want := p.ids("default")
				require.EqualValues(t, 5, p.backfill())
				require.Equal(t, want, p.got())
				p.happen(1, 1)
				publish()
				require.Eventually(t, func() bool { return left() == 0 }, 10*time.Second, 5*time.Millisecond)
				stats, err := p.Stats(t.Context())
				require.NoError(t, err)
				require.EqualValues(t, 8, stats["default"].Counts[outbox.Published])
			})
		})
	}
}

// Rows that a target has from before it was taken out stay, and are not copied.
func TestBackfill_ATargetComesBack(t *testing.T) {
	eachPast(t, func(t *testing.T, p *past) {
		p.InsertRows(p.rows(p.event("OrderPlaced", "a"), toPartner.Target)...)
		p.happen(2, 1)
		p.join()
		p.backfill()
		require.Equal(t, p.ids("default"), p.got())
	})
}

// CountBackfill says beforehand what Backfill does.
func TestBackfill_Count(t *testing.T) {
	eachPast(t, func(t *testing.T, p *past) {
		p.happen(3, 1)
		p.InsertRows(p.rows(p.event("OrderNoted", "a"))...)
		count := func() outbox.Backfilled {
			found, err := p.CountBackfill(t.Context(), toPartner)
			require.NoError(t, err)
			return found
		}
		want := outbox.Backfilled{Events: 3, Oldest: time.Date(2026, 1, 2, 3, 4, 0, 1e6, time.UTC), Latest: time.Date(2026, 1, 2, 3, 4, 0, 3e6, time.UTC)}
		require.Equal(t, want, count(), "before it joins")
		p.join()
		require.Equal(t, want, count())
		p.Exec("UPDATE outbox_settings SET value = (SELECT CAST(min(seq) AS text) FROM outbox) WHERE name LIKE 'backfill:%'")
		require.EqualValues(t, 2, count().Events)
		p.backfill()
		require.Zero(t, count())
	})
}

// What is missing is said, with its remedy.
func TestBackfill_Refused(t *testing.T) {
	eachPast(t, func(t *testing.T, p *past) {
		b := toPartner
		b.Published = nil
		_, err := p.Backfill(t.Context(), b)
		require.EqualError(t, err, "outbox: in the database context ordering sends to default and not to partner: stop all its processes,"+
			" run `waybill migrate --set-targets ordering=default,partner --history copy`, and start them with partner in their configuration")
		p.join()
		_, err = p.Backfill(t.Context(), b)
		require.ErrorContains(t, err, "does not know which events of context ordering are published; its program writes them down")
		require.NoError(t, outbox.WritePublished(t.Context(), p.DB, "ordering", []string{"OrderPlaced"}))
		require.NoError(t, outbox.WritePublished(t.Context(), p.DB, "ordering", []string{"OrderPlaced"}))
		p.happen(1, 1)
		done, err := p.Backfill(t.Context(), b)
		require.NoError(t, err)
		require.EqualValues(t, 1, done.Events)

		// What a unit refuses, a back-fill refuses: nothing is left out in silence.
		require.NoError(t, outbox.SetTargets(t.Context(), p.DB, "ordering", outbox.Targets{Broker: "default"}))
		e := p.event("OrderPlaced", "b")
		e.Extensions = map[string]string{"ключ": "x"}
		p.InsertRows(p.rows(e)...)
		p.join()
		b.Target.Envelope, b.Target.Extensions = outbox.CloudEvents, []string{"ключ"}
		_, err = p.Backfill(t.Context(), b)
		require.ErrorContains(t, err, "goes on from there: row ")
		require.ErrorContains(t, err, "can't be a CloudEvent for broker partner")
		b.Target.Extensions = []string{"region"}
		done, err = p.Backfill(t.Context(), b)
		require.NoError(t, err)
		require.EqualValues(t, 2, done.Events)

		b.Context = "shipping"
		_, err = p.Backfill(t.Context(), b)
		require.ErrorContains(t, err, "the database does not know context shipping")
	})
}

// Who is joining stays so until its back-fill has ended or it is taken out.
func TestTargets_Joining(t *testing.T) {
	eachPast(t, func(t *testing.T, p *past) {
		set := func(joining []string, external ...string) error {
			return outbox.SetTargets(t.Context(), p.DB, "ordering", outbox.Targets{Broker: "default", External: external, Joining: joining})
		}
		cursors := func() (names []string) {
			require.NoError(t, p.DB.NewRaw("SELECT name FROM outbox_settings WHERE name LIKE 'backfill:%' ORDER BY name").Scan(t.Context(), &names))
			return names
		}
		p.join()
		require.NoError(t, outbox.CheckTargets(t.Context(), p.DB, "ordering", outbox.Targets{Broker: "default", External: []string{"partner"}}), "whoever has it runs")
		var other *outbox.TargetsError
		require.ErrorAs(t, outbox.CheckTargets(t.Context(), p.DB, "ordering", outbox.Targets{Broker: "default"}), &other)
		require.NoError(t, set(nil, "partner"))
		require.Equal(t, []string{"partner"}, p.joining(), "said again, it is still joining")
		require.NoError(t, set([]string{"second"}, "partner", "second"))
		require.Equal(t, []string{"partner", "second"}, p.joining())
		require.Equal(t, []string{"backfill:ordering:partner", "backfill:ordering:second"}, cursors())
		require.EqualValues(t, 0, func() int64 { n, err := p.Backfill(t.Context(), toPartner); require.NoError(t, err); return n.Events }())
		require.Equal(t, []string{"second"}, p.joining())
		require.ErrorContains(t, set([]string{"partner"}, "partner", "second"), "partner can't join the targets of context ordering, it is one already")
		require.ErrorContains(t, set([]string{"third"}, "partner"), `"third" can't join, as it is not an external broker of them`)
		require.NoError(t, set(nil, "partner"))
		require.Empty(t, p.joining())
		require.Empty(t, cursors())
	})
}

// sent are partner's rows with their bodies.
func (p *past) sent() (entries []outbox.Entry, bodies []string) {
	p.T.Helper()
	for _, e := range p.Entries() {
		if e.TargetBroker == "partner" {
			entries = append(entries, e)
		}
	}
	require.NoError(p.T, p.DB.NewRaw("SELECT payload FROM outbox WHERE target_broker = 'partner' ORDER BY seq").Scan(p.T.Context(), &bodies))
	return entries, bodies
}
