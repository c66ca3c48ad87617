package engine

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/processdb"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/process"
	"github.com/waybill-go/waybill/uow"
)

// oddID is an identity that has to be escaped in a path.
const oddID = "l/1 ?#%2F"

// begun stores processes of library.lending, the first one the oldest.
func (b *bench) begun(ids ...string) {
	b.t.Helper()
	for i, id := range ids {
		at := dbtime.Value(b.db.DB().Dialect(), time.Date(2026, 1, 2, 3, 4, i, 0, time.UTC))
		_, err := b.db.DB().ExecContext(b.t.Context(), "INSERT INTO processes (process, id, version, status, state, began_at, last_at, heard) VALUES ('library.lending', ?, 1, 'running', ?, ?, ?, ?)",
			id, `{"Card":"4111","Steps":[7]}`, at, at, `[{"at":"2026-01-02T03:04:05Z","type":"Library.LoanPlaced.v1","id":"m-1"}]`)
		require.NoError(b.t, err)
	}
}

func pathTo(id string) string { return "/api/processes/library.lending/" + url.PathEscape(id) }

// The list has the oldest first, with the counts of their kinds, those included that the
// engine runs and of which there are none; one is shown whole, without what is redacted.
func TestProcesses_OverHTTP(t *testing.T) {
	b := setup(t)
	checked := units(t, uow.Config{Domain: checks, Providers: []uow.Provider{b.db}})
	require.NoError(t, Migrate(t.Context(), checked))
	b.begun("l0", oddID, "l2")
	_, err := b.db.DB().ExecContext(t.Context(), "UPDATE processes SET status = 'ended', ended_at = last_at, forget_at = '2999-01-02T03:04:05.000Z' WHERE id = 'l2'")
	require.NoError(t, err)
	b.setTimer(timer(process.Owner("library.lending", oddID), time.Now().Add(time.Hour)))
	at := dbtime.Value(b.db.DB().Dialect(), time.Now())
	_, err = b.db.DB().ExecContext(t.Context(), "INSERT INTO dead_letters (id, subscription, topic, partition_key, key_id, message_id, headers, error, reason, attempts, first_at, last_at, status, holds)"+
		" VALUES (?, 'library.lending', 'billing.charge', ?1, ?1, 'm', '{}', 'no', 'failed', 8, ?2, ?2, 'parked', TRUE)", uuid.NewString(), oddID, at)
	require.NoError(t, err)
	cfg := b.guarded()
	cfg.Contexts = []Context{{Units: checked}}
	cfg.Server.ShowPayloads, cfg.Server.Redact = true, []string{"card"}
	e := b.start(cfg)

	var page processesReport
	require.Equal(t, 200, call(t, e, "GET", "/api/processes?limit=1&process=library.lending&status=running", "", &page))
	require.Len(t, page.Processes, 1)
	require.Equal(t, []string{"default", "library.lending", "l0", "running"}, []string{page.Processes[0].Provider, page.Processes[0].Process.Process, page.Processes[0].ID, page.Processes[0].Status})
	counts := page.Counts["default"]
	require.Greater(t, *counts["library.lending"].OldestSeconds, 1e6)
	lending := counts["library.lending"]
	lending.OldestSeconds = nil
	require.Equal(t, processdb.Stats{Running: 2, Ended: 1, Idle: 1}, lending)
	require.Equal(t, processdb.Stats{}, counts["checks.check"])
	next := page.Next["default"]
	page = processesReport{}
	require.Equal(t, 200, call(t, e, "GET", "/api/processes?provider=default&after="+url.QueryEscape(next), "", &page))
	require.Equal(t, []string{oddID, "l2"}, []string{page.Processes[0].ID, page.Processes[1].ID})
	require.NotNil(t, page.Processes[1].EndedAt)
	require.Empty(t, page.Next)
	require.Equal(t, 200, call(t, e, "GET", "/api/processes?idle=true", "", &page))
	require.Len(t, page.Processes, 1)
	require.Equal(t, 200, call(t, e, "GET", "/api/processes?until=2026-01-02T03:04:02Z&from=2026-01-02T03:04:01Z&id="+url.QueryEscape(oddID), "", &page))
	require.Len(t, page.Processes, 1)
	for _, path := range []string{"?after=7", "?after=0000-01-01T00:00:00Z,a,b", "?status=late", "?idle=no", "?limit=0"} {
		require.Contains(t, refused(t, e, 400, "GET", "/api/processes"+path, ""), "it takes")
	}

	var d processDetails
	require.Equal(t, 200, call(t, e, "GET", pathTo(oddID), "", &d))
	require.Equal(t, map[string]any{"Card": "[redacted]", "Steps": []any{7.0}}, d.State)
	require.Nil(t, d.StateHidden)
	require.Equal(t, "Library.LoanPlaced.v1", d.Heard[0].Type)
	require.Equal(t, "due", d.Timers[0].Name)
	require.Equal(t, "no", d.Letters[0].Error)
	require.EqualValues(t, 1, d.LettersTotal)
	require.Contains(t, refused(t, e, 404, "GET", pathTo("l9"), ""), "there is no process")
	require.Contains(t, refused(t, e, 404, "GET", pathTo("l0")+"?provider=other", ""), "there is no provider")
	require.Contains(t, refused(t, e, 400, "GET", pathTo("a\x00b"), ""), "id is not UTF-8 text without NUL")
	e.cfg.Server.ShowPayloads = false
	require.Equal(t, 200, call(t, e, "GET", pathTo("l0"), "", &d))
	require.Contains(t, *d.StateHidden, "server.show_payloads turns that on")
}

