package faults

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/internal/chaos"
	"github.com/waybill-go/waybill/internal/verdict"
)

// steps are where an engine that publishes in transactions may die: as it opens a
// transactional id, before it sends, at some moment of the transaction, or when it is
// committed and nothing is written back.
var steps = []string{"open", "before", "during", "after"}

// exactlyTrapped is a broker with transactions, and a trap.
type exactlyTrapped struct {
	broker.Broker
	broker.Transactional
	node   *node
	opened *atomic.Int64
}

// Transact implements [broker.Transactional].
func (b exactlyTrapped) Transact(ctx context.Context, id string) (broker.Transactor, broker.Mark, error) {
	tx, mark, err := b.Transactional.Transact(ctx, id)
	b.node.dies("open", max(1, 3-int(b.opened.Add(1)))) // at the second at the latest
	if err != nil {
		return nil, mark, err
	}
	if b.node.cfg.Trap.Forgets {
		mark = broker.Mark{}
	}
	return trappedTransactor{tx, b.node}, mark, nil
}

type trappedTransactor struct {
	broker.Transactor
	node *node
}

// Publish implements [broker.Transactor].
func (x trappedTransactor) Publish(ctx context.Context, mark broker.Mark, messages []broker.Message) error {
	t := x.node.cfg.Trap
	x.node.dies("before", 20)
	if t.Exact == "during" && rand.N(10) == 0 {
		time.AfterFunc(rand.N(20*time.Millisecond), die)
	}
	t.dawdle()
	since := time.Now()
	err := x.Transactor.Publish(ctx, mark, messages)
	chaos.Tell(x.node.log, since, err)
	if err == nil {
		x.node.dies("after", 20)
	}
	t.dawdle()
	return err
}

// dies ends the process at a step, one time of some.
func (n *node) dies(step string, of int) {
	if n.cfg.Trap.Exact == step && rand.N(of) == 0 {
		die()
	}
}

// exactly publishes in transactions, and dies at a step; "": it doesn't.
func exactly(step string) func(*nodeConfig) {
	return func(c *nodeConfig) {
		c.Exact, c.Trap.Exact = true, step
		c.Outbox.Lease, c.Outbox.BatchSize = 4*time.Second, 20
	}
}

// killed has engines die at every step while units commit, n in all. Of those that live some
// are stopped past their leases in between, and then go on.
func (w *world) killed(n int, change ...func(*nodeConfig)) {
	w.t.Helper()
	begin := func(i int) *process {
		return w.node(append([]func(*nodeConfig){exactly(steps[i%len(steps)])}, change...)...)
	}
	steady := w.engine(append([]func(*nodeConfig){exactly("")}, change...)...)
	writer := w.writer(30, 4, 10*time.Millisecond, considerate)
	one := begin(0)
	for i := 1; i <= n; i++ {
		if i%5 == 0 { // the other lives and loses its lease
			w.pause(steady)
			eventually(w.t, func() bool {
				return w.lapsed(time.Second) || w.count("outbox_members WHERE name LIKE $1", owned(steady)) == 0
			}, "its lease has run out")
			w.resume(steady)
		}
		w.died(one)
		one = begin(i)
	}
	writer.terminate()
	w.kill(one)
	w.drain()
	steady.terminate()
}

// Each message once for who reads what is committed, in order: engines are killed at every
// step, and lose their leases while they live.
func TestExactlyOnce_KilledAtEveryStep(t *testing.T) {
	t.Parallel()
	kills := 6
	if long() {
		kills = 100
	}
	w := newWorld(t, 30)
	w.killed(kills)
	r := w.check()
	require.Zero(t, r.Duplicates)
	require.GreaterOrEqual(t, r.Incidents["kills"], kills)
}

// The control: without the marks there are doubles.
func TestExactlyOnce_WithoutMarksThereAreDoubles(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 30)
	w.killed(6, func(c *nodeConfig) {
		c.Trap.Forgets = true
		if c.Trap.Exact != "" {
			c.Trap.Exact = "after"
		}
	})
	require.Positive(t, w.check().Duplicates)
}

// exactOutage is a part of TestOutage: Kafka is killed while transactions are open.
func exactOutage(t *testing.T) {
	restarts := 1
	if long() {
		restarts = 10
	}
	w := newWorldOn(t, ownKafka.up(t), 30, 1<<20)
	engines := []*process{w.engine(exactly("")), w.engine(exactly(""))}
	writer := w.writer(30, 4, 10*time.Millisecond, considerate)
	for range restarts {
		w.publishes(200)
		down := verdict.Incident{Kind: "silence", From: time.Now()}
		ownKafka.signal(t, syscall.SIGKILL)
		ownKafka.up(t)
		down.Until = time.Now()
		w.note(down)
	}
	w.publishes(200)
	writer.terminate()
	w.drain()
	for _, e := range engines {
		e.terminate()
	}
	require.Zero(t, w.check().Duplicates)
}
