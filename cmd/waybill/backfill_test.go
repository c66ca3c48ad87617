package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
)

// withoutPartner is a database and its file: n orders, and a program that knew
// no external broker; the file's context is meant to get one.
func withoutPartner(t *testing.T, provider string, p uow.Provider, n int) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "waybill.yaml")
	text := fmt.Sprintf("domain: ordering\nproviders: {default: %s}\noutbox: {external_brokers: [{broker: partner, events: [placed]}]}\n", provider)
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	units, err := uow.New(uow.Config{Domain: ordering, Providers: []uow.Provider{p}})
	require.NoError(t, err)
	t.Setenv("WAYBILL_OUTBOX_EXTERNAL_BROKERS", "")
	require.Zero(t, waybill(t, "--config", file, "migrate").code)
	require.NoError(t, os.Unsetenv("WAYBILL_OUTBOX_EXTERNAL_BROKERS"))
	require.NoError(t, outboxdb.WritePublished(t.Context(), p.DB(), "ordering", []string{"placed"}))
	for range n {
		require.NoError(t, repository.New[*order](units).Save(t.Context(), newOrder()))
	}
	return file
}

func eachProvider(t *testing.T, f func(t *testing.T, provider string, p uow.Provider)) {
	t.Run("sqlite", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "a.db")
		require.Zero(t, waybill(t, "--dsn", path, "migrate").code)
		f(t, fmt.Sprintf("{dialect: sqlite, path: %q}", path), openFor(t, path))
	})
	t.Run("postgres", func(t *testing.T) {
		dsn := server(t)
		f(t, fmt.Sprintf("{dialect: postgres, dsn: %q}", dsn), openFor(t, dsn))
	})
}

// An operator adds a broker: every step that is missing is named, a count changes
// nothing, and a second run has nothing to do.
func TestBackfill_StepByStep(t *testing.T) {
	eachProvider(t, func(t *testing.T, provider string, p uow.Provider) {
		file := withoutPartner(t, provider, p, 3)
		r := waybill(t, "--config", file, "outbox", "backfill")
		require.Equal(t, exitFailed, r.code)
		require.Contains(t, r.stderr, "run `waybill migrate --set-targets ordering=default,partner --history copy`")
		r = waybill(t, "--config", file, "outbox", "backfill", "--dry-run")
		require.Zero(t, r.code, r.stderr)
		require.Regexp(t, `^Provider default: partner would get 3 events, raised from 20\S+Z to 20\S+Z\.\n$`, r.stdout)

		r = waybill(t, "--config", file, "migrate", "--set-targets", "ordering=default,partner")
		require.Equal(t, exitUsage, r.code)
		require.Contains(t, r.stderr, `provider "default": there are events of ordering which partner would not get: add --history copy, and`)
		require.Contains(t, r.stderr, "or --history none")
		r = waybill(t, "--config", file, "migrate", "--set-targets", "ordering=default,partner", "--history", "copy")
		require.Zero(t, r.code, r.stderr)
		require.Contains(t, r.stdout, "  ordering sends to default,partner.\n  partner is joining: `waybill outbox backfill` copies earlier events and makes it live.\n")
		r = waybill(t, "--config", file, "migrate", "--json")
		require.Contains(t, r.stdout, `"joining": [`)

		place(t, p, 1) // by a program that knows partner
		r = waybill(t, "--config", file, "--json", "outbox", "backfill", "partner", "--actor", "alice")
		require.Zero(t, r.code, r.stderr)
		require.Contains(t, waybill(t, "--config", file, "outbox", "log").stdout, "alice")
		require.Equal(t, exitUsage, waybill(t, "--config", file, "outbox", "backfill", "--actor", "").code)
		var a struct {
			Providers map[string]map[string]backfilled `json:"providers"`
		}
		require.NoError(t, json.Unmarshal([]byte(r.stdout), &a))
		got := a.Providers["default"]["partner"]
		require.EqualValues(t, 4, got.Events)
		require.True(t, got.Oldest.Before(*got.Latest))
		require.Contains(t, r.stderr, "partner: 4 events copied; waiting for writers with an old list of brokers to notice it\n")
		place(t, p, 1)
		stats, err := outboxdb.New(p.DB(), p.Reader()).Stats(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 5, stats["partner"].Counts[outbox.Pending])

		r = waybill(t, "--config", file, "outbox", "backfill")
		require.Equal(t, result{0, "Provider default: partner got 0 events in this run, and is live.\n", "partner: 0 events copied\n"}, r)
		r = waybill(t, "--config", file, "--json", "outbox", "backfill", "--dry-run")
		require.JSONEq(t, `{"providers": {"default": {"partner": {"events": 0, "oldest": null, "latest": null, "abandoned": 0}}}}`, r.stdout)
	})
}