// S13: whose processes they are is content: those who don't see that get neither ids nor
// pages that begin behind one, may not search for one, and are shown none.
func TestProcesses_S13_WhoseTheyAreIsContent(t *testing.T) {
	b := setup(t)
	b.begun("loan-of-alice", "loan-of-bob")
	e := b.start(b.staffed())
	var page processesReport
	w := askWith(e.Handler(), "GET", "/api/processes?limit=1", "", as(reading))
	require.Equal(t, 200, w.Code)
	require.NotContains(t, w.Body.String(), "loan-of")
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &page))
	require.Equal(t, notShown, page.Processes[0].ID)
	require.Equal(t, map[string]string{"default": notShown}, page.Next)
	require.EqualValues(t, 2, page.Counts["default"]["library.lending"].Running)
	for _, path := range []string{"/api/processes?id=l1", "/api/processes?after=" + url.QueryEscape("2026-01-02T03:04:05Z,library.lending,l1")} {
		require.Equal(t, 403, askWith(e.Handler(), "GET", path, "", as(reading)).Code)
		require.Equal(t, 200, askWith(e.Handler(), "GET", path, "", as(operating)).Code)
	}
	for _, id := range []string{"loan-of-alice", "loan-of-nobody"} {
		require.Equal(t, 403, askWith(e.Handler(), "GET", pathTo(id), "", as(reading)).Code, "there or not")
	}
	free := b.make(b.config())
	w = askWith(free.Handler(), "GET", pathTo("loan-of-alice"), "", nil)
	require.Equal(t, 403, w.Code)
	require.Contains(t, w.Body.String(), "to see it, set server.token")
}

// An observatory shows them from the database alone, and says what is missing where it is
// older than they are.
func TestProcesses_InAnObservatory(t *testing.T) {
	b := setup(t)
	b.begun("l0")
	o, err := NewObservatory(ObservatoryConfig{Providers: []uow.Provider{b.db}, Server: b.guarded().Server})
	require.NoError(t, err)
	ask := func(path string) (int, string) {
		w := askWith(o.Handler(), http.MethodGet, path, "", as(token))
		return w.Code, w.Body.String()
	}
	code, text := ask("/api/processes")
	require.Equal(t, 200, code, text)
	require.Contains(t, text, `"running": 1`)
	code, _ = ask(pathTo("l0"))
	require.Equal(t, 200, code)
	_, err = b.db.DB().ExecContext(t.Context(), "ALTER TABLE processes RENAME TO gone")
	require.NoError(t, err)
	_, err = b.db.DB().ExecContext(t.Context(), "DELETE FROM waybill_migrations WHERE feature = 'process'")
	require.NoError(t, err)
	code, text = ask("/api/processes")
	require.Equal(t, 503, code)
	require.Contains(t, text, "tables of process are missing")
}

// A build whose process has another name says that those run on which the build before has
// begun, and nobody hears for, once no such build runs any more.
func TestProcesses_ThoseOfANameThatNoBuildHas(t *testing.T) {
	b := setup(t)
	exec := func(query string) {
		_, err := b.db.DB().ExecContext(t.Context(), query)
		require.NoError(t, err)
	}
	checked := units(t, uow.Config{Domain: checks, Providers: []uow.Provider{b.db}})
	require.NoError(t, Migrate(t.Context(), checked))
	exec("INSERT INTO processes (process, id, version, status, state) VALUES ('checks.look', 'c1', 1, 'running', '{}'), ('checks.check', 'c1', 1, 'running', '{}'), ('others.look', 'c1', 1, 'running', '{}')")
	exec("INSERT INTO subscription_runs (subscription, run, seen_at) VALUES ('checks.look.scales.parcel', 'checks/before', '2999-01-02T03:04:05.000Z')")
	cfg := b.config()
	cfg.Contexts = []Context{{Units: checked}}
	e := b.start(cfg)
	unheard := func() (text string) {
		for _, r := range e.diagnose(t.Context()).Reasons {
			if r.Code == "processes_unheard" {
				text = r.Text
			}
		}
		return text
	}
	waittest.Until(t, func() bool {
		counted, known := e.databases[0].unheard.get(t.Context())
		return known && counted.err == nil && slices.Contains(counted.value, "others.look")
	})
	require.Empty(t, unheard(), "a build that runs has it")
	exec("DELETE FROM subscription_runs WHERE run = 'checks/before'")
	waittest.Until(t, func() bool { return unheard() != "" })
	require.Contains(t, unheard(), "1 of its processes (checks.look) runs, and neither this build nor a program that runs has that process")
}
