package projection_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/dbtest"
	"github.com/waybill-go/waybill/internal/handling"
	"github.com/waybill-go/waybill/projection"
	"github.com/waybill-go/waybill/uow"
)

// What is committed is shown, in the order of the history, and read by its own writer.
func TestProjection_ShowsWhatWasCommitted(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.place(t, "before")
		p, loans := currentLoans(1)
		r, stop := w.run(t, p)
		w.wait(t, p.Name)
		require.Equal(t, []CurrentLoan{{"before", "m1", "pending"}}, find(t, w, loans, "loan_id"))
		w.place(t, "l1", "l2", "l3")
		w.do(t, "l1", LoanMoved{"l1", "active"}, LoanNoted{"l1"})
		w.do(t, "l2", LoanReturned{"l2"})
		w.wait(t, p.Name)
		want := []CurrentLoan{{"before", "m1", "pending"}, {"l1", "m1", "active"}, {"l3", "m1", "pending"}}
		require.Equal(t, want, find(t, w, loans, "loan_id"))
		require.Equal(t, []string{"before", "l1", "l3"}, w.view(t, "SELECT loan_id FROM current_loans ORDER BY 1"))
		one, err := loans.Find(t.Context(), w.units, func(q *bun.SelectQuery) *bun.SelectQuery { return q.Where("status = ?", "active") })
		require.NoError(t, err)
		require.Equal(t, want[1:2], one)
		require.Equal(t, []string{"current-loans__1"}, r.Feeding())

		stop()
		w.place(t, "l4")
		w.do(t, "before", LoanReturned{"before"})
		again := w.program(t)
		again.run(t, p)
		again.wait(t, p.Name)
		require.Len(t, find(t, again, loans, "loan_id"), 3, "it goes on where it was, at once: the lease was given back")
		list, err := projection.List(t.Context(), w.p)
		require.NoError(t, err)
		require.Equal(t, int64(8), list[0].Events)
		require.Equal(t, list[0].Head, list[0].Position)
		require.False(t, list[0].Behind)
		require.Zero(t, list[0].ETA)
	})
}

// S2-40: a batch has the effect of its events one after the other, whatever they do to
// which rows: with one event in a batch and with all of them.
// Conformance: C-94.
func TestBatch_HasTheEffectOfItsEventsInOrder(t *testing.T) {
	type Row struct {
		A int    `bun:",pk"`
		B string `bun:",pk"`
		N int
		S string `bun:",nullzero"`
	}
	each(t, func(t *testing.T, w *world) {
		const keys = 4
		key := func(n int) []any { return []any{n % keys, fmt.Sprint("?k'", n%3)} }
		row := func(n int) Row { return Row{n % keys, fmt.Sprint("?k'", n%3), n, ""} }
		run := func(name string, batch int) []Row {
			var missed atomic.Bool
			tables := map[string]string{"name": "t_" + name, "more": "u_" + name}
			table := projection.NewTable[Row](tables["name"])
			p := projection.Projection{
				Name: name, Batch: batch,
				Tables: []projection.Definition{table, projection.SQL("CREATE TABLE {"+tables["more"]+"} (n INTEGER NOT NULL)", "CREATE INDEX {"+tables["more"]+"}_n ON {"+tables["more"]+"} (n)")},
				Handlers: []projection.Handler{projection.On(func(ctx context.Context, e LoanMoved) error {
					var n int
					_, err := fmt.Sscan(e.Status, &n)
					if err != nil {
						return err
					}
					switch n % 8 {
					case 7:
						return table.Upsert(ctx, key(n/7), func(r *Row) { r.N, r.S = r.N+1, r.S+"u" })
					case 0:
						return table.Remove(ctx, key(n/7))
					case 1, 2:
						err := table.Change(ctx, key(n/7), func(r *Row) { r.N, r.S = r.N*2, r.S+"c" })
						if missing, ok := errors.AsType[*projection.MissingRowError](err); ok {
							missed.Store(true)
							return table.Put(ctx, Row{A: missing.Key.([]any)[0].(int), B: missing.Key.([]any)[1].(string), N: -1})
						}
						return err
					case 3:
						return projection.Exec(ctx, "UPDATE {"+tables["name"]+"} SET n = n + ? WHERE a = ?", n, n/7%keys)
					case 4:
						return projection.Exec(ctx, "INSERT INTO {"+tables["more"]+"} (n) VALUES (?)", n)
					}
					return table.Put(ctx, row(n/7))
				})},
			}
			w.run(t, p)
			w.wait(t, name)
			require.True(t, missed.Load(), "a change of a row that isn't there is an error")
			return find(t, w, table, "a, b")
		}
		events := []any{LoanMoved{"l1", "1"}} // a change, and there is no row
		seed := uint32(time.Now().UnixNano())
		t.Logf("seed %d", seed)
		for range 200 {
			seed = seed*1664525 + 1013904223
			events = append(events, LoanMoved{"l1", fmt.Sprint(seed >> 8 % 200)})
		}
		w.do(t, "l1", events...)
		w.do(t, "l1", events[:100]...)
		want := run("one", 1)
		require.NotEmpty(t, want)
		require.Equal(t, want, run("seven", 7))
		require.Equal(t, want, run("all", 1000))
		require.Equal(t, w.view(t, "SELECT n FROM u_one ORDER BY 1"), w.view(t, "SELECT n FROM u_all ORDER BY 1"))
	})
}

