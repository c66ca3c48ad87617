package projection_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/projection"
	"github.com/waybill-go/waybill/uow"
)

type DueLoan struct {
	LoanID   string `bun:",pk"`
	MemberID string
	Status   string
	Due      string
}

// dueLoans is the next version of currentLoans.
func dueLoans(change ...func(*projection.Projection)) (projection.Projection, *projection.Table[DueLoan]) {
	t := projection.NewTable[DueLoan]("current_loans")
	p := projection.Projection{Name: "current-loans", Version: 2, Tables: []projection.Definition{t}, Handlers: []projection.Handler{
		projection.On(func(ctx context.Context, e LoanPlaced) error {
			return t.Put(ctx, DueLoan{e.LoanID, e.MemberID, "pending", "soon"})
		}),
		projection.On(func(ctx context.Context, e LoanMoved) error {
			return t.Change(ctx, e.LoanID, func(l *DueLoan) { l.Status = e.Status })
		}),
		projection.On(func(ctx context.Context, e LoanReturned) error { return t.Remove(ctx, e.LoanID) }),
	}}
	for _, c := range change {
		c(&p)
	}
	return p, t
}

// A newer version is built beside the one in use, and takes its place when it has caught
// up. Old and new programs each read what they know. An operator can go back, and a
// program never does.
// Conformance: N5.
func TestSwitch_ANewerVersionTakesThePlace(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		old, oldLoans := currentLoans(1)
		w.place(t, "l1", "l2")
		_, stopOld := w.run(t, old)
		w.wait(t, old.Name)
		require.Equal(t, []string{"1 v1 live"}, w.list(t))

		next, nextLoans := dueLoans()
		n := w.program(t)
		_, stopNext := n.run(t, next)
		w.becomes(t, "1 v1 old", "2 v2 live")
		w.place(t, "l3")
		w.wait(t, old.Name)
		n.wait(t, next.Name)
		require.Len(t, find(t, w, oldLoans, "loan_id"), 3)
		require.Equal(t, DueLoan{"l3", "m1", "pending", "soon"}, find(t, n, nextLoans, "loan_id")[2])
		require.Equal(t, []string{"soon", "soon", "soon"}, w.view(t, "SELECT due FROM current_loans"))
		stopOld()
		_, stopOld = w.run(t, old)
		w.wait(t, old.Name)
		require.Equal(t, []string{"1 v1 old", "2 v2 live"}, w.list(t), "an older program never goes back")

		// What a program reads that no engine feeds is the live one, once that isn't behind.
		stopOld()
		w.place(t, "l4")
		n.wait(t, next.Name)
		eventually(t, func() bool {
			rows, err := oldLoans.Find(t.Context(), w.units, nil)
			require.NoError(t, err)
			return len(rows) == 4
		})

		require.ErrorContains(t, projection.Switch(t.Context(), w.p, next.Name, 2, false, "ada"), "in use already")
		require.ErrorContains(t, projection.Switch(t.Context(), w.p, next.Name, 7, false, "ada"), "no build 7")
		require.ErrorContains(t, projection.Switch(t.Context(), w.p, next.Name, 1, false, "ada"), "wait until it has caught up, or take it as it is with --stale")
		require.NoError(t, projection.Switch(t.Context(), w.p, next.Name, 1, true, "ada"))
		require.Equal(t, []string{"1 v1 live", "2 v2 old"}, w.list(t))
		var due []string
		require.NoError(t, w.p.Reader().NewRaw("SELECT coalesce(due, '-') FROM current_loans").Scan(t.Context(), &due))
		require.Equal(t, []string{"-", "-", "-"}, due, "the view has lost no column")
		w.place(t, "l5")
		n.wait(t, next.Name)
		require.Equal(t, []string{"1 v1 live", "2 v2 old"}, w.list(t), "a program doesn't undo what an operator did")
		require.NoError(t, projection.Switch(t.Context(), w.p, next.Name, 2, false, "ada"))
		require.ErrorContains(t, projection.Retire(t.Context(), w.p, next.Name, 2, "ada"), "in use")
		require.ErrorContains(t, projection.Retire(t.Context(), w.p, next.Name, 0, "ada"), "deploy programs without it first")
		require.NoError(t, projection.Retire(t.Context(), w.p, next.Name, 1, "ada"))
		require.Equal(t, []string{"2 v2 live"}, w.list(t))
		stopNext()
		require.NoError(t, projection.Retire(t.Context(), w.p, next.Name, 0, "ada"))
		require.Empty(t, w.list(t))
		_, err := w.p.Reader().ExecContext(t.Context(), "SELECT loan_id FROM current_loans")
		require.Error(t, err)
		require.ErrorContains(t, projection.Retire(t.Context(), w.p, next.Name, 0, "ada"), "there is no such projection")
	})
}

