package rolling_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

// A loan begins and ends; a process remembers it meanwhile.
type (
	remembering struct{ domain.ProcessRoot }

	loanBegan struct {
		BookID string `json:"book_id"`
	}
	loanEnded struct {
		BookID string `json:"book_id"`
	}
)

func (*remembering) began(loanBegan) error   { return nil }
func (r *remembering) ended(loanEnded) error { r.End(); return nil }

// retired removes what is left of a subscription, as if it were gone for an hour.
func (d *deployment) retired(name string) {
	d.t.Helper()
	require.NotZero(d.t, d.count("SELECT count(*) FROM inbox WHERE subscription = ?", name))
	long := dbtime.Value(d.db.DB().Dialect(), time.Now().Add(-2*time.Hour))
	for _, seen := range []string{"subscription_uptime SET up_until", "subscription_runs SET seen_at"} {
		_, err := d.db.DB().ExecContext(d.t.Context(), "UPDATE "+seen+" = ? WHERE subscription = ?", long, name)
		require.NoError(d.t, err)
	}
	_, err := subscription.Retire(d.t.Context(), d.db, name, subscription.RetireOptions{Actor: "ada"})
	require.NoError(d.t, err)
	for _, table := range []string{"inbox", "subscription_uptime", "subscription_runs", "dead_letters"} {
		require.Zero(d.t, d.count("SELECT count(*) FROM "+table+" WHERE subscription = ?", name), table)
	}
}

// N3: a process ends in three deployments. While builds run that begin it beside some that
// don't, what else it hears may be of a loan that has none.
func TestChanges_N3_AProcessEnds(t *testing.T) {
	databases(t, func(t *testing.T, d *deployment) {
		builds := func(name string, begins bool, more ...domain.Element) build {
			dom, err := domain.New("library", append(more, domain.Aggregate[*shelf]("book", domain.Event[loanBegan](), domain.Event[loanEnded]()))...)
			require.NoError(t, err)
			return build{name, dom, nil, func(units *uow.Manager) program {
				shelves := repository.New[*shelf](units)
				return program{
					lend: func(ctx context.Context, id, what, _ string) error {
						return change(ctx, units, shelves, id, func() *shelf { return &shelf{Root: domain.RootWithID(id)} }, func(s *shelf) {
							s.N++
							switch {
							case what == "ends":
								s.Raise(loanEnded{id})
							case begins:
								s.Raise(loanBegan{id})
							}
						})
					},
					handlers: []subscription.Handler{subscription.On(func(context.Context, loanEnded) error { return nil })},
				}
			}}
		}
		process := func(hears ...domain.HearOption) domain.Element {
			return domain.Process[*remembering]("remembering",
				domain.CorrelatedBy("book_id"),
				domain.Starts((*remembering).began),
				domain.Hears((*remembering).ended, hears...),
			)
		}
		before := builds("before", true, process())
		between := builds("between", true, process(domain.Optional()))
		last := builds("last", false, process(domain.Optional()))
		after := builds("after", false)
		loan := func(b build, id, what string) {
			require.NoError(t, d.running[b.name].lend(t.Context(), id, what, ""))
		}
		settled := func(running int) {
			waittest.Until(t, func() bool {
				return d.count("SELECT count(*) FROM outbox WHERE status <> 'published'") == 0 && d.own.Unacknowledged("library.book", "library.remembering.library.book") == 0 &&
					d.count("SELECT count(*) FROM processes WHERE status = 'running'") == running
			}, "%d of them run", running)
			require.Zero(t, d.count("SELECT count(*) FROM dead_letters"))
		}
		d.run(before)
		loan(before, "b1", "begins")
		d.run(before, between)
		loan(between, "b2", "begins")
		loan(before, "b3", "begins")
		loan(before, "b2", "ends")
		settled(2)
		d.run(between, last)
		loan(between, "b4", "begins")
		loan(last, "b5", "begins") // of which no process is told
		loan(last, "b5", "ends")
		loan(last, "b1", "ends")
		settled(2)
		d.run(last)
		loan(last, "b3", "ends")
		loan(last, "b4", "ends")
		settled(0)
		d.run(last, after)
		loan(after, "b6", "begins")
		loan(after, "b6", "ends")
		settled(0)
		d.run(after)
		loan(after, "b7", "ends")
		d.run(last) // taken back
		settled(0)
		d.run(after)
		d.retired("library.remembering.library.book")
	}, "sqlite")
}

// N3: a subscription ends in one deployment. Taken back, it goes on where it was.
func TestChanges_N3_ASubscriptionEnds(t *testing.T) {
	databases(t, func(t *testing.T, d *deployment) {
		dom, err := domain.New("library", domain.Aggregate[*shelf]("book", domain.Event[BookLent]()), domain.Aggregate[*tally]("tally"))
		require.NoError(t, err)
		builds := func(name string, counts bool) build {
			return build{name, dom, nil, func(units *uow.Manager) program {
				shelves, tallies := repository.New[*shelf](units), repository.New[*tally](units)
				p := program{
					lend: func(ctx context.Context, id, _, _ string) error {
						return change(ctx, units, shelves, id, func() *shelf { return &shelf{Root: domain.RootWithID(id)} }, func(s *shelf) {
							s.N++
							s.Raise(BookLent{id})
						})
					},
					handlers: []subscription.Handler{is[BookLent]("read")(tallies)},
				}
				if counts {
					p.more = []subscription.Stream{{Name: "counting", Category: "library::book", Backoff: time.Millisecond, Handlers: []subscription.Handler{is[BookLent]("counted")(tallies)}}}
				}
				return p
			}}
		}
		units, err := uow.New(uow.Config{Domain: dom, Providers: []uow.Provider{d.db}})
		require.NoError(t, err)
		before, after := builds("before", true), builds("after", false)
		d.run(before)
		require.NoError(t, repository.New[*tally](units).Save(t.Context(), &tally{Root: domain.RootWithID("all"), Heard: map[string]int{}}))
		heard := func(what string) func() bool {
			return func() bool {
				var all map[string]int
				return d.tally(&all) && all[what] == d.lent
			}
		}
		for _, step := range [][]build{{before}, {before, after}, {after}, {before, after}, {after}} {
			d.run(step...)
			d.lend()
			waittest.Until(t, heard("read"), "all was read")
			if len(step) == 2 {
				waittest.Until(t, heard("counted"), "all was counted, also what came while nobody did")
			}
		}
		require.Zero(t, d.count("SELECT count(*) FROM dead_letters"))
		d.retired("counting")
		d.lend()
		waittest.Until(t, heard("read"), "all was read")
	}, "sqlite")
}