// A handler can do nothing that would happen again with the next rebuild.
func TestHandler_HasNoEffectButItsTables(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		var got atomic.Pointer[[]string]
		p, loans := currentLoans(1)
		p.Handlers = []projection.Handler{projection.On(func(ctx context.Context, e LoanPlaced) error {
			m, ok := domain.MetadataFrom(ctx)
			most, _ := handling.Of(ctx)
			_, db := uow.DB(ctx)
			_, read := loans.Find(ctx, w.units, nil)
			all := []string{
				w.units.Do(ctx, func(context.Context) error { return nil }).Error(), db.Error(), w.loans.Save(ctx, &Loan{Root: domain.NewRoot()}).Error(),
				uow.Exec(ctx, "DELETE FROM documents").Error(), read.Error(), fmt.Sprint(m.AggregateID, ok, m.Version),
				fmt.Sprintf("to the database a handler of %v", most),
			}
			got.Store(&all)
			return nil
		})}
		w.run(t, p)
		w.place(t, "l1")
		w.wait(t, p.Name)
		all := *got.Load()
		for _, text := range all[:4] {
			require.Contains(t, text, "projection: current-loans has no effect but its tables, as it runs again with every rebuild; do this in a subscription")
		}
		require.Contains(t, all[4], "use Change")
		require.Equal(t, "l1true 1", all[5])
		require.Equal(t, "to the database a handler of 1m0s", all[6])
		require.ErrorContains(t, loans.Put(t.Context(), CurrentLoan{}), "for handlers")
	})
}

// An event that can't be handled stops the projection, visibly: what was before it is
// shown, and what is behind it isn't. It goes on by itself when the event can be handled,
// or when an operator goes past it.
// Conformance: N5.
func TestProjection_AFailingEventStopsIt(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		var failing atomic.Bool
		failing.Store(true)
		p, loans := currentLoans(1)
		p.Handlers[1] = projection.On(func(ctx context.Context, e LoanMoved) error {
			// What it has written before it fails has no effect.
			if err := loans.Put(ctx, CurrentLoan{LoanID: "half"}); err != nil || failing.Load() {
				return errors.Join(err, errors.New("no idea"))
			}
			if e.Status == "crash" {
				panic("crash")
			}
			return loans.Remove(ctx, "half")
		})
		w.place(t, "l1", "l2")
		w.do(t, "l1", LoanMoved{"l1", "odd"})
		w.place(t, "l3")
		_, stop := w.run(t, p)
		var list []projection.Progress
		eventually(t, func() bool {
			var err error
			list, err = projection.List(t.Context(), w.p)
			require.NoError(t, err)
			return len(list) == 1 && list[0].Failure != nil && list[0].Failure.Tries > 1
		})
		f := *list[0].Failure
		require.Contains(t, f.Event, "Library.LoanMoved.v1 ")
		require.Equal(t, "no idea", f.Error)
		require.Equal(t, []string{"l1", "l2"}, w.view(t, "SELECT loan_id FROM current_loans ORDER BY 1"))
		require.Equal(t, f.Position-1, list[0].Position)
		require.True(t, list[0].Behind)
		require.Positive(t, list[0].BehindSeconds)
		behind, ok := errors.AsType[*projection.BehindError](projection.Wait(t.Context(), w.units, p.Name))
		require.True(t, ok, "it waits for no operator")
		require.Equal(t, "no idea", behind.Stopped)

		require.NoError(t, projection.WaitFor(t.Context(), w.units, p.Name, f.Position-1), "the event before has been handled")
		behind, ok = errors.AsType[*projection.BehindError](projection.WaitFor(t.Context(), w.units, p.Name, f.Position))
		require.True(t, ok)
		require.Equal(t, []int64{f.Position - 1, f.Position}, []int64{behind.Have, behind.Want})

		failing.Store(false)
		w.wait(t, p.Name)
		require.NoError(t, projection.WaitFor(t.Context(), w.units, p.Name, f.Position))
		require.Equal(t, []string{"l1", "l2", "l3"}, w.view(t, "SELECT loan_id FROM current_loans ORDER BY 1"))
		list, err := projection.List(t.Context(), w.p)
		require.NoError(t, err)
		require.Nil(t, list[0].Failure)

		w.do(t, "l1", LoanMoved{"l1", "crash"})
		w.place(t, "l4")
		eventually(t, func() bool {
			list, err = projection.List(t.Context(), w.p)
			require.NoError(t, err)
			return list[0].Failure != nil
		})
		require.Contains(t, list[0].Failure.Error, "crash")
		require.ErrorContains(t, projection.SkipEvent(t.Context(), w.p, p.Name, 1, list[0].Failure.Position+1, "ada"), "hasn't stopped at position")
		require.ErrorContains(t, projection.SkipEvent(t.Context(), w.p, p.Name, 1, list[0].Failure.Position, ""), "Actor is missing")
		require.NoError(t, projection.SkipEvent(t.Context(), w.p, p.Name, 1, list[0].Failure.Position, "ada"))
		w.wait(t, p.Name)
		require.Equal(t, []string{"l1", "l2", "l3", "l4"}, w.view(t, "SELECT loan_id FROM current_loans ORDER BY 1"))
		stop()
		var actor string
		require.NoError(t, w.p.Reader().NewRaw("SELECT actor FROM outbox_actions WHERE action = 'projections-skip'").Scan(t.Context(), &actor))
		require.Equal(t, "ada", actor)
	})
}

