package library

import (
	"context"
	"errors"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
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
	return engine.Context{Commands: a.Commands, Subscriptions: []subscription.Stream{currentLoans}}
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
	bun.BaseModel `bun:"table:current_loans"`

	LoanID                   string `bun:",pk"`
	MemberID, BookID, Status string
}

// Migrate makes the read model's table.
func Migrate(ctx context.Context, units *uow.Manager) error {
	_, err := units.Providers()[0].DB().NewCreateTable().Model((*CurrentLoan)(nil)).IfNotExists().Exec(ctx)
	return err
}

const (
	update = "UPDATE current_loans SET status = ? WHERE loan_id = ?"
	remove = "DELETE FROM current_loans WHERE loan_id = ?"
)

// currentLoans feeds it: each event once, and those of a loan in their order.
var currentLoans = subscription.Stream{
	Name: "library.current-loans", Category: "library::loan",
	Handlers: []subscription.Handler{
		subscription.On(func(ctx context.Context, e LoanPlaced) error {
			return uow.Exec(ctx, "INSERT INTO current_loans (loan_id, member_id, book_id, status) VALUES (?, ?, ?, ?)", e.LoanID, e.MemberID, e.BookID, Pending)
		}),
		subscription.On(func(ctx context.Context, e LoanConfirmed) error { return uow.Exec(ctx, update, Active, e.LoanID) }),
		subscription.On(func(ctx context.Context, e LoanOverdue) error { return uow.Exec(ctx, update, Overdue, e.LoanID) }),
		subscription.On(func(ctx context.Context, e LoanReturned) error { return uow.Exec(ctx, remove, e.LoanID) }),
		subscription.On(func(ctx context.Context, e LoanCancelled) error { return uow.Exec(ctx, remove, e.LoanID) }),
	},
}

// LoansOf are a member's current loans.
func (a *App) LoansOf(ctx context.Context, memberID string) (all []CurrentLoan, err error) {
	err = a.Units.Providers()[0].Reader().NewSelect().Model(&all).Where("member_id = ?", memberID).Order("loan_id").Scan(ctx)
	return all, err
}
