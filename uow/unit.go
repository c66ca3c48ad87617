package uow

import (
	"context"
	"errors"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/rootstate"
	"github.com/waybill-go/waybill/outbox"
)

// Unit is a unit of work in progress. Applications rarely need it: [DB] and
// repositories find it in the context. It is used by one goroutine at a time.
//
// For authors of repositories and inboxes.
type Unit struct {
	m     *Manager
	opts  options
	seen  map[domain.AggregateRoot]int
	state state
	err   error // what doomed it

	running bool // its function

	id          string // stored beside the version of every aggregate that it writes
	correlation string // of events whose context names none
	entries     map[entryKey]*entry
	gone        map[entryKey]int64 // removed, at a version
	touched     []*part            // providers in the order of their first use
	after       []func(ctx context.Context)

	events, rows int // sent
}

type state int

const (
	open state = iota
	doomed
	done
	barred
)

type unitKey struct{}

type entryKey struct{ category, id string }

// entry is an aggregate that the unit loaded or saves.
type entry struct {
	aggregate domain.AggregateRoot
	root      *rootstate.State
	typ       *domain.AggregateType
	provider  string
	persister Persister
	before    int64 // the version in the database, before the unit
	base      int64 // the version in the database, after what was flushed
	loaded    bool
	recreated bool // base is the version at which one of its identity was removed
	saved     bool // since the last flush
	taken     int  // how many of root.Raised are in events, or were flushed
	// timersTaken is the same of root.Timers.
	timersTaken int
	key         string // of its events, if they have one of their own
	events      []outbox.Event
	writes      []Statement
	flushed     bool
	removed     bool
}

// part is what a unit does on one provider.
type part struct {
	provider Provider
	session  Session
	guards   []Statement
	// executions are the application's own statements.
	executions []Statement
	messages   []outbox.Event // that no aggregate raised
	foreign    []outbox.Event // of other contexts, to be kept in the history
	timers     []timer
	handled    []Statement          // which delete the row of a timer whose message is handled
	due        time.Time            // of the earliest timer that was set
	pokes      map[outbox.Poke]bool // where rows were written
}

// From returns the unit that ctx carries, or [ErrNone], or [ErrDone].
func From(ctx context.Context) (*Unit, error) {
	u, ok := ctx.Value(unitKey{}).(*Unit)
	if !ok {
		return nil, ErrNone
	}
	return u, u.usable()
}

// Without returns a context in which there is no unit of work and none can be begun: Do
// and whatever needs a unit return err.
//
// For package projection.
func Without(ctx context.Context, err error) context.Context {
	return context.WithValue(ctx, unitKey{}, &Unit{state: barred, err: err})
}

func newUnit(m *Manager, o options, seen map[domain.AggregateRoot]int) *Unit {
	return &Unit{m: m, opts: o, seen: seen, entries: map[entryKey]*entry{}, gone: map[entryKey]int64{}}
}

func (u *Unit) usable() error {
	switch u.state {
	case doomed:
		return &DoomedError{Err: u.err}
	case done:
		return ErrDone
	case barred:
		return u.err
	}
	return nil
}

func (u *Unit) doom(err error) error {
	if u.state == open {
		u.state, u.err = doomed, err
	}
	return err
}

// join runs an inner Do.
func (u *Unit) join(ctx context.Context, m *Manager, fn func(context.Context) error) error {
	if u.state == barred {
		return u.err
	}
	if u.m != m {
		return ErrOtherManager
	}
	if err := u.usable(); err != nil {
		return err
	}
	returned := false
	defer func() {
		if !returned { // fn panicked, and whoever recovers must not commit half of it
			_ = u.doom(errUnfinished)
		}
	}()
	err := fn(ctx)
	returned = true
	if err != nil {
		return u.doom(err)
	}
	return nil
}