// What the database refuses belongs to one event of a batch, which is found; effects and
// position of the others are committed together.
func TestProjection_WhatTheDatabaseRefusesStopsAtItsEvent(t *testing.T) {
	type Member struct {
		MemberID string `bun:",pk"`
		Name     string `bun:",unique"`
	}
	each(t, func(t *testing.T, w *world) {
		members := projection.NewTable[Member]("members")
		p := projection.Projection{Name: "members", Tables: []projection.Definition{members}, Handlers: []projection.Handler{
			projection.On(func(ctx context.Context, e LoanPlaced) error { return members.Put(ctx, Member{e.LoanID, e.MemberID}) }),
		}}
		w.do(t, "l1", LoanPlaced{"l1", "ada"})
		w.do(t, "l2", LoanPlaced{"l2", "bob"})
		w.do(t, "l3", LoanPlaced{"l3", "ada"})
		w.do(t, "l4", LoanPlaced{"l4", "zoe"})
		w.run(t, p)
		var list []projection.Progress
		eventually(t, func() bool {
			var err error
			list, err = projection.List(t.Context(), w.p)
			require.NoError(t, err)
			return len(list) == 1 && list[0].Failure != nil
		})
		require.Equal(t, list[0].Position+1, list[0].Failure.Position)
		require.Equal(t, int64(2), list[0].Events)
		require.Equal(t, []string{"ada", "bob"}, w.view(t, "SELECT name FROM members ORDER BY 1"))
		require.NoError(t, projection.SkipEvent(t.Context(), w.p, p.Name, 1, list[0].Failure.Position, "ada"))
		w.wait(t, p.Name)
		require.Equal(t, []string{"ada", "bob", "zoe"}, w.view(t, "SELECT name FROM members ORDER BY 1"))
	})
}

// A database that takes no writes, as with a full disk or as a standby, or lets no new connection
// in, as its password was changed, is the fault of no event that somebody might skip: the
// projection says what it waits for, and goes on.
// Conformance: N5.
func TestProjection_ADatabaseThatTakesNoWritesIsNoEventsFault(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"25006", "28P01"} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			owner, _ := dbtest.Postgres(t)
			w := newWorld(t, owner)
			p, _ := currentLoans(1)
			r, _ := w.run(t, p)
			w.place(t, "l1")
			w.wait(t, p.Name)
			exec := func(statement string) {
				_, err := owner.DB().ExecContext(t.Context(), statement)
				require.NoError(t, err)
			}
			exec("CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'it takes no writes' USING ERRCODE = '" + code + "'; END $$")
			exec("CREATE TRIGGER refuse BEFORE INSERT ON " + projection.Physical("current_loans", 1) + " FOR EACH STATEMENT EXECUTE FUNCTION refuse()")
			w.place(t, "l2")
			eventually(t, func() bool { return r.Trouble() != nil })
			require.Equal(t, code, r.Trouble().Code)
			exec("DROP TRIGGER refuse ON " + projection.Physical("current_loans", 1))
			w.wait(t, p.Name)
			require.Equal(t, []string{"l1", "l2"}, w.view(t, "SELECT loan_id FROM current_loans ORDER BY 1"))
			eventually(t, func() bool { return r.Trouble() == nil })
		})
	}
}

