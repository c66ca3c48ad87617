package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/sqlite"
)

// observe starts the command, which ends with status 0 when it is told to.
func observe(t *testing.T, args ...string) (url, token string) {
	t.Helper()
	c := exec.CommandContext(context.WithoutCancel(t.Context()), binary, append(args, "--json", "observatory")...)
	stderr, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	require.NoError(t, err)
	complain := func() string {
		text, err := os.ReadFile(stderr.Name())
		require.NoError(t, err)
		return string(text)
	}
	c.Dir, c.Stderr = t.TempDir(), stderr
	stdout, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	t.Cleanup(func() {
		require.NoError(t, c.Process.Signal(syscall.SIGTERM))
		require.NoError(t, c.Wait(), complain())
		require.NoError(t, stderr.Close())
	})
	var said struct{ URL, Token string }
	require.NoError(t, json.NewDecoder(stdout).Decode(&said), complain())
	return said.URL, said.Token
}

func ask(t *testing.T, method, url, token, body string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	require.NoError(t, err)
	r.Header.Set("Content-Type", "application/json")
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(r)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(text)
}

func TestObservatory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ordering.db")
	db, err := sqlite.Open(t.Context(), sqlite.Config{Path: file})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	units, err := uow.New(uow.Config{Domain: ordering, Providers: []uow.Provider{db}, External: []outbox.Target{{Broker: "partner"}}})
	require.NoError(t, err)
	require.NoError(t, engine.Migrate(t.Context(), units))
	place(t, db, 3)

	url, token := observe(t, "--dsn", file)
	code, page := ask(t, "GET", url, "", "")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, page, "Waybill observatory")
	code, text := ask(t, "GET", url+"api/outbox", "", "") // S2: reading needs the token that it made
	require.Equal(t, http.StatusUnauthorized, code, text)
	code, text = ask(t, "GET", url+"api/outbox", token, "")
	require.Equal(t, http.StatusOK, code, text)
	require.Contains(t, text, `"pending": 3`)

	const abandon = `{"filter": {"target": "partner"}, "actor": "ann"}`
	code, text = ask(t, "POST", url+"api/outbox/messages/abandon", "", abandon)
	require.Equal(t, http.StatusUnauthorized, code, text)
	code, text = ask(t, "POST", url+"api/outbox/messages/abandon", token, abandon)
	require.Equal(t, http.StatusOK, code, text)
	require.Contains(t, text, `"changed": 3`)
}

// With a database away the page has the others; which one is missing is told.
func TestObservatory_WithADatabaseAway(t *testing.T) {
	file, between := twoDatabases(t)
	between.Cut()
	url, token := observe(t, "--config", file)
	code, text := ask(t, "GET", url+"api/outbox", token, "")
	require.Equal(t, http.StatusOK, code, text)
	require.Contains(t, text, `"default": {`)
	require.NotContains(t, text, `"far"`)
}

func TestObservatory_Refused(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.db")
	db, err := sqlite.Open(t.Context(), sqlite.Config{Path: empty})
	require.NoError(t, err)
	require.NoError(t, db.Close())
	r := waybill(t, "--dsn", empty, "observatory")
	require.Equal(t, 1, r.code)
	require.Contains(t, r.stderr, "migrate")

	r = waybill(t, "--dsn", empty, "observatory", "--addr", "nowhere")
	require.Equal(t, 1, r.code)
	require.Contains(t, r.stderr, "host:port")
}
