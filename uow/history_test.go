package uow_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/rootstate"
	"github.com/waybill-go/waybill/uow"
)

// S4-01: over random histories with aborts of every kind, the outbox holds the
// events of the units that committed, each once, and no other.
func TestHistories_S401(t *testing.T) {
	for name, test := range map[string]struct {
		open      providers
		histories int
	}{
		"sqlite":   {openSQLite, 1000},
		"postgres": {openPostgres, 200},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, test.open)
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			h := &history{world: w, r: rand.New(rand.NewPCG(seed, 0)), versions: map[string]int64{}}
			for n := range test.histories {
				h.play(t, n)
			}
			require.Positive(t, h.committed)
			require.Positive(t, h.aborted)
			t.Logf("%d units committed, %d did not", h.committed, h.aborted)

			var have []string
			for _, r := range rows(t, w.db) {
				if r.TargetBroker == "default" {
					have = append(have, r.MessageID)
				}
			}
			slices.Sort(have)
			slices.Sort(h.events)
			require.Equal(t, h.events, have)
			var want []string
			for id, v := range h.versions {
				if v > 0 {
					want = append(want, fmt.Sprintf("account-%s@%d", id, v))
				}
			}
			slices.Sort(want)
			require.Equal(t, want, w.things(t))
			w.returned(t)
		})
	}
}

type history struct {
	*world
	r                  *rand.Rand
	events             []string         // of units that have committed
	versions           map[string]int64 // that they have stored
	committed, aborted int
}

// try is what one run of a unit has saved: the ids of each aggregate's events.
type try map[*Account][]string

func (h *history) play(t *testing.T, n int) {
	h.unit(t, []string{fmt.Sprint(n, "-a"), fmt.Sprint(n, "-b")})
	for range h.r.IntN(4) {
		h.unit(t, []string{fmt.Sprint(n, "-a"), fmt.Sprint(n, "-b")})
	}
}

var errInjected = errors.New("injected")

func (h *history) unit(t *testing.T, ids []string) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var last try
	lost, happened := false, false // the answer to COMMIT
	h.db.send, h.db.commit = nil, nil
	switch h.r.IntN(20) {
	case 0:
		h.db.send = func() error { return errInjected }
	case 1:
		h.db.commit = func(uow.Session, func() error) error { return errInjected }
	case 2:
		h.db.commit = func(uow.Session, func() error) error {
			lost = true
			return &uow.CommitUnknownError{Err: errInjected}
		}
	case 3:
		h.db.commit = func(_ uow.Session, commit func() error) error {
			if err := commit(); err != nil {
				return err
			}
			lost, happened = true, true
			return &uow.CommitUnknownError{Err: errInjected}
		}
	case 4:
		h.db.commit = func(_ uow.Session, commit func() error) error {
			cancel()
			return commit()
		}
	}
	conflicts := h.r.IntN(3)
	fn := func(ctx context.Context) error {
		last = try{}
		for range 1 + h.r.IntN(3) {
			if err := h.step(ctx, ids[h.r.IntN(len(ids))], last); err != nil {
				return err
			}
		}
		switch h.r.IntN(12) {
		case 0:
			return errInjected
		case 1:
			panic(errInjected)
		case 2:
			runtime.Goexit()
		case 3:
			cancel()
		case 4:
			if conflicts > 0 {
				conflicts--
				return &uow.ConflictError{Type: "account", ID: ids[0]}
			}
		}
		return nil
	}
	var err error
	returned := false
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer func() { _ = recover() }()
		err = h.units.Do(ctx, fn)
		returned = true
	}()
	<-ended
	if returned && err == nil || lost && happened {
		h.committed++
		for a, events := range last {
			h.events = append(h.events, events...)
			stored := newAccount(a.ID())
			require.NoError(t, scan(t.Context(), h.db.Reader(), stored))
			if err == nil {
				require.Equal(t, a.Version(), stored.Version())
				require.Empty(t, rootstate.Of(a).Raised)
			}
			h.versions[a.ID()] = stored.Version()
		}
		return
	}
	h.aborted++
}

// step changes an aggregate in one of the ways there are.
func (h *history) step(ctx context.Context, id string, made try) error {
	u, err := uow.From(ctx)
	if err != nil {
		return err
	}
	a := newAccount(id)
	if held, ok := u.Identity("bank::account", id); ok {
		a = held.(*Account)
	} else if h.versions[id] > 0 {
		if a, err = get(ctx, h.store, a); err != nil {
			return err
		}
	} else if _, err := u.Read(""); err != nil {
		return err
	}
	for range h.r.IntN(3) {
		if h.r.IntN(2) == 0 {
			a.Deposit(1)
		} else {
			a.Annotate("x")
		}
	}
	if h.r.IntN(20) == 0 {
		a.Deposit(-1 << 20) // refused by Validate
	}
	save := func(ctx context.Context, a *Account) error {
		made[a] = nil
		for _, r := range rootstate.Of(a).Raised {
			made[a] = append(made[a], r.ID)
		}
		return h.save(ctx, a)
	}
	if h.r.IntN(15) == 0 {
		save = func(context.Context, *Account) error { return nil } // forgotten
	}
	if h.r.IntN(4) == 0 {
		outer := save
		save = func(ctx context.Context, a *Account) error {
			return h.units.Do(ctx, func(ctx context.Context) error {
				err := outer(ctx, a)
				if h.r.IntN(8) == 0 {
					return errInjected
				}
				return err
			})
		}
	}
	err = save(ctx, a)
	if h.r.IntN(6) == 0 {
		err = errors.Join(err, uow.Flush(ctx))
	}
	if h.r.IntN(8) == 0 {
		_, dbErr := uow.DB(ctx)
		err = errors.Join(err, dbErr)
	}
	if h.r.IntN(10) == 0 {
		err = nil // swallowed
	}
	return err
}
