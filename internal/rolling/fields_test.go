package rolling_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

// A book has a place since the second of these, in its document and in its event.
type (
	copyBook struct {
		domain.Root
		Lent, Read int
	}
	copyLent struct {
		BookID string `json:"book_id"`
	}

	placedBook struct {
		domain.Root
		Lent, Read int
		Place      string `json:",omitzero"`
	}
	placedLent struct {
		BookID string `json:"book_id"`
		Place  string `json:"place,omitzero"`
	}

	// bareBook has lost its place again.
	bareBook struct {
		domain.Root
		Lent, Read int
	}
	placedBookV1 struct {
		Lent, Read int
		Place      string `json:",omitzero"`
	}
	bareLent struct {
		BookID string `json:"book_id"`
	}
)

// lends is a build that lends books of one form, and reads each that was lent.
func lends[A domain.AggregateRoot, E any](t *testing.T, name string, made func(id string) A, lend func(A) E, read func(A, E) error, id func(E) string, options ...domain.AggregateOption) build {
	t.Helper()
	d, err := domain.New("library", domain.Aggregate[A]("book", options...))
	require.NoError(t, err)
	return build{name, d, nil, func(units *uow.Manager) program {
		books := repository.New[A](units)
		return program{lend: func(ctx context.Context, id, _, _ string) error {
			return change(ctx, units, books, id, func() A { return made(id) }, func(b A) { any(b).(interface{ Raise(event any) }).Raise(lend(b)) })
		}, handlers: []subscription.Handler{subscription.On(func(ctx context.Context, e E) error {
			return books.Update(ctx, id(e), func(b A) error { return read(b, e) })
		})}}
	}}
}

// N3: a field comes in one deployment, which may be taken back: older builds keep it in the
// document although they don't know it, and its absence in an event means something.
func TestChanges_N3_AFieldComes(t *testing.T) {
	databases(t, func(t *testing.T, d *deployment) {
		lent := domain.Named("BookLent")
		before := lends(t, "before", func(id string) *copyBook { return &copyBook{Root: domain.RootWithID(id)} },
			func(b *copyBook) copyLent { b.Lent++; return copyLent{b.ID()} }, func(b *copyBook, _ copyLent) error { b.Read++; return nil },
			func(e copyLent) string { return e.BookID },
			domain.KeepUnknown(),
			domain.Event[copyLent](lent),
		)
		after := lends(t, "after", func(id string) *placedBook { return &placedBook{Root: domain.RootWithID(id)} },
			func(b *placedBook) placedLent { b.Lent++; b.Place = "hall"; return placedLent{b.ID(), "hall"} },
			func(b *placedBook, e placedLent) error {
				b.Read++
				if e.Place != "" && e.Place != "hall" {
					return errors.New("it is in " + e.Place)
				}
				return nil
			}, func(e placedLent) string { return e.BookID },
			domain.KeepUnknown(),
			domain.Event[placedLent](lent),
		)
		for _, step := range [][]build{{before}, {before, after}, {before}, {before, after}, {after}} {
			d.run(step...)
			d.lend()
			waittest.Until(t, func() bool { return d.read() == d.lent }, "all that was lent was read")
		}
		require.Zero(t, d.count("SELECT count(*) FROM dead_letters"))
		d.run(before)
		d.lend()
		waittest.Until(t, func() bool { return d.read() == d.lent }, "all that was lent was read")
		require.Equal(t, 2, d.count(`SELECT count(*) FROM documents WHERE state LIKE '%"Place":"hall"%'`), "who doesn't know the field keeps it")
	}, "sqlite")
}

// N3: a field goes when nobody reads it any more, by a version without it. Who still read it
// beside the builds that don't write it would find it empty.
func TestChanges_N3_AFieldGoes(t *testing.T) {
	databases(t, func(t *testing.T, d *deployment) {
		lent := domain.Named("BookLent")
		placed := func(name string, check func(e placedLent) error) build {
			return lends(t, name, func(id string) *placedBook { return &placedBook{Root: domain.RootWithID(id)} },
				func(b *placedBook) placedLent { b.Lent++; b.Place = "hall"; return placedLent{b.ID(), "hall"} },
				func(b *placedBook, e placedLent) error { b.Read++; return check(e) }, func(e placedLent) string { return e.BookID },
				domain.Event[placedLent](lent),
			)
		}
		before := placed("before", func(e placedLent) error {
			if e.Place == "" {
				return errors.New("it is nowhere")
			}
			return nil
		})
		unread := placed("unread", func(placedLent) error { return nil })
		bare := func(name string, state domain.AggregateOption, event ...domain.EventOption) build {
			options := []domain.AggregateOption{
				domain.StateVersion(2),
				domain.UpcastState(1, func(b placedBookV1) *bareBook { return &bareBook{Lent: b.Lent, Read: b.Read} }),
				domain.Event[bareLent](append(event, lent, domain.Version(2), domain.Upcast(1, func(e placedLent) bareLent { return bareLent{e.BookID} }))...),
			}
			if state != nil {
				options = append(options, state)
			}
			return lends(t, name, func(id string) *bareBook { return &bareBook{Root: domain.RootWithID(id)} },
				func(b *bareBook) bareLent { b.Lent++; return bareLent{b.ID()} }, func(b *bareBook, _ bareLent) error { b.Read++; return nil },
				func(e bareLent) string { return e.BookID }, options...)
		}
		between := bare("between", domain.WriteState(1, func(b *bareBook) placedBookV1 { return placedBookV1{Lent: b.Lent, Read: b.Read} }),
			domain.Downcast(2, func(e bareLent) placedLent { return placedLent{BookID: e.BookID} }), domain.WriteVersion(1))
		after := bare("after", nil)
		for _, step := range [][]build{{before}, {before, unread}, {unread}, {unread, between}, {between, after}, {between}, {between, after}, {after}} {
			d.run(step...)
			d.lend()
			waittest.Until(t, func() bool { return d.read() == d.lent }, "all that was lent was read")
			require.Zero(t, d.count("SELECT count(*) FROM dead_letters"))
		}
		require.Zero(t, d.count(`SELECT count(*) FROM documents WHERE state LIKE '%Place%'`))
	}, "sqlite")
}
