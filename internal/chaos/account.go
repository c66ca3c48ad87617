package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
)

// Accounts are what is changed. Each change of one raises events with growing
// numbers, so that what must have been published can be told without the outbox.
var Accounts = domain.MustNew("faults",
	domain.Aggregate[*Account]("account", domain.Event[Moved](domain.Published())),
)

// AccountTopic is where their events go, behind a run's prefix.
const AccountTopic = "faults.account"

// Account counts its events.
type Account struct {
	domain.Root

	Moves int64
}

// Moved is the event: the how-manieth of its account it is.
type Moved struct {
	Number int64  `json:"number"`
	Note   string `json:"note,omitempty"`
}

// NewAccount is one that has raised nothing.
func NewAccount(id string) *Account { return &Account{Root: domain.RootWithID(id)} }

// Move raises n events.
func (a *Account) Move(n int, note string) {
	for range n {
		a.Moves++
		a.Raise(Moved{Number: a.Moves, Note: note})
	}
}

// AccountID is that of the i-th account.
func AccountID(i int) string { return fmt.Sprintf("account-%03d", i) }

// Change changes one or two of n accounts in one unit of work, and returns how many events
// each has raised then. Some accounts are more popular than others, so that writers meet.
func Change(ctx context.Context, units *uow.Manager, repo *repository.Repository[*Account], n int) (map[string]int64, error) {
	ids := []string{AccountID(rand.IntN(n))}
	if rand.IntN(3) == 0 {
		ids[0] = AccountID(rand.IntN(1 + n/10))
	}
	saved := map[string]int64{}
	if rand.IntN(4) > 0 {
		err := repo.Update(ctx, ids[0], func(a *Account) error {
			a.Move(1+rand.IntN(2), "")
			saved[ids[0]] = a.Moves
			return nil
		})
		return saved, err
	}
	if other := AccountID(rand.IntN(n)); other != ids[0] {
		ids = append(ids, other)
	}
	err := units.Do(ctx, func(ctx context.Context) error {
		changed, err := repo.GetMany(ctx, ids...)
		if err != nil {
			return err
		}
		for range 2 { // events of several aggregates in turn
			for _, a := range changed {
				a.Move(1, "")
			}
		}
		for _, a := range changed {
			if err := repo.Save(ctx, a); err != nil {
				return err
			}
			saved[a.ID()] = a.Moves
		}
		return nil
	})
	return saved, err
}
