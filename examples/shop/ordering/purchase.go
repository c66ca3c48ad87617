package ordering

import "github.com/waybill-go/waybill/domain"

// Purchase sees an order through to its end: it is paid for and sent, or cancelled, and
// what was paid goes back.
//
//	placed ── ask for money ─┬─ paid ── send parcel ─┬─ sent ─────▶ complete
//	                         │                       └─ sold out ─┐
//	                         └─ not paid in time ─────────────────┴─▶ give back, cancel
type Purchase struct {
	domain.ProcessRoot
	Article  string
	Quantity int
}

// Billing's and shipping's commands and events, in ordering's words.
type (
	AskPayment struct {
		OrderID string `json:"order_id"`
		Cents   int64  `json:"cents"`
	}
	ReturnPayment struct {
		OrderID string `json:"order_id"`
	}
	SendParcel struct {
		OrderID  string `json:"order_id"`
		Article  string `json:"article"`
		Quantity int    `json:"quantity"`
	}
	PaymentReceived AskPayment
	PaymentReturned AskPayment
	ParcelSent      struct {
		OrderID string `json:"order_id"`
	}
)

var purchase = domain.Process[*Purchase]("purchase",
	domain.CorrelatedBy("order_id"),
	domain.Starts((*Purchase).placed),
	domain.Hears((*Purchase).paid),
	domain.OnTimer("pay-by", (*Purchase).unpaid),
	domain.Hears((*Purchase).sent),
	domain.Hears((*Purchase).soldOut),
)

func (p *Purchase) placed(e OrderPlaced) error {
	p.Article, p.Quantity = e.Article, e.Quantity
	p.SetTimer("pay-by", e.PayBy)
	p.Send(AskPayment{p.ID(), e.Cents})
	return nil
}

func (p *Purchase) paid(PaymentReceived) error {
	p.StopTimer("pay-by")
	p.Send(SendParcel{p.ID(), p.Article, p.Quantity})
	return nil
}

func (p *Purchase) sent(ParcelSent) error {
	p.Send(CompleteOrder{p.ID()})
	p.End()
	return nil
}

func (p *Purchase) unpaid() error { return p.undo("not paid in time") }

func (p *Purchase) soldOut(r domain.Refusal[SendParcel]) error { return p.undo(r.Reason) }

// undo is the compensation. Billing gives back also what is paid at this moment.
func (p *Purchase) undo(reason string) error {
	p.Send(ReturnPayment{p.ID()})
	p.Send(CancelOrder{p.ID(), reason})
	p.End()
	return nil
}
