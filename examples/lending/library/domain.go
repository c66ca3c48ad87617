// Package library lends books. A loan costs a fee, which is paid in time, or the loan
// is cancelled; see [Lending].
package library

import (
	"errors"
	"slices"
	"time"

	"github.com/waybill-go/waybill/domain"
)

// Status is how far a loan has come.
type Status string

// What a loan can be.
const (
	Pending   Status = "pending" // The fee is not paid yet.
	Active    Status = "active"
	Overdue   Status = "overdue"
	Returned  Status = "returned"
	Cancelled Status = "cancelled"
)

// PayWithin is how long a member usually has to pay.
const PayWithin, lendFor, feeCents = 3 * time.Minute, 14 * 24 * time.Hour, 100

// Book is all copies of one.
type Book struct {
	domain.Root
	Copies, Lent int
}

// Loan is a copy that a member has, or will have once it is paid for.
type Loan struct {
	domain.Root
	BookID, MemberID string
	Status           Status
	Due              time.Time
}

// Commands.
type (
	AcquireBook struct {
		ISBN   string
		Copies int
	}
	PlaceLoan   struct{ LoanID, BookID, MemberID string }
	ConfirmLoan struct{ LoanID string }
	CancelLoan  struct{ LoanID, Reason string }
	ReturnLoan  struct{ LoanID string }
	MarkOverdue struct{ LoanID string }
)

// Events.
type (
	BookAcquired struct {
		BookID string
		Copies int
	}
	CopyLent     struct{ BookID, LoanID string }
	CopyReturned struct{ BookID, LoanID string }
	LoanPlaced   struct {
		LoanID, BookID, MemberID string
		FeeCents                 int64
		PayBy                    time.Time
	}
	// loanPlacedV1 is what it was once: in whole euros, and without a time.
	loanPlacedV1 struct {
		LoanID, BookID, Member string
		Fee                    int64
	}
	LoanConfirmed struct{ LoanID string }
	LoanReturned  struct{ LoanID string }
	LoanOverdue   struct{ LoanID string }
	LoanCancelled struct{ LoanID, Reason string }
)

// Billing's events, as the library understands them.
type (
	FeePaid     struct{ LoanID string }
	FeeDeclined struct{ LoanID, Reason string }
)

// What the library refuses.
var (
	ErrNoCopy  = errors.New("no copy is left")
	ErrNotLent = errors.New("the loan has gone another way")
)

// Domain is what the library keeps, does and tells.
var Domain = domain.MustNew("library",
	domain.Aggregate[*Book]("book", domain.Event[BookAcquired](), domain.Event[CopyLent](), domain.Event[CopyReturned]()),
	domain.Aggregate[*Loan]("loan",
		domain.Event[LoanPlaced](domain.Published(), domain.Version(2), domain.Upcast(1, func(e loanPlacedV1) LoanPlaced {
			return LoanPlaced{LoanID: e.LoanID, BookID: e.BookID, MemberID: e.Member, FeeCents: 100 * e.Fee}
		})),
		domain.Event[LoanConfirmed](), domain.Event[LoanReturned](), domain.Event[LoanOverdue](),
		domain.Event[LoanCancelled](domain.Published()),
	),
	domain.Command[AcquireBook](domain.KeyedBy("ISBN")),
	domain.Command[PlaceLoan](domain.KeyedBy("LoanID")), domain.Command[ConfirmLoan](domain.KeyedBy("LoanID")),
	domain.Command[CancelLoan](domain.KeyedBy("LoanID")), domain.Command[ReturnLoan](domain.KeyedBy("LoanID")),
	domain.Command[MarkOverdue](domain.KeyedBy("LoanID")),
	domain.Foreign[FeePaid]("Billing.FeePaid.v1", domain.From("billing::charge")),
	domain.Foreign[FeeDeclined]("Billing.FeeDeclined.v1", domain.From("billing::charge")),
	lending,
)

// Acquire buys a book.
func Acquire(c AcquireBook) (*Book, error) {
	b := &Book{Root: domain.RootWithID(c.ISBN), Copies: c.Copies}
	b.Raise(BookAcquired{c.ISBN, c.Copies})
	return b, nil
}

// Validate holds before every save.
func (b *Book) Validate() error {
	if b.Copies < 1 || b.Lent < 0 || b.Lent > b.Copies {
		return errors.New("a book has between 0 and all of its copies lent")
	}
	return nil
}

// Lend gives a copy away.
func (b *Book) Lend(loanID string) error {
	if b.Lent == b.Copies {
		return ErrNoCopy
	}
	b.Lent++
	b.Raise(CopyLent{b.ID(), loanID})
	return nil
}

// TakeBack has it back.
func (b *Book) TakeBack(loanID string) error {
	b.Lent--
	b.Raise(CopyReturned{b.ID(), loanID})
	return nil
}

// Place begins a loan, to be paid for by then.
func Place(c PlaceLoan, now, payBy time.Time) *Loan {
	l := &Loan{Root: domain.RootWithID(c.LoanID), BookID: c.BookID, MemberID: c.MemberID, Status: Pending, Due: now.Add(lendFor)}
	l.Raise(LoanPlaced{c.LoanID, c.BookID, c.MemberID, feeCents, payBy})
	return l
}

// become is the way from one of some states to another.
func (l *Loan) become(to Status, event any, from ...Status) error {
	if !slices.Contains(from, l.Status) {
		return ErrNotLent
	}
	l.Status = to
	l.Raise(event)
	return nil
}

// Confirm hands the copy out.
func (l *Loan) Confirm(ConfirmLoan) error {
	domain.SetTimer(l, "due", l.Due, MarkOverdue{l.ID()})
	return l.become(Active, LoanConfirmed{l.ID()}, Pending)
}

// Cancel ends a loan that wasn't paid for.
func (l *Loan) Cancel(reason string) error {
	return l.become(Cancelled, LoanCancelled{l.ID(), reason}, Pending)
}

// Return ends a loan.
func (l *Loan) Return() error {
	domain.StopTimer(l, "due")
	return l.become(Returned, LoanReturned{l.ID()}, Active, Overdue)
}

// MarkOverdue is what its timer does, which is stopped when the loan is returned.
func (l *Loan) MarkOverdue(MarkOverdue) error {
	return l.become(Overdue, LoanOverdue{l.ID()}, Active)
}
