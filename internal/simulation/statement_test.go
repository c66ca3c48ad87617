package simulation

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/internal/relay/relaytest"
	"github.com/waybill-go/waybill/outbox"
)

var errDead = errors.New("simulation: the process is dead")

// statement is one that a process has sent to the store.
type statement struct {
	name

	request any
	do      func()
	changes bool // it may change something

	ran    bool
	failed error
	done   chan struct{} // closed: it is answered
	ghost  bool          // nobody waits for it
	swept  []int64       // SWEEPEARLY: what the first half of a reap has read
}

// conn is a process's connection to the store. Each statement waits for its turn.
type conn struct {
	*relaytest.Store

	w *world
	p *process
}

// ask sends a statement of a lane, or with 0 of all, and waits until the schedule has it
// answered.
func ask[T any](ctx context.Context, c *conn, kind relaytest.Step, lane relay.LaneID, request any, do func() (T, error)) (none T, _ error) {
	var answer T
	var err error
	s := &statement{name: name{proc: c.p.number, kind: string(kind), lane: lane}, request: request, done: make(chan struct{})}
	s.do = func() { answer, err = do() }
	if !c.w.send(c.p, s) {
		return none, errDead
	}
	select {
	case <-s.done:
		if s.failed != nil {
			return none, s.failed
		}
		return answer, err
	case <-ctx.Done():
		c.w.leave(s)
		return none, ctx.Err()
	case <-c.p.dead:
		return none, errDead
	}
}

// changing are the statements that may change something.
var changing = []string{
	string(relaytest.Join), string(relaytest.Renew), string(relaytest.Take), string(relaytest.Release), string(relaytest.Reap), string(relaytest.Finish),
	string(relaytest.Leave), string(relaytest.Claim), string(relaytest.Settle), string(opens), string(transact),
}

// send puts a statement where the schedule finds it. It is false if the process is dead.
func (w *world) send(p *process, s *statement) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.killed {
		return false
	}
	p.sent[s.name]++
	s.n = p.sent[s.name]
	s.changes = slices.Contains(changing, s.kind)
	w.statements = append(w.statements, s)
	return true
}

// leave says that nobody waits for it any more: it may still run.
func (w *world) leave(s *statement) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unheard(s)
	if s.ran || !s.changes {
		w.forget(s)
	}
}

// unheard: a claim that isn't answered is forgotten by its process. The lock is held.
func (w *world) unheard(s *statement) {
	s.ghost = true
	if !s.ran {
		return
	}
	switch c := s.request.(type) {
	case relay.ClaimRequest:
		w.ghosts[token{c.Member, c.N}] = true
	case relay.LookRequest:
		w.ghosts[token{c.Member, c.N}] = true
	}
}

// forget takes it out. The lock is held.
func (w *world) forget(s *statement) {
	w.statements = slices.DeleteFunc(w.statements, func(other *statement) bool { return other == s })
}

// waiting are the statements that somebody waits for, or else the others, in an order
// that doesn't depend on who came first.
func (w *world) waiting(ghosts bool) (all []*statement) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.statements {
		if s.ghost == ghosts {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b *statement) int {
		return cmp.Or(cmp.Compare(a.proc, b.proc), cmp.Compare(a.kind, b.kind), cmp.Compare(a.lane, b.lane), cmp.Compare(a.n, b.n))
	})
	return all
}

func (w *world) statement(of name, ghost bool) *statement {
	for _, s := range w.waiting(ghost) {
		if s.name == of {
			return s
		}
	}
	return nil
}

// run has a statement run, and the witness and the model look at what it does.
func (w *world) run(s *statement) {
	if m, ok := s.request.(relay.MemberID); ok && w.without["SWEEPEARLY"] && s.kind == string(relaytest.Reap) && s.swept == nil {
		s.swept = append([]int64{0}, w.store.Sweep(m)...)
		return
	}
	var before relaytest.State
	seen := s.changes && s.kind != string(relaytest.Renew) // which only says that a member lives
	if seen {
		before = w.store.State()
	}
	w.running = s
	s.do()
	w.mu.Lock() // whoever waits for it may give up by its clock
	s.ran = true
	w.mu.Unlock()
	if seen {
		w.witness(s, before, w.store.State())
	}
}

// finish answers a statement.
func (w *world) finish(s *statement, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s.ghost {
		if s.ran {
			w.forget(s)
		}
		return
	}
	if s.failed = err; err != nil {
		w.unheard(s)
	}
	close(s.done)
	if s.ran || !s.changes || !errors.Is(err, errLost) {
		w.forget(s)
	}
	s.ghost = true
}

var (
	errRefused = relaytest.ErrFault
	errLost    = errors.New("simulation: the answer of the database is lost")
)

// Lanes implements [relay.Store].
func (c *conn) Lanes(ctx context.Context, targets []string) ([]relay.LaneID, int, error) {
	ids, err := ask(ctx, c, relaytest.Lanes, 0, nil, func() ([]relay.LaneID, error) {
		ids, _, err := c.Store.Lanes(context.Background(), targets)
		return ids, err
	})
	return ids, partitions, err
}

// Join implements [relay.Store].
func (c *conn) Join(ctx context.Context, _ string, lanes []relay.Joining, lease time.Duration) ([]relay.MemberID, error) {
	return ask(ctx, c, relaytest.Join, 0, nil, func() ([]relay.MemberID, error) {
		return c.Store.Join(context.Background(), c.p.name(), lanes, lease)
	})
}

// Renew implements [relay.Store].
func (c *conn) Renew(ctx context.Context, renewals []relay.Renewal, lease time.Duration) ([]relay.Renewed, error) {
	return ask(ctx, c, relaytest.Renew, 0, renewals, func() ([]relay.Renewed, error) { return c.Store.Renew(context.Background(), renewals, lease) })
}

