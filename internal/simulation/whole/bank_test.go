package whole

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

// Account is what units of work change. It knows which of them have.
type Account struct {
	domain.Root
	N   int64
	Ops []string
}

// Moved is the N-th change of an account.
type Moved struct {
	Account string `json:"account"`
	Number  int64  `json:"number"`
}

// Tally is what handlers change together, beside their effects.
type Tally struct {
	domain.Root
	N int64
}

// Tallied is a change of the tally.
type Tallied struct {
	N int64 `json:"n"`
}

var bank = domain.MustNew("bank", append(journeys(),
	domain.Aggregate[*Account]("account", domain.Event[Moved]()),
	domain.Aggregate[*Tally]("tally", domain.Event[Tallied]()),
	domain.Aggregate[*Alarm]("alarm"),
	domain.Command[Ring](domain.KeyedBy("alarm")),
	domain.Command[Ask](domain.KeyedBy("alarm")),
)...)

const (
	category = "bank::account"
	topic    = "bank.account"
	tally    = "all"
)

// fate is how a unit of work ended, as its caller knows it.
type fate int

const (
	unknown fate = iota
	done
	undone
)

// op is one unit of work.
type op struct {
	accounts []string
	fate     fate
	rolls    bool // back, when its function has run
	change   *change
	there    bool // as the judge sees: its accounts have it
}

var errRollsBack = errors.New("whole: the unit's function doesn't want it")

// unit begins a unit of work in a process.
func (w *world) unit(p *process, n int) {
	id := "op" + strconv.Itoa(len(w.ops)+1)
	o := &op{accounts: []string{account(n % w.plan.keys)}, rolls: n%7 == 6}
	if other := account(n / 3 % w.plan.keys); n%4 == 0 && other != o.accounts[0] {
		o.accounts = append(o.accounts, other)
	}
	if w.plan.timers {
		o.change = changeOf(n/84, id)
		if w.plan.journeys && n/84%4 < 2 {
			w.mu.Lock()
			o.change = w.journeyOf(n/84/2, id)
			w.mu.Unlock()
		}
		if n%3 != 0 || o.change.what == "pay" {
			o.accounts = nil
		}
	}
	w.ops[id] = o
	w.operators.Go(func() {
		ctx, cancel := context.WithTimeout(p.life, 20*time.Second)
		defer cancel()
		err := p.units.Do(ctx, func(ctx context.Context) error {
			for _, account := range o.accounts {
				if err := p.move(ctx, account, id); err != nil {
					return err
				}
			}
			if o.change != nil {
				if err := p.apply(ctx, o.change); err != nil {
					return err
				}
			}
			if o.rolls {
				return errRollsBack
			}
			return nil
		})
		lost, isUnknown := errors.AsType[*uow.CommitUnknownError](err)
		var answer uow.Outcome
		if isUnknown {
			answer, _ = lost.Resolve(ctx)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		switch {
		case err == nil || answer == uow.Committed:
			o.fate = done
		case !isUnknown && !p.killed || answer == uow.NotCommitted:
			o.fate = undone
		}
		w.say("unit %s of %v: %v", id, o.accounts, err)
	})
}

func account(n int) string { return "account-" + strconv.Itoa(n) }

// move changes an account in the unit of ctx.
func (p *process) move(ctx context.Context, id, op string) error {
	a, err := p.accounts.Get(ctx, id)
	if _, missing := errors.AsType[*repository.NotFoundError](err); missing {
		a, err = &Account{Root: domain.RootWithID(id)}, nil
	}
	if err != nil {
		return err
	}
	a.N++
	a.Ops = append(slices.Clone(a.Ops), op)
	a.Raise(Moved{Account: id, Number: a.N})
	return p.accounts.Save(ctx, a)
}

// stream is the subscription.
func (p *process) stream() subscription.Stream {
	plan := p.w.plan
	return subscription.Stream{
		Name: "effects", Category: category, Units: p.units, Handlers: []subscription.Handler{subscription.On(p.handle)},
		Lanes: plan.lanes, Batch: plan.batch, MaxAttempts: maxAttempts, Backoff: 50 * time.Millisecond, OnParked: plan.policy, Timeout: 10 * time.Second,
	}
}

const maxAttempts = 3

var errFails = errors.New("whole: the handler fails")

// handle has a message take effect. It takes its time, and fails as the plan says.
func (p *process) handle(ctx context.Context, e Moved) error {
	if err := p.w.ask(ctx, p, &request{kind: "handle", what: fmt.Sprint(e.Account, " ", e.Number), do: func() {}}); err != nil {
		return err
	}
	if err := p.mood(fmt.Sprint(e.Account, " ", e.Number), p.w.poisonsEvents() && e.Account == account(0) && e.Number == p.w.plan.poisoned); err != nil {
		return err
	}
	m, _ := domain.MetadataFrom(ctx)
	const insert = "INSERT INTO effects (message_id, account, number) VALUES (?, ?, ?)"
	if !p.w.plan.trips {
		if err := uow.Exec(ctx, insert, m.ID, e.Account, e.Number); err != nil {
			return err
		}
		return p.count(ctx)
	}
	db, err := uow.DB(ctx)
	if err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, insert, m.ID, e.Account, e.Number); err != nil {
		return err
	}
	return p.count(ctx)
}

// count changes the tally, which all handlers want to.
func (p *process) count(ctx context.Context) error {
	if !p.w.plan.tally {
		return nil
	}
	t, err := p.tallies.Get(ctx, tally)
	if _, missing := errors.AsType[*repository.NotFoundError](err); missing {
		t, err = &Tally{Root: domain.RootWithID(tally)}, nil
	}
	if err != nil {
		return err
	}
	t.N++
	t.Raise(Tallied{N: t.N})
	return p.tallies.Save(ctx, t)
}

// mood is what the handler does with a message.
func (p *process) mood(name string, poison bool) error {
	w := p.w
	w.mu.Lock()
	w.tried[name]++
	poisoned := !w.healed && w.plan.poison != "" && poison
	kills := poisoned && w.plan.poison == "deadly"
	if kills {
		w.deaths++
	}
	w.mu.Unlock()
	switch {
	case kills:
		w.crash(p)
		return errDead
	case !poisoned || w.plan.poison == "deadly":
		return nil
	case w.plan.poison == "hopeless":
		return subscription.Park(errFails)
	case w.plan.poison == "later":
		return subscription.RetryAfter(errFails, 300*time.Millisecond)
	case w.plan.poison == "panics":
		panic(errFails)
	}
	return errFails
}
