package uow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/migrate"
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

	correlation string // of events whose context names none
	entries     map[entryKey]*entry
	touched     []*part // providers in the order of their first use
	after       []func(ctx context.Context)
}

type state int

const (
	open state = iota
	doomed
	done
)

type unitKey struct{}

type entryKey struct{ category, id string }

// entry is an aggregate that the unit loaded or saves.
type entry struct {
	aggregate domain.AggregateRoot
	root      *rootstate.State
	typ       *domain.AggregateType
	provider  string
	base      int64 // the version in the database, after what was flushed
	loaded    bool
	saved     bool // since the last flush
	taken     int  // how many of root.Raised are in events, or were flushed
	events    []outbox.Event
	writes    []Statement
	flushed   bool
	removed   bool
}

// part is what a unit does on one provider.
type part struct {
	provider Provider
	session  Session
	guards   []Statement
	targets  map[string]bool // brokers that rows were written for
}

// Change is an aggregate to be written.
type Change struct {
	Aggregate domain.AggregateRoot
	Type      *domain.AggregateType
	Expected  int64 // The version that must be stored now; 0: the aggregate must not exist.
	Version   int64 // The version that it gets.
	Events    []outbox.Event
	Removed   bool
}

// Conflict is what a statement's Else has to be when another version is stored.
func (c Change) Conflict() error {
	return &ConflictError{Type: c.Type.Name, ID: c.Aggregate.ID(), Expected: c.Expected}
}

// Persister is a repository's part of a flush: it turns a change into
// statements and doesn't run them. The state is the one at the time of the call.
type Persister interface {
	Provider() string // "" is the default.
	Persist(c Change) ([]Statement, error)
}

// From returns the unit that ctx carries, or [ErrNone], or [ErrDone].
func From(ctx context.Context) (*Unit, error) {
	u, ok := ctx.Value(unitKey{}).(*Unit)
	if !ok {
		return nil, ErrNone
	}
	return u, u.usable()
}

func newUnit(m *Manager, o options, seen map[domain.AggregateRoot]int) *Unit {
	return &Unit{m: m, opts: o, seen: seen, entries: map[entryKey]*entry{}}
}

