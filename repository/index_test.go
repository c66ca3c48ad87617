package repository_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
)

// Member is found by its e-mail and its city.
type Member struct {
	domain.Root
	Email, City string
}

type MemberMoved struct{ City string }

func newMember(id, email, city string) *Member {
	m := &Member{Root: domain.RootWithID(id), Email: email, City: city}
	m.Raise(MemberMoved{City: city})
	return m
}

var (
	// before is a program of before the indexes, and library one that knows them.
	before  = domain.MustNew("shop", domain.Aggregate[*Member]("member", domain.Event[MemberMoved]()))
	library = domain.MustNew("shop", domain.Aggregate[*Member]("member", domain.Event[MemberMoved](),
		domain.Index("city", func(m *Member) string { return m.City }),
		domain.Unique("email", func(m *Member) string { return strings.ToLower(m.Email) }),
	))
)

func members(t testing.TB, db testDB, d *domain.Domain) (*repository.Repository[*Member], *uow.Manager) {
	t.Helper()
	units, err := uow.New(uow.Config{Domain: d, Providers: []uow.Provider{db.provider}})
	require.NoError(t, err)
	return repository.New[*Member](units), units
}

// under are the ids that a value has.
func under(t testing.TB, r *repository.Repository[*Member], index, value string) (ids []string) {
	t.Helper()
	found, err := r.By(t.Context(), index, value, repository.Page{})
	require.NoError(t, err)
	for _, m := range found {
		ids = append(ids, m.ID())
	}
	return ids
}

func requireTaken(t testing.TB, err error, id, value, by string) {
	t.Helper()
	taken, ok := errors.AsType[*repository.TakenError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, repository.TakenError{Type: "member", ID: id, Index: "email", Value: value, By: by}, *taken)
}

func change(email, city string) func(*Member) error {
	return func(m *Member) error {
		m.Email, m.City = email, city
		return nil
	}
}

// Conformance: N11.
func TestIndex_By(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		ctx := t.Context()
		r, units := members(t, db, library)
		for i := range 25 {
			require.NoError(t, r.Save(ctx, newMember(fmt.Sprintf("m%02d", i), fmt.Sprintf("%d@x", i), []string{"Riga", "Oslo", ""}[i%3])))
		}
		require.Equal(t, []string{"m00", "m03", "m06", "m09", "m12", "m15", "m18", "m21", "m24"}, under(t, r, "city", "Riga"))
		require.Equal(t, []string{"m07"}, under(t, r, "email", "7@x"))
		require.Empty(t, under(t, r, "city", "riga"))

		var pages []int
		var ids []string
		for page := (repository.Page{Limit: 4}); len(pages) == 0 || pages[len(pages)-1] > 0; {
			some, err := r.By(ctx, "city", "Riga", page)
			require.NoError(t, err)
			pages = append(pages, len(some))
			for _, m := range some {
				ids = append(ids, m.ID())
				page.After = m.ID()
			}
		}
		require.Equal(t, []int{4, 4, 1, 0}, pages)
		require.Equal(t, under(t, r, "city", "Riga"), ids)

		// What is changed or removed is free, and what a unit has saved it sees.
		require.NoError(t, r.Update(ctx, "m00", change("0@x", "Oslo")))
		require.NoError(t, r.Update(ctx, "m03", change("3@x", "")))
		gone, err := r.Get(ctx, "m06")
		require.NoError(t, err)
		require.NoError(t, r.Remove(ctx, gone))
		require.NoError(t, units.Do(ctx, func(ctx context.Context) error {
			require.NoError(t, r.Save(ctx, newMember("m99", "99@x", "Riga")))
			inside, err := r.By(ctx, "city", "Riga", repository.Page{After: "m21"})
			require.NoError(t, err)
			require.Len(t, inside, 2)
			require.Equal(t, "m99", inside[1].ID())
			return nil
		}))
		require.Equal(t, []string{"m09", "m12", "m15", "m18", "m21", "m24", "m99"}, under(t, r, "city", "Riga"))
		require.Contains(t, under(t, r, "city", "Oslo"), "m00")
		require.Empty(t, under(t, r, "email", "6@x"))

		for _, c := range []struct {
			index, value string
			page         repository.Page
			want         string
		}{
			{"mail", "x", repository.Page{}, `shop::member has no index "mail": declare domain.Index`},
			{"city", "", repository.Page{}, "an empty value is in no index"},
			{"city", "x", repository.Page{Limit: 1001}, "Page.Limit is 1001: give 1 to 1000"},
		} {
			_, err := r.By(ctx, c.index, c.value, c.page)
			require.ErrorContains(t, err, c.want)
		}
		for _, email := range []string{strings.Repeat("x", 2000), "a\x00b"} {
			err := r.Save(ctx, newMember("long", email, ""))
			_, invalid := errors.AsType[*uow.InvalidError](err)
			require.True(t, invalid, "%v", err)
			require.ErrorContains(t, err, fmt.Sprintf("its email %.60q ", email))
			found, err := r.By(ctx, "email", email, repository.Page{})
			require.NoError(t, err)
			require.Empty(t, found, "nobody can have it")
		}
		n, err := r.Reindex(ctx)
		require.NoError(t, err)
		require.Zero(t, n)
		require.ErrorContains(t, units.Do(ctx, func(ctx context.Context) error {
			_, err := r.Reindex(ctx)
			return err
		}), "inside a unit of work")
	})
}

