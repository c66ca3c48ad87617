package billing

import (
	"errors"
	"time"

	"github.com/waybill-go/waybill/domain"
)

// Charge is what a customer is to pay for an order, and has its number.
type Charge struct {
	domain.Root
	CustomerID string
	Cents      int64
	Paid       int64 `json:",omitempty"` // Cents that have come.
	Refunded   int64 `json:",omitempty"` // Cents that went back.
	Status     Status
}

// Status is how far a charge has come.
type Status string

// A charge is asked for until it is paid, declined or withdrawn. What was paid can be
// refunded, and so is what comes for a charge that is withdrawn.
const (
	Asked     Status = "asked"
	Paid      Status = "paid"
	Declined  Status = "declined"
	Withdrawn Status = "withdrawn"
	Refunded  Status = "refunded"
)

// ErrNegative is a charge of less than nothing.
var ErrNegative = errors.New("billing: a charge can't be negative")

// Commands.
type (
	// ChargeOrder asks a customer for money. What has not come by PayBy nobody waits for.
	ChargeOrder struct {
		OrderID    string    `json:"order_id"`
		CustomerID string    `json:"customer_id"`
		Cents      int64     `json:"cents"`
		PayBy      time.Time `json:"pay_by"`
	}
	// RefundOrder gives back what was paid, and what is paid later.
	RefundOrder struct {
		OrderID string `json:"order_id"`
	}
	// ReceiveMoney is what the bank says.
	ReceiveMoney struct {
		OrderID string `json:"order_id"`
	}
)

// Events. All are about the charge for an order.
type (
	// ChargeAsked says that there is no answer yet.
	ChargeAsked struct {
		OrderID string `json:"order_id"`
		Cents   int64  `json:"cents"`
	}
	// ChargePaid says that the money has come.
	ChargePaid struct {
		OrderID string `json:"order_id"`
		Cents   int64  `json:"cents"`
	}
	// ChargeDeclined says that it won't.
	ChargeDeclined struct {
		OrderID string `json:"order_id"`
		Reason  string `json:"reason"`
	}
	// ChargeWithdrawn says that nothing has come, and that nothing is waited for.
	ChargeWithdrawn struct {
		OrderID string `json:"order_id"`
	}
	// ChargeRefunded says that money went back.
	ChargeRefunded struct {
		OrderID string `json:"order_id"`
		Cents   int64  `json:"cents"`
	}
)

// Ask asks the customer's bank.
func Ask(a ChargeOrder) (*Charge, error) {
	if a.Cents < 0 {
		return nil, ErrNegative
	}
	c := &Charge{Root: domain.RootWithID(a.OrderID), CustomerID: a.CustomerID, Cents: a.Cents}
	switch customer := KindOf(a.CustomerID); customer {
	case Broke:
		c.Status = Declined
		c.Raise(ChargeDeclined{OrderID: c.ID(), Reason: "no credit"})
	case Late, Never:
		c.Status = Asked
		c.Raise(ChargeAsked{OrderID: c.ID(), Cents: c.Cents})
		if customer == Late {
			domain.SetTimer(c, "bank", a.PayBy.Add(lateness(c.ID())), ReceiveMoney{OrderID: c.ID()})
		}
	case Prompt:
		c.pay()
	}
	return c, nil
}

// pay takes the money in.
func (c *Charge) pay() {
	c.Status, c.Paid = Paid, c.Cents
	c.Raise(ChargePaid{OrderID: c.ID(), Cents: c.Paid})
}

// giveBack sends back all that has come.
func (c *Charge) giveBack() {
	c.Status, c.Refunded = Refunded, c.Paid
	c.Raise(ChargeRefunded{OrderID: c.ID(), Cents: c.Refunded})
}

// Receive takes in money that comes. If nobody waits for it any more, it goes back.
func (c *Charge) Receive(ReceiveMoney) error {
	switch c.Status {
	case Asked:
		c.pay()
	case Withdrawn:
		c.Paid = c.Cents
		c.giveBack()
	case Paid, Declined, Refunded: // The bank says it once, and not of these.
	}
	return nil
}

// Refund gives back what was paid. If nothing was, nothing is waited for from now on.
func (c *Charge) Refund(RefundOrder) error {
	switch c.Status {
	case Paid:
		c.giveBack()
	case Asked:
		c.Status = Withdrawn
		c.Raise(ChargeWithdrawn{OrderID: c.ID()})
	case Declined, Withdrawn, Refunded: // There is nothing to give back.
	}
	return nil
}
