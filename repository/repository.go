// Package repository loads and saves aggregates, in three ways behind one type:
// as a document ([New]), in tables of your own ([Mapped]), or as the events that
// made them ([EventSourced]).
//
//	orders := repository.New[*ordering.Order](units)
//	err := orders.Update(ctx, id, func(o *ordering.Order) error {
//		return o.Cancel("changed my mind")
//	})
//
// Every save gives the aggregate the next version, and fails with a
// [*uow.ConflictError] if another version is stored than the one it was loaded
// with. What a removed aggregate leaves behind is its last version: one that is
// created again under its identity goes on from there, so that consumers never
// see a version twice. For that, look it up in the unit of work that creates it:
//
//	err := units.Do(ctx, func(ctx context.Context) error {
//		account, err := accounts.Get(ctx, iban)
//		if _, ok := errors.AsType[*repository.NotFoundError](err); ok {
//			account, err = bank.Open(iban), nil
//		}
//		…
//		return accounts.Save(ctx, account)
//	})
//
// Without the look-up such a save is a conflict, as if the aggregate existed.
package repository

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/absent"
	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/internal/dbtext"
	"github.com/waybill-go/waybill/internal/rootstate"
	"github.com/waybill-go/waybill/uow"
)

// Repository holds the aggregates of one type. Every method joins the unit of
// work in its context, or runs in one of its own; to read alone takes no
// transaction. A Repository is safe for concurrent use.
type Repository[A domain.AggregateRoot] struct {
	units *uow.Manager
	typ   *domain.AggregateType
	store store[A]
}

// store is one way to keep aggregates.
type store[A domain.AggregateRoot] interface {
	uow.Persister
	// load reads what is known of ids, in any order.
	load(ctx context.Context, db bun.IDB, ids []string) ([]stored[A], error)
	// list reads up to limit aggregates whose ids come after one, in the order of ids.
	list(ctx context.Context, db bun.IDB, after string, limit int) ([]stored[A], error)
	// lock keeps others from writing an aggregate, on a database that has more than one
	// writer.
	lock(ctx context.Context, db bun.IDB, id string) error
	// unchanged says that a, which has been stored before and has raised nothing, is
	// what is stored, as far as that is known.
	unchanged(a A) bool
}

// finder is a store that can be searched.
type finder[A domain.AggregateRoot] interface {
	find(ctx context.Context, db bun.IDB, where func(*bun.SelectQuery) *bun.SelectQuery) ([]stored[A], error)
}

// stored is what a database knows of an identity.
type stored[A domain.AggregateRoot] struct {
	id        string
	version   int64
	removed   bool // version is the one at which it was removed; there is no aggregate
	aggregate A
}

// Get loads an aggregate, or fails with a [*NotFoundError]. Within one unit of
// work one identity has one instance.
func (r *Repository[A]) Get(ctx context.Context, id string) (A, error) {
	all, err := r.GetMany(ctx, id)
	if err != nil {
		var none A
		return none, err
	}
	return all[0], nil
}