// A projection that is renamed, or that another context calls as this one does, has no table
// of a name that is in use: it would take the view away from those who read it.
func TestStart_N5_AnotherProjectionKeepsItsTables(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.place(t, "l1", "l2")
		for n := range 2 { // whose tables are of the first build, or of a later one
			old, oldLoans := currentLoans(n + 1)
			_, stop := w.run(t, old)
			w.wait(t, old.Name)
			eventually(t, func() bool { return w.list(t)[n] == fmt.Sprintf("%d v%d live", n+1, n+1) })
			next, _ := currentLoans(1, func(p *projection.Projection) { p.Name = "loans" })
			require.ErrorContains(t, w.program(t).of(t, next).Runner(w.p.Name(), nil).Start(t.Context()),
				"projection loans: in this database current_loans is a table of projection current-loans: give it another name, or, once no program has that projection any more, remove that with `waybill projections retire current-loans` first")
			require.Len(t, find(t, w, oldLoans, "loan_id"), 2)
			stop()
		}
		require.Len(t, w.view(t, "SELECT loan_id FROM current_loans"), 2)
		require.NoError(t, projection.Retire(t.Context(), w.p, "current-loans", 0, "ada"))
		next, loans := currentLoans(1, func(p *projection.Projection) { p.Name = "loans" })
		n := w.program(t)
		n.run(t, next)
		n.wait(t, next.Name)
		require.Len(t, find(t, n, loans, "loan_id"), 2)
		require.Len(t, w.view(t, "SELECT loan_id FROM current_loans"), 2)
	})
}

// An operator's rebuild is a build of the same version, which takes the place by itself.
// Conformance: N5.
func TestRebuild_TakesThePlaceWithTheSameContent(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		p, loans := currentLoans(1, func(p *projection.Projection) { p.Manual, p.KeepOld = true, 100*time.Millisecond })
		_, err := projection.Rebuild(t.Context(), w.p, p.Name, "ada")
		require.ErrorContains(t, err, "there is no such projection")
		w.place(t, "l1", "l2")
		w.run(t, p)
		w.wait(t, p.Name)
		_, err = w.p.DB().ExecContext(t.Context(), "UPDATE current_loans__1 SET status = 'broken'")
		require.NoError(t, err)
		build, err := projection.Rebuild(t.Context(), w.p, p.Name, "ada")
		require.NoError(t, err)
		require.Equal(t, 2, build)
		if _, err := projection.Rebuild(t.Context(), w.p, p.Name, "ada"); err != nil {
			require.ErrorContains(t, err, "is on its way")
		}
		eventually(t, func() bool { // and the one before goes when its time is over
			list := w.list(t)
			return len(list) == 1 && list[0] != "1 v1 live"
		})
		w.place(t, "l3")
		w.wait(t, p.Name)
		rows := find(t, w, loans, "loan_id")
		require.Equal(t, []CurrentLoan{{"l1", "m1", "pending"}, {"l2", "m1", "pending"}, {"l3", "m1", "pending"}}, rows)
	})
}

