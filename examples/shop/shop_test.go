package main

import (
	"context"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/examples/shop/billing"
	"github.com/waybill-go/waybill/examples/shop/ordering"
	"github.com/waybill-go/waybill/examples/shop/shipping"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/waybilltest"
)

const payWithin = time.Minute

// world is the shop, on databases and brokers of the test.
type world struct {
	*waybilltest.Kit
	shop
	t *testing.T
}

func newWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	k := waybilltest.New(t)
	units := k.Units(ordering.Domain, func(c *uow.Config) {
		c.External, c.History = []outbox.Target{{Broker: "partner", Envelope: outbox.CloudEvents}}, true
	})
	w := &world{k, shop{ordering.New(units, payWithin), billing.New(k.Units(billing.Domain)), shipping.New(k.Units(shipping.Domain))}, t}
	k.Start(w.contexts()...)
	return w
}

// ask is a request, and its answer's body.
func (w *world) ask(want int, method, path, body string, headers ...string) string {
	w.t.Helper()
	r, answer := httptest.NewRequestWithContext(w.t.Context(), method, path, strings.NewReader(body)), httptest.NewRecorder()
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w.routes().ServeHTTP(answer, r)
	require.Equal(w.t, want, answer.Code, "%s %s: %s", method, path, answer.Body)
	return answer.Body.String()
}

func (w *world) board() (map[string]ordering.Row, ordering.Books) {
	w.t.Helper()
	rows, books, err := w.orders.Board(w.t.Context(), latest)
	require.NoError(w.t, err)
	found := map[string]ordering.Row{}
	for _, r := range rows {
		found[r.OrderID] = r
	}
	return found, books
}

func TestShop_EveryEnd(t *testing.T) {
	w := newWorld(t)
	w.ask(204, "POST", "/stock/tea", `{"quantity": 3}`)
	w.ask(422, "POST", "/stock/tea", `{"quantity": -1}`)
	const twoTeas = `{"customer_id": "ann", "article": "tea", "quantity": 2}`
	for range 2 {
		w.ask(204, "PUT", "/orders/o-1", twoTeas, "Idempotency-Key", "k")
	}
	w.ask(422, "PUT", "/orders/o-9", twoTeas, "Idempotency-Key", "k")
	w.ask(409, "PUT", "/orders/o-1", twoTeas)
	w.ask(422, "PUT", "/orders/o-9", `{"customer_id": "ann", "article": "car", "quantity": 2}`)
	w.ask(204, "PUT", "/orders/o-2", `{"customer_id": "<b>bob</b>", "article": "tea", "quantity": 2}`)
	w.ask(204, "PUT", "/orders/o-3", `{"customer_id": "eve", "article": "cup", "quantity": 1}`)
	w.ask(404, "POST", "/orders/o-9/payment", "")
	w.Settle()
	require.Contains(t, w.ask(200, "GET", "/books", ""), `"open":3`)
	w.ask(204, "POST", "/orders/o-1/payment", "")
	w.Settle()
	w.ask(204, "POST", "/orders/o-2/payment", "")
	w.Settle()
	w.Advance(payWithin)
	w.ask(409, "POST", "/orders/o-3/payment", "")

	rows, books := w.board()
	require.Equal(t, ordering.Books{Orders: 3, Completed: 1, Paid: 1800, Returned: 900, Sold: 900, Balanced: true}, books)
	for id, want := range map[string]ordering.Row{
		"o-1": {Paid: 900, Status: "completed"},
		"o-2": {Paid: 900, Returned: 900, Status: "cancelled", Reason: "sold out"},
		"o-3": {Status: "cancelled", Reason: "not paid in time"},
	} {
		got := rows[id]
		require.Equal(t, want, ordering.Row{Paid: got.Paid, Returned: got.Returned, Status: got.Status, Reason: got.Reason}, id)
	}
	require.Contains(t, w.ask(200, "GET", "/orders", ""), `"order_id":"o-1","customer_id":"ann","article":"tea","quantity":2,"cents":900`)
	require.Contains(t, w.ask(200, "GET", "/orders/o-1", ""), `"Status":"completed"`)
	page := w.ask(200, "GET", "/", "")
	require.Contains(t, page, "the books balance")
	require.Contains(t, page, "cancelled: sold out")
	require.Contains(t, page, "&lt;b&gt;bob", "what customers write is text")
	require.Len(t, w.Sent("partner", "ordering.order"), 6)
}

// A customer pays in the moment in which the time is over: the order is completed, or the
// money goes back, or the payment is refused.
func TestShop_PaymentAgainstTimeout(t *testing.T) {
	w := newWorld(t)
	w.ask(204, "POST", "/stock/cup", `{"quantity": 9}`)
	for _, id := range []string{"o-1", "o-2", "o-3"} {
		w.ask(204, "PUT", "/orders/"+id, `{"customer_id": "ann", "article": "cup", "quantity": 1}`)
	}
	w.Settle()
	w.Advance(payWithin - time.Second)
	var all sync.WaitGroup
	for _, id := range []string{"o-1", "o-2", "o-3"} {
		all.Go(func() {
			_, _ = w.bills.Commands.Answer(context.WithoutCancel(t.Context()), billing.Pay{OrderID: id})
		})
	}
	all.Go(func() { w.Advance(time.Second) })
	all.Wait()
	w.Settle()
	_, books := w.board()
	require.True(t, books.Balanced, "%+v", books)
	require.EqualValues(t, 3, books.Orders)
	require.Equal(t, 900*books.Completed, books.Sold)
}