// run is one try of a whole unit.
func (u *Unit) run(ctx context.Context, fn func(context.Context) error) error {
	committed := false
	defer func() { // also on a panic, which goes on, and on runtime.Goexit
		u.state = done
		if !committed {
			u.rollback(ctx)
		}
		for _, p := range u.touched {
			u.m.held(p.provider.Name(), p.session.Held())
		}
	}()
	if err := u.call(ctx, fn); err != nil {
		return err
	}
	if u.state == doomed {
		return &DoomedError{Err: u.err}
	}
	if err := u.commit(ctx); err != nil {
		return err
	}
	committed = true
	u.state = done
	for _, f := range u.after {
		f(ctx)
	}
	return nil
}

func (u *Unit) rollback(ctx context.Context) {
	// The caller's context may be what ended the unit, and a connection must not
	// be left in a transaction because of it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	for _, p := range u.touched {
		// A rollback that fails closes its connection, and the server rolls back.
		_ = p.session.Rollback(ctx)
	}
}

func (u *Unit) retryable(ctx context.Context, err error) bool {
	if unknown, ok := errors.AsType[*CommitUnknownError](err); ok && unknown != nil {
		return false
	}
	if _, ok := errors.AsType[*PartialCommitError](err); ok {
		return false
	}
	if conflict, ok := errors.AsType[*ConflictError](err); ok {
		for _, e := range u.entries {
			if e.typ.Name == conflict.Type && e.root.ID == conflict.ID {
				return e.loaded || e.recreated
			}
		}
		return false
	}
	if x, ok := errors.AsType[Examined](err); ok {
		return x.Examine(ctx)
	}
	for _, p := range u.touched {
		if p.provider.Retryable(err) {
			return true
		}
	}
	return false
}

// remember notes the aggregates that came from outside, to find out whether
// the next try changes them a second time.
func (u *Unit) remember(seen map[domain.AggregateRoot]int) {
	for _, e := range u.entries {
		if !e.loaded {
			seen[e.aggregate] = len(e.root.Raised)
		}
	}
}

// part finds or starts what the unit does on a provider.
func (u *Unit) part(name string) (*part, error) {
	p, err := u.m.Provider(name)
	if err != nil {
		return nil, err
	}
	for _, t := range u.touched {
		if t.provider.Name() == p.Name() {
			return t, nil
		}
	}
	if len(u.touched) > 0 && !u.opts.across {
		return nil, u.doom(&ProvidersError{First: u.touched[0].provider.Name(), Second: p.Name()})
	}
	t := &part{provider: p, session: p.Session(), pokes: map[outbox.Poke]bool{}}
	if s, ok := t.session.(Owned); ok {
		s.OwnedBy(u)
	}
	u.touched = append(u.touched, t)
	return t, nil
}

// DB returns the transaction on a provider ("" is the default), beginning it if
// need be. What is waiting is sent first.
func (u *Unit) DB(ctx context.Context, provider string) (bun.IDB, error) {
	if err := u.usable(); err != nil {
		return nil, err
	}
	p, err := u.part(provider)
	if err != nil {
		return nil, err
	}
	if err := u.flushPart(ctx, p); err != nil {
		return nil, err
	}
	db, err := p.session.DB(ctx)
	if err != nil {
		return nil, u.doom(err)
	}
	return db, nil
}

// Read returns what a repository reads a provider through: the transaction if
// it has begun, otherwise the pool. That needs no transaction, because every
// write names the version that was read.
func (u *Unit) Read(provider string) (func(ctx context.Context) (bun.IDB, error), error) {
	if err := u.usable(); err != nil {
		return nil, err
	}
	p, err := u.part(provider)
	if err != nil {
		return nil, err
	}
	if p.session.Began() {
		return p.session.DB, nil
	}
	return func(context.Context) (bun.IDB, error) { return p.provider.Reader(), nil }, nil
}

// AfterCommit calls fn once the unit has committed, and not at all otherwise.
func (u *Unit) AfterCommit(fn func(ctx context.Context)) { u.after = append(u.after, fn) }
