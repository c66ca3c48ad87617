package engine

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/correlation"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

// overTwo is an engine on two databases: a sale in one of them brings about a parcel in
// the other one, unless its amount is 2.
func overTwo(t *testing.T) (*bench, *Engine, *faulty) {
	t.Helper()
	b := setup(t)
	cfg, other := b.withAnalytics()
	b.parcels = cfg.Units[1]
	sent := repository.New[*parcel](b.parcels)
	s := b.orders(func(ctx context.Context, sold Sold) error {
		if sold.Amount == 2 {
			return errors.New("no address of " + person)
		}
		return sent.Save(ctx, newParcel("parcel-of-"+mustMetadata(ctx).CorrelationID))
	})
	s.MaxAttempts = 1
	cfg.Subscriptions = []subscription.Stream{s}
	cfg.Server.Tokens = b.staffed().Server.Tokens
	return b, b.start(cfg), other
}

// sold sells under a correlation id, with more events of the same sale.
func (b *bench) sold(correlation string, amount, more int) {
	b.t.Helper()
	s := newSale(amount)
	for range more {
		s.Raise(SaleNoted{})
	}
	require.NoError(b.t, b.repo.Save(domain.WithOrigin(b.t.Context(), domain.Origin{CorrelationID: correlation}), s))
}

// traceAs is empty if no database answers in time.
func traceAs(t *testing.T, e *Engine, who, path string) (got traceReport, text string) {
	t.Helper()
	w := askWith(e.Handler(), "GET", path, "", as(who))
	if w.Code == http.StatusServiceUnavailable {
		return traceReport{}, ""
	}
	require.Equal(t, 200, w.Code, w.Body)
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &got))
	return got, w.Body.String()
}

// wholeTrace asks until a trace has so many messages and nothing is missing: on a busy
// machine a database may not answer in time.
func wholeTrace(t *testing.T, e *Engine, who, path string, messages int) (got traceReport, text string) {
	t.Helper()
	eventually(t, func() bool {
		got, text = traceAs(t, e, who, path)
		return len(got.Messages) == messages && len(got.Missing) == 0
	})
	return got, text
}

func tracePath(correlation string) string { return "/api/traces/" + url.PathEscape(correlation) }

// A message that is parked while its trace is read isn't shown as handled, as the inbox has it
// from then on, too.
func TestAPI_U_28_ATraceThatIsReadWhileAMessageIsParked(t *testing.T) {
	b, e, other := overTwo(t)
	b.sold("failing", 2, 0)
	settled(t, e, "failing", 1)
	require.NoError(t, e.Stop(t.Context()))
	change := func(query string) {
		for _, table := range []string{"dead_letters", "inbox"} {
			_, err := other.DB().ExecContext(t.Context(), "UPDATE "+table+" SET "+query)
			require.NoError(t, err)
		}
	}
	change("message_id = 'not yet ' || message_id")
	var once sync.Once
	hook := afterQuery(func(query string) {
		if strings.Contains(query, "inbox") || strings.Contains(query, "dead_letters") {
			once.Do(func() { change("message_id = substr(message_id, length('not yet ') + 1)") })
		}
	})
	from := []correlation.Source{{Provider: b.db}, {Provider: hookedReader{other, other.Reader().WithQueryHook(hook)}}}
	trace, errs := correlation.Read(t.Context(), from, "failing", correlation.Options{Limit: 10})
	require.Empty(t, errs)
	require.Equal(t, "parked", trace.Messages[0].State)
}

// hookedReader is a provider whose reads are watched.
type hookedReader struct {
	uow.Provider
	reader *bun.DB
}

func (h hookedReader) Reader() *bun.DB { return h.reader }

type afterQuery func(query string)

func (afterQuery) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context { return ctx }
func (f afterQuery) AfterQuery(_ context.Context, e *bun.QueryEvent)                  { f(e.Query) }

// settled waits until a trace has so many messages, none of which waits.
func settled(t *testing.T, e *Engine, correlation string, messages int) (got traceReport) {
	t.Helper()
	eventually(t, func() bool {
		got, _ = wholeTrace(t, e, operating, tracePath(correlation), messages)
		for _, m := range got.Messages {
			if m.State == "waiting" || m.Type == "Sales.SaleMade.v1" && m.State == "published" {
				return false
			}
		}
		return true
	})
	return got
}

