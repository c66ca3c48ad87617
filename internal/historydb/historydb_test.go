package historydb_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/historydb"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

func TestInsert_KeepsAllThatIsKnown(t *testing.T) {
	each(t, func(t *testing.T, w world) {
		plain, full, foreign, partner := event("a", 1, 1), event("it's", 7, 2), event("f", 3, 1), event("p", 0, 1)
		full.Origin = domain.Origin{CorrelationID: "c", CausationID: "k", TenantID: "t", Traceparent: "00-1", Extensions: map[string]string{"x": "y"}}
		full.Priority, full.Key, full.Data = -3, "van", []byte(`{"Text": "\u0000 'ż' \\ $1 ?"}`)
		foreign.Version, foreign.Sequence = 0, "3.1" // as partners' envelopes are
		partner.ID, partner.Stream, partner.Category, partner.Context, partner.Aggregate, partner.Sequence = "psp/7", "captures", "psp", "", "", "at 7"
		partner.Type = "com.psp.captured"
		want := []outbox.Event{plain, full, foreign, partner}
		w.keep(want[:3]...)
		w.keep(want[3])
		r := w.reading(historydb.Filter{})
		p, err := r.Page(t.Context(), 0, 0, 10)
		require.NoError(t, err)
		want[2].Version = 3
		for i, e := range p.Events {
			require.Equal(t, want[i], e.Event)
		}
		require.Len(t, p.Events, 4)
		head, err := historydb.Head(t.Context(), w.DB())
		require.NoError(t, err)
		require.Equal(t, []int64{head, head}, []int64{p.Events[3].Position, p.UpTo})
		require.False(t, p.More)
	})
}

// More than are prepared.
func TestInsert_ManyKeepTheirOrder(t *testing.T) {
	each(t, func(t *testing.T, w world) {
		var events []outbox.Event
		var want []string
		for i := range 40 {
			id := strings.Repeat("x", i+1)
			events, want = append(events, event(id, 1, 1)), append(want, id)
		}
		w.keep(events...)
		require.Equal(t, want, w.reading(historydb.Filter{}).all(7))
	})
}

func TestInsert_RefusesWhatNoDatabaseStores(t *testing.T) {
	each(t, func(t *testing.T, w world) {
		for _, change := range []func(e *outbox.Event){
			func(e *outbox.Event) { e.AggregateID = "a\x00" },
			func(e *outbox.Event) { e.Data = []byte("{\"a\": \"\xff\"}") },
		} {
			e := event("a", 1, 1)
			change(&e)
			_, err := historydb.Insert([]outbox.Event{e}).AppendQuery(w.DB().QueryGen(), nil)
			require.ErrorContains(t, err, "history: the ")
			_, _, err = historydb.Insert([]outbox.Event{e}).(interface {
				Prepared() (string, []any, error)
			}).Prepared()
			require.ErrorContains(t, err, "Shop.Placed.v1 of shop::order-a")
		}
	})
}

func TestReader_ChoosesByCategoryAndNameInAllVersions(t *testing.T) {
	each(t, func(t *testing.T, w world) {
		types := []string{"Shop.Placed.v1", "Shop.Placed2.v1", "Shop.Placed.v12", "Shop.Paid.v1", "Other.Placed.v1"}
		var events []outbox.Event
		for _, typ := range types {
			e := event(typ, 1, 1)
			e.Type = typ
			events = append(events, e)
		}
		events[4].Category = "other::order"
		w.keep(events...)
		w.write(w.DB(), "events", "event-sourced")
		for _, test := range []struct {
			f    historydb.Filter
			want []string
		}{
			{historydb.Filter{Names: []string{"Shop.Placed"}}, []string{types[0], types[2], "event-sourced"}},
			{historydb.Filter{Names: []string{"Shop.Placed2", "Shop.Paid"}}, []string{types[1], types[3]}},
			{historydb.Filter{Categories: []string{"other::order"}}, []string{types[4]}},
			{historydb.Filter{Categories: []string{"other::order"}, Names: []string{"it's"}}, nil},
			{historydb.Filter{Names: []string{}}, nil},
		} {
			r := w.reading(test.f)
			require.Equal(t, test.want, r.all(1), "%+v", test.f)
			head, err := historydb.Head(t.Context(), w.DB())
			require.NoError(t, err)
			require.Equal(t, head, r.at, "also where nothing was chosen")
		}
	})
}

