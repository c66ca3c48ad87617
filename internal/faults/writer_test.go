package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
)

// accounts are what is changed. Each change of one raises events with growing
// numbers, so that what must have been published can be told without the outbox.
var accounts = domain.MustNew("faults",
	domain.Aggregate[*account]("account", domain.Event[Moved](domain.Published())),
)

const accountTopic = "faults.account"

// branches have topics of their own beside the accounts'.
var branches = domain.MustNew("faults",
	domain.Aggregate[*account]("account", domain.Event[Moved](domain.Published())),
	domain.Aggregate[*vault]("vault", domain.Event[Stored](domain.Published())),
	domain.Aggregate[*ledger]("ledger", domain.Event[Booked](domain.Published())),
)

type account struct {
	domain.Root
	Moves int64
}

type Moved struct {
	Number int64  `json:"number"`
	Note   string `json:"note,omitempty"`
}

func newAccount(id string) *account { return &account{Root: domain.RootWithID(id)} }

func (a *account) move(n int, note string) {
	for range n {
		a.Moves++
		a.Raise(Moved{Number: a.Moves, Note: note})
	}
}

type vault struct {
	domain.Root
	Moves int64
}

type Stored struct {
	Number int64 `json:"number"`
}

type ledger struct {
	domain.Root
	Moves int64
}

type Booked struct {
	Number int64 `json:"number"`
}

// branch are the aggregates of one number, one of each kind.
type branch struct {
	accounts *repository.Repository[*account]
	vaults   *repository.Repository[*vault]
	ledgers  *repository.Repository[*ledger]
}

func newBranch(units *uow.Manager) branch {
	return branch{repository.New[*account](units), repository.New[*vault](units), repository.New[*ledger](units)}
}

func (b branch) save(ctx context.Context, i int) error {
	a := newAccount(accountID(i))
	a.move(1, "")
	v := &vault{domain.RootWithID(vaultID(i)), 1}
	v.Raise(Stored{v.Moves})
	l := &ledger{domain.RootWithID(ledgerID(i)), 1}
	l.Raise(Booked{l.Moves})
	return errors.Join(b.accounts.Save(ctx, a), b.vaults.Save(ctx, v), b.ledgers.Save(ctx, l))
}

// update changes one aggregate of a kind.
func (b branch) update(ctx context.Context, i, kind int) error {
	switch kind {
	case 0:
		return b.accounts.Update(ctx, accountID(i), func(a *account) error {
			a.move(1, "")
			return nil
		})
	case 1:
		return b.vaults.Update(ctx, vaultID(i), func(v *vault) error {
			v.Moves++
			v.Raise(Stored{v.Moves})
			return nil
		})
	default:
		return b.ledgers.Update(ctx, ledgerID(i), func(l *ledger) error {
			l.Moves++
			l.Raise(Booked{l.Moves})
			return nil
		})
	}
}

func vaultID(i int) string  { return fmt.Sprintf("vault-%03d", i) }
func ledgerID(i int) string { return fmt.Sprintf("ledger-%03d", i) }

func accountID(i int) string { return fmt.Sprintf("account-%03d", i) }

// write changes accounts until ctx is done. Some of them are more popular than
// others, so that writers meet.
func (n *node) write(ctx context.Context, units *uow.Manager) error {
	repo := repository.New[*account](units)
	n.say("running")
	var all sync.WaitGroup
	for range n.cfg.Writers {
		all.Go(func() {
			for ctx.Err() == nil {
				pause, begin := rand.N(n.cfg.Pause), time.Now()
				err := n.change(ctx, units, repo)
				switch {
				case err != nil && ctx.Err() == nil:
					n.log.Warn("a unit failed", "error", err)
					pause = time.Second
				case err == nil && n.cfg.Timed:
					n.say(fmt.Sprintf(unitTook, begin.UnixNano(), time.Since(begin)))
				}
				select {
				case <-time.After(pause):
				case <-ctx.Done():
				}
			}
		})
	}
	all.Wait()
	return nil
}

// unitTook is what a timed writer says of a unit.
const unitTook = "unit %d %d"

func (n *node) change(ctx context.Context, units *uow.Manager, repo *repository.Repository[*account]) error {
	if n.cfg.Branches {
		return newBranch(units).update(ctx, rand.N(n.cfg.Accounts), rand.N(3))
	}
	ids := []string{accountID(rand.N(n.cfg.Accounts))}
	if rand.N(3) == 0 {
		ids[0] = accountID(rand.N(1 + n.cfg.Accounts/10))
	}
	if rand.N(4) > 0 {
		return repo.Update(ctx, ids[0], func(a *account) error {
			a.move(1+rand.N(2), "")
			return nil
		})
	}
	if other := accountID(rand.N(n.cfg.Accounts)); other != ids[0] {
		ids = append(ids, other)
	}
	return units.Do(ctx, func(ctx context.Context) error {
		changed, err := repo.GetMany(ctx, ids...)
		if err != nil {
			return err
		}
		for range 2 { // events of several aggregates in turn
			for _, a := range changed {
				a.move(1, "")
			}
		}
		for _, a := range changed {
			if err := repo.Save(ctx, a); err != nil {
				return err
			}
		}
		return nil
	})
}
