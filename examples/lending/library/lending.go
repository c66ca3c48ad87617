package library

import "github.com/waybill-go/waybill/domain"

// Lending sees to it that a loan is paid for in time, or cancelled.
type Lending struct{ domain.ProcessRoot }

var lending = domain.Process[*Lending]("lending",
	domain.CorrelatedBy("LoanID"),
	domain.Starts((*Lending).Placed),
	domain.Hears((*Lending).Paid),
	domain.Hears((*Lending).Declined),
	domain.OnTimer("pay-by", (*Lending).Unpaid),
)

// Placed begins it. Loans that are older than the limit get one from now on.
func (p *Lending) Placed(e LoanPlaced) error {
	if e.PayBy.IsZero() {
		e.PayBy = p.Now().Add(PayWithin)
	}
	p.SetTimer("pay-by", e.PayBy)
	return nil
}

// Paid confirms the loan.
func (p *Lending) Paid(FeePaid) error {
	p.Send(ConfirmLoan{p.ID()})
	p.End()
	return nil
}

// Declined cancels it.
func (p *Lending) Declined(e FeeDeclined) error { return p.cancel(e.Reason) }

// Unpaid cancels it, too.
func (p *Lending) Unpaid() error { return p.cancel("not paid in time") }

// cancel undoes the loan; billing hears of it and gives back what was paid after all.
func (p *Lending) cancel(reason string) error {
	p.Send(CancelLoan{p.ID(), reason})
	p.End()
	return nil
}
