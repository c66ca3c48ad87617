package ordering

import (
	"context"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/projection"
)

// Row is an order with its money, as the board has it: what three contexts have told.
type Row struct {
	OrderID    string    `bun:",pk" json:"order_id"`
	CustomerID string    `json:"customer_id"`
	Article    string    `json:"article"`
	Quantity   int       `json:"quantity"`
	Cents      int64     `json:"cents"`
	Paid       int64     `json:"paid"`
	Returned   int64     `json:"returned"`
	Status     string    `json:"status"` // placed, paid, sent, completed or cancelled
	Reason     string    `json:"reason"`
	PlacedAt   time.Time `json:"placed_at"`
}

var rows = projection.NewTable[Row]("order_board", "placed_at")

// board is made of the history, and rebuilt when its Version is raised.
var board = projection.Projection{
	Name: "order-board", Tables: []projection.Definition{rows},
	Handlers: []projection.Handler{
		projection.On(func(ctx context.Context, e OrderPlaced) error {
			m, _ := domain.MetadataFrom(ctx)
			return rows.Put(ctx, Row{
				OrderID: e.OrderID, CustomerID: e.CustomerID, Article: e.Article,
				Quantity: e.Quantity, Cents: e.Cents, Status: "placed", PlacedAt: m.Time,
			})
		}),
		projection.On(func(ctx context.Context, e PaymentReceived) error {
			return rows.Change(ctx, e.OrderID, func(r *Row) { r.Paid += e.Cents; r.become("paid") })
		}),
		projection.On(func(ctx context.Context, e PaymentReturned) error {
			return rows.Change(ctx, e.OrderID, func(r *Row) { r.Returned += e.Cents })
		}),
		projection.On(func(ctx context.Context, e ParcelSent) error {
			return rows.Change(ctx, e.OrderID, func(r *Row) { r.become("sent") })
		}),
		projection.On(func(ctx context.Context, e OrderCompleted) error {
			return rows.Change(ctx, e.OrderID, func(r *Row) { r.Status = "completed" })
		}),
		projection.On(func(ctx context.Context, e OrderCancelled) error {
			return rows.Change(ctx, e.OrderID, func(r *Row) { r.Status, r.Reason = "cancelled", e.Reason })
		}),
	},
}

// become is a step before the end. Streams have no order between them, so the end may be
// known already.
func (r *Row) become(status string) {
	if r.Status == "placed" || r.Status == "paid" && status == "sent" {
		r.Status = status
	}
}

// Books are the sums of all orders.
type Books struct {
	Orders    int64 `json:"orders"`
	Open      int64 `json:"open"`
	Completed int64 `json:"completed"`
	Paid      int64 `json:"paid_cents"`
	Returned  int64 `json:"returned_cents"`
	Sold      int64 `json:"sold_cents"`
	Balanced  bool  `json:"balanced"` // nothing is open, and what was paid is sold or went back
}

// Board returns the latest orders and the books, those of a request included that was
// answered before.
func (a *App) Board(ctx context.Context, latest int64) (found []Row, b Books, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err = projection.Wait(ctx, a.units, board.Name); err != nil {
		return nil, b, err
	}
	if found, err = rows.Find(ctx, a.units, func(q *bun.SelectQuery) *bun.SelectQuery {
		return q.Order("placed_at DESC", "order_id").Limit(latest)
	}); err != nil {
		return nil, b, err
	}
	err = a.units.Providers()[0].Reader().NewRaw(`SELECT count(*) AS orders,
		count(CASE WHEN status NOT IN ('completed', 'cancelled') THEN 1 END) AS open,
		count(CASE WHEN status = 'completed' THEN 1 END) AS completed,
		COALESCE(sum(paid), 0) AS paid, COALESCE(sum(returned), 0) AS returned,
		COALESCE(sum(CASE WHEN status = 'completed' THEN cents END), 0) AS sold FROM order_board`).Scan(ctx, &b)
	b.Balanced = b.Open == 0 && b.Paid == b.Sold+b.Returned
	return found, b, err
}