func (u *Unit) usable() error {
	switch u.state {
	case doomed:
		return &DoomedError{Err: u.err}
	case done:
		return ErrDone
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
	}()
	if err := fn(context.WithValue(ctx, unitKey{}, u)); err != nil {
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

func (u *Unit) retryable(err error) bool {
	if unknown, ok := errors.AsType[*CommitUnknownError](err); ok && unknown != nil {
		return false
	}
	if _, ok := errors.AsType[*PartialCommitError](err); ok {
		return false
	}
	if conflict, ok := errors.AsType[*ConflictError](err); ok {
		for _, e := range u.entries {
			if e.typ.Name == conflict.Type && e.root.ID == conflict.ID {
				return e.loaded
			}
		}
		return false
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
	t := &part{provider: p, session: p.Session(), targets: map[string]bool{}}
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

// Loaded notes an aggregate that a repository has read. If the unit holds that
// identity already, it returns the instance that the unit has.
func (u *Unit) Loaded(a domain.AggregateRoot, provider string) (domain.AggregateRoot, error) {
	if err := u.usable(); err != nil {
		return nil, err
	}
	t, err := u.m.cfg.Domain.AggregateTypeOf(a)
	if err != nil {
		return nil, err
	}
	root := rootstate.Of(a)
	key := entryKey{t.Category, root.ID}
	if e, ok := u.entries[key]; ok {
		return e.aggregate, nil
	}
	u.entries[key] = &entry{aggregate: a, root: root, typ: t, provider: provider, base: root.Version, loaded: true}
	return a, nil
}

// Identity returns the instance of an aggregate that the unit already holds.
func (u *Unit) Identity(category, id string) (domain.AggregateRoot, bool) {
	e, ok := u.entries[entryKey{category, id}]
	if !ok || e.removed {
		return nil, false
	}
	return e.aggregate, true
}

// Save notes that a is to be written by p at the next flush, in the state that
// it has now. It validates the aggregate and encodes its events, once each. An
// aggregate that is saved twice before a flush is written once.
func (u *Unit) Save(ctx context.Context, a domain.AggregateRoot, p Persister) error {
	return u.save(ctx, a, p, false)
}

// Remove notes that a is to be deleted by p at the next flush. Events that it
// raised are stored as those of any other change.
func (u *Unit) Remove(ctx context.Context, a domain.AggregateRoot, p Persister) error {
	return u.save(ctx, a, p, true)
}

func (u *Unit) save(ctx context.Context, a domain.AggregateRoot, p Persister, remove bool) error {
	if err := u.usable(); err != nil {
		return err
	}
	t, err := u.m.cfg.Domain.AggregateTypeOf(a)
	if err != nil {
		return u.doom(err)
	}
	root := rootstate.Of(a)
	if root.ID == "" {
		return u.doom(fmt.Errorf("uow: a %s without an identity can't be saved; start it with domain.NewRoot() or domain.RootWithID(id)", t.Name))
	}
	if before, ok := u.seen[a]; ok && len(root.Raised) > before {
		return u.doom(&RerunError{Type: t.Name, ID: root.ID})
	}
	if v, ok := a.(domain.Validator); ok && !remove {
		if err := v.Validate(); err != nil {
			return u.doom(&InvalidError{Type: t.Name, ID: root.ID, Err: err})
		}
	}
	part, err := u.part(p.Provider())
	if err != nil {
		return u.doom(err)
	}
	key := entryKey{t.Category, root.ID}
	e := u.entries[key]
	switch {
	case e == nil:
		e = &entry{aggregate: a, root: root, typ: t, base: root.Version}
		u.entries[key] = e
	case e.aggregate != a:
		return u.doom(fmt.Errorf("uow: %s %s is in this unit twice, as two instances; change the one that Get returned", t.Name, root.ID))
	}
	e.provider = part.provider.Name()
	version := e.base + 1
	for _, r := range root.Raised[e.taken:] {
		event, err := u.event(ctx, e, r, version)
		if err != nil {
			return u.doom(err)
		}
		e.events = append(e.events, event)
		e.taken++
	}
	e.writes, err = p.Persist(Change{Aggregate: a, Type: t, Expected: e.base, Version: version, Events: e.events, Removed: remove})
	if err != nil {
		return u.doom(fmt.Errorf("uow: %s %s can't be stored: %w", t.Name, root.ID, err))
	}
	e.saved, e.removed = true, remove
	return nil
}

// event gives a raised event its bytes and everything that is known about it.
func (u *Unit) event(ctx context.Context, e *entry, r rootstate.Raised, version int64) (outbox.Event, error) {
	et, data, err := u.m.cfg.Domain.Encode(r.Event)
	if err != nil {
		return outbox.Event{}, fmt.Errorf("uow: event %T of %s %s can't be stored: %w", r.Event, e.typ.Name, e.root.ID, err)
	}
	if et.Category != e.typ.Category {
		return outbox.Event{}, fmt.Errorf("uow: %s %s raised %s, which is declared for another aggregate; declare domain.Event[%T]() under domain.Aggregate %q", e.typ.Name, e.root.ID, et.WireName(), r.Event, e.typ.Name)
	}
	origin := domain.OriginFrom(ctx)
	if origin.CorrelationID == "" {
		if u.correlation == "" {
			u.correlation = uuid.Must(uuid.NewV7()).String()
		}
		origin.CorrelationID = u.correlation
	}
	return outbox.Event{
		Metadata: domain.Metadata{
			Origin:      origin,
			ID:          r.ID,
			Type:        et.WireName(),
			Time:        r.At.UTC(),
			Stream:      e.typ.Category + "-" + e.root.ID,
			Category:    e.typ.Category,
			Context:     u.m.cfg.Domain.Name(),
			Aggregate:   e.typ.Name,
			AggregateID: e.root.ID,
			Version:     version,
			Sequence:    fmt.Sprintf("%d.%d", version, len(e.events)+1),
			Priority:    domain.PriorityFrom(ctx),
		},
		Data: data,
	}, nil
}

// Guard adds a statement that is sent before all others of the next flush, such
// as an inbox row: whoever loses the race for it waits there and then fails,
// before it has changed anything.
func (u *Unit) Guard(provider string, s Statement) error {
	if err := u.usable(); err != nil {
		return err
	}
	p, err := u.part(provider)
	if err != nil {
		return err
	}
	p.guards = append(p.guards, s)
	return nil
}

// AfterCommit calls fn once the unit has committed, and not at all otherwise.
func (u *Unit) AfterCommit(fn func(ctx context.Context)) { u.after = append(u.after, fn) }

func (u *Unit) flush(ctx context.Context) error {
	if err := u.usable(); err != nil {
		return err
	}
	for _, p := range u.touched {
		if err := u.flushPart(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

func (u *Unit) flushPart(ctx context.Context, p *part) error {
	statements, err := u.statements(ctx, p)
	if err != nil {
		return u.doom(err)
	}
	if len(statements) > 0 {
		if err := p.session.Send(ctx, statements); err != nil {
			return u.doom(err)
		}
	}
	u.flushed(p)
	return nil
}

// statements is what waits for a provider: guards, then the aggregates' state,
// then the outbox rows.
//
// The rows come last because the lock on an aggregate's row orders its writers:
// with the rows first, two writers of one aggregate would draw their seq in one
// order and commit in the other. Aggregates are in the order of type and id, so
// that two units that touch the same ones don't lock each other out.
func (u *Unit) statements(ctx context.Context, p *part) ([]Statement, error) {
	all := slices.Clone(p.guards)
	var events []outbox.Event
	for _, e := range u.waiting(p) {
		all = append(all, e.writes...)
		events = append(events, e.events...)
	}
	if len(events) == 0 || u.m.cfg.NoOutbox {
		return all, nil
	}
	// In the order in which they were raised: ids are UUIDv7, which grow.
	slices.SortStableFunc(events, func(a, b outbox.Event) int { return strings.Compare(a.ID, b.ID) })
	n, err := u.partitions(ctx, p)
	if err != nil {
		return nil, fmt.Errorf("uow: outbox of provider %q: %w", p.provider.Name(), err)
	}
	rows, err := u.m.writer.Rows(events, n)
	if err != nil {
		return nil, err
	}
	for _, r := range rows {
		p.targets[r.TargetBroker] = true
	}
	if len(rows) > 0 {
		all = append(all, Statement{Query: outbox.Insert(rows), Rows: -1})
	}
	return all, nil
}

// partitions is the database's partition count. If the transaction has begun it
// is read there: units that each wait for a second connection of one pool can
// wait for each other for ever.
func (u *Unit) partitions(ctx context.Context, p *part) (int, error) {
	count := u.m.partitions[p.provider.Name()]
	if !p.session.Began() {
		return count.get(ctx, p.provider.Reader())
	}
	if n := count.n.Load(); n > 0 {
		return int(n), nil
	}
	db, err := p.session.DB(ctx)
	if err != nil {
		return 0, err
	}
	// PostgreSQL answers nothing more after a query of a missing table.
	if missing, ok := errors.AsType[*migrate.SchemaError](outbox.Migrations().Check(ctx, db)); ok && missing.Have == 0 {
		return 0, missing
	}
	return count.get(ctx, db)
}

func (u *Unit) waiting(p *part) []*entry {
	var waiting []*entry
	for _, e := range u.entries {
		if e.saved && e.provider == p.provider.Name() {
			waiting = append(waiting, e)
		}
	}
	slices.SortFunc(waiting, func(a, b *entry) int {
		return cmp.Or(strings.Compare(a.typ.Category, b.typ.Category), strings.Compare(a.root.ID, b.root.ID))
	})
	return waiting
}

// flushed notes that what waited has been sent.
func (u *Unit) flushed(p *part) {
	p.guards = nil
	for _, e := range u.waiting(p) {
		e.base++
		e.saved, e.flushed = false, true
		e.events, e.writes = nil, nil
	}
}

func (u *Unit) commit(ctx context.Context) error {
	for _, e := range u.entries {
		if len(e.root.Raised) > e.taken {
			return &UnsavedError{Type: e.typ.Name, ID: e.root.ID, Event: fmt.Sprintf("%T", e.root.Raised[e.taken].Event)}
		}
	}
	var committed []string
	for _, p := range u.touched {
		statements, err := u.statements(ctx, p)
		if err == nil {
			err = p.session.Commit(ctx, statements)
		}
		if err != nil {
			if len(committed) > 0 {
				return &PartialCommitError{Committed: committed, Failed: p.provider.Name(), Err: err}
			}
			return err
		}
		u.flushed(p)
		u.settle(p)
		if len(p.targets) > 0 {
			u.m.wake(p.provider.Name(), sortedKeys(p.targets))
		}
		committed = append(committed, p.provider.Name())
	}
	return nil
}

// settle tells the aggregates of a provider that they are stored. Until then
// they keep version and events, so that a failed save can be tried again.
func (u *Unit) settle(p *part) {
	for _, e := range u.entries {
		if !e.flushed || e.provider != p.provider.Name() {
			continue
		}
		e.root.Version = e.base
		e.root.Raised = slices.Clone(e.root.Raised[e.taken:])
		e.taken = 0
	}
}

func sortedKeys(m map[string]bool) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
