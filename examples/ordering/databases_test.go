package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/engine/config"
	"github.com/waybill-go/waybill/examples/ordering/ordering"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
)

// The pieces of docs/guides/several-databases.md.
func TestSeveralDatabases(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "waybill.yaml")
	require.NoError(t, os.WriteFile(path, []byte(`domain: ordering
providers:
  default: {dialect: sqlite, path: `+filepath.Join(dir, "default.db")+`}
  archive: {dialect: sqlite, path: `+filepath.Join(dir, "archive.db")+`}
`), 0o600))
	f, err := config.Parse(path)
	require.NoError(t, err)
	s, err := f.OpenDatabases(t.Context(), ordering.Domain, program{}.kinds())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close(context.Background())) })
	require.NoError(t, engine.Migrate(t.Context(), s.Units))

	a, err := ordering.Place("c", ordering.Line{Article: "book", Quantity: 1, Amount: 100})
	require.NoError(t, err)
	b, err := ordering.Place("c", ordering.Line{Article: "pen", Quantity: 1, Amount: 100})
	require.NoError(t, err)
	current, past := repositories(s.Units)
	require.NoError(t, both(t.Context(), s.Units, current, past, a, b))
	_, err = current.Get(t.Context(), a.ID())
	require.NoError(t, err)
	_, err = past.Get(t.Context(), b.ID())
	require.NoError(t, err)
	_, err = current.Get(t.Context(), b.ID())
	require.Error(t, err, "it is in the other database")
}

func repositories(units *uow.Manager) (current, past *repository.Repository[*ordering.Order]) {
	current = repository.New[*ordering.Order](units) // in the default provider
	past = repository.New[*ordering.Order](units, repository.In("archive"))
	return current, past
}

func both(ctx context.Context, units *uow.Manager, current, past *repository.Repository[*ordering.Order], a, b *ordering.Order) error {
	err := units.Do(ctx, func(ctx context.Context) error {
		return errors.Join(current.Save(ctx, a), past.Save(ctx, b))
	}, uow.AcrossProviders())
	if partial, ok := errors.AsType[*uow.PartialCommitError](err); ok {
		return repair(partial.Committed, partial.Failed) // yours
	}
	return err
}

func repair([]string, string) error { return nil }
