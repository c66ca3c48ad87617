package projection_test

import (
	"context"
	"errors"
	"net/url"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/dbtest"
	"github.com/waybill-go/waybill/internal/netfault"
	"github.com/waybill-go/waybill/projection"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
)

// apart is a world, and a program in it whose requests can come late.
func apart(t *testing.T) (w, through *world, relay *netfault.Relay) {
	t.Helper()
	direct, cfg := dbtest.Postgres(t)
	w = newWorld(t, direct)
	u, err := url.Parse(cfg.DSN)
	require.NoError(t, err)
	relay, err = netfault.New(t.Context(), u.Host)
	require.NoError(t, err)
	t.Cleanup(relay.Close)
	u.Host = relay.Address
	cfg.DSN, cfg.MaxConns = u.String(), 4
	p, err := postgres.Open(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return w, (&world{p: p}).program(t), relay
}

// counted is a projection that says how often each event has taken effect.
func counted(before func(id string) error) projection.Projection {
	const table = "counted"
	return projection.Projection{
		Name: "counted", Tables: []projection.Definition{projection.SQL("CREATE TABLE {" + table + "} (loan_id TEXT PRIMARY KEY, n INTEGER NOT NULL)")},
		Handlers: []projection.Handler{projection.On(func(ctx context.Context, e LoanPlaced) error {
			if err := before(e.LoanID); err != nil {
				return err
			}
			return projection.Exec(ctx, "INSERT INTO {"+table+"} AS c (loan_id, n) VALUES (?, 1) ON CONFLICT (loan_id) DO UPDATE SET n = c.n + 1", e.LoanID)
		})},
	}
}

// model/projection.pml, NOFROM: a commit whose answer is lost, and which the server does later, when its owner has read the
// position and done the batch again under the same lease: what comes second changes nothing.
// Without the position in its condition the fence lets both through.
// Conformance: N5.
func TestBatch_ACommitThatComesLateHasNoSecondEffect(t *testing.T) {
	t.Parallel()
	w, through, relay := apart(t)
	direct, p := w.p, counted(func(string) error { return nil })
	hand, ok, err := projection.Take(t.Context(), through.of(t, p), 0)
	require.NoError(t, err)
	require.True(t, ok)
	w.place(t, "l1")
	_, commit := hand.Read(t.Context())
	require.NoError(t, commit())

	w.place(t, "l2")
	n, late := hand.Read(t.Context())
	require.Equal(t, 1, n)
	relay.Set(netfault.Late)
	var unknown *uow.CommitUnknownError
	require.ErrorAs(t, late(), &unknown)

	n, again := hand.Read(t.Context()) // from the position that the database has
	require.Equal(t, 1, n)
	require.NoError(t, again())
	w.place(t, "l3")
	_, commit = hand.Read(t.Context())
	require.NoError(t, commit())
	position, err := projection.Position(t.Context(), direct, p.Name, hand.Build())
	require.NoError(t, err)
	relay.Deliver()

	require.Equal(t, []string{"l1 1", "l2 1", "l3 1"}, w.view(t, "SELECT loan_id || ' ' || n FROM counted ORDER BY 1"))
	have, err := projection.Position(t.Context(), direct, p.Name, hand.Build())
	require.NoError(t, err)
	require.Equal(t, position, have, "it has not gone back")

	// It comes first: the one in its place is refused, which is no event's fault, and it goes on.
	w.place(t, "l4")
	_, late = hand.Read(t.Context())
	_, again = hand.Read(t.Context())
	relay.Set(netfault.Late)
	require.ErrorAs(t, late(), &unknown)
	relay.Deliver()
	refused := again()
	require.ErrorIs(t, refused, projection.ErrMoved)
	_, blamed := errors.AsType[*projection.HandlerError](refused)
	require.False(t, blamed)
	require.NoError(t, hand.Failed(t.Context(), refused))
	require.Empty(t, w.view(t, "SELECT failed_event FROM projection_positions WHERE tries > 0"))
	w.place(t, "l5")
	n, commit = hand.Read(t.Context())
	require.Equal(t, 1, n)
	require.NoError(t, commit())
	require.Equal(t, []string{"l1 1", "l2 1", "l3 1", "l4 1", "l5 1"}, w.view(t, "SELECT loan_id || ' ' || n FROM counted ORDER BY 1"))
}

// model/projection.pml, NOFENCE and FENCESANEW: a build that is removed leaves its number to the next one. Who was frozen since before that
// writes nothing into it, though it is the first owner of both, at the same position.
// Conformance: N5.
func TestRace_AFrozenOwnerOfARemovedBuildCommitsNothing(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		old, _ := currentLoans(1)
		a, late := w.frozenOwner(t, old)
		eventually(t, func() bool { return projection.Retire(t.Context(), w.p, old.Name, 0, "ada") == nil })

		newer, loans := currentLoans(2)
		newer.Handlers[0] = projection.On(func(ctx context.Context, e LoanPlaced) error {
			return loans.Put(ctx, CurrentLoan{e.LoanID, e.MemberID, "waiting"})
		})
		b, ok, err := projection.Take(t.Context(), w.of(t, newer), 0)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, a.Build(), b.Build())
		require.ErrorIs(t, late(), projection.ErrFenced)
		_, commit := b.Read(t.Context())
		require.NoError(t, commit())
		require.Equal(t, []string{"waiting", "waiting"}, w.view(t, "SELECT status FROM current_loans"))
	})
}

