package ordering

// OrderPlaced says that a customer has ordered.
type OrderPlaced struct {
	OrderID    string `json:"order_id"`
	CustomerID string `json:"customer_id"`
	Total      int64  `json:"total"` // Cents.
}

// OrderCancelled says that an order was taken back.
type OrderCancelled struct {
	OrderID string `json:"order_id"`
	Reason  string `json:"reason"`
}

// orderCancelledV1 had no reason. Messages of that time are still read.
type orderCancelledV1 struct {
	OrderID string `json:"order_id"`
}

func cancelledV1(old orderCancelledV1) OrderCancelled {
	return OrderCancelled{OrderID: old.OrderID, Reason: "unknown"}
}

// OrderReleased says that an order is paid for and to be shipped. It is not for
// partners.
type OrderReleased struct {
	OrderID string `json:"order_id"`
}

// NoteAdded says that there is something to mind. It is not for partners.
type NoteAdded struct {
	OrderID string `json:"order_id"`
	Note    string `json:"note"`
}