// Conformance: N11.
func TestUnique_OneHasIt(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		ctx := t.Context()
		r, units := members(t, db, library)
		a, b := newMember("a", "A@x", "Riga"), newMember("b", "b@x", "Riga")
		require.NoError(t, r.Save(ctx, a))
		require.NoError(t, r.Save(ctx, b))
		err := r.Save(ctx, newMember("c", "a@X", ""))
		requireTaken(t, err, "c", "a@x", "a")
		require.EqualError(t, errors.Unwrap(err), `repository: member "c": email "a@x" belongs to "a" already`)
		_, err = r.Get(ctx, "c")
		requireMissing(t, err, "c")
		require.Empty(t, db.outbox(t, "shop::member-c"))
		requireTaken(t, r.Update(ctx, "b", change("a@x", "Riga")), "b", "a@x", "a")
		require.NoError(t, r.Update(ctx, "b", change("B@x", "Oslo")), "its own value")

		swap := func(ctx context.Context) error {
			for id, email := range map[string]string{"a": "b@x", "b": "a@x"} {
				if err := r.Update(ctx, id, change(email, "")); err != nil {
					return err
				}
			}
			return nil
		}
		require.NoError(t, units.Do(ctx, swap))
		require.Equal(t, []string{"b"}, under(t, r, "email", "a@x"))
		require.Equal(t, []string{"a"}, under(t, r, "email", "b@x"))

		require.NoError(t, units.Do(ctx, func(ctx context.Context) error { // frees and takes
			require.NoError(t, r.Save(ctx, newMember("0", "a@x", "")))
			b, err := r.Get(ctx, "b")
			require.NoError(t, err)
			return r.Remove(ctx, b)
		}))
		require.Equal(t, []string{"0"}, under(t, r, "email", "a@x"))

		err = units.Do(ctx, func(ctx context.Context) error {
			require.NoError(t, r.Save(ctx, newMember("x", "new@x", "")))
			return r.Save(ctx, newMember("y", "new@x", ""))
		})
		requireTaken(t, err, "y", "new@x", "")
		require.ErrorContains(t, err, "belongs to another one of its unit of work")
		require.Empty(t, under(t, r, "email", "new@x"))

		// A unit that failed has taken nothing, and its aggregate can be saved again.
		lost := newMember("lost", "lost@x", "")
		require.ErrorIs(t, units.Do(ctx, func(ctx context.Context) error {
			return errors.Join(r.Save(ctx, lost), uow.Flush(ctx), errBroken)
		}), errBroken)
		require.NoError(t, r.Save(ctx, newMember("found", "lost@x", "")))
		requireTaken(t, r.Save(ctx, lost), "lost", "lost@x", "found")
		lost.Email = "other@x"
		require.NoError(t, r.Save(ctx, lost))
	})
}

