package repository

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/historydb"
	"github.com/waybill-go/waybill/internal/rootstate"
	"github.com/waybill-go/waybill/uow"
)

// pastEvents is how many events of an aggregate are read at a time.
const pastEvents = 500

// dated is a store that knows what aggregates were.
type dated[A domain.AggregateRoot] interface {
	loadUpTo(ctx context.Context, db bun.IDB, ids []string, upTo int64) ([]stored[A], error)
	// versionAt is the last version that was there at a time; 0: none.
	versionAt(ctx context.Context, db bun.IDB, id string, at time.Time) (int64, error)
}

// AsOf loads an event-sourced aggregate as it was at a time, by the times of its events:
// of a version of which one event is later, none counts, nor do those after it. On SQLite
// times are kept to the millisecond. If there was none by then, it is a [*NotFoundError].
//
// It is for reading: to save or remove it is a [*uow.PastError]. It is an instance of its
// own, beside the one that a unit of work holds.
func (r *Repository[A]) AsOf(ctx context.Context, id string, at time.Time) (A, error) {
	return r.asOf(ctx, id, func(ctx context.Context, db bun.IDB, d dated[A]) (int64, error) {
		return d.versionAt(ctx, db, id, at)
	})
}

// AsOfVersion is AsOf by version. One that it has not come to yet is a [*NotFoundError].
func (r *Repository[A]) AsOfVersion(ctx context.Context, id string, version int64) (A, error) {
	a, err := r.asOf(ctx, id, func(context.Context, bun.IDB, dated[A]) (int64, error) { return version, nil })
	if err == nil && a.Version() != version {
		var none A
		return none, &NotFoundError{Type: r.typ.Name, ID: id, Version: version}
	}
	return a, err
}

func (r *Repository[A]) asOf(ctx context.Context, id string, find func(context.Context, bun.IDB, dated[A]) (int64, error)) (a A, err error) {
	d, ok := r.store.(dated[A])
	if !ok {
		return a, fmt.Errorf("repository: %s is not kept as its events, so what it was is not known; make its repository with repository.EventSourced, or see what happened with Past", r.typ.Category)
	}
	if checkID(id) != nil {
		return a, &NotFoundError{Type: r.typ.Name, ID: id}
	}
	err = r.read(ctx, func(ctx context.Context, u *uow.Unit) error {
		db, err := r.db(ctx, u)
		if err != nil {
			return err
		}
		version, err := find(ctx, db, d)
		if err != nil {
			return err
		}
		found, err := d.loadUpTo(ctx, db, []string{id}, version)
		if err != nil {
			return err
		}
		if len(found) == 0 || found[0].removed {
			return &NotFoundError{Type: r.typ.Name, ID: id}
		}
		a = found[0].aggregate
		rootstate.Of(a).Past = true
		return nil
	})
	return a, err
}

const selectVersionAt = "SELECT coalesce((SELECT min(version) - 1 FROM events WHERE category = ?0 AND id = ?1 AND type <> '" + markRefused + "' AND occurred_at > ?2)," +
	" (SELECT max(version) FROM events WHERE category = ?0 AND id = ?1 AND type <> '" + markRefused + "'), 0)"

func (e events[A]) versionAt(ctx context.Context, db bun.IDB, id string, at time.Time) (version int64, err error) {
	if err := db.QueryRowContext(ctx, selectVersionAt, e.typ.Category, id, dbtime.Value(db.Dialect(), at)).Scan(&version); err != nil {
		return 0, e.readError(err)
	}
	return version, nil
}

// Happened is a stored event.
type Happened struct {
	domain.Metadata
	Event any
}

// Past are the events of an aggregate after a version, 0 being all, in their order and
// through the upcasters. It needs an event-sourced aggregate or uow.Config.History, and
// begins where that was turned on. It reads pages, and ends at the first error.
func (r *Repository[A]) Past(ctx context.Context, id string, after int64) iter.Seq2[Happened, error] {
	return func(yield func(Happened, error) bool) {
		if _, keeps := r.store.(uow.EventKeeper); !keeps && !r.units.KeepsHistory() {
			yield(Happened{}, fmt.Errorf("repository: the past of %s is not kept: set uow.Config.History, or make its repository with repository.EventSourced", r.typ.Category))
			return
		}
		if checkID(id) != nil {
			return
		}
		for version, n := after, int64(1<<31-1); ; {
			var page []historydb.Event
			err := r.read(ctx, func(ctx context.Context, u *uow.Unit) error {
				db, err := r.db(ctx, u)
				if err == nil {
					page, err = historydb.Of(ctx, db, r.typ.Category, id, version, n, pastEvents)
				}
				return err
			})
			if err != nil {
				yield(Happened{}, err)
				return
			}
			for _, e := range page {
				event, err := r.units.Domain().Decode(e.Type, e.Data)
				if err != nil {
					err = fmt.Errorf("repository: %s in version %d of %s %s can't be read: %w", e.Type, e.Version, r.typ.Category, id, err)
				}
				if !yield(Happened{e.Metadata, event}, err) || err != nil {
					return
				}
				version, n = e.Version, e.N
			}
			if len(page) < pastEvents {
				return
			}
		}
	}
}
