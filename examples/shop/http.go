package main

import (
	_ "embed"
	"html/template"
	"net/http"

	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/examples/shop/billing"
	"github.com/waybill-go/waybill/examples/shop/ordering"
	"github.com/waybill-go/waybill/examples/shop/shipping"
	"github.com/waybill-go/waybill/web"
)

// latest is how many orders a list has.
const latest = 100

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"euros": func(cents int64) float64 { return float64(cents) / 100 },
}).Parse(pageText))

// shop is the three contexts.
type shop struct {
	orders         *ordering.App
	bills, parcels engine.Context
}

func (s shop) contexts() []engine.Context {
	return []engine.Context{s.orders.Context(), s.bills, s.parcels}
}

// routes are the HTTP API and the page. Who it is that asks, an application's own
// authentication would say, in web.Origin.Tenant.
func (s shop) routes() http.Handler {
	orders := web.API{Commands: s.orders.Commands, Errors: web.Errors{ordering.ErrUnknown: http.StatusUnprocessableEntity}}
	bills := web.API{Commands: s.bills.Commands, Errors: web.Errors{billing.ErrNotAsked: http.StatusConflict}}
	parcels := web.API{Commands: s.parcels.Commands, Errors: web.Errors{shipping.ErrNothing: http.StatusUnprocessableEntity}}
	mux := http.NewServeMux()
	mux.Handle("POST /stock/{article}", web.Command(parcels, func(r *http.Request, c *shipping.Restock) { c.Article = r.PathValue("article") }))
	mux.Handle("PUT /orders/{id}", web.Command(orders, func(r *http.Request, c *ordering.PlaceOrder) { c.OrderID = r.PathValue("id") }))
	mux.Handle("POST /orders/{id}/payment", web.Command(bills, func(r *http.Request, c *billing.Pay) { c.OrderID = r.PathValue("id") }))
	mux.HandleFunc("GET /orders/{id}", func(w http.ResponseWriter, r *http.Request) {
		o, err := s.orders.Orders.Get(r.Context(), r.PathValue("id"))
		orders.JSON(w, r, o, err)
	})
	mux.HandleFunc("GET /orders", func(w http.ResponseWriter, r *http.Request) {
		rows, _, err := s.orders.Board(r.Context(), latest)
		orders.JSON(w, r, rows, err)
	})
	mux.HandleFunc("GET /books", func(w http.ResponseWriter, r *http.Request) {
		_, books, err := s.orders.Board(r.Context(), 1)
		orders.JSON(w, r, books, err)
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		rows, books, err := s.orders.Board(r.Context(), latest)
		if err == nil {
			err = page.Execute(w, map[string]any{"Rows": rows, "Books": books})
		}
		if err != nil {
			orders.Problem(w, r, err)
		}
	})
	return web.Origin{}.Handler(mux)
}