// U-28: a trace goes over databases, by cause, and says what became of each message;
// who doesn't see content sees what there is, and not whose it is.
func TestAPI_U_28_ATraceGoesOverDatabases(t *testing.T) {
	b, e, other := overTwo(t)
	b.sold("order/1?", 1, 0)
	b.sold("failing", 2, 0)
	got := settled(t, e, "order/1?", 2)
	require.Equal(t, "order/1?", got.CorrelationID)
	require.Empty(t, got.Missing)
	made, sent := got.Messages[0], got.Messages[1]
	require.Nil(t, made.Below)
	require.Equal(t, made.MessageID, *sent.Below)
	require.Equal(t, []string{"event", "handled", "sales", "Sales.SaleMade.v1"}, []string{made.Kind, made.State, made.Context, made.Type})
	require.Equal(t, []string{"event", "published", "parcels", "Parcels.ParcelSent.v1"}, []string{sent.Kind, sent.State, sent.Context, sent.Type})
	require.Len(t, made.Rows, 2, "its own broker's and the partner's")
	require.Equal(t, "default", made.Rows[0].Provider)
	require.Equal(t, consumption{"analytics", "parcels", made.Consumed[0].At}, made.Consumed[0])
	require.Equal(t, "analytics", sent.Rows[0].Provider)

	parked := settled(t, e, "failing", 1).Messages[0]
	require.Equal(t, "parked", parked.State)
	require.Contains(t, parked.DeadLetters[0].Error, person)
	require.Empty(t, parked.Consumed, "the inbox has it without an effect")

	_, text := wholeTrace(t, e, reading, "/api/outbox/messages/"+parked.MessageID+"/trace", 1)
	require.Contains(t, text, parked.DeadLetters[0].ID)
	for _, secret := range []string{person, "failing", parked.Stream, parked.Rows[0].Key} {
		require.NotContains(t, text, secret)
	}
	wholeTrace(t, e, operating, "/api/outbox/messages/"+sent.MessageID+"/trace", 2)
	require.Equal(t, 403, askWith(e.Handler(), "GET", tracePath("failing"), "", as(reading)).Code)
	require.Equal(t, 400, askWith(e.Handler(), "GET", "/api/outbox/messages/1/trace", "", as(reading)).Code)

	// One that doesn't answer leaves the others their part, and is named.
	other.down.Store(true)
	var partly traceReport
	eventually(t, func() bool {
		partly, _ = traceAs(t, e, operating, tracePath("order/1?"))
		return len(partly.Messages) == 1 && len(partly.Missing) == 1
	})
	require.Contains(t, partly.Missing[0], "Provider analytics is not all here: ")
}

// U-28: a trace has its bound, says what it leaves out, and keeps the earliest.
func TestAPI_U_28_ATraceIsBounded(t *testing.T) {
	b, e, _ := overTwo(t)
	// The broker takes none of them: rows that wait are found at once, and published ones
	// only if the database is quick enough.
	b.main.FailWhere(func(m broker.Message) error {
		if strings.HasPrefix(m.Headers["type"], "Sales.SaleMade.") {
			return broker.Classify(broker.Permanent, errors.New("no"))
		}
		return broker.Classify(broker.Unavailable, errors.New("not now"))
	})
	b.sold("many", 1, maxTracedRows)
	eventually(t, func() bool {
		got, _ := traceAs(t, e, operating, tracePath("many")) // None while hundreds of rows are written and read.
		return len(got.Messages) == maxTraced && got.LeftOut >= maxTraced-1 && got.Messages[0].State == "abandoned" &&
			got.Missing[0] == "Provider default: …and more rows of the outbox; `waybill trace` reads more."
	})
}

// B14: the API has the subscriptions that a database knows of, with those that run nowhere
// any more.
func TestAPI_B14_KnownSubscriptions(t *testing.T) {
	b, e, other := overTwo(t)
	b.sell(1)
	_, err := other.DB().ExecContext(t.Context(), "INSERT INTO inbox (subscription, message_id) VALUES ('old', 'm')")
	require.NoError(t, err)
	var got knownReport
	eventually(t, func() bool {
		w := askWith(e.Handler(), "GET", "/api/subscriptions/known", "", as(reading))
		require.Equal(t, 200, w.Code, w.Body)
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &got))
		known := got.Providers["analytics"]
		return len(known) == 2 && known[1].Running
	})
	require.Empty(t, got.Providers["default"])
	old := got.Providers["analytics"][0]
	require.Equal(t, "old", old.Name)
	require.False(t, old.Running)
	require.EqualValues(t, 1, old.Inbox)
}
