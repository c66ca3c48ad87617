package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/examples/ordering/ordering"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/sqlite"
)

// An engine changes orders as well. Who places them cancels what has changed in the
// meantime, and leaves what was released.
func TestPlace_MeetsAnEngineThatWasFaster(t *testing.T) {
	t.Parallel()
	db, err := sqlite.Open(t.Context(), sqlite.Config{Path: filepath.Join(t.TempDir(), "ordering.db")})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	units, err := uow.New(uow.Config{Domain: ordering.Domain, Providers: []uow.Provider{db}})
	require.NoError(t, err)
	require.NoError(t, engine.Migrate(t.Context(), units))
	orders := repository.New[*ordering.Order](units)

	// cancel does so after the engine was faster.
	cancel := func(faster func(*ordering.Order) error) (done bool, stdout, stderr string) {
		o, err := ordering.Place("c-1", ordering.Line{Article: "tea", Quantity: 2, Amount: 901})
		require.NoError(t, err)
		require.NoError(t, orders.Save(t.Context(), o))
		var out, told bytes.Buffer
		w := &writing{units: units, orders: orders, stdout: &out, stderr: &told}
		met := false
		done, err = w.change(t.Context(), o.ID(), func(o *ordering.Order) error {
			if !met {
				met = true
				require.NoError(t, orders.Update(t.Context(), o.ID(), faster))
			}
			return o.Cancel("changed my mind")
		})
		require.NoError(t, err)
		return done, out.String(), told.String()
	}
	done, stdout, stderr := cancel(func(o *ordering.Order) error { return o.AddNote("a gift") })
	require.True(t, done)
	require.EqualValues(t, 3, decode[committed](t, strings.TrimSpace(stdout)).Version)
	require.Empty(t, stderr)

	done, stdout, stderr = cancel((*ordering.Order).Release)
	require.False(t, done)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "too late: ordering: the order is released for shipping")
}
