package library

import (
	"context"
	"errors"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/projection"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
)

// App is the library at work.
type App struct {
	Units    *uow.Manager
	Books    *repository.Repository[*Book]
	Loans    *repository.Repository[*Loan]
	Commands *command.Handlers

	payWithin time.Duration
}

// New wires it; payWithin is usually [PayWithin].
func New(units *uow.Manager, payWithin time.Duration) *App {
	a := &App{Units: units, Books: repository.New[*Book](units), Loans: repository.New[*Loan](units), payWithin: payWithin}
	a.Commands = command.Must(command.Config{Units: units, Handlers: []command.Handler{
		command.Create(a.Books, Acquire),
		command.Update(a.Loans, (*Loan).Confirm),
		command.Update(a.Loans, (*Loan).MarkOverdue),
		command.On(a.place),
		command.On(func(ctx context.Context, c CancelLoan) error {
			return a.end(ctx, c.LoanID, func(l *Loan) error { return l.Cancel(c.Reason) })
		}),
		command.On(func(ctx context.Context, c ReturnLoan) error { return a.end(ctx, c.LoanID, (*Loan).Return) }),
	}})
	return a
}

// Context is what an engine runs.
func (a *App) Context() engine.Context {
	return engine.Context{Commands: a.Commands, Projections: []projection.Projection{CurrentLoans}}
}

func (a *App) place(ctx context.Context, c PlaceLoan) error {
	now := domain.Now(ctx)
	return errors.Join(
		a.Books.Update(ctx, c.BookID, func(b *Book) error { return b.Lend(c.LoanID) }),
		a.Loans.Save(ctx, Place(c, now, now.Add(a.payWithin))),
	)
}

// end ends a loan and takes the copy back.
func (a *App) end(ctx context.Context, loanID string, end func(*Loan) error) error {
	return a.Loans.Update(ctx, loanID, repository.At(command.VersionFrom(ctx), func(l *Loan) error {
		return errors.Join(end(l), a.Books.Update(ctx, l.BookID, func(b *Book) error { return b.TakeBack(loanID) }))
	}))
}

// CurrentLoan is a row of the read model: the loans that a member has now.
type CurrentLoan struct {
	LoanID                   string `bun:",pk"`
	MemberID, BookID, Status string
}

var current = projection.NewTable[CurrentLoan]("current_loans", "member_id, loan_id")

// CurrentLoans is made of the history of loans, and rebuilt when its Version is raised.
var CurrentLoans = projection.Projection{
	Name: "current-loans", Tables: []projection.Definition{current},
	Handlers: []projection.Handler{
		projection.On(func(ctx context.Context, e LoanPlaced) error {
			return current.Put(ctx, CurrentLoan{e.LoanID, e.MemberID, e.BookID, string(Pending)})
		}),
		projection.On(func(ctx context.Context, e LoanConfirmed) error { return set(ctx, e.LoanID, Active) }),
		projection.On(func(ctx context.Context, e LoanOverdue) error { return set(ctx, e.LoanID, Overdue) }),
		projection.On(func(ctx context.Context, e LoanReturned) error { return current.Remove(ctx, e.LoanID) }),
		projection.On(func(ctx context.Context, e LoanCancelled) error { return current.Remove(ctx, e.LoanID) }),
	},
}

func set(ctx context.Context, loanID string, s Status) error {
	return current.Change(ctx, loanID, func(l *CurrentLoan) { l.Status = string(s) })
}

// LoansOf are a member's current loans, those included that were placed before the call.
func (a *App) LoansOf(ctx context.Context, memberID string) ([]CurrentLoan, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := projection.Wait(ctx, a.Units, CurrentLoans.Name); err != nil {
		return nil, err
	}
	return current.Find(ctx, a.Units, func(q *bun.SelectQuery) *bun.SelectQuery {
		return q.Where("member_id = ?", memberID).Order("loan_id")
	})
}
