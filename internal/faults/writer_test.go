package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/chaos"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
)

// branches have topics of their own beside the accounts'.
var branches = domain.MustNew("faults",
	domain.Aggregate[*chaos.Account]("account", domain.Event[chaos.Moved](domain.Published())),
	domain.Aggregate[*vault]("vault", domain.Event[Stored](domain.Published())),
	domain.Aggregate[*ledger]("ledger", domain.Event[Booked](domain.Published())),
)

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
	accounts *repository.Repository[*chaos.Account]
	vaults   *repository.Repository[*vault]
	ledgers  *repository.Repository[*ledger]
}

func newBranch(units *uow.Manager) branch {
	return branch{repository.New[*chaos.Account](units), repository.New[*vault](units), repository.New[*ledger](units)}
}

func (b branch) save(ctx context.Context, i int) error {
	a := chaos.NewAccount(chaos.AccountID(i))
	a.Move(1, "")
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
		return b.accounts.Update(ctx, chaos.AccountID(i), func(a *chaos.Account) error {
			a.Move(1, "")
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

// write changes accounts until ctx is done. Some of them are more popular than
// others, so that writers meet.
func (n *node) write(ctx context.Context, units *uow.Manager) error {
	repo := repository.New[*chaos.Account](units)
	n.say("running")
	var all sync.WaitGroup
	for range n.cfg.Writers {
		all.Go(func() {
			for ctx.Err() == nil {
				pause, begin := rand.N(n.cfg.Pause), time.Now()
				ahead, err := n.ahead(ctx, units)
				if err == nil && !ahead {
					err = n.change(ctx, units, repo)
				}
				switch {
				case ahead:
					pause = tick
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

// ahead says whether more rows wait than engines are to have before them.
func (n *node) ahead(ctx context.Context, units *uow.Manager) (bool, error) {
	if n.cfg.Backlog == 0 {
		return false, nil
	}
	waiting := 0
	err := units.Do(ctx, func(ctx context.Context) error {
		db, err := uow.DB(ctx)
		if err != nil {
			return err
		}
		return db.NewRaw("SELECT count(*) FROM outbox_queue").Scan(ctx, &waiting)
	})
	return waiting > n.cfg.Backlog, err
}

// unitTook is what a timed writer says of a unit.
const unitTook = "unit %d %d"

func (n *node) change(ctx context.Context, units *uow.Manager, repo *repository.Repository[*chaos.Account]) error {
	if n.cfg.Branches {
		return newBranch(units).update(ctx, rand.N(n.cfg.Accounts), rand.N(3))
	}
	_, err := chaos.Change(ctx, units, repo, n.cfg.Accounts)
	return err
}
