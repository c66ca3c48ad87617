package dbtx_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbtest"
	"github.com/waybill-go/waybill/internal/dbtx"
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