// Of those who take one value at a time one gets it, and the others learn who.
// Conformance: N11.
func TestUnique_Race(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		r, _ := members(t, db, library)
		for round := range 5 {
			const clients = 8
			email := fmt.Sprintf("%d@x", round)
			errs := make([]error, clients)
			var wg sync.WaitGroup
			for i := range clients {
				wg.Go(func() { errs[i] = r.Save(t.Context(), newMember(fmt.Sprintf("%d-%d", round, i), email, "")) })
			}
			wg.Wait()
			winner := under(t, r, "email", email)
			require.Len(t, winner, 1)
			for i, err := range errs {
				if id := fmt.Sprintf("%d-%d", round, i); id == winner[0] {
					require.NoError(t, err)
				} else {
					requireTaken(t, err, id, email, winner[0])
				}
			}
		}
	})
}

// A value that somebody has taken and not committed is waited for: it can be given up.
// Conformance: N11.
func TestUnique_WaitsForWhoWasFirst(t *testing.T) {
	t.Parallel()
	db := openPostgres(t, postgresDSN(t))
	r, units := members(t, db, library)
	for email, give := range map[string]error{"given-up@x": errBroken, "kept@x": nil} {
		done := make(chan error, 1)
		err := units.Do(t.Context(), func(ctx context.Context) error {
			require.NoError(t, r.Save(ctx, newMember("first "+email, email, "")))
			require.NoError(t, uow.Flush(ctx))
			go func() { done <- r.Save(t.Context(), newMember("second "+email, email, "")) }()
			waittest.Until(t, func() bool {
				var waiting int
				require.NoError(t, db.owner.DB().NewRaw("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%document_unique%' AND datname = current_database()").Scan(t.Context(), &waiting))
				return waiting > 0
			}, "the second waits for the first")
			return give
		})
		require.ErrorIs(t, err, give)
		if err = <-done; give == nil {
			requireTaken(t, err, "second "+email, email, "first "+email)
		} else {
			require.NoError(t, err)
		}
	}
}

// Documents of before an index are found by it at once, if they are few; if they are
// many, nobody gets a part of them without a word.
// Conformance: N11.
func TestIndex_AddedLater(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		ctx := t.Context()
		old, _ := members(t, db, before)
		r, _ := members(t, db, library)
		require.NoError(t, old.Save(ctx, newMember("a", "A@x", "Riga")))
		require.NoError(t, old.Save(ctx, newMember("b", "b@x", "Riga")))
		require.NoError(t, r.Save(ctx, newMember("aa", "aa@x", "Riga")), "what is loose is entered by the way")
		require.Zero(t, loose(t, db))
		require.NoError(t, old.Save(ctx, newMember("c", "c@x", "Riga")))
		require.Equal(t, []string{"a", "aa", "b", "c"}, under(t, r, "city", "Riga"))
		first, err := r.By(ctx, "city", "Riga", repository.Page{Limit: 3})
		require.NoError(t, err)
		require.Len(t, first, 3)
		require.Equal(t, []string{"c"}, under(t, r, "email", "c@x"))
		requireTaken(t, r.Save(ctx, newMember("d", "c@x", "")), "d", "c@x", "c")

		// Both run: what the old one does is seen by the new one.
		require.NoError(t, old.Update(ctx, "a", change("moved@x", "Oslo")))
		require.Empty(t, under(t, r, "email", "a@x"))
		require.Equal(t, []string{"a"}, under(t, r, "city", "Oslo"))
		require.Equal(t, []string{"aa", "b", "c"}, under(t, r, "city", "Riga"))
		requireTaken(t, r.Save(ctx, newMember("d", "moved@x", "")), "d", "moved@x", "a")
		b, err := old.Get(ctx, "b")
		require.NoError(t, err)
		require.NoError(t, old.Remove(ctx, b))
		require.NoError(t, r.Save(ctx, newMember("d", "b@x", "")), "what the old one removed is free")

		asJSON := "%s"
		if db.provider.DB().Dialect().Name() == dialect.PG {
			asJSON = "CAST(%s AS json)"
		}
		db.exec(t, "INSERT INTO documents (category, id, version, state) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1001)"+
			" SELECT 'shop::member', 'n' || i, 1, "+fmt.Sprintf(asJSON, `'{"Email":"n' || i || '@x","City":"Riga"}'`)+" FROM n")
		_, err = r.By(ctx, "city", "Riga", repository.Page{})
		_, ok := errors.AsType[*repository.UnindexedError](err)
		require.True(t, ok, "%v", err)
		require.EqualError(t, err, "repository: too many documents of member are not entered in its indexes yet, so their values are unknown: call Reindex of its repository when the program starts")
		err = r.Save(ctx, newMember("e", "e@x", ""))
		_, ok = errors.AsType[*repository.UnindexedError](err)
		require.True(t, ok, "%v", err)
		require.NoError(t, r.Update(ctx, "d", change("b@x", "Oslo")), "what takes no unique value needn't know")
		_, err = r.Reindex(ctx)
		require.NoError(t, err)
		require.Zero(t, loose(t, db))
		require.NoError(t, r.Save(ctx, newMember("e", "e@x", "")))
		found, err := r.By(ctx, "city", "Riga", repository.Page{Limit: 1000, After: "n1"})
		require.NoError(t, err)
		require.Len(t, found, 1000)
	})
}