// GetMany loads aggregates in the order of ids. All must exist: the first that
// doesn't is a [*NotFoundError].
func (r *Repository[A]) GetMany(ctx context.Context, ids ...string) (all []A, err error) {
	err = r.read(ctx, func(ctx context.Context, u *uow.Unit) error {
		held := make(map[string]A, len(ids))
		var missing []string
		for _, id := range ids {
			if a, ok := u.Identity(r.typ.Category, id); ok {
				held[id] = a.(A)
			} else if checkID(id) == nil {
				missing = append(missing, id)
			}
		}
		if len(missing) > 0 {
			db, err := r.db(ctx, u)
			if err != nil {
				return err
			}
			found, err := r.store.load(ctx, db, missing)
			if err != nil {
				return err
			}
			for _, s := range found {
				if a, ok, err := r.enter(u, s); err != nil {
					return err
				} else if ok {
					held[s.id] = a
				}
			}
		}
		all = make([]A, 0, len(ids))
		for _, id := range ids {
			a, ok := held[id]
			if !ok {
				return &NotFoundError{Type: r.typ.Name, ID: id}
			}
			all = append(all, a)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// Find loads the aggregates whose rows a query selects, for a repository made by
// [Mapped]; nil selects all:
//
//	open, err := orders.Find(ctx, func(q *bun.SelectQuery) *bun.SelectQuery {
//		return q.Where("status = ?", "open").Order("placed_at").Limit(100)
//	})
//
// It sees what the unit of work in ctx has saved.
func (r *Repository[A]) Find(ctx context.Context, where func(*bun.SelectQuery) *bun.SelectQuery) ([]A, error) {
	f, ok := r.store.(finder[A])
	if !ok {
		return nil, fmt.Errorf("repository: %s is not kept in tables of its own, so there are no columns to find it by; make its repository with repository.Mapped", r.typ.Category)
	}
	return r.search(ctx, func(ctx context.Context, db bun.IDB) ([]stored[A], error) { return f.find(ctx, db, where) })
}

// search loads what find finds. It sees what the unit of work in ctx has saved.
func (r *Repository[A]) search(ctx context.Context, find func(context.Context, bun.IDB) ([]stored[A], error)) (all []A, err error) {
	err = r.read(ctx, func(ctx context.Context, u *uow.Unit) error {
		if err := uow.Flush(ctx); err != nil {
			return err
		}
		db, err := r.db(ctx, u)
		if err != nil {
			return err
		}
		found, err := find(ctx, db)
		if err != nil {
			return err
		}
		for _, s := range found {
			if a, ok, err := r.enter(u, s); err != nil {
				return err
			} else if ok {
				all = append(all, a)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// Save stores a in the state that it has now, and puts its events into the
// outbox. A version that someone else has overtaken is a [*uow.ConflictError],
// at the latest when the unit commits.
//
// An aggregate that is as it was loaded, and has raised nothing, is not written and
// keeps its version: then it doesn't matter either whether somebody was faster.
func (r *Repository[A]) Save(ctx context.Context, a A) error {
	return r.write(ctx, func(ctx context.Context, u *uow.Unit) error {
		if absent.Is(a) {
			return r.nothing("Save")
		}
		if r.unchanged(a) {
			if ok, err := u.Unchanged(a, r.store.Provider()); ok || err != nil {
				return err
			}
		}
		return u.Save(ctx, a, r.store)
	})
}

// unchanged says that to save a would store nothing new.
func (r *Repository[A]) unchanged(a A) bool {
	root := rootstate.Of(a)
	return !root.Past && root.Version > 0 && len(root.Raised)+len(root.Timers) == 0 && r.store.unchanged(a)
}

// Update loads an aggregate, lets change act on it and saves it, in one unit of
// work. Alone, it starts over with a fresh aggregate if someone else was faster;
// opts such as [uow.Retries] say how often.
//
// Within a unit of work an error dooms the unit, as change may have done half of
// its work. A [*NotFoundError] doesn't: change wasn't called.
func (r *Repository[A]) Update(ctx context.Context, id string, change func(A) error, opts ...uow.Option) error {
	var missing *NotFoundError
	err := r.units.Do(ctx, func(ctx context.Context) error {
		a, err := r.Get(ctx, id)
		if missing, err = notFound(err); missing != nil || err != nil {
			return err // none if it is missing: the unit may go on
		}
		if change == nil {
			return fmt.Errorf("repository: Update was given nil instead of a function: give it one that changes a %s, such as one of its methods", r.typ.Name)
		}
		if err := change(a); err != nil {
			return err
		}
		return r.Save(ctx, a)
	}, opts...)
	if err == nil && missing != nil {
		return missing
	}
	return err
}

// Remove deletes a; events it raised are still published. Its identity and last
// version stay, and so does the history of an event-sourced aggregate.
func (r *Repository[A]) Remove(ctx context.Context, a A) error {
	return r.write(ctx, func(ctx context.Context, u *uow.Unit) error {
		if absent.Is(a) {
			return r.nothing("Remove")
		}
		return u.Remove(ctx, a, r.store)
	})
}

func (r *Repository[A]) nothing(method string) error {
	return fmt.Errorf("repository: %s was given nil instead of a %s: look at the error that came with it, or don't call it where there is none", method, r.typ.Name)
}

// read runs fn in the unit of ctx or in one of its own. An error doesn't doom
// the unit: that an aggregate is missing is an answer.
func (r *Repository[A]) read(ctx context.Context, fn func(context.Context, *uow.Unit) error) error {
	var failed error
	err := r.units.Do(ctx, func(ctx context.Context) error {
		u, err := uow.From(ctx)
		if err != nil {
			return err
		}
		failed = fn(ctx, u)
		return nil
	})
	if failed != nil {
		return failed
	}
	return err
}

func (r *Repository[A]) db(ctx context.Context, u *uow.Unit) (bun.IDB, error) {
	read, err := u.Read(r.store.Provider())
	if err != nil {
		return nil, err
	}
	return read(ctx)
}

// enter makes the unit hold what was read. It says no to an aggregate that is
// removed, be it only in this unit.
func (r *Repository[A]) enter(u *uow.Unit, s stored[A]) (a A, ok bool, err error) {
	if s.removed {
		u.Gone(r.typ.Category, s.id, s.version)
		return a, false, nil
	}
	held, err := u.Loaded(s.aggregate, r.store.Provider())
	if err != nil {
		return a, false, err
	}
	if _, ok := u.Identity(r.typ.Category, s.id); !ok {
		return a, false, nil
	}
	return held.(A), true, nil
}

// write runs fn in the unit of ctx or in one of its own.
func (r *Repository[A]) write(ctx context.Context, fn func(context.Context, *uow.Unit) error) error {
	return r.units.Do(ctx, func(ctx context.Context) error {
		u, err := uow.From(ctx)
		if err != nil {
			return err
		}
		return fn(ctx, u)
	})
}

// checkID refuses what a database can't store as a key.
func checkID(id string) error {
	if problem := dbtext.KeyProblem(id); problem != "" {
		return fmt.Errorf("the identity %.60q %s", id, problem)
	}
	return nil
}

// notFound tells an aggregate that isn't there from other errors.
func notFound(err error) (missing *NotFoundError, other error) {
	if missing, ok := errors.AsType[*NotFoundError](err); ok {
		return missing, nil
	}
	return nil, err
}

// NotFoundError is an identity that no aggregate has.
type NotFoundError struct {
	Type, ID string
	Version  int64 // That was asked for by AsOfVersion; 0: none was.
}

func (e *NotFoundError) Error() string {
	if e.Version != 0 {
		return fmt.Sprintf("repository: %s %s is not known in version %d", e.Type, e.ID, e.Version)
	}
	if e.ID == "" {
		return "repository: no " + e.Type + " has an empty id, which is what was asked for: look where the id comes from, such as a field or a part of a path that isn't set"
	}
	return "repository: no " + e.Type + " has id " + e.ID
}

// existsError is a conflict of a new aggregate. Its statement can't tell which
// of the two it met.
type existsError struct{ conflict error }

func (e *existsError) Error() string {
	return e.conflict.Error() + ", or it was removed: to create it again, Get it first in the same unit of work"
}

func (e *existsError) Unwrap() error { return e.conflict }

func conflict(c uow.Change) error {
	if c.Expected == 0 {
		return &existsError{c.Conflict()}
	}
	return c.Conflict()
}

// Option adjusts a repository.
type Option interface{ apply(*options) }

type options struct {
	provider  string
	snapshots *int
}

func optionsOf(opts []Option) (o options) {
	for _, opt := range opts {
		opt.apply(&o)
	}
	return o
}

// every is with how many versions there is a snapshot; 0: with none.
func (o options) every() int {
	if o.snapshots == nil {
		return 0
	}
	return *o.snapshots
}

type optionFunc func(*options)

func (f optionFunc) apply(o *options) { f(o) }

// In keeps the aggregates in a provider other than the default one.
func In(provider string) Option { return optionFunc(func(o *options) { o.provider = provider }) }

// kept is what is kept, and where.
type kept[A domain.AggregateRoot] struct {
	typ      *domain.AggregateType
	provider uow.Provider
}

// newKept panics if there are no units, or they don't know A or the provider.
func newKept[A domain.AggregateRoot](constructor string, units *uow.Manager, opts []Option) kept[A] {
	if units == nil {
		panic(fmt.Errorf("repository.%s: the units of work are nil: make them with uow.New first, and look at its error", constructor))
	}
	if i := slices.Index(opts, nil); i >= 0 {
		panic(fmt.Errorf("repository.%s: option %d is nil: take it out", constructor, i+1))
	}
	o := optionsOf(opts)
	typ, err := domain.AggregateTypeFor[A](units.Domain())
	provider, provErr := units.Provider(o.provider)
	if err == nil {
		err = stateOptions(typ, constructor)
	}
	if err == nil {
		err = checkSnapshots(o, reflect.TypeFor[A](), constructor)
	}
	if err == nil && len(typ.Indexes) > 0 && constructor != "New" {
		err = fmt.Errorf("%s is declared with the index %q, and indexes are of documents: take it out, or make its repository with repository.New", typ.Category, typ.Indexes[0].Name)
	}
	if err := errors.Join(err, provErr); err != nil {
		panic(fmt.Errorf("repository.%s: %w", constructor, err))
	}
	return kept[A]{typ: typ, provider: provider}
}

// stateOptions refuses options of documents for what is none. Snapshots of an aggregate that
// is kept as its events have a version, and are never upcast.
func stateOptions(t *domain.AggregateType, constructor string) error {
	s := &t.State
	documents := s.KeepUnknown || s.Written < s.Version || len(s.Reads()) > 1
	switch {
	case constructor == "New" && len(s.Reads()) < s.Version:
		return fmt.Errorf("%s is declared with domain.StateVersion(%d) and without a domain.UpcastState from every older version: add them", t.Category, s.Version)
	case constructor != "New" && documents, constructor == "Mapped" && s.Version > 1:
		return fmt.Errorf("%s is declared with domain.KeepUnknown(), domain.StateVersion, domain.UpcastState or domain.WriteState, which are about documents: take it out, or make its repository with repository.New", t.Category)
	}
	return nil
}

// Provider implements [uow.Persister].
func (k kept[A]) Provider() string { return k.provider.Name() }

func (k kept[A]) empty() A { return k.typ.New().(A) }

// restored gives an aggregate that was filled from the database the rest of
// what it was.
func (k kept[A]) restored(a A, id string, version int64) (stored[A], error) {
	root := rootstate.Of(a)
	if len(root.Raised) > 0 {
		return stored[A]{}, fmt.Errorf("repository: to load %s %s raised %T; what restores an aggregate sets its fields and raises nothing", k.typ.Category, id, root.Raised[0].Event)
	}
	*root = rootstate.State{ID: id, Version: version}
	return stored[A]{id: id, version: version, aggregate: a}, nil
}

func (k kept[A]) readError(err error) error {
	return fmt.Errorf("repository: reading %s: %w", k.typ.Category, dberr.Missing(err))
}