// What was imported is below 0, and 0 is before it.
func TestReader_BeginsBelowZero(t *testing.T) {
	each(t, func(t *testing.T, w world) {
		r := w.reading(historydb.Filter{})
		require.Empty(t, r.all(10))
		require.Zero(t, r.at)
		imports := func(position int64, id string) {
			_, err := w.DB().ExecContext(t.Context(), "INSERT INTO history (position, version, occurred_at, n, message_id, category, id, type, data) VALUES (?, 1, '2026-01-02T03:04:05Z', 1, ?, 'shop::order', ?, 'Shop.Placed.v1', '{}')",
				position, event("", 1, 1).ID, id)
			require.NoError(t, err)
		}
		imports(-2, "b")
		imports(-300_000, "a")
		imports(-1, "c")
		require.Equal(t, []string{"a", "b", "c"}, r.all(1))
		require.EqualValues(t, -1, r.at)
		w.keep(event("d", 1, 1))
		require.Equal(t, []string{"d"}, r.all(1))
		require.Equal(t, []string{"a", "b", "c", "d"}, w.reading(historydb.Filter{}).all(3))
		p, err := w.reading(historydb.Filter{}).Page(t.Context(), -2, -1, 10)
		require.NoError(t, err)
		require.Len(t, p.Events, 1)
		require.EqualValues(t, -1, p.UpTo)
	})
}

// Another context's event is kept once, also where that one keeps it in the same database.
func TestInsertMissing_KeepsEachOnce(t *testing.T) {
	each(t, func(t *testing.T, w world) {
		keep := func(events ...outbox.Event) {
			t.Helper()
			var all []uow.Statement
			for _, e := range events {
				all = append(all, uow.Statement{Query: historydb.InsertMissing(e), Rows: -1})
			}
			require.NoError(t, w.Session().Commit(t.Context(), all))
		}
		own, sourced, foreign, partner := event("own", 1, 1), event("it's $1", 2, 1), event("foreign", 0, 1), event("partner", 1, 1)
		partner.ID = "7"
		foreign.Sequence, foreign.TenantID = "", "t"
		w.keep(own)
		_, err := w.DB().ExecContext(t.Context(), "INSERT INTO events (version, occurred_at, n, message_id, category, id, type, data) VALUES (2, '2026-01-02T03:04:05Z', 1, ?, ?, ?, ?, '{}')",
			sourced.ID, sourced.Category, sourced.AggregateID, sourced.Type)
		require.NoError(t, err)
		for range 2 {
			keep(foreign, own, sourced, partner)
			for _, e := range []outbox.Event{foreign, own, sourced, partner} { // as text
				_, err := w.DB().ExecContext(t.Context(), "?", historydb.InsertMissing(e))
				require.NoError(t, err)
			}
		}
		p, err := w.reading(historydb.Filter{}).Page(t.Context(), 0, 0, 10)
		require.NoError(t, err)
		require.Len(t, p.Events, 4)
		require.Equal(t, []outbox.Event{foreign, partner}, []outbox.Event{p.Events[2].Event, p.Events[3].Event})
		keep(event("it's $1", 2, 1)) // another one
		require.Equal(t, []string{"own", "it's $1", "foreign", "partner", "it's $1"}, w.reading(historydb.Filter{}).all(10))
		other := event("other", 1, 1)
		other.Category, other.Type = "other::order", "Other.Placed.v1"
		keep(other)
		require.Equal(t, []string{"other"}, w.reading(historydb.Filter{Context: "other"}).all(10))
		require.Len(t, w.reading(historydb.Filter{Context: "other", Foreign: []string{"Shop.Placed"}}).all(10), 6)
		require.Empty(t, w.reading(historydb.Filter{Context: "oth"}).all(10))
	})
}

// A page that few are chosen for, or that has large ones, ends early.
func TestReader_PagesAreBounded(t *testing.T) {
	each(t, func(t *testing.T, w world) {
		large := event("large", 1, 1)
		large.Data = []byte(`{"Text": "` + strings.Repeat("x", 5<<20) + `"}`)
		for range 3 {
			large.ID = event("", 1, 1).ID
			w.keep(large)
		}
		r := w.reading(historydb.Filter{})
		require.Len(t, r.ids(10), 2)
		require.Len(t, r.ids(10), 1)
		if w.DB().Dialect().Name().String() == "sqlite" {
			_, err := w.DB().ExecContext(t.Context(), "UPDATE history_position SET n = 500000")
			require.NoError(t, err)
		} else {
			require.NoError(t, w.DB().NewRaw("SELECT max(nextval('history_position')) FROM generate_series(1, 500000)").Scan(t.Context(), new(int64)))
		}
		w.keep(event("far", 1, 1))
		require.Equal(t, []string{"far"}, r.ids(10))
	})
}