// A note that an event has failed, which the server does late, when the event has been handled
// after all: it says nothing of where the projection stands, and nobody can skip back by it.
// Conformance: N5.
func TestSkipEvent_ANoteOfAFailureThatComesLateTakesNobodyBack(t *testing.T) {
	t.Parallel()
	w, through, relay := apart(t)
	var failing atomic.Bool
	failing.Store(true)
	p := counted(func(id string) error {
		if id == "l2" && failing.Load() {
			return errors.New("no idea")
		}
		return nil
	})
	hand, ok, err := projection.Take(t.Context(), through.of(t, p), 0)
	require.NoError(t, err)
	require.True(t, ok)
	w.place(t, "l1", "l2")
	_, commit := hand.Read(t.Context())
	failed := commit()
	e, isFailure := errors.AsType[*projection.HandlerError](failed)
	require.True(t, isFailure, failed)
	relay.Set(netfault.Late)
	require.NoError(t, hand.Failed(t.Context(), failed))

	failing.Store(false)
	w.place(t, "l3")
	_, commit = hand.Read(t.Context())
	require.NoError(t, commit())
	relay.Deliver()
	list, err := projection.List(t.Context(), w.p)
	require.NoError(t, err)
	require.Nil(t, list[0].Failure)
	require.ErrorContains(t, projection.SkipEvent(t.Context(), w.p, p.Name, 1, e.Position, "ada"), "hasn't stopped at position")

	n, _ := hand.Read(t.Context())
	require.Zero(t, n)
	require.Equal(t, []string{"l1 1", "l2 1", "l3 1"}, w.view(t, "SELECT loan_id || ' ' || n FROM counted ORDER BY 1"))
}

// ran is a projection that was fed with one loan by a process that has stopped.
func (w *world) ran(t *testing.T) projection.Projection {
	t.Helper()
	p, _ := currentLoans(1)
	_, stop := w.run(t, p)
	w.place(t, "l1")
	w.wait(t, p.Name)
	stop()
	return p
}

// A process that was frozen since it saw that a build had caught up, and whose build was removed
// meanwhile, doesn't say that of the next one with its number.
// Conformance: N5.
func TestRace_ANoteOfACaughtUpBuildIsNotOfTheNextWithItsNumber(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.ran(t)
		newer, _ := currentLoans(2)
		ps := w.of(t, newer)
		hand, _, err := projection.Take(t.Context(), ps, 0)
		require.NoError(t, err)
		_, commit := hand.Read(t.Context())
		require.NoError(t, commit())
		late, err := projection.CatchUp(t.Context(), ps, 0)
		require.NoError(t, err)
		eventually(t, func() bool { return projection.Retire(t.Context(), w.p, newer.Name, hand.Build(), "ada") == nil })

		again, _, err := projection.Take(t.Context(), w.of(t, newer), 0)
		require.NoError(t, err)
		require.Equal(t, hand.Build(), again.Build())
		require.NoError(t, late())
		require.Equal(t, []string{"1 v1 live", "2 v2 building"}, w.list(t))
	})
}

// back makes of the database the one that it was when l1 was the last loan, as if a standby took
// over that had got no more: its numbers are given again.
func (w *world) back(t *testing.T, position int64) {
	t.Helper()
	for _, query := range []string{
		"UPDATE projection_positions SET position = ?0", "DELETE FROM history WHERE position > ?0", "DELETE FROM current_loans__1 WHERE loan_id <> 'l1'",
		"DELETE FROM documents WHERE id <> 'l1'", "SELECT setval('history_position', ?0)",
	} {
		_, err := w.p.DB().ExecContext(t.Context(), query, position)
		require.NoError(t, err)
	}
}

// The process lives through a restore, or a failover that loses commits: it goes by what the
// database has, whether it waits or is at work, and passes over nothing that gets an old number.
// Conformance: N5.
func TestFailover_ContinuesFromWhereTheDatabaseIs(t *testing.T) {
	t.Parallel()
	p, _ := dbtest.Postgres(t)
	w := newWorld(t, p)
	def, loans := currentLoans(1)
	w.run(t, def)
	w.place(t, "l1")
	w.wait(t, def.Name)
	before, err := projection.Position(t.Context(), w.p, def.Name, 1)
	require.NoError(t, err)

	w.place(t, "l2", "l3", "l4")
	w.wait(t, def.Name)
	w.back(t, before)
	w.place(t, "l5") // under a number that the process has passed
	eventually(t, func() bool { return len(find(t, w, loans, "loan_id")) == 2 })
	require.Equal(t, "l5", find(t, w, loans, "loan_id")[1].LoanID)

	w.place(t, "l6", "l7")
	w.wait(t, def.Name)
	w.back(t, before)
	tx, err := w.p.DB().BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	_, err = tx.ExecContext(t.Context(), "SELECT nextval('history_position'); LOCK TABLE history IN ROW EXCLUSIVE MODE")
	require.NoError(t, err)
	w.place(t, "l8")
	w.place(t, "l9", "l10", "l11") // past where the process was
	eventually(t, func() bool {
		position, err := projection.Position(t.Context(), w.p, def.Name, 1)
		return err == nil && position == before
	})
	require.Len(t, find(t, w, loans, "loan_id"), 1, "the transaction could still commit an event before them")
	require.NoError(t, tx.Rollback())
	w.wait(t, def.Name)
	require.Len(t, find(t, w, loans, "loan_id"), 5)
}
