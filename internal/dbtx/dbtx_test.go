package dbtx_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbtest"
	"github.com/waybill-go/waybill/internal/dbtx"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
)

func counted(t *testing.T, p uow.Provider) (n int) {
	t.Helper()
	require.NoError(t, p.DB().NewRaw("SELECT count(*) FROM things").Scan(t.Context(), &n))
	return n
}

// All of a transaction takes effect, or nothing does: also of one that panics.
func TestRun_AllOrNothing(t *testing.T) {
	server, _ := dbtest.Postgres(t)
	for name, p := range map[string]uow.Provider{"postgres": server, "sqlite": dbtest.SQLite(t)} {
		t.Run(name, func(t *testing.T) {
			_, err := p.DB().ExecContext(t.Context(), "CREATE TABLE things (id int)")
			require.NoError(t, err)
			insert := func(tx bun.Tx) error {
				_, err := tx.ExecContext(t.Context(), "INSERT INTO things VALUES (1)")
				return err
			}
			errElse := errors.New("changed its mind")
			require.ErrorIs(t, dbtx.Run(t.Context(), p.DB(), func(tx bun.Tx) error { return errors.Join(insert(tx), errElse) }), errElse)
			require.PanicsWithValue(t, "no", func() {
				_ = dbtx.Run(t.Context(), p.DB(), func(tx bun.Tx) error {
					require.NoError(t, insert(tx))
					panic("no")
				})
			})
			require.Zero(t, counted(t, p))
			require.NoError(t, dbtx.Run(t.Context(), p.DB(), insert))
			require.Equal(t, 1, counted(t, p))
		})
	}
}

// A statement sees what was committed while an earlier one waited, also where a role or a
// database has another default.
func TestRun_SeesWhatWasCommittedMeanwhile(t *testing.T) {
	p, _ := dbtest.Postgres(t, func(c *postgres.Config) { c.DSN += "?default_transaction_isolation=serializable" })
	_, err := p.DB().ExecContext(t.Context(), "CREATE TABLE things (id int); INSERT INTO things VALUES (1)")
	require.NoError(t, err)
	require.NoError(t, dbtx.Run(t.Context(), p.DB(), func(tx bun.Tx) error {
		var before, after int
		require.NoError(t, tx.NewRaw("SELECT count(*) FROM things").Scan(t.Context(), &before))
		_, err := p.DB().ExecContext(t.Context(), "UPDATE things SET id = 2; INSERT INTO things VALUES (3)")
		require.NoError(t, err)
		require.NoError(t, tx.NewRaw("SELECT count(*) FROM things").Scan(t.Context(), &after))
		require.Equal(t, []int{1, 2}, []int{before, after})
		_, err = tx.ExecContext(t.Context(), "UPDATE things SET id = 4 WHERE id = 2")
		return err
	}))
}

// Who gives up while a transaction commits is told what became of it: otherwise a command that
// was interrupted would say that it has done less than it has.
func TestRun_ACommitIsWaitedFor(t *testing.T) {
	p, _ := dbtest.Postgres(t)
	_, err := p.DB().ExecContext(t.Context(), "CREATE TABLE things (id int); CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(4711); RETURN NULL; END $$;"+
		" CREATE CONSTRAINT TRIGGER slowly AFTER INSERT ON things DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION slowly()")
	require.NoError(t, err)
	other, err := p.DB().BeginTx(t.Context(), nil)
	require.NoError(t, err)
	_, err = other.ExecContext(t.Context(), "SELECT pg_advisory_xact_lock(4711)")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		done <- dbtx.Run(ctx, p.DB(), func(tx bun.Tx) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO things VALUES (1)")
			return err
		})
	}()
	waittest.Until(t, func() (commits bool) {
		require.NoError(t, p.DB().NewRaw("SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE query = 'commit' AND wait_event = 'advisory' AND application_name = current_setting('application_name'))").Scan(t.Context(), &commits))
		return commits
	}, "it commits")
	cancel()
	require.NoError(t, other.Rollback())
	require.NoError(t, <-done)
	require.Equal(t, 1, counted(t, p))
	require.ErrorIs(t, dbtx.Run(ctx, p.DB(), func(bun.Tx) error { return nil }), context.Canceled)
}

// A context that has ended by the end of do undoes it.
func TestRun_WhoHasGivenUpChangesNothing(t *testing.T) {
	server, _ := dbtest.Postgres(t)
	for name, p := range map[string]uow.Provider{"postgres": server, "sqlite": dbtest.SQLite(t)} {
		t.Run(name, func(t *testing.T) {
			_, err := p.DB().ExecContext(t.Context(), "CREATE TABLE things (id int)")
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			err = dbtx.Run(ctx, p.DB(), func(tx bun.Tx) error {
				_, err := tx.ExecContext(ctx, "INSERT INTO things VALUES (1)")
				cancel()
				return err
			})
			require.EqualError(t, err, context.Canceled.Error())
			require.Zero(t, counted(t, p))
		})
	}
}

// Of a commit whose answer was lost nobody knows; one of what had been rolled back wasn't done.
func TestRun_WhetherALostCommitWasDoneIsUnknown(t *testing.T) {
	p, _ := dbtest.Postgres(t)
	_, err := p.DB().ExecContext(t.Context(), "CREATE TABLE things (id int); CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$;"+
		" CREATE CONSTRAINT TRIGGER lose AFTER INSERT ON things DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION lose()")
	require.NoError(t, err)
	commit := func(do func(tx bun.Tx) error) *dbtx.CommitError {
		failed, is := errors.AsType[*dbtx.CommitError](dbtx.Run(t.Context(), p.DB(), do))
		require.True(t, is)
		return failed
	}
	lost := commit(func(tx bun.Tx) error {
		_, err := tx.ExecContext(t.Context(), "INSERT INTO things VALUES (1)")
		return err
	})
	require.True(t, lost.Unknown())
	require.ErrorContains(t, lost, "whether it was committed isn't known, as the connection was lost; look before it is done again: ")
	undone := commit(func(tx bun.Tx) error { return tx.Rollback() })
	require.False(t, undone.Unknown())
	require.EqualError(t, undone, sql.ErrTxDone.Error())
}
