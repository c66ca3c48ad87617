package relay_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/internal/relay/relaytest"
)

// exact is a process's connection to a broker with transactions.
type exact struct {
	*connection

	forgets bool // it forgets what marks say
	off     bool // it isn't to be used
	// send publishes in a transaction; nil: as it should.
	send func(ctx context.Context, tx broker.Transactor, mark broker.Mark, messages []broker.Message) error
	open func(id string) error
}

func (e *exact) ExactlyOnce() bool { return !e.off }

func (e *exact) Transact(ctx context.Context, id string) (broker.Transactor, broker.Mark, error) {
	e.mu.Lock()
	down, open := e.publish, e.open
	e.mu.Unlock()
	if down != nil {
		return nil, broker.Mark{}, errDown
	}
	if open != nil {
		if err := open(id); err != nil {
			return nil, broker.Mark{}, err
		}
	}
	tx, mark, err := e.Broker.(broker.Transactional).Transact(ctx, id)
	if e.forgets {
		mark = broker.Mark{}
	}
	return sender{tx, e}, mark, err
}

// sends has what is published in transactions go through f.
func (e *exact) sends(f func(ctx context.Context, tx broker.Transactor, mark broker.Mark, messages []broker.Message) error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.send = f
}

type sender struct {
	broker.Transactor
	by *exact
}

func (s sender) Publish(ctx context.Context, mark broker.Mark, messages []broker.Message) error {
	s.by.mu.Lock()
	down, send := s.by.publish, s.by.send
	s.by.mu.Unlock()
	switch {
	case down != nil:
		return errDown
	case send != nil:
		return send(ctx, s.Transactor, mark, messages)
	}
	return s.Transactor.Publish(ctx, mark, messages)
}

// exactly starts a process that publishes in transactions.
func (w *world) exactly(change ...func(*exact)) (*process, *exact) {
	var e *exact
	p := w.start(func(p *process, cfg *relay.Config) {
		e = &exact{connection: p.broker}
		for _, c := range change {
			c(e)
		}
		cfg.Lanes[0].Broker = e
		cfg.Outbox.Retry.MaxAttempts = 100
	})
	return p, e
}

// once requires that the broker has each row of each key exactly once, in order.
func (w *world) once(ids map[string][]string) {
	w.Helper()
	for key, want := range ids {
		require.Equal(w, want, w.ids(key), "key %s", key)
	}
}

// dice are thrown by several.
type dice struct {
	mu sync.Mutex
	of *rand.Rand
}

func (d *dice) IntN(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.of.IntN(n)
}

// troubled does what brokers do to a transaction: it is refused, its commit isn't answered,
// whether it has come about, does later, or never.
func troubled(random *dice) func(context.Context, broker.Transactor, broker.Mark, []broker.Message) error {
	return func(ctx context.Context, tx broker.Transactor, mark broker.Mark, messages []broker.Message) error {
		later := time.Duration(random.IntN(3000)) * time.Millisecond
		switch random.IntN(16) {
		case 0:
			return errDown
		case 1:
			return errors.Join(broker.ErrUndecided, tx.Publish(ctx, mark, messages))
		case 2:
			return broker.ErrUndecided
		case 3:
			go func() {
				time.Sleep(later) //nolint:forbidigo // in a bubble
				_ = tx.Publish(context.WithoutCancel(ctx), mark, messages)
			}()
			return broker.ErrUndecided
		case 4:
			failed := map[int]error{}
			for i := range messages {
				failed[i] = broker.ErrTakenBack
			}
			failed[random.IntN(len(messages))] = refuse("not now")
			return &broker.PublishError{Failed: failed}
		case 5:
			<-ctx.Done()      // hangs
			time.Sleep(later) //nolint:forbidigo // in a bubble
			return tx.Publish(context.WithoutCancel(ctx), mark, messages)
		case 6, 7:
			time.Sleep(later) //nolint:forbidigo // in a bubble
		}
		return tx.Publish(ctx, mark, messages)
	}
}

// trouble is what a database does to a process now and then.
func trouble(random *dice, p *process) {
	later := time.Duration(random.IntN(5000)) * time.Millisecond
	claim := []relaytest.Fault{relaytest.Unanswered, relaytest.Refused, relaytest.Late(later), relaytest.Slow(later)}
	p.store.Fault(relaytest.Claim, claim[random.IntN(len(claim))])
	p.store.Fault(relaytest.Settle, claim[random.IntN(len(claim))])
	p.store.Fault(relaytest.Finish, claim[random.IntN(len(claim))])
	p.store.Fault(relaytest.Reap, claim[random.IntN(len(claim))])
}

// chaos commits rows while processes are killed, lose their leases and have all kinds of
// trouble, and waits until all is delivered.
func (w *world) chaos(random *dice, change ...func(*exact)) map[string][]string {
	begin := func() *process {
		p, _ := w.exactly(append(change, func(e *exact) {
			e.send = troubled(random)
			e.open = func(string) error {
				time.Sleep(time.Duration(max(0, random.IntN(6000)-3000)) * time.Millisecond) //nolint:forbidigo // in a bubble
				return nil
			}
		})...)
		return p
	}
	all := []*process{begin(), begin()}
	ids := map[string][]string{}
	for range 40 {
		for key, more := range w.commit(all[random.IntN(2)], 1+random.IntN(20), 5) {
			ids[key] = append(ids[key], more...)
		}
		i := random.IntN(2)
		switch random.IntN(6) {
		case 0:
			w.vanish(all[i])
			all[i] = begin()
		case 1: // its lease is lost, and it lives
			all[i].store.SetOutage(true)
			time.Sleep(time.Duration(30+random.IntN(10)) * time.Second) //nolint:forbidigo // in a bubble
			all[i].store.SetOutage(false)
		case 2, 3:
			trouble(random, all[i])
		}
		time.Sleep(time.Duration(random.IntN(4000)) * time.Millisecond) //nolint:forbidigo // in a bubble
	}
	// A claim that ran late leaves its token until its member ends.
	w.until(5*time.Hour, "delivered", func() bool { return len(w.store.Undelivered()) == 0 })
	time.Sleep(time.Minute) //nolint:forbidigo // in a bubble: what is late has come
	require.Empty(w, w.store.Abandoned())
	return ids
}

// The switches NOINIT, NOEXPEL, REINIT, BELIEVE of the model, and the claim itself: whatever
// happens, the broker has each message once, those of a key in order.
func TestTransact_EachOnceWhateverHappens(t *testing.T) {
	seeds := uint64(6)
	if os.Getenv("WAYBILL_LONG") != "" {
		seeds = 60
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inWorld(t, func(w *world) { w.once(w.chaos(&dice{of: rand.New(rand.NewPCG(seed, 1))})) })
		})
	}
}

// NOMARKER: without the marks there are doubles.
func TestTransact_WithoutMarksThereAreDoubles(t *testing.T) {
	doubles := 0
	for seed := uint64(0); doubles == 0 && seed < 4; seed++ {
		inWorld(t, func(w *world) {
			ids := w.chaos(&dice{of: rand.New(rand.NewPCG(seed, 1))}, func(e *exact) { e.forgets = true })
			for key, want := range ids {
				doubles += len(w.ids(key)) - len(want)
			}
		})
	}
	require.Positive(t, doubles)
}
