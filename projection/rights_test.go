package projection_test

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/dbtest"
	"github.com/waybill-go/waybill/internal/migrate"
	"github.com/waybill-go/waybill/internal/rights"
	"github.com/waybill-go/waybill/internal/rights/rightstest"
	"github.com/waybill-go/waybill/projection"
)

// S1: who runs projections makes their tables. A role that may not is told so when it begins,
// with the grant; one that has nothing to make now runs, and is warned; and the doctor's
// check finds it as soon as there are projections.
func TestProjection_S1_TheRightToMakeTables(t *testing.T) {
	t.Parallel()
	owner, cfg := dbtest.Postgres(t)
	own := newWorld(t, owner)
	role := rightstest.As(t, owner, cfg, migrate.Engine, rights.Features()...)
	w := (&world{p: role}).program(t)
	g := rights.Grantee{Role: migrate.Engine, Name: "waybill_test_engine"}
	lacks := func() []rights.Lack {
		all, err := rights.Missing(t.Context(), owner.DB(), g)
		require.NoError(t, err)
		return all
	}
	require.Empty(t, lacks(), "without projections nobody needs it")

	def, _ := currentLoans(1)
	log := &lines{}
	start := func() error {
		ps, err := projection.New(w.units, []projection.Projection{def}, slog.New(slog.NewTextHandler(log, nil)))
		require.NoError(t, err)
		projection.Fast(ps)
		r := ps.Runner(role.Name(), nil)
		if err := r.Start(t.Context()); err != nil {
			return err
		}
		own.place(t, "l1")
		w.wait(t, def.Name)
		return r.Stop(t.Context())
	}
	err := start()
	require.ErrorContains(t, err, "projection current-loans: provider ")
	require.ErrorContains(t, err, "makes their tables and views, and may not: as the owner of the schema, GRANT CREATE ON SCHEMA ")
	require.Empty(t, own.list(t))

	_, err = owner.DB().ExecContext(t.Context(), "INSERT INTO projections (projection, build, version, context, status) VALUES ('current-loans', 1, 1, 'library', 'building')")
	require.NoError(t, err)
	found := lacks()
	require.Len(t, found, 1)
	require.Equal(t, []string{"CREATE", "an engine that runs projections"}, []string{found[0].What, found[0].Who})
	require.ErrorContains(t, start(), found[0].Grant, "it is the same")
	_, err = owner.DB().ExecContext(t.Context(), found[0].Grant)
	require.NoError(t, err)
	require.Empty(t, lacks())
	require.NoError(t, start())

	_, err = owner.DB().ExecContext(t.Context(), "REVOKE CREATE ON SCHEMA "+found[0].Where[len("schema "):]+" FROM waybill_test_engine")
	require.NoError(t, err)
	require.False(t, log.have("may not make tables")())
	require.NoError(t, start(), "there is nothing to make")
	require.True(t, log.have("a rebuild or a new version would not begin")())
}
