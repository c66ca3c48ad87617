// Package ordering takes orders. It is pure domain: it knows no database, no
// broker and no other context.
package ordering

import (
	"errors"
	"fmt"
	"time"

	"github.com/waybill-go/waybill/domain"
)

// Domain is what ordering keeps and what it tells. Partners hear of orders that
// are placed and cancelled; the rest stays in the house. [Selling] also sees to it
// that orders are paid for.
var Domain = domain.MustNew("ordering", order)

var order = domain.Aggregate[*Order]("order",
	domain.Event[OrderPlaced](domain.Published()),
	domain.Event[OrderCancelled](domain.Published(), domain.Version(2), domain.Upcast(1, cancelledV1)),
	domain.Event[OrderReleased](),
	domain.Event[NoteAdded](),
)

// Order is what a customer wants.
type Order struct {
	domain.Root // identity, version, raised events
	CustomerID  string
	PlacedAt    time.Time
	Lines       []Line
	Notes       []string `json:",omitempty"`
	Status      Status
}

// Line is one article of an order.
type Line struct {
	Article  string
	Quantity int64
	Amount   int64 // Cents, for the whole quantity.
}

// Status is how far an order has come.
type Status string

// An order is placed, and then released for shipping or cancelled: never both.
const (
	Placed    Status = "placed"
	Released  Status = "released"
	Cancelled Status = "cancelled"
)

// Why an order refuses.
var (
	ErrEmpty     = errors.New("ordering: an order needs a line")
	ErrCancelled = errors.New("ordering: the order is cancelled")
	ErrReleased  = errors.New("ordering: the order is released for shipping")
)

// Place is a new order.
func Place(customerID string, lines ...Line) (*Order, error) {
	return place(&Order{Root: domain.NewRoot(), PlacedAt: time.Now().UTC()}, customerID, lines)
}

// Import is an order that has its number and its date already.
func Import(number string, placedAt time.Time, customerID string, lines ...Line) (*Order, error) {
	return place(&Order{Root: domain.RootWithID(number), PlacedAt: placedAt}, customerID, lines)
}

func place(o *Order, customerID string, lines []Line) (*Order, error) {
	if len(lines) == 0 {
		return nil, ErrEmpty
	}
	o.CustomerID, o.Lines, o.Status = customerID, lines, Placed
	o.Raise(OrderPlaced{OrderID: o.ID(), CustomerID: customerID, Total: o.Total()})
	return o, nil
}

// open is nil as long as the order can change.
func (o *Order) open() error {
	switch o.Status {
	case Cancelled:
		return ErrCancelled
	case Released:
		return ErrReleased
	case Placed:
	}
	return nil
}

// Release lets the order be shipped: it is paid for.
func (o *Order) Release() error {
	if err := o.open(); err != nil {
		return err
	}
	o.Status = Released
	o.Raise(OrderReleased{OrderID: o.ID()})
	return nil
}

// Cancel takes the order back.
func (o *Order) Cancel(reason string) error {
	if err := o.open(); err != nil {
		return err
	}
	o.Status = Cancelled
	o.Raise(OrderCancelled{OrderID: o.ID(), Reason: reason})
	return nil
}

// AddNote writes something on the order for those who handle it.
func (o *Order) AddNote(note string) error {
	if err := o.open(); err != nil {
		return err
	}
	o.Notes = append(o.Notes, note)
	o.Raise(NoteAdded{OrderID: o.ID(), Note: note})
	return nil
}

// Total is the sum of the lines in cents.
func (o *Order) Total() (cents int64) {
	for _, l := range o.Lines {
		cents += l.Amount
	}
	return cents
}

// Validate holds before every save: nothing invalid is ever saved.
func (o *Order) Validate() error {
	if o.CustomerID == "" {
		return errors.New("ordering: an order needs a customer")
	}
	for i, l := range o.Lines {
		if l.Quantity < 1 || l.Amount < 0 {
			return fmt.Errorf("ordering: line %d is %d pieces for %d cents", i+1, l.Quantity, l.Amount)
		}
	}
	return nil
}
