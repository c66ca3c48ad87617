package uow_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/uow"
)

// The application's own statements commit with the unit, behind its aggregates, in
// their order; what reads the transaction sees them.
func TestExec(t *testing.T) {
	require.ErrorIs(t, uow.Exec(t.Context(), "DELETE FROM totals"), uow.ErrNone)
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		ctx := t.Context()
		_, err := w.owner.ExecContext(ctx, "CREATE TABLE totals (name text PRIMARY KEY, n bigint, big boolean, at timestamptz, raw text)")
		require.NoError(t, err)
		count := func() (n int) {
			require.NoError(t, w.db.Reader().QueryRowContext(ctx, "SELECT COALESCE(sum(n), 0) FROM totals").Scan(&n))
			return n
		}
		const add = "INSERT INTO totals (name, n, big, at, raw) VALUES (?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET n = totals.n + excluded.n"
		both := func(ctx context.Context) error {
			a := newAccount("a")
			a.Deposit(1)
			return errors.Join(
				uow.Exec(ctx, add, "it's\\ \"one\"", 1, true, time.Now(), nil),
				w.save(ctx, a),
				uow.Exec(ctx, add, "it's\\ \"one\"", int64(2), false, time.Now(), "$1 ?"),
				uow.Exec(ctx, "UPDATE totals SET raw = 'it is' WHERE n = ?", 3),
			)
		}
		errNo := errors.New("no")
		require.ErrorIs(t, w.units.Do(ctx, func(ctx context.Context) error { return errors.Join(both(ctx), errNo) }), errNo)
		require.Zero(t, count())

		w.db.texts = nil
		require.NoError(t, w.units.Do(ctx, both))
		require.Equal(t, 3, count())
		require.Len(t, w.events(t), 1)

		require.NoError(t, w.units.Do(ctx, func(ctx context.Context) error {
			if err := uow.Exec(ctx, add, "two", 5, true, time.Now(), nil); err != nil {
				return err
			}
			db, err := uow.DB(ctx)
			if err != nil {
				return err
			}
			var n int
			if err := db.QueryRowContext(ctx, "SELECT n FROM totals WHERE name = 'two'").Scan(&n); err != nil || n != 5 {
				return errors.Join(err, errNo)
			}
			return uow.Exec(ctx, add, "two", 1, true, time.Now(), nil)
		}))
		require.Equal(t, 9, count(), "each was sent once")

		err = w.units.Do(ctx, func(ctx context.Context) error { return uow.Exec(ctx, "INSERT INTO totals (name) VALUES (?)", "two") })
		require.Error(t, err, "it is the unit's error")
		require.NoError(t, w.units.Do(ctx, func(ctx context.Context) error { return uow.Exec(ctx, "DELETE FROM totals WHERE name = ?", "two") }))
		require.Equal(t, 3, count())
	})
}

// N11: an argument that can't be stored is named, and its unit is doomed. bun would
// write an error of its own into the SQL, and leave out what is too many.
func TestExec_N11_ArgumentsThatCannotBeStored(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		_, err := w.owner.ExecContext(t.Context(), "CREATE TABLE totals (name text)")
		require.NoError(t, err)
		for want, args := range map[string][]any{
			`argument 1 of "INSERT INTO totals VALUES (?)" has a NUL byte`:                           {"a\x00b"},
			`argument 1 of "INSERT INTO totals VALUES (?)" is not UTF-8`:                             {"a\xffb"},
			`argument 1 of "INSERT INTO totals VALUES (?)" can't be written as SQL: no value`:        {broken{}},
			`argument 1 of "INSERT INTO totals VALUES (?)" can't be written as SQL: bun: string con`: {bun.List([]string{"a", "a\x00b"})},
			`argument 1 of "INSERT INTO totals VALUES (?)" is a chan int, which can't be written`:    {make(chan int)},
			`2 arguments for 1 times ? in`:                                                           {"a", "b"},
			`0 arguments for 1 times ? in`:                                                           {},
		} {
			err := w.units.Do(t.Context(), func(ctx context.Context) error {
				require.ErrorContains(t, uow.Exec(ctx, "INSERT INTO totals VALUES (?)", args...), want)
				return nil
			})
			_, doomed := errors.AsType[*uow.DoomedError](err)
			require.True(t, doomed, "%v", err)
		}
		require.NoError(t, w.units.Do(t.Context(), func(ctx context.Context) error {
			return errors.Join(
				uow.Exec(ctx, "INSERT INTO totals VALUES (?)", "'?!(no error)"),
				uow.Exec(ctx, "INSERT INTO totals SELECT name FROM totals WHERE name IN (?)", bun.List([]string{"'?!(no error)", "b"})),
			)
		}))
		var n int
		require.NoError(t, w.db.Reader().QueryRowContext(t.Context(), "SELECT count(*) FROM totals").Scan(&n))
		require.Equal(t, 2, n)
	})
}

// broken is an argument without a value.
type broken struct{}

func (broken) Value() (driver.Value, error) { return nil, errors.New("no value") }
