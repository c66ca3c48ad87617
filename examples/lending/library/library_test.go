package library

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/contract/contracttest"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/domain/domaintest"
	"github.com/waybill-go/waybill/projection/projectiontest"
)

var (
	now    = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	payBy  = now.Add(PayWithin)
	placed = LoanPlaced{"l1", "b1", "ann", 100, payBy}
)

// What others read, and what is stored, can be read after every change.
func TestContract(t *testing.T) { contracttest.Check(t, Domain, "testdata") }

func TestLoanAndBook(t *testing.T) {
	place := func() (*Loan, error) { return Place(PlaceLoan{"l1", "b1", "ann"}, now, payBy), nil }
	domaintest.New(t, Domain, place).Then(placed).
		When(func(l *Loan) error { return l.Confirm(ConfirmLoan{}) }).Then(LoanConfirmed{"l1"}).
		When(func(l *Loan) error { return l.MarkOverdue(MarkOverdue{}) }).Then(LoanOverdue{"l1"}).
		When((*Loan).Return).Then(LoanReturned{"l1"}).
		When((*Loan).Return).ThenError(ErrNotLent)
	domaintest.New(t, Domain, place).
		When(func(l *Loan) error { return l.Cancel("late") }).Then(placed, LoanCancelled{"l1", "late"}).
		When(func(l *Loan) error { return l.Confirm(ConfirmLoan{}) }).ThenError(ErrNotLent)
	domaintest.Given(t, Domain, &Book{Root: domain.RootWithID("b"), Copies: 1}).
		When(func(b *Book) error { return b.Lend("l1") }).Then(CopyLent{"b", "l1"}).
		When(func(b *Book) error { return b.Lend("l2") }).ThenError(ErrNoCopy)
}

func TestLending(t *testing.T) {
	begun := func() *domaintest.ProcessScenario[*Lending] {
		return domaintest.GivenProcess[*Lending](t, Domain, now, placed).ThenTimer("pay-by", payBy)
	}
	begun().When(FeePaid{"l1"}).ThenSent(ConfirmLoan{"l1"}).ThenEnded()
	begun().When(FeeDeclined{"l1", "no credit"}).ThenSent(CancelLoan{"l1", "no credit"}).ThenEnded()
	begun().WhenDue("pay-by").ThenSent(CancelLoan{"l1", "not paid in time"}).ThenEnded().
		When(FeePaid{"l1"}).ThenSent() // Too late.
}

func TestCurrentLoans(t *testing.T) {
	s := projectiontest.Given(t, Domain, CurrentLoans, "l1", placed, LoanConfirmed{"l1"}).And("l2", LoanPlaced{"l2", "b1", "bob", 100, payBy})
	projectiontest.Then(s, current, CurrentLoan{"l1", "ann", "b1", "active"}, CurrentLoan{"l2", "bob", "b1", "pending"})
	projectiontest.Then(s.And("l1", LoanOverdue{"l1"}).And("l2", LoanCancelled{"l2", "late"}), current, CurrentLoan{"l1", "ann", "b1", "overdue"})
	projectiontest.Then(s.And("l1", LoanReturned{"l1"}), current)
}

func TestLoanPlaced_OfItsFirstVersion(t *testing.T) {
	e, err := Domain.Decode("Library.LoanPlaced.v1", []byte(`{"LoanID": "l1", "BookID": "b1", "Member": "ann", "Fee": 1}`))
	require.NoError(t, err)
	require.Equal(t, LoanPlaced{LoanID: "l1", BookID: "b1", MemberID: "ann", FeeCents: 100}, e)
	domaintest.GivenProcess[*Lending](t, Domain, now, e).ThenTimer("pay-by", payBy)
}