// take is what a member asks for.
type take struct {
	member relay.MemberID
	lane   relay.LaneID
	parts  []int // that it gives back
	n      int
}

// Take implements [relay.Store].
func (c *conn) Take(ctx context.Context, m relay.MemberID, lane relay.LaneID, n int) ([]int, error) {
	return ask(ctx, c, relaytest.Take, lane, take{member: m, lane: lane, n: n}, func() ([]int, error) { return c.Store.Take(context.Background(), m, lane, n) })
}

// Release implements [relay.Store].
func (c *conn) Release(ctx context.Context, m relay.MemberID, lane relay.LaneID, parts []int) error {
	_, err := ask(ctx, c, relaytest.Release, lane, take{member: m, lane: lane, parts: parts}, func() (struct{}, error) {
		return struct{}{}, c.Store.Release(context.Background(), m, lane, parts)
	})
	return err
}

// Reap implements [relay.Store].
func (c *conn) Reap(ctx context.Context, m relay.MemberID, dead bool) (relay.Reaped, error) {
	return ask(ctx, c, relaytest.Reap, 0, m, func() (relay.Reaped, error) {
		if s := c.w.running; s.swept != nil {
			return c.ReapSwept(m, s.swept), nil
		}
		return c.Store.Reap(context.Background(), m, dead)
	})
}

// Finish implements [relay.Store].
func (c *conn) Finish(ctx context.Context, m relay.MemberID) (relay.Reaped, error) {
	return ask(ctx, c, relaytest.Finish, 0, m, func() (relay.Reaped, error) { return c.Store.Finish(context.Background(), m) })
}

// Leave implements [relay.Store].
func (c *conn) Leave(ctx context.Context, members []relay.MemberID) error {
	_, err := ask(ctx, c, relaytest.Leave, 0, members, func() (struct{}, error) { return struct{}{}, c.Store.Leave(context.Background(), members) })
	return err
}

// Look implements [relay.Store].
func (c *conn) Look(ctx context.Context, lane relay.LaneID, parts []relay.PartLow, limit int) ([]relay.QueueRow, error) {
	return ask(ctx, c, relaytest.Look, lane, parts, func() ([]relay.QueueRow, error) { return c.Store.Look(context.Background(), lane, parts, limit) })
}

// First implements [relay.Store].
func (c *conn) First(ctx context.Context, lane relay.LaneID, parts []relay.PartLow, limit int) ([]relay.QueueRow, error) {
	return ask(ctx, c, relaytest.First, lane, parts, func() ([]relay.QueueRow, error) { return c.Store.First(context.Background(), lane, parts, limit) })
}

// Fetch implements [relay.Store].
func (c *conn) Fetch(ctx context.Context, lane relay.LaneID, key, from int64, limit int) ([]relay.QueueRow, error) {
	return ask(ctx, c, relaytest.Fetch, lane, from, func() ([]relay.QueueRow, error) {
		return c.Store.Fetch(context.Background(), lane, key, from, limit)
	})
}

// Due implements [relay.Store].
func (c *conn) Due(ctx context.Context, lane relay.LaneID, parts []int, after relay.DueAt, limit int) ([]relay.DueRow, relay.DueAt, error) {
	var next relay.DueAt
	rows, err := ask(ctx, c, relaytest.Due, lane, nil, func() (rows []relay.DueRow, err error) {
		rows, next, err = c.Store.Due(context.Background(), lane, parts, after, limit)
		return rows, err
	})
	return rows, next, err
}

// Claim implements [relay.Store].
func (c *conn) Claim(ctx context.Context, r relay.ClaimRequest) (relay.Claim, error) {
	r.Rows, r.Forget = slices.Clone(r.Rows), slices.Clone(r.Forget)
	return ask(ctx, c, relaytest.Claim, r.Lane, r, func() (relay.Claim, error) { return c.Store.Claim(context.Background(), r) })
}

// LookAndClaim implements [relay.Store].
func (c *conn) LookAndClaim(ctx context.Context, r relay.LookRequest) (relay.Looked, error) {
	return ask(ctx, c, relaytest.Claim, r.Lane, r, func() (relay.Looked, error) { return c.Store.LookAndClaim(context.Background(), r) })
}

// Settle implements [relay.Store].
func (c *conn) Settle(ctx context.Context, t relay.Settlement) (bool, error) {
	return ask(ctx, c, relaytest.Settle, t.Lane, t, func() (bool, error) { return c.Store.Settle(context.Background(), t) })
}

// Poll implements [relay.Store].
func (c *conn) Poll(ctx context.Context, lanes []relay.LaneID) (relay.Polled, error) {
	return ask(ctx, c, relaytest.Poll, 0, nil, func() (relay.Polled, error) { return c.Store.Poll(context.Background(), lanes) })
}

// Horizon implements [relay.Store].
func (c *conn) Horizon(ctx context.Context) (relay.HorizonSample, error) {
	return ask(ctx, c, relaytest.Horizon, 0, nil, func() (relay.HorizonSample, error) { return c.Store.Horizon(context.Background()) })
}

// TakeTurn implements [relay.Housekeeping].
func (c *conn) TakeTurn(ctx context.Context, name string, every time.Duration) (bool, error) {
	return ask(ctx, c, "turn", 0, nil, func() (bool, error) { return c.Store.TakeTurn(context.Background(), name, every) })
}

// Purge implements [relay.Housekeeping].
func (c *conn) Purge(ctx context.Context, r outbox.Retention) (outbox.Purged, error) {
	return ask(ctx, c, "purge", 0, nil, func() (outbox.Purged, error) { return c.Store.Purge(context.Background(), r) })
}
