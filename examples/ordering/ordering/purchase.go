package ordering

import (
	"time"

	"github.com/waybill-go/waybill/domain"
)

// Purchase sees an order through to its end. It has the order charged for, and then
// released for shipping. If the money doesn't come in time, or is declined, the order is
// cancelled; whatever the order is cancelled for, what was paid is given back.
//
//	           ┌─ paid ────────────▶ release ─┬─ released ──▶ the end
//	placed ────┤                              └─ refused ─┐
//	  charge   ├─ cancelled ──────────────────────────────┼─▶ refund ── refunded or withdrawn ──▶ the end
//	           ├─ pay-by is due ──▶ cancel ───────────────┘
//	           └─ declined ───────▶ cancel ──▶ the end
type Purchase struct {
	domain.ProcessRoot
	// Status is what it waits for.
	Status PurchaseStatus
}

// PurchaseStatus is how far a purchase has come.
type PurchaseStatus string

// A purchase waits for the customer's money, then for the order's release; if the order
// is cancelled, it waits until there is no money of the customer any more.
const (
	Charging  PurchaseStatus = "charging"
	Releasing PurchaseStatus = "releasing"
	Refunding PurchaseStatus = "refunding"
)

// Commands to an order.
type (
	// ReleaseOrder is refused if the order is cancelled.
	ReleaseOrder struct {
		OrderID string `json:"order_id"`
	}
	// CancelOrder does nothing if the customer was faster.
	CancelOrder struct {
		OrderID string `json:"order_id"`
		Reason  string `json:"reason"`
	}
)

// Billing's commands and events, in ordering's words.
type (
	ChargeOrder struct {
		OrderID    string    `json:"order_id"`
		CustomerID string    `json:"customer_id"`
		Cents      int64     `json:"cents"`
		PayBy      time.Time `json:"pay_by"`
	}
	RefundOrder struct {
		OrderID string `json:"order_id"`
	}
	ChargePaid struct {
		OrderID string `json:"order_id"`
	}
	ChargeDeclined struct {
		OrderID string `json:"order_id"`
		Reason  string `json:"reason"`
	}
	ChargeRefunded struct {
		OrderID string `json:"order_id"`
	}
	ChargeWithdrawn struct {
		OrderID string `json:"order_id"`
	}
)

// Selling is Domain with the process that sees to it that orders are paid for within a
// time, see [Purchase]. Who only writes orders, or looks at them, needs no more than
// Domain.
func Selling(payWithin time.Duration) *domain.Domain {
	return domain.MustNew("ordering", order,
		domain.Command[ReleaseOrder](domain.KeyedBy("order_id")),
		domain.Command[CancelOrder](domain.KeyedBy("order_id")),
		domain.ForeignCommand[ChargeOrder]("billing", "Billing.ChargeOrder.v1", domain.KeyedBy("order_id")),
		domain.ForeignCommand[RefundOrder]("billing", "Billing.RefundOrder.v1", domain.KeyedBy("order_id")),
		domain.Foreign[ChargePaid]("Billing.ChargePaid.v1", domain.From("billing::charge")),
		domain.Foreign[ChargeDeclined]("Billing.ChargeDeclined.v1", domain.From("billing::charge")),
		domain.Foreign[ChargeRefunded]("Billing.ChargeRefunded.v1", domain.From("billing::charge")),
		domain.Foreign[ChargeWithdrawn]("Billing.ChargeWithdrawn.v1", domain.From("billing::charge")),
		domain.Process[*Purchase]("purchase",
			domain.CorrelatedBy("order_id"),
			domain.Starts(func(p *Purchase, e OrderPlaced) error { return p.placed(e, payWithin) }),
			domain.Hears((*Purchase).paid),
			domain.Hears((*Purchase).declined),
			domain.OnTimer("pay-by", (*Purchase).unpaid),
			domain.Hears((*Purchase).released),
			domain.Hears((*Purchase).releaseRefused),
			domain.Hears((*Purchase).cancelled),
			domain.Hears((*Purchase).refunded),
			domain.Hears((*Purchase).withdrawn),
		),
	)
}

func (p *Purchase) placed(e OrderPlaced, payWithin time.Duration) error {
	payBy := p.Now().Add(payWithin)
	p.Status = Charging
	p.SetTimer("pay-by", payBy)
	p.Send(ChargeOrder{OrderID: e.OrderID, CustomerID: e.CustomerID, Cents: e.Total, PayBy: payBy})
	return nil
}

// paid may come when the order is cancelled already: the refund that was asked for then
// finds the money.
func (p *Purchase) paid(ChargePaid) error {
	if p.Status == Charging {
		p.Status = Releasing
		p.StopTimer("pay-by")
		p.Send(ReleaseOrder{OrderID: p.ID()})
	}
	return nil
}

// declined leaves nothing to give back.
func (p *Purchase) declined(e ChargeDeclined) error {
	if p.Status == Charging {
		p.Send(CancelOrder{OrderID: p.ID(), Reason: "payment declined: " + e.Reason})
	}
	p.End()
	return nil
}

func (p *Purchase) unpaid() error {
	p.Send(CancelOrder{OrderID: p.ID(), Reason: "not paid in time"})
	return p.refund()
}

// released is the end: from here on the order can't be cancelled.
func (p *Purchase) released(OrderReleased) error {
	p.End()
	return nil
}

// releaseRefused says that the customer has cancelled the order in the meantime.
func (p *Purchase) releaseRefused(domain.Refusal[ReleaseOrder]) error { return p.refund() }

func (p *Purchase) cancelled(OrderCancelled) error { return p.refund() }

// refund asks for it once, of how many sides ever it hears that the order is cancelled.
func (p *Purchase) refund() error {
	if p.Status != Refunding {
		p.Status = Refunding
		p.StopTimer("pay-by")
		p.Send(RefundOrder{OrderID: p.ID()})
	}
	return nil
}

func (p *Purchase) refunded(ChargeRefunded) error {
	p.End()
	return nil
}

// withdrawn says that nothing was paid, and that billing sends back what comes yet.
func (p *Purchase) withdrawn(ChargeWithdrawn) error {
	p.End()
	return nil
}