// Aggregates are divided among shards, and each is in order.
func TestProjection_Shards(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		p, loans := currentLoans(1, func(p *projection.Projection) { p.Shards, p.Batch = 3, 2 })
		w.run(t, p)
		other := w.program(t)
		other.run(t, p)
		for n := range 12 {
			id := fmt.Sprint("l", n)
			w.do(t, id, LoanPlaced{id, "m"}, LoanMoved{id, "a"})
			w.do(t, id, LoanMoved{id, "b"})
		}
		w.wait(t, p.Name)
		rows := find(t, w, loans, "loan_id")
		require.Len(t, rows, 12)
		for _, r := range rows {
			require.Equal(t, "b", r.Status)
		}
	})
}

// Mistakes are found at the start, all at once.
func TestNew_FindsMistakes(t *testing.T) {
	w := newWorld(t, dbtest.SQLite(t))
	type Bad struct {
		ID   int64 `bun:",pk,autoincrement"`
		what string
	}
	_ = Bad{what: ""}
	type None struct{ A string }
	type At struct {
		At time.Time `bun:",pk"`
	}
	type Unknown struct{}
	good, _ := currentLoans(1)
	elsewhere, _ := currentLoans(1, func(p *projection.Projection) {
		p.Name = "other"
		p.Previous = &projection.Projection{Name: "other", Version: 2}
	})
	_, err := projection.New(w.units, []projection.Projection{
		good, good, elsewhere,
		{Name: "Bad Name", Version: -1, Provider: "nowhere"},
		{Name: "empty", Batch: -1, KeepOld: -1, Shards: 100},
		{Name: "odd", Tables: []projection.Definition{
			projection.NewTable[Bad]("bad", "nothing"), projection.NewTable[None]("none"), projection.NewTable[None]("no-name"), projection.NewTable[At]("at"), projection.SQL("CREATE TABLE x (y int)"),
		}, Handlers: []projection.Handler{{}, projection.On[LoanPlaced](nil), projection.On(func(context.Context, Unknown) error { return nil }), good.Handlers[0], good.Handlers[0]}},
	}, nil)
	for _, text := range []string{
		`there are two of this name`, `table current_loans is one of projection current-loans, too`, `Previous has version 2, which is not before 1`,
		`the Name "Bad Name" is not like`, `Version is -1`, `has no provider "nowhere"`, `it has no Tables`, `Batch is -1`, `KeepOld is -1ns`, `Shards is 100: give 1 to 64`, `it has no Handlers`,
		`is numbered by the database`, `Bad.what is unexported`, `names the column "nothing"`, `None has no primary key`, `At.At is a time.Time, which a database may keep as another one`, `"no-name" is not like current_loans`, `names no table`,
		`Handlers[0] is empty`, `Handlers[1] has no function`, `projection_test.Unknown`, `there are two for Library.LoanPlaced`,
	} {
		require.ErrorContains(t, err, text)
	}
}

// Names find their way: what isn't there, or isn't kept, is said at the start.
func TestStart_Refuses(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		units, err := uow.New(uow.Config{Domain: library, Providers: []uow.Provider{w.p}})
		require.NoError(t, err)
		p, _ := currentLoans(1)
		start := func(units *uow.Manager, p projection.Projection) error {
			ps, err := projection.New(units, []projection.Projection{p}, nil)
			require.NoError(t, err)
			return ps.Runner(w.p.Name(), nil).Start(t.Context())
		}
		require.EqualError(t, start(units, p), "projection current-loans reads the history of library, which isn't kept: set uow.Config.History, or history: true in the configuration file")
		_, stop := w.run(t, p)
		stop()

		type Longer struct {
			LoanID   string `bun:",pk"`
			MemberID string
			Due      string
		}
		longer := projection.NewTable[Longer]("current_loans")
		other := p
		other.Tables = []projection.Definition{longer}
		err = start(w.units, other)
		require.ErrorContains(t, err, `projection current-loans: the tables of version 1 in the database have no column "due": raise Version`)
		require.ErrorContains(t, err, `have the column "status", and this build has not: raise Version`)
		other.Version = 2
		require.ErrorContains(t, start(w.units, other), `projection current-loans: version 2 has no column "status" that version 1 has, and others read its view: keep it, or give the projection a new Name`)
		other.Tables = []projection.Definition{projection.NewTable[Longer]("loans_by_member")}
		require.ErrorContains(t, start(w.units, other), `version 2 has no table current_loans that version 1 has`)

		_, err = w.p.DB().ExecContext(t.Context(), "CREATE TABLE loans_by_member (id INTEGER)")
		require.NoError(t, err)
		other.Name = "loans-by-member"
		require.ErrorContains(t, start(w.units, other), "there is a table of this name: rename it, or drop it")
	})
}
