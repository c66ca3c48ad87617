package sqlite_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/sqlite"
)

// N9: a unit that is begun inside another's function with the context from outside
// would wait for itself. It says so: at once where that is certain.
func TestOuterContext_N9_IsAnError(t *testing.T) {
	p, holder := held(t)
	require.NoError(t, holder.Rollback(t.Context()))
	sqlite.SetWriterTimeout(p, time.Hour)
	units := unitsOn(t, p)
	write := func(ctx context.Context) error {
		return units.Do(ctx, func(ctx context.Context) error { return uow.Exec(ctx, "INSERT INTO things (name) VALUES ('inner')") })
	}
	begin := func(ctx context.Context) error {
		return units.Do(ctx, func(ctx context.Context) error { _, err := uow.DB(ctx); return err })
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	type key struct{}
	derived, end := context.WithCancel(ctx)
	defer end()
	for name, c := range map[string]struct {
		inner  context.Context
		nested time.Duration
	}{
		"the very context":     {ctx, time.Hour},
		"one with a value":     {context.WithValue(ctx, key{}, 1), time.Hour},
		"one made of it":       {derived, 10 * time.Millisecond},
		"that of the program":  {context.Background(), 10 * time.Millisecond},
		"a detached one of it": {context.WithoutCancel(ctx), 10 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			sqlite.SetNestedTimeout(p, c.nested)
			for _, inner := range []func(context.Context) error{write, begin} {
				require.NoError(t, units.Do(ctx, func(unit context.Context) error {
					_, err := uow.DB(unit)
					require.NoError(t, err)
					require.ErrorIs(t, inner(c.inner), uow.ErrOuterContext)
					return inner(unit)
				}))
			}
		})
	}
	require.Len(t, written(t, p), 5, "those with the right context")
}

// N9: others that have the same context wait their turn: goroutines beside the unit,
// and such that its function has started.
func TestOuterContext_N9_OthersWait(t *testing.T) {
	p, holder := held(t)
	require.NoError(t, holder.Rollback(t.Context()))
	sqlite.SetNestedTimeout(p, time.Nanosecond)
	units := unitsOn(t, p)
	q := &queue{p: p}
	require.NoError(t, units.Do(t.Context(), func(ctx context.Context) error {
		_, err := uow.DB(ctx)
		require.NoError(t, err)
		q.join(t.Context(), t, func(ctx context.Context) error {
			return units.Do(ctx, func(ctx context.Context) error {
				_, err := uow.DB(ctx)
				return err
			})
		})
		q.join(t.Context(), t, func(ctx context.Context) error {
			return units.Do(ctx, func(ctx context.Context) error { return uow.Exec(ctx, "INSERT INTO things (name) VALUES ('other')") })
		})
		return uow.Exec(ctx, "INSERT INTO things (name) VALUES ('first')")
	}))
	q.wg.Wait()
	require.Empty(t, q.errs)
	require.Equal(t, []string{"first", "other"}, written(t, p))

	// A unit of its own within another, which doesn't hold the writer, is as good as any.
	require.NoError(t, units.Do(t.Context(), func(context.Context) error {
		return units.Do(t.Context(), func(ctx context.Context) error { return uow.Exec(ctx, "INSERT INTO things (name) VALUES ('apart')") })
	}))
}

func unitsOn(t *testing.T, p uow.Provider) *uow.Manager {
	t.Helper()
	units, err := uow.New(uow.Config{Domain: domain.MustNew("test"), Providers: []uow.Provider{p}, NoOutbox: true})
	require.NoError(t, err)
	return units
}
