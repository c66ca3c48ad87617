package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
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
		require.Regexp(t, `^Provider default: 1 event is in the outbox that the history doesn't have, the first raised at 20\S+Z\.\nProvider default: 1 event was imported, the first raised at 20\S+Z; action \d+, by ada\.\n$`, r.stdout)
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

// An operator has events published again, and a partner that joins get the whole history.
func TestHistory_RepublishAndBackfill_U14(t *testing.T) {
	eachProvider(t, func(t *testing.T, provider string, p uow.Provider) {
		write := func(external string) string {
			file := filepath.Join(t.TempDir(), "waybill.yaml")
			require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, "domain: ordering\nproviders: {default: %s}\n%s", provider, external), 0o600))
			return file
		}
		file := write("")
		units, err := uow.New(uow.Config{Domain: ordering, Providers: []uow.Provider{p}, History: true})
		require.NoError(t, err)
		require.NoError(t, engine.Migrate(t.Context(), units))
		ctx := domain.WithOrigin(t.Context(), domain.Origin{CausationID: "k"})
		require.NoError(t, repository.New[*order](units).Save(ctx, newOrder()))
		for _, table := range []string{"outbox_queue", "outbox_messages"} { // published, and removed
			_, err = p.DB().ExecContext(t.Context(), "DELETE FROM "+table)
			require.NoError(t, err)
		}
		r := waybill(t, "--config", file, "history", "republish")
		require.Equal(t, exitUsage, r.code)
		require.Contains(t, r.stderr, "republish what? Choose events by --causation")
		r = waybill(t, "--config", file, "history", "republish", "--causation", "other", "--yes")
		require.Zero(t, r.code, r.stderr)
		require.Equal(t, "Provider default: 0 events are chosen; the outbox gets 0 rows for them.\n", r.stdout)
		r = waybill(t, "--config", file, "history", "republish", "--causation", "k", "--yes", "--actor", "ada")
		require.Zero(t, r.code, r.stderr)
		require.Regexp(t, `^Provider default: 1 event is chosen; the outbox gets 1 row for them\.\nProvider default: 1 row was stored, up to position 1; action 1, by ada\.\n$`, r.stdout)
		r = waybill(t, "--config", file, "--json", "history", "republish", "--causation", "k", "--dry-run")
		require.Contains(t, r.stdout, `"waiting": 1`)
		r = waybill(t, "--config", file, "outbox", "log")
		require.Regexp(t, `ada +history-republish +1 +.*"causation": ?"k"`, r.stdout)

		file = write("outbox: {external_brokers: [partner]}\n")
		_, err = p.DB().ExecContext(t.Context(), `UPDATE outbox_settings SET value = '{"broker": "default", "external": ["partner"], "joining": ["partner"], "history": "on"}' WHERE name = 'targets:ordering'`)
		require.NoError(t, err)
		_, err = p.DB().ExecContext(t.Context(), "INSERT INTO outbox_settings (name, value) VALUES ('backfill:ordering:partner', '0')")
		require.NoError(t, err)
		r = waybill(t, "--config", file, "history", "republish", "--causation", "k", "--yes")
		require.Contains(t, r.stderr, "broker partner is joining: run `waybill outbox backfill` first")
		r = waybill(t, "--config", file, "outbox", "backfill", "--from-history", "--dry-run")
		require.Zero(t, r.code, r.stderr)
		require.Regexp(t, `^Provider default: partner would get 1 event, raised from `, r.stdout)
	})
}
