package uow

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/dbtext"
	"github.com/waybill-go/waybill/internal/rootstate"
	"github.com/waybill-go/waybill/outbox"
)

// Change is an aggregate to be written.
type Change struct {
	Aggregate domain.AggregateRoot
	Type      *domain.AggregateType
	Expected  int64 // The version that must be stored now; 0: the aggregate must not exist.
	Version   int64 // The version that it gets.
	Events    []outbox.Event
	Removed   bool
	// Recreated: what is stored now, at version Expected, is that an aggregate of
	// this identity was removed; see [Unit.Gone].
	Recreated bool
	Unit      string // The unit's id, to be stored beside the version.
}

// Conflict is what a statement's Else has to be when another version is stored.
func (c Change) Conflict() error {
	return &ConflictError{Type: c.Type.Name, ID: c.Aggregate.ID(), Expected: c.Expected}
}

// Outcome is what the stored version of c's aggregate, and the unit that wrote
// it, say about c's unit. Each version is written by one unit only.
func (c Change) Outcome(version int64, unit string) Outcome {
	switch {
	case version > c.Version:
		return Overwritten
	case unit == c.Unit:
		return Committed
	}
	return NotCommitted
}

// Persister is a repository's part of a flush.
type Persister interface {
	Provider() string // "" is the default.
	// Persist turns a change into statements and doesn't run them. The state is
	// the one at the time of the call.
	Persist(c Change) ([]Statement, error)
	// Resolve finds out in tx, which is READ COMMITTED, whether the unit c.Unit has
	// written its versions after c.Expected, up to c.Version. It waits for a
	// transaction that may be about to. If none has, it makes sure that the unit's
	// own statements will fail, should they still arrive, and those of no other
	// unit: the answer is final when tx commits. tx commits for [NotCommitted] only.
	Resolve(ctx context.Context, tx bun.Tx, c Change) (Outcome, error)
}

// EventKeeper is a [Persister] whose statements store the events themselves, with
// positions of the history: they are not kept a second time.
type EventKeeper interface {
	Persister
	KeepsEvents()
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
	u.entries[key] = &entry{aggregate: a, root: root, typ: t, provider: provider, before: root.Version, base: root.Version, loaded: true}
	return a, nil
}

// Unchanged notes an aggregate that need not be saved, because it is what is stored.
// It says no if the unit knows better: it holds another instance, or has removed it.
func (u *Unit) Unchanged(a domain.AggregateRoot, provider string) (bool, error) {
	if err := u.usable(); err != nil {
		return false, err
	}
	t, err := u.m.cfg.Domain.AggregateTypeOf(a)
	if err != nil {
		return false, err
	}
	root := rootstate.Of(a)
	key := entryKey{t.Category, root.ID}
	if e, ok := u.entries[key]; ok {
		return e.aggregate == a && !e.removed, nil
	}
	// What it raises from now on has to be saved before the unit commits.
	u.entries[key] = &entry{aggregate: a, root: root, typ: t, provider: provider, before: root.Version, base: root.Version}
	return true, nil
}

// Identity returns the instance of an aggregate that the unit already holds.
func (u *Unit) Identity(category, id string) (domain.AggregateRoot, bool) {
	e, ok := u.entries[entryKey{category, id}]
	if !ok || e.removed {
		return nil, false
	}
	return e.aggregate, true
}

// Base is the version of an aggregate that the unit holds, in the database as far as the
// unit knows: the one it was loaded with, or was sent with.
func (u *Unit) Base(category, id string) (version int64, ok bool) {
	e, ok := u.entries[entryKey{category, id}]
	if !ok {
		return 0, false
	}
	return e.base, true
}

// Gone notes that a repository looked an identity up and found that its
// aggregate was removed at a version. One that is created under it in this unit
// goes on from there.
func (u *Unit) Gone(category, id string, version int64) { u.gone[entryKey{category, id}] = version }

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
	if err := u.savable(a, t, root, remove); err != nil {
		return u.doom(err)
	}
	part, err := u.part(p.Provider())
	if err != nil {
		return u.doom(err)
	}
	e, err := u.entry(a, t, root)
	if err != nil {
		return u.doom(err)
	}
	if len(root.Raised) > e.taken && !u.m.cfg.NoOutbox {
		// Here rather than at the commit, which it would seldom but then lengthen.
		if _, err := u.outbox(ctx, part); err != nil {
			return u.doom(err)
		}
	}
	e.provider, e.persister = part.provider.Name(), p
	if u.id == "" {
		u.id = uuid.Must(uuid.NewV7()).String()
	}
	version := e.base + 1
	for _, r := range root.Raised[e.taken:] {
		event, err := u.event(ctx, e, r, version)
		if err != nil {
			return u.doom(err)
		}
		e.events = append(e.events, event)
		e.taken++
	}
	e.writes, err = p.Persist(Change{
		Aggregate: a, Type: t, Expected: e.base, Version: version, Events: e.events, Removed: remove, Recreated: e.recreated && !e.flushed,
		Unit: u.id,
	})
	if err != nil {
		return u.doom(fmt.Errorf("uow: %s %s can't be stored: %w", t.Name, root.ID, err))
	}
	if err := u.timers(ctx, part, e, remove); err != nil {
		return u.doom(err)
	}
	e.saved, e.removed = true, remove
	return nil
}