func loose(t testing.TB, db testDB) (n int) {
	t.Helper()
	require.NoError(t, db.provider.Reader().NewRaw("SELECT count(*) FROM documents WHERE category = 'shop::member' AND indexed = 0").Scan(t.Context(), &n))
	return n
}

// Two documents of before a Unique that have one value are named, found, and in
// nobody's way.
// Conformance: N11.
func TestUnique_AddedLater_Duplicates(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		ctx := t.Context()
		old, _ := members(t, db, before)
		r, _ := members(t, db, library)
		for i := range 12 {
			require.NoError(t, old.Save(ctx, newMember(fmt.Sprintf("m%02d", i), "same@x", "Riga")))
		}
		n, err := r.Reindex(ctx)
		require.Equal(t, 12, n)
		taken, ok := errors.AsType[*repository.TakenError](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, "same@x", taken.Value)
		require.Equal(t, 10, strings.Count(err.Error(), "belongs to "+fmt.Sprintf("%q", taken.By)))
		require.ErrorContains(t, err, "and 1 more of these")
		require.Len(t, under(t, r, "email", "same@x"), 12)
		require.Len(t, under(t, r, "city", "Riga"), 12)

		require.NoError(t, r.Save(ctx, newMember("other", "other@x", "")))
		requireTaken(t, r.Save(ctx, newMember("next", "same@x", "")), "next", "same@x", taken.By)
		requireTaken(t, r.Update(ctx, taken.ID, change("same@x", "Oslo")), taken.ID, "same@x", taken.By)
		require.NoError(t, r.Update(ctx, taken.ID, change("mine@x", "Oslo")))
		require.NoError(t, r.Update(ctx, taken.By, change("his@x", "Oslo")))
		n, err = r.Reindex(ctx)
		require.Error(t, err)
		require.Equal(t, 10, n)
		require.Equal(t, 9, strings.Count(err.Error(), "belongs to"))
	})
}

