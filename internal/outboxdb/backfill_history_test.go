package outboxdb_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/outbox"
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
type bygone struct {
	*bench

	n int
}

func newBygone(b *outboxdbtest.Bench) *bygone {
	b.T.Helper()
	require.NoError(b.T, outboxdb.InitTargets(b.T.Context(), b.DB, "ordering", outbox.Targets{Broker: "default"}))
	return &bygone{bench: &bench{b}}
}

// event is the n-th event of all, of an order.
func (p *bygone) event(name, order string) outbox.Event {
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
func (p *bygone) rows(e outbox.Event, external ...outbox.Target) []outbox.Row {
	p.T.Helper()
	w := outbox.Writer{Domain: ordering, Internal: "default", External: external}
	rows, err := w.Rows([]outbox.Event{e}, outboxdbtest.Partitions)
	require.NoError(p.T, err)
	return rows
}

// happen stores events of some orders, one after the other.
func (p *bygone) happen(n, orders int) {
	p.T.Helper()
	var all []outbox.Row
	for i := range n {
		all = append(all, p.rows(p.event("OrderPlaced", fmt.Sprint("o", i%orders)))...)
	}
	p.InsertRows(all...)
}

// join lets partner join.
func (p *bygone) joins() {
	p.T.Helper()
	require.NoError(p.T, outboxdb.SetTargets(p.T.Context(), p.DB, "ordering", outbox.Targets{Broker: "default", External: []string{"partner"}, Joining: []string{"partner"}}, "mia"))
}

func (p *bygone) joining() []string {
	p.T.Helper()
	all, err := outboxdb.ReadTargets(p.T.Context(), p.DB)
	require.NoError(p.T, err)
	return all["ordering"].Joining
}

var toPartner = outbox.Backfill{Context: "ordering", Target: outbox.Target{Broker: "partner"}, Actor: "alice", Published: []string{"OrderPlaced", "OrderCancelled"}}

// backfill makes partner live, and returns how many events it got.
func (p *bygone) backfill() int64 {
	p.T.Helper()
	done, err := p.BackfillAtOnce(p.T.Context(), toPartner)
	require.NoError(p.T, err)
	require.Empty(p.T, p.joining())
	return done.Events
}

// got are the ids of partner's rows, in their order.
func (p *bygone) got() []string { return p.ids("partner") }

func (p *bygone) ids(target string) (ids []string) {
	p.T.Helper()
	for _, e := range p.entries() {
		if e.TargetBroker == target {
			ids = append(ids, e.MessageID)
		}
	}
	return ids
}

func eachBygone(t *testing.T, f func(t *testing.T, p *bygone)) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) { f(t, newBygone(b)) })
}

// A copied row is the one that a unit would have written, byte for byte: body,
// topic, tenant, key. Which events go there, and in which form, is the target's
// decision; events of old versions go as they are, those that aren't published
// and those of other contexts not at all.
func TestBackfill_RowsAreThoseOfAUnit(t *testing.T) {
	for _, envelope := range outbox.Envelopes() {
		t.Run(string(envelope), func(t *testing.T) {
			eachBygone(t, func(t *testing.T, p *bygone) { rowsAreThoseOfAUnit(t, p, envelope) })
		})
	}
}