// A job builds before a deployment, and changes nothing over; the next program takes
// what it has built. Manual leaves the change to an operator.
func TestBuild_IsReadyBeforeTheDeployment(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		old, _ := currentLoans(1)
		w.place(t, "l1")
		w.run(t, old)
		w.wait(t, old.Name)
		next, _ := dueLoans(func(p *projection.Projection) { p.Manual, p.Units = true, w.program(t).units })
		var told atomic.Int64
		require.NoError(t, projection.Build(t.Context(), next, func(p projection.Progress) { told.Store(int64(p.Version)) }))
		require.Equal(t, int64(2), told.Load())
		require.Equal(t, []string{"1 v1 live", "2 v2 ready"}, w.list(t))
		next.Units = nil
		n := w.program(t)
		n.run(t, next)
		w.place(t, "l2")
		n.wait(t, next.Name)
		require.Equal(t, []string{"1 v1 live", "2 v2 ready"}, w.list(t))
		eventually(t, func() bool { return projection.Switch(t.Context(), w.p, next.Name, 2, false, "ada") == nil })
		require.Equal(t, []string{"1 v1 old", "2 v2 live"}, w.list(t))
		require.ErrorContains(t, projection.Build(t.Context(), projection.Projection{Name: "x"}, nil), "needs its Units")
	})
}

// A program of the new version keeps the old tables up to date while it builds, with Previous.
func TestPrevious_IsKeptUpToDate(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		old, _ := currentLoans(1)
		_, stop := w.run(t, old)
		stop()
		next, _ := dueLoans(func(p *projection.Projection) { p.Previous, p.Manual = &old, true })
		r, _ := w.program(t).run(t, next)
		w.place(t, "l1")
		eventually(t, func() bool { return len(w.view(t, "SELECT loan_id FROM current_loans")) == 1 })
		eventually(t, func() bool { return fmt.Sprint(r.Feeding()) == "[current-loans__1 current-loans__2]" })
	})
}

// frozenOwner has two events, and is frozen before it commits them.
func (w *world) frozenOwner(t *testing.T, p projection.Projection) (hand *projection.Hand, commit func() error) {
	t.Helper()
	w.place(t, "l1", "l2")
	of := w.of(t, p)
	projection.Slow(of)
	hand, ok, err := projection.Take(t.Context(), of, 0)
	require.NoError(t, err)
	require.True(t, ok)
	n, commit := hand.Read(t.Context())
	require.Equal(t, 2, n)
	return hand, commit
}

// model/projection.pml, NOFENCE: who was frozen while another took its shard
// commits nothing, although it doesn't know of that yet.
// Conformance: N5.
func TestRace_AFrozenOwnerCommitsNothing(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		p, _ := currentLoans(1)
		_, late := w.frozenOwner(t, p)

		other := w.of(t, p)
		var b *projection.Hand
		eventually(t, func() (ok bool) {
			var err error
			b, ok, err = projection.Take(t.Context(), other, 0)
			require.NoError(t, err)
			return ok
		})
		_, ok, err := projection.Take(t.Context(), w.of(t, p), 0)
		require.NoError(t, err)
		require.False(t, ok, "it has an owner")
		_, commit := b.Read(t.Context())
		require.NoError(t, commit())
		w.do(t, "l1", LoanReturned{"l1"})
		_, commit = b.Read(t.Context())
		require.NoError(t, commit())
		require.Equal(t, []string{"l2"}, w.view(t, "SELECT loan_id FROM current_loans"))
		require.ErrorIs(t, late(), projection.ErrFenced)
		require.Equal(t, []string{"l2"}, w.view(t, "SELECT loan_id FROM current_loans"))
	})
}

// model/projection.pml, TWOTX: effect and position are one transaction. If the one can't be
// stored, as if the program had ended before it, the other isn't there.
func TestRace_EffectAndPositionCommitTogether(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		p, _ := currentLoans(1)
		w.place(t, "l1")
		h, _, err := projection.Take(t.Context(), w.of(t, p), 0)
		require.NoError(t, err)
		exec := func(query string) {
			_, err := w.p.DB().ExecContext(t.Context(), query)
			require.NoError(t, err)
		}
		drop := "DROP TRIGGER no ON projection_positions"
		if w.p.DB().Dialect().Name() == dialect.SQLite {
			drop = "DROP TRIGGER no"
			exec("CREATE TRIGGER no BEFORE UPDATE ON projection_positions WHEN NEW.position <> OLD.position BEGIN SELECT RAISE(ABORT, 'not now'); END")
		} else {
			exec("CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not now'; END $$")
			exec("CREATE TRIGGER no BEFORE UPDATE ON projection_positions FOR EACH ROW WHEN (NEW.position <> OLD.position) EXECUTE FUNCTION no()")
		}
		_, commit := h.Read(t.Context())
		require.ErrorContains(t, commit(), "not now")
		require.Empty(t, w.view(t, "SELECT loan_id FROM current_loans"))
		exec(drop)
		feed(t, h)
		require.Equal(t, []string{"l1"}, w.view(t, "SELECT loan_id FROM current_loans"))
	})
}