// What was given up before the broker was taken out doesn't go there: people are told of it.
func TestBackfill_TellsOfWhatWasGivenUp(t *testing.T) {
	require.Equal(t, "partner got 0 events in this run, and is live. 1 row was given up when it was a target before, and not copied:"+
		" `waybill outbox list --target partner --status abandoned` shows which, and `waybill outbox retry` sends them behind the others.",
		backfillCmd{}.sentence("partner", outbox.Backfilled{Abandoned: 1}))
}

// A broker can come without the history, too, and then has none.
func TestMigrate_HistoryNone(t *testing.T) {
	eachProvider(t, func(t *testing.T, provider string, p uow.Provider) {
		file := withoutPartner(t, provider, p, 1)
		r := waybill(t, "--config", file, "migrate", "--set-targets", "ordering=default,partner", "--history", "none")
		require.Zero(t, r.code, r.stderr)
		require.NotContains(t, r.stdout, "joining")
		r = waybill(t, "--config", file, "migrate", "--set-targets", "ordering=default,partner")
		require.Zero(t, r.code, "none is added: %s", r.stderr)
		r = waybill(t, "--config", file, "outbox", "backfill")
		require.Equal(t, "Provider default: partner got 0 events in this run, and is live.\n", r.stdout)
	})
}

func TestBackfill_Usage(t *testing.T) {
	dir := t.TempDir()
	db, file := filepath.Join(dir, "a.db"), filepath.Join(dir, "waybill.yaml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, "domain: ordering\nproviders: {default: {dialect: sqlite, path: %q}}\n", db), 0o600))
	require.Zero(t, waybill(t, "--config", file, "migrate").code)
	for want, args := range map[string][]string{
		"needs --config with a domain":                            {"--dsn", db, "outbox", "backfill"},
		"the configuration file has no external broker partner":   {"--config", file, "outbox", "backfill", "partner"},
		"the configuration file has no external broker for order": {"--config", file, "outbox", "backfill"},
		"--history is about brokers that --set-targets adds":      {"--config", file, "migrate", "--history", "copy"},
		`must be one of "","copy","none" but got "all"`:           {"--config", file, "migrate", "--set-targets", "ordering=default", "--history", "all"},
		"--set-targets says that ordering sends to default,extra": {"--config", file, "migrate", "--set-targets", "ordering=default,extra", "--history", "copy"},
	} {
		r := waybill(t, args...)
		require.Equal(t, exitUsage, r.code, r.stderr)
		require.Contains(t, r.stderr, want)
		require.Empty(t, r.stdout)
	}
}

// copyRow stores a row n times more, each as a message of its own.
func copyRow(t *testing.T, p uow.Provider, n int) {
	t.Helper()
	b := &outboxdbtest.Bench{Store: outboxdb.New(p.DB(), p.Reader()), T: t, DB: p.DB()}
	all, err := b.Find(t.Context(), outbox.Filter{})
	require.NoError(t, err)
	m, err := b.Message(t.Context(), all[0].MessageID)
	require.NoError(t, err)
	copies := make([]outbox.Row, n)
	for i := range copies {
		id := uuid.Must(uuid.NewV7()).String()
		copies[i] = m.Rows[0].Row
		copies[i].ID, copies[i].MessageID = id, id
		copies[i].Payload = bytes.ReplaceAll(m.Rows[0].Payload, []byte(m.MessageID), []byte(id))
	}
	for part := range slices.Chunk(copies, 1000) {
		b.InsertRows(part...)
	}
}

// kill -9 costs nothing: the next run goes on, and each event is there once.
func TestBackfill_KilledProcess(t *testing.T) {
	eachProvider(t, func(t *testing.T, provider string, p uow.Provider) {
		file := withoutPartner(t, provider, p, 1)
		// Twelve transactions' worth, all of one order.
		copyRow(t, p, 6000)
		require.Zero(t, waybill(t, "--config", file, "migrate", "--set-targets", "ordering=default,partner", "--history", "copy").code)

		c := exec.CommandContext(t.Context(), binary, "--config", file, "outbox", "backfill")
		stderr, err := c.StderrPipe()
		require.NoError(t, err)
		require.NoError(t, c.Start())
		_, err = stderr.Read(make([]byte, 1)) // a transaction has ended
		require.NoError(t, err)
		require.NoError(t, c.Process.Kill())
		require.Error(t, c.Wait())

		r := waybill(t, "--config", file, "outbox", "backfill")
		require.Zero(t, r.code, r.stderr)
		ids := func(target string) (ids []string) {
			require.NoError(t, p.DB().NewRaw("SELECT message_id FROM outbox WHERE target_broker = ? ORDER BY seq", target).Scan(t.Context(), &ids))
			return ids
		}
		require.Len(t, ids("partner"), 6001)
		require.Equal(t, ids("default"), ids("partner"))
	})
}