// Whatever old and new programs do beside each other and beside those who enter what is
// loose: in the end the index says what is so.
// Conformance: N11.
func TestIndex_OldAndNewSideBySide(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		ctx := t.Context()
		old, _ := members(t, db, before)
		r, _ := members(t, db, library)
		const ids, steps = 12, 40
		var wg sync.WaitGroup
		for worker := range 4 {
			wg.Go(func() {
				for step := range steps {
					repo := []*repository.Repository[*Member]{old, r}[worker%2]
					id := fmt.Sprint("m", rand.IntN(ids))
					to := change(fmt.Sprintf("%s-%d-%d@x", id, worker, rand.IntN(5)), fmt.Sprint("city ", rand.IntN(3)))
					err := repo.Update(ctx, id, func(m *Member) error {
						if rand.IntN(8) == 0 {
							return errBroken
						}
						return to(m)
					})
					switch _, missing := errors.AsType[*repository.NotFoundError](err); {
					case missing:
						_ = repo.Save(ctx, newMember(id, fmt.Sprintf("%s-%d-%d@x", id, worker, step), "city 0")) // or another was faster
					case errors.Is(err, errBroken):
						if m, err := repo.Get(ctx, id); err == nil {
							_ = repo.Remove(ctx, m) // or another was faster
						}
					case err != nil:
						t.Error(err)
					}
					if worker == 3 && step%10 == 0 {
						if _, err := r.Reindex(ctx); err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
		wg.Wait()
		check := func() {
			all, err := r.All(ctx, repository.Page{})
			require.NoError(t, err)
			byCity := map[string][]string{}
			for _, m := range all {
				byCity[m.City] = append(byCity[m.City], m.ID())
				require.Equal(t, []string{m.ID()}, under(t, r, "email", m.Email))
			}
			for _, city := range []string{"city 0", "city 1", "city 2"} {
				require.Equal(t, byCity[city], under(t, r, "city", city))
			}
		}
		check()
		_, err := r.Reindex(ctx)
		require.NoError(t, err)
		require.Zero(t, loose(t, db))
		check()
		var rows, kept int
		require.NoError(t, db.provider.Reader().NewRaw("SELECT (SELECT count(*) FROM document_index), (SELECT count(*) FROM document_unique)").Scan(ctx, &rows, &kept))
		require.Equal(t, rows, kept)
		all, err := r.All(ctx, repository.Page{})
		require.NoError(t, err)
		require.Len(t, all, rows)
	})
}

// Conformance: N11.
func TestAll_PageByPage(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		t.Run("documents", func(t *testing.T) { pages(t, kind[*Tally]{db, repository.New[*Tally](db.units), newTally, ""}) })
		t.Run("mapped", func(t *testing.T) {
			pages(t, kind[*Basket]{db, repository.Mapped(db.units, basketMapping), newBasket, ""})
		})
		t.Run("event-sourced", func(t *testing.T) {
			pages(t, kind[*Ledger]{db, repository.EventSourced[*Ledger](db.units), newLedger, ""})
		})
	})
}

func pages[A counter](t *testing.T, k kind[A]) {
	ctx := t.Context()
	for _, id := range []string{"e", "B", "a", "d", "c", "é"} {
		k.saved(t, id)
	}
	require.NoError(t, k.repo.Remove(ctx, k.get(t, "c")))
	var ids []string
	page := repository.Page{Limit: 2}
	for {
		some, err := k.repo.All(ctx, page)
		require.NoError(t, err)
		if len(some) == 0 {
			break
		}
		for _, a := range some {
			ids = append(ids, a.ID())
			require.Equal(t, 1, a.Total())
		}
		page.After = ids[len(ids)-1]
	}
	if _, mapped := any(k.repo).(*repository.Repository[*Basket]); mapped { // the test's own table has the database's order
		require.ElementsMatch(t, []string{"B", "a", "d", "e", "é"}, ids)
	} else {
		require.Equal(t, []string{"B", "a", "d", "e", "é"}, ids)
	}
	require.NoError(t, k.db.units.Do(ctx, func(ctx context.Context) error {
		require.NoError(t, k.repo.Remove(ctx, k.get(t, "a")))
		all, err := k.repo.All(ctx, repository.Page{})
		require.NoError(t, err)
		require.Len(t, all, 4)
		return nil
	}))
}

// A database of before the indexes goes on with them.
// Conformance: N11.
func TestIndex_Migration(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		steps, err := repository.Migrations().Steps(db.owner.DB().Dialect())
		require.NoError(t, err)
		db.exec(t, "DROP TABLE documents")
		db.exec(t, "DROP TABLE events")
		db.exec(t, "DROP TABLE document_index")
		db.exec(t, "DROP TABLE document_unique")
		db.exec(t, "DROP TABLE snapshots")
		db.exec(t, "DELETE FROM waybill_migrations WHERE feature = 'repository' AND version > 1")
		_, err = db.owner.DB().DB.ExecContext(t.Context(), steps[0].SQL)
		require.NoError(t, err)
		db.exec(t, `INSERT INTO documents (category, id, version, state, unit) VALUES ('shop::member', 'a', 7, '{"Email":"a@x","City":"Riga"}', 'u')`)
		require.NoError(t, repository.Migrations().Up(t.Context(), db.owner.DB()))
		if db.owner != db.provider {
			db.provider = db.owner
		}
		r, _ := members(t, db, library)
		require.Equal(t, []string{"a"}, under(t, r, "city", "Riga"))
		require.NoError(t, r.Update(t.Context(), "a", change("b@x", "Oslo")))
		require.Equal(t, []string{"a"}, under(t, r, "email", "b@x"))
	})
}
