package uow_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/uow"
)

// A statement that would begin or end the transaction is refused, and the unit can't commit
// any more, also where nobody looks at the error: what belongs together stays together.
func TestStatementEndsTransaction(t *testing.T) {
	errNo := errors.New("no")
	ways := map[string]func(ctx context.Context, query string) error{
		"Exec": func(ctx context.Context, query string) error { return uow.Exec(ctx, query) },
		"DB": func(ctx context.Context, query string) error {
			db, err := uow.DB(ctx)
			if err == nil {
				_, err = db.ExecContext(ctx, query)
			}
			return err
		},
		"query": func(ctx context.Context, query string) error {
			db, err := uow.DB(ctx)
			if err != nil {
				return err
			}
			var n int
			return db.QueryRowContext(ctx, query).Scan(&n)
		},
	}
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		for name, way := range ways {
			for _, query := range []string{"COMMIT", "rollback", "/* now */ BEGIN", "END"} {
				a := newAccount(name + query)
				a.Deposit(1)
				for end, of := range map[string]error{"commits": nil, "rolls back": errNo} {
					err := w.units.Do(t.Context(), func(ctx context.Context) error {
						require.NoError(t, errors.Join(w.save(ctx, a), uow.Flush(ctx)))
						require.ErrorContains(t, way(ctx, query), "is no statement for a unit of work", name, query)
						return of
					})
					require.Error(t, err, name, query, end)
				}
			}
		}
		require.Empty(t, w.events(t))
		require.NoError(t, w.units.Do(t.Context(), func(ctx context.Context) error {
			db, err := uow.DB(ctx)
			require.NoError(t, err)
			for _, query := range []string{"SAVEPOINT part", "ROLLBACK TO SAVEPOINT part", "RELEASE part"} {
				_, err := db.ExecContext(ctx, query)
				require.NoError(t, err)
			}
			a := newAccount("whole")
			a.Deposit(1)
			return w.save(ctx, a)
		}))
		require.Len(t, w.events(t), 1)
	})
}