// two are builds 1 and 2 of versions 1 and 2, in the hands of a test.
func two(t *testing.T, w *world) (next *projection.Projections, a, b *projection.Hand) {
	t.Helper()
	old, _ := currentLoans(1)
	newer, _ := dueLoans()
	next = w.of(t, newer)
	a, _, err := projection.Take(t.Context(), w.of(t, old), 0)
	require.NoError(t, err)
	b, _, err = projection.Take(t.Context(), next, 0)
	require.NoError(t, err)
	return next, a, b
}

func feed(t *testing.T, h *projection.Hand) {
	t.Helper()
	_, commit := h.Read(t.Context())
	require.NoError(t, commit())
}

// model/projection.pml, NOFREEZE and LOOKFIRST: a batch of the live build that commits
// while another is about to take its place counts: the view never goes back.
// Conformance: N5.
func TestRace_ASwitchWaitsForTheBatchOfTheLiveBuild(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.place(t, "l1")
		next, a, b := two(t, w)
		feed(t, a)
		feed(t, b)
		require.NoError(t, projection.CaughtUp(t.Context(), next, 0))
		w.place(t, "l2")
		if w.p.DB().Dialect().Name() == dialect.SQLite { // where a batch is over before anybody looks
			feed(t, a)
			require.ErrorContains(t, projection.ChangeOver(t.Context(), next, 0, b.Build()), "build 2 has come to position 1, and what is in use to 2")
			feed(t, b)
			require.NoError(t, projection.ChangeOver(t.Context(), next, 0, b.Build()))
			return
		}
		// The batch has its lock on the position, and commits while the switch waits.
		tx, err := w.p.DB().BeginTx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { _ = tx.Rollback() }()
		_, err = tx.ExecContext(t.Context(), "UPDATE projection_positions SET position = position + 1 WHERE build = ?", a.Build())
		require.NoError(t, err)
		changed := make(chan error, 1)
		go func() { changed <- projection.ChangeOver(t.Context(), next, 0, b.Build()) }()
		waits(t, w, 1, changed)
		require.NoError(t, tx.Commit())
		require.ErrorContains(t, <-changed, "build 2 has come to position 1, and what is in use to 2")
		require.Equal(t, []string{"1 v1 live", "2 v2 ready"}, w.list(t))

		// What is frozen waits for the new one, and for the view.
		go func() { changed <- projection.ChangeOver(t.Context(), next, 0, b.Build()) }()
		feed(t, b)
		require.NoError(t, <-changed)
	})
}

// watched calls after behind each query, with its text.
type watched struct {
	uow.Provider
	after func(query string)
}

func (w *watched) DB() *bun.DB { return w.Provider.DB().WithQueryHook(w) }

func (w *watched) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context { return ctx }

func (w *watched) AfterQuery(_ context.Context, e *bun.QueryEvent) { w.after(e.Query) }

// Who is stopped while a switch waits for the new build isn't told to wait, or to take it as it is.
func TestSwitch_OneThatIsStoppedSaysSo(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		if w.p.DB().Dialect().Name() == dialect.SQLite {
			return // where a switch waits for nobody
		}
		w.place(t, "l1")
		next, a, b := two(t, w)
		feed(t, a)
		feed(t, b)
		require.NoError(t, projection.CaughtUp(t.Context(), next, 0))
		w.place(t, "l2")
		feed(t, a)
		ctx, stop := context.WithCancelCause(t.Context())
		defer stop(nil)
		interrupted := errors.New("interrupted")
		p := &watched{w.p, func(query string) {
			if strings.Contains(query, "min(position)") {
				stop(interrupted)
			}
		}}
		err := projection.Switch(ctx, p, "current-loans", b.Build(), false, "ada")
		require.ErrorIs(t, err, interrupted)
		require.NotContains(t, err.Error(), "--stale")
		require.Equal(t, []string{"1 v1 live", "2 v2 ready"}, w.list(t))
		feed(t, b)
		require.NoError(t, projection.Switch(t.Context(), w.p, "current-loans", b.Build(), false, "ada"))
	})
}