// savable says why an aggregate can't be saved as it is, or again in this unit.
func (u *Unit) savable(a domain.AggregateRoot, t *domain.AggregateType, root *rootstate.State, remove bool) error {
	if root.ID == "" {
		return fmt.Errorf("uow: a %s has no identity and can't be saved: start it with domain.NewRoot(), or with domain.RootWithID(id) and an id that isn't empty", t.Name)
	}
	if problem := dbtext.KeyProblem(root.ID); problem != "" { // It may be what a user has typed.
		return &InvalidError{Type: t.Name, ID: root.ID, Err: fmt.Errorf("its identity %s", problem)}
	}
	if root.Past {
		return &PastError{Type: t.Name, ID: root.ID, Version: root.Version}
	}
	if before, ok := u.seen[a]; ok && len(root.Raised) > before {
		return &RerunError{Type: t.Name, ID: root.ID}
	}
	if v, ok := a.(domain.Validator); ok && !remove {
		if err := v.Validate(); err != nil {
			return &InvalidError{Type: t.Name, ID: root.ID, Err: err}
		}
	}
	return nil
}

// entry is what the unit knows of an aggregate.
func (u *Unit) entry(a domain.AggregateRoot, t *domain.AggregateType, root *rootstate.State) (*entry, error) {
	key := entryKey{t.Category, root.ID}
	e := u.entries[key]
	switch {
	case e == nil:
		e = &entry{aggregate: a, root: root, typ: t, base: root.Version}
		if removedAt, ok := u.gone[key]; ok && root.Version == 0 {
			e.base, e.recreated = removedAt, true
		}
		e.before = e.base
		u.entries[key] = e
	case e.aggregate != a:
		return nil, fmt.Errorf("uow: %s %s is in this unit twice, as two instances; change the one that Get returned, or create it again in another unit than the one that removes it", t.Name, root.ID)
	}
	return e, nil
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
	key, ok := et.OrderingKey(r.Event)
	switch {
	case ok && key == "":
		return outbox.Event{}, fmt.Errorf("uow: %s of %s %s has an empty key: let its domain.OrderedBy return what it is ordered by", et.WireName(), e.typ.Name, e.root.ID)
	case e.key != "" && key != e.key:
		return outbox.Event{}, fmt.Errorf("uow: %s of %s %s has the key %q and the event before it %q, and between two keys there is no order: let domain.OrderedBy return one that an aggregate keeps for life", et.WireName(), e.typ.Name, e.root.ID, key, e.key)
	}
	if problem := dbtext.KeyProblem(key); problem != "" {
		return outbox.Event{}, fmt.Errorf("uow: the key %.60q that domain.OrderedBy gives %s of %s %s %s", key, et.WireName(), e.typ.Name, e.root.ID, problem)
	}
	e.key = key
	return outbox.Event{
		Metadata: domain.Metadata{
			Origin:      u.origin(ctx),
			ID:          r.ID,
			Type:        et.WrittenName(),
			Time:        u.m.clock.Of(r.At).UTC(),
			Stream:      e.typ.Category + "-" + e.root.ID,
			Category:    e.typ.Category,
			Context:     u.m.cfg.Domain.Name(),
			Aggregate:   e.typ.Name,
			AggregateID: e.root.ID,
			Version:     version,
			Sequence:    fmt.Sprintf("%d.%d", version, len(e.events)+1),
			Priority:    domain.PriorityFrom(ctx),
		},
		Key:  key,
		Data: data,
	}, nil
}

// Keep stores another context's event in the history, unless it is there. Nothing is sent
// on.
//
// For subscriptions that keep what projections need.
func (u *Unit) Keep(provider string, e outbox.Event) error {
	if err := u.usable(); err != nil {
		return err
	}
	p, err := u.part(provider)
	if err != nil {
		return err
	}
	if e.ID == "" {
		return u.doom(fmt.Errorf("uow: %s of %s has no id, by which it would be known when it comes again", e.Type, e.Stream))
	}
	p.foreign = append(p.foreign, e)
	return nil
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