func rowsAreThoseOfAUnit(t *testing.T, p *bygone, envelope outbox.Envelope) {
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
	foreign := outboxdbtest.Row("s")
	foreign.StreamCategory = "ordering_too::order"
	p.InsertRows(old, foreign)

	p.joins()
	b := toPartner
	b.Target = target
	done, err := p.BackfillAtOnce(t.Context(), b)
	require.NoError(t, err)
	require.EqualValues(t, 3, done.Events)
	require.Equal(t, events[0].Time, done.Oldest)
	require.Equal(t, events[3].Time, done.Latest)
	require.Len(t, want, 2)

	got, bodies := p.sent()
	require.Len(t, got, 3)
	p.forget()
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

// A70: what has nothing to copy does nothing, also a second time. That the target is live by
// it is on record all the same.
func TestBackfill_A70_NothingToDo(t *testing.T) {
	eachBygone(t, func(t *testing.T, p *bygone) {
		p.joins()
		require.Zero(t, p.backfill())
		require.Empty(t, p.entries())
		p.InsertRows(p.rows(p.event("OrderPlaced", "a"), toPartner.Target)...)
		require.Zero(t, p.backfill(), "it is live")
		require.Len(t, p.got(), 1)
		actions, err := p.Actions(t.Context(), 10)
		require.NoError(t, err)
		require.Len(t, actions, 2)
		require.Zero(t, actions[0].Rows)
		require.JSONEq(t, `{"context": "ordering", "target": "partner", "live": true}`, string(actions[0].Filter))
	})
}

// Per key, the partner's rows are in the order of the events, those that come
// later behind them, and each is there once, over many transactions.
func TestBackfill_OrderPerKey(t *testing.T) {
	eachBygone(t, func(t *testing.T, p *bygone) {
		p.happen(1700, 7)
		p.joins()
		p.happen(10, 3)
		var told []int64
		b := toPartner
		b.Progress = func(done outbox.Backfilled, _ string) { told = append(told, done.Events) }
		_, err := p.BackfillAtOnce(t.Context(), b)
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
	p := newBygone(outboxdbtest.Open(t, outboxdbtest.PostgreSQL(t)))
	p.happen(3, 3)
	p.joins()
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
	p := newBygone(outboxdbtest.Open(t, outboxdbtest.PostgreSQL(t)))
	p.joins()
	tx, err := p.DB.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	known, err := outboxdb.HoldTargets(t.Context(), tx, "ordering", outbox.Targets{Broker: "default", External: []string{"partner"}})
	require.NoError(t, err)
	require.Equal(t, []string{"partner"}, known.Joining)

	ended := p.start(toPartner, "a transaction that has been writing to the outbox for long") // though no row is there yet
	query, err := outboxdb.Insert(p.rows(p.event("OrderPlaced", "a"))).AppendQuery(p.DB.QueryGen(), nil)
	require.NoError(t, err)
	_, err = tx.ExecContext(t.Context(), string(query))
	require.NoError(t, err)
	require.NoError(t, tx.Commit())
	require.NoError(t, <-ended)
	require.Equal(t, p.ids("default"), p.got())
}

// What is left is read when nobody can write any more: a unit that commits just before
// that is found.
func TestBackfill_TheRestIsReadUnderTheLock(t *testing.T) {
	t.Parallel()
	p := newBygone(outboxdbtest.Open(t, outboxdbtest.PostgreSQL(t)))
	p.happen(2, 1)
	p.joins()
	hook := &stopAt{words: "LOCK TABLE outbox_messages IN SHARE ROW EXCLUSIVE MODE", cancel: func() { p.happen(1, 1) }}
	hook.n.Store(1)
	hooked := p.As.WithQueryHook(hook)
	_, err := outboxdb.New(hooked, hooked).BackfillAtOnce(t.Context(), toPartner)
	require.NoError(t, err)
	require.Len(t, p.got(), 3)
	require.Equal(t, p.ids("default"), p.got())
}

// late begins a transaction that has drawn a seq.
func (p *bygone) late() (tx bun.Tx, commit func()) {
	p.T.Helper()
	tx, err := p.DB.BeginTx(p.T.Context(), nil)
	require.NoError(p.T, err)
	query, err := outboxdb.Insert(p.rows(p.event("OrderPlaced", "late"))).AppendQuery(p.DB.QueryGen(), nil)
	require.NoError(p.T, err)
	_, err = tx.ExecContext(p.T.Context(), string(query))
	require.NoError(p.T, err)
	return tx, func() { require.NoError(p.T, tx.Commit()) }
}

// start runs a back-fill beside the test, and returns when it waits for something.
func (p *bygone) start(b outbox.Backfill, forWhat string) (ended chan error) {
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
		_, err := p.BackfillAtOnce(p.T.Context(), b)
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

// sent are partner's rows with their bodies.
func (p *bygone) sent() (entries []outbox.Entry, bodies []string) {
	p.T.Helper()
	for _, e := range p.entries() {
		if e.TargetBroker == "partner" {
			entries = append(entries, e)
		}
	}
	require.NoError(p.T, p.DB.NewRaw("SELECT payload FROM outbox WHERE target_broker = 'partner' ORDER BY seq").Scan(p.T.Context(), &bodies))
	return entries, bodies
}