// waits waits until so many transactions wait for a lock on projections. One that ends
// without waiting fails the test at once.
func waits(t *testing.T, w *world, n int, ended ...chan error) {
	t.Helper()
	eventually(t, func() bool {
		var have int
		for _, c := range ended {
			select {
			case err := <-c:
				t.Fatalf("it has waited for nobody, and ended with: %v", err)
			default:
			}
		}
		require.NoError(t, w.p.Reader().NewRaw("SELECT count(*) FROM pg_locks AS l WHERE NOT granted AND EXISTS (SELECT 1 FROM pg_locks AS h WHERE h.pid = l.pid AND h.granted AND h.relation IN ('projections'::regclass, 'projection_positions'::regclass))").
			Scan(t.Context(), &have))
		return have >= n
	})
}

// model/projection.pml, NOLIVE: of two changes the second one looks again which build is
// live: it is newer by now.
func TestRace_TheSecondOfTwoSwitchesLooksAgain(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		next, a, b := two(t, w)
		feed(t, a)
		feed(t, b)
		newest, _ := dueLoans(func(p *projection.Projection) { p.Version = 3 })
		third := w.of(t, newest)
		c, _, err := projection.Take(t.Context(), third, 0)
		require.NoError(t, err)
		feed(t, c)
		for _, ps := range []*projection.Projections{next, third} {
			require.NoError(t, projection.CaughtUp(t.Context(), ps, 0))
		}
		if w.p.DB().Dialect().Name() == dialect.SQLite {
			require.NoError(t, projection.ChangeOver(t.Context(), third, 0, c.Build()))
			require.ErrorIs(t, projection.ChangeOver(t.Context(), next, 0, b.Build()), projection.ErrNot)
			return
		}
		// Both wait for the rows of the builds; to 3 comes first.
		tx, err := w.p.DB().BeginTx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { _ = tx.Rollback() }()
		_, err = tx.ExecContext(t.Context(), "SELECT 1 FROM projections WHERE build = 1 FOR UPDATE")
		require.NoError(t, err)
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { first <- projection.ChangeOver(t.Context(), third, 0, c.Build()) }()
		waits(t, w, 1, first)
		go func() { second <- projection.ChangeOver(t.Context(), next, 0, b.Build()) }()
		waits(t, w, 2, first, second)
		require.NoError(t, tx.Commit())
		require.NoError(t, <-first)
		require.ErrorIs(t, <-second, projection.ErrNot)
		require.Equal(t, []string{"1 v1 old", "2 v2 ready", "3 v3 live"}, w.list(t))
	})
}

// changedOver has build 2 in use, of a newer version, and nobody who feeds any.
func changedOver(t *testing.T, w *world, newer projection.Projection) *projection.Projections {
	t.Helper()
	_, a, b := two(t, w)
	feed(t, a)
	feed(t, b)
	next := w.of(t, newer)
	require.NoError(t, projection.CaughtUp(t.Context(), next, 0))
	require.NoError(t, projection.ChangeOver(t.Context(), next, 0, b.Build()))
	_, err := w.p.DB().ExecContext(t.Context(), "UPDATE projection_positions SET locked_until = ?", bun.Safe(past(w)))
	require.NoError(t, err)
	return next
}

