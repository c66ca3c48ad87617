package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
)

// An operator brings what was raised before into a history that was turned on late.
func TestHistory_HeadAndImport(t *testing.T) {
	eachProvider(t, func(t *testing.T, provider string, p uow.Provider) {
		file := filepath.Join(t.TempDir(), "waybill.yaml")
		require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, "domain: ordering\nproviders: {default: %s}\n", provider), 0o600))
		units, err := uow.New(uow.Config{Domain: ordering, Providers: []uow.Provider{p}})
		require.NoError(t, err)
		require.NoError(t, engine.Migrate(t.Context(), units))
		require.NoError(t, repository.New[*order](units).Save(t.Context(), newOrder()))
		r := waybill(t, "--config", file, "history", "import", "--dry-run")
		require.Equal(t, exitFailed, r.code)
		require.Contains(t, r.stderr, "the database keeps no history of context ordering")
		_, err = p.DB().ExecContext(t.Context(), `UPDATE outbox_settings SET value = '{"broker": "default", "external": [], "history": "on"}' WHERE name = 'targets:ordering'`)
		require.NoError(t, err)

		r = waybill(t, "history", "import", "--dry-run")
		require.Equal(t, exitUsage, r.code)
		r = waybill(t, "--config", file, "history", "import", "--yes", "--actor", "ada")
		require.Zero(t, r.code, r.stderr)
		require.Regexp(t, `^Provider default: 1 event is in the outbox that the history doesn't have, the first raised at 20\S+Z\.\nProvider default: 1 event was imported, the first raised at 20\S+Z; by ada\.\n$`, r.stdout)
		r = waybill(t, "--config", file, "--json", "history", "import", "--yes")
		require.Zero(t, r.code, r.stderr)
		require.Contains(t, r.stdout, `"events": 0`)
		r = waybill(t, "--config", file, "history", "head")
		require.Zero(t, r.code, r.stderr)
		require.Regexp(t, `LOWEST +HEAD +KEPT\n-1 +0 +ordering\n`, r.stdout)
		r = waybill(t, "--config", file, "--json", "history", "head")
		require.Contains(t, r.stdout, `"ordering": "on"`)
		r = waybill(t, "--config", file, "outbox", "log")
		require.Regexp(t, `ada +history-import +1 `, r.stdout)
	})
}
