package rolling_test

import (
	"context"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

// The changes of the guide, each in three builds.

// shelf raises events, and tally counts what was heard.
type (
	shelf struct {
		domain.Root
		N int
	}
	tally struct {
		domain.Root
		Heard map[string]int
	}

	BookLent    struct{ BookID string }
	LoanStarted struct{ BookID string }

	BookReturned struct {
		BookID  string
		Damaged bool `json:",omitzero"`
	}
	BookDamaged struct{ BookID string }

	PhoneChanged   struct{ Phone string }
	AddressChanged struct{ Address string }
	ContactChanged struct{ Phone, Address string }

	ShelfDusted struct{ At time.Time }
)

// form is what a build has of a change.
type form struct {
	events  []domain.AggregateOption
	handles []func(*repository.Repository[*tally]) subscription.Handler
	raises  []any
	means   map[string]int // what is to be heard of that
}

// count handles an event by counting what it means.
func count[E any](means func(E) []string) func(*repository.Repository[*tally]) subscription.Handler {
	return func(tallies *repository.Repository[*tally]) subscription.Handler {
		return subscription.On(func(ctx context.Context, e E) error {
			return tallies.Update(ctx, "all", func(t *tally) error {
				for _, m := range means(e) {
					t.Heard[m]++
				}
				return nil
			})
		})
	}
}

func is[E any](means string) func(*repository.Repository[*tally]) subscription.Handler {
	return count(func(E) []string { return []string{means} })
}

type changing struct{ before, between, after form }

// rename: the old name is written until every build reads the new one.
func rename() (c changing) {
	lent := map[string]int{"lent": 1}
	// Before.
	c.before.events = []domain.AggregateOption{
		domain.Event[BookLent](),
	}
	c.before.handles, c.before.raises, c.before.means = handles(is[BookLent]("lent")), []any{BookLent{}}, lent
	// First deployment.
	c.between.events = []domain.AggregateOption{
		domain.Event[LoanStarted](domain.Named("BookLent"), domain.Alias("Library.LoanStarted")),
	}
	// Second deployment.
	c.after.events = []domain.AggregateOption{
		domain.Event[LoanStarted](domain.Alias("Library.BookLent")),
	}
	c.between.handles, c.between.raises, c.between.means = handles(is[LoanStarted]("lent")), []any{LoanStarted{}}, lent
	c.after.handles, c.after.raises, c.after.means = c.between.handles, c.between.raises, lent
	return c
}

// split: one event becomes two.
func split() (c changing) {
	both := map[string]int{"returned": 1, "damaged": 1}
	returned := count(func(e BookReturned) []string {
		if e.Damaged { // as older builds say it
			return []string{"returned", "damaged"}
		}
		return []string{"returned"}
	})
	c.before = form{[]domain.AggregateOption{domain.Event[BookReturned]()}, handles(returned), []any{BookReturned{Damaged: true}}, both}
	events := []domain.AggregateOption{domain.Event[BookReturned](), domain.Event[BookDamaged]()}
	c.between = form{events, handles(returned, is[BookDamaged]("damaged")), []any{BookReturned{Damaged: true}}, both}
	c.after = form{events, handles(returned, is[BookDamaged]("damaged")), []any{BookReturned{}, BookDamaged{}}, both}
	return c
}

// merge: two events become one.
func merge() (c changing) {
	both := map[string]int{"phone": 1, "address": 1}
	two := []any{PhoneChanged{}, AddressChanged{}}
	apart := handles(is[PhoneChanged]("phone"), is[AddressChanged]("address"))
	c.before = form{[]domain.AggregateOption{domain.Event[PhoneChanged](), domain.Event[AddressChanged]()}, apart, two, both}
	events := []domain.AggregateOption{domain.Event[PhoneChanged](), domain.Event[AddressChanged](), domain.Event[ContactChanged]()}
	all := append(apart, count(func(ContactChanged) []string { return []string{"phone", "address"} }))
	c.between = form{events, all, two, both}
	c.after = form{events, all, []any{ContactChanged{}}, both}
	return c
}

// retire: nobody raises it any more, and once nothing of it is left nobody handles it.
func retire() (c changing) {
	c.before = form{[]domain.AggregateOption{domain.Event[ShelfDusted]()}, handles(is[ShelfDusted]("dusted")), []any{ShelfDusted{}}, map[string]int{"dusted": 1}}
	c.between = form{c.before.events, c.before.handles, nil, nil}
	c.after = form{[]domain.AggregateOption{domain.Event[BookDamaged]()}, handles(is[BookDamaged]("damaged")), nil, nil}
	return c
}

func handles(all ...func(*repository.Repository[*tally]) subscription.Handler) []func(*repository.Repository[*tally]) subscription.Handler {
	return all
}

func (f form) build(t *testing.T, name string) build {
	t.Helper()
	d, err := domain.New("library", domain.Aggregate[*shelf]("book", f.events...), domain.Aggregate[*tally]("tally"))
	require.NoError(t, err)
	return build{name, d, nil, func(units *uow.Manager) program {
		shelves, tallies := repository.New[*shelf](units), repository.New[*tally](units)
		p := program{lend: func(ctx context.Context, id, _, _ string) error {
			if err := change(ctx, units, tallies, "all", func() *tally { return &tally{Root: domain.RootWithID("all"), Heard: map[string]int{}} }, func(*tally) {}); err != nil {
				return err
			}
			return change(ctx, units, shelves, id, func() *shelf { return &shelf{Root: domain.RootWithID(id)} }, func(s *shelf) {
				s.N++
				for _, e := range f.raises {
					s.Raise(e)
				}
			})
		}}
		for _, h := range f.handles {
			p.handlers = append(p.handlers, h(tallies))
		}
		return p
	}}
}

// N3: a name, one event that becomes two, two that become one, and one that ends: in the
// guide's order nothing is parked, passed over or heard twice, also if the last deployment
// is taken back.
func TestChanges_N3_OfTheGuide(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]changing{"rename": rename(), "split": split(), "merge": merge(), "retire": retire()} {
		t.Run(name, func(t *testing.T) {
			databases(t, func(t *testing.T, d *deployment) {
				before, between, after := c.before.build(t, "before"), c.between.build(t, "between"), c.after.build(t, "after")
				forms := map[string]form{"before": c.before, "between": c.between, "after": c.after}
				want := map[string]int{}
				for _, step := range [][]build{{before, between}, {between, after}, {between}, {after}} {
					d.run(step...)
					d.lend()
					for _, b := range step {
						for m, n := range forms[b.name].means {
							want[m] += 3 * n
						}
					}
					waittest.Until(t, func() bool {
						var heard map[string]int
						return d.count("SELECT count(*) FROM outbox WHERE status <> 'published'") == 0 && d.own.Unacknowledged("library.book", "reading") == 0 &&
							d.tally(&heard) && maps.Equal(heard, want)
					}, "all was heard, once")
				}
				require.Zero(t, d.count("SELECT count(*) FROM dead_letters"))
			}, "sqlite")
		})
	}
}