// model/projection.pml, DROPLOOK: what an operator has gone back to isn't removed, although
// its time was over when somebody looked.
func TestRace_ABuildThatIsInUseAgainStays(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		newer, _ := dueLoans(func(p *projection.Projection) { p.KeepOld = time.Millisecond })
		next := changedOver(t, w, newer)
		if w.p.DB().Dialect().Name() == dialect.SQLite {
			require.NoError(t, projection.Switch(t.Context(), w.p, newer.Name, 1, false, "ada"))
			require.NoError(t, projection.Clean(t.Context(), next, 0))
			require.Equal(t, []string{"1 v1 live", "2 v2 old"}, w.list(t))
			return
		}
		tx, err := w.p.DB().BeginTx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { _ = tx.Rollback() }()
		_, err = tx.ExecContext(t.Context(), "SELECT 1 FROM projections WHERE build = 1 FOR UPDATE")
		require.NoError(t, err)
		switched, cleaned := make(chan error, 1), make(chan error, 1)
		go func() { switched <- projection.Switch(t.Context(), w.p, newer.Name, 1, false, "ada") }()
		waits(t, w, 1, switched)
		go func() { cleaned <- projection.Clean(t.Context(), next, 0) }()
		waits(t, w, 2, switched, cleaned)
		require.NoError(t, tx.Commit())
		require.NoError(t, <-switched)
		require.NoError(t, <-cleaned)
		require.Equal(t, []string{"1 v1 live", "2 v2 old"}, w.list(t))
		require.Empty(t, w.view(t, "SELECT loan_id FROM current_loans"))
	})
}

// What an older version has not finished is kept for as long as what was in use.
func TestClean_WhatAnOlderVersionHasNotFinishedGoes(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		newer, _ := dueLoans(func(p *projection.Projection) { p.KeepOld = time.Hour })
		next := changedOver(t, w, newer)
		began := func(ago time.Duration) {
			_, err := w.p.DB().ExecContext(t.Context(), "UPDATE projections SET status = 'building', old_at = NULL, began_at = "+dbtime.In(w.p.DB().Dialect(), -ago)+" WHERE build = 1")
			require.NoError(t, err)
		}
		began(59 * time.Minute)
		require.NoError(t, projection.Clean(t.Context(), next, 0))
		require.Equal(t, []string{"1 v1 building", "2 v2 live"}, w.list(t))
		began(61 * time.Minute)
		require.NoError(t, projection.Clean(t.Context(), next, 0))
		require.Equal(t, []string{"2 v2 live"}, w.list(t))
	})
}

func past(w *world) string {
	if w.p.DB().Dialect().Name() == dialect.SQLite {
		return "''"
	}
	return "'-infinity'"
}

// Who may read the view, still may; a column of another type takes a new view.
func TestSwitch_KeepsRightsOnTheView(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		if w.p.DB().Dialect().Name() == dialect.SQLite {
			t.Log("SQLite knows no rights")
			return
		}
		old, _ := currentLoans(1)
		_, stop := w.run(t, old)
		stop()
		_, err := w.p.DB().ExecContext(t.Context(), "GRANT SELECT ON current_loans TO PUBLIC")
		require.NoError(t, err)
		type Numbered struct {
			Added    int    `bun:",pk"`
			Status   int    // of another type
			LoanID   string // in another place
			MemberID string
		}
		table := projection.NewTable[Numbered]("current_loans")
		next := projection.Projection{Name: old.Name, Version: 2, Tables: []projection.Definition{table}, Handlers: []projection.Handler{
			projection.On(func(ctx context.Context, e LoanPlaced) error {
				return table.Put(ctx, Numbered{1, 2, e.LoanID, e.MemberID})
			}),
		}}
		w.place(t, "l1")
		w.program(t).run(t, next)
		w.becomes(t, "1 v1 old", "2 v2 live")
		eventually(t, func() bool { return len(w.view(t, "SELECT loan_id FROM current_loans")) == 1 })
		var columns, granted string
		require.NoError(t, w.p.Reader().NewRaw("SELECT string_agg(attname, ' ' ORDER BY attnum), max(relacl::text) FROM pg_attribute JOIN pg_class AS c ON c.oid = attrelid WHERE attrelid = 'current_loans'::regclass AND attnum > 0").
			Scan(t.Context(), &columns, &granted))
		require.Equal(t, "loan_id member_id status added", columns)
		require.Contains(t, granted, ",=r/")
	})
}
