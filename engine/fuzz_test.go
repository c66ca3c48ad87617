package engine

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/sqlite"
)

// Whatever a query asks for, and whatever a change chooses, the answer is JSON, and never that
// the server failed: filters are checked before they reach the database.
func FuzzRequests(f *testing.F) {
	const token = "1234567890123456"
	db, err := sqlite.Open(f.Context(), sqlite.Config{Path: filepath.Join(f.TempDir(), "sales.db")})
	require.NoError(f, err)
	f.Cleanup(func() { require.NoError(f, db.Close()) })
	m, err := uow.New(uow.Config{Domain: sales, Providers: []uow.Provider{db}})
	require.NoError(f, err)
	require.NoError(f, Migrate(f.Context(), m))
	e, err := New(Config{
		Units: []*uow.Manager{m}, Brokers: map[string]broker.Broker{"default": memory.New(memory.Config{})},
		Server: Server{Token: token}, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(f, err)
	for _, d := range e.databases {
		d.ready.Store(true) // its tables are there
	}
	handler := e.Handler()
	reads := []string{"/api/outbox/messages", "/api/outbox/messages/0", "/api/timers", "/api/processes", "/api/projections", "/api/partitions", "/api/subscriptions", "/api/dead-letters", "/api/commands"}
	changes := []string{"/api/outbox/messages/retry", "/api/outbox/messages/skip", "/api/dead-letters/replay", "/api/dead-letters/discard"}
	f.Add(uint8(0), "status=failed&status=abandoned&limit=3&after=default:9", `{"filter": {"seqs": [1]}, "actor": "mia", "dry_run": true}`)
	f.Add(uint8(1), "provider=x&since=yesterday&%zz", `{"filter": {"error": "\u0000"}}`)
	f.Add(uint8(2), "status=waiting&limit=-1", `{"filter": {"limit": 9223372036854775808}}`)
	f.Add(uint8(7), "subscription=a&status=early&key=%00", `[{"filter": {}}]`)
	f.Fuzz(func(t *testing.T, path uint8, query, body string) {
		ask := func(method, target, body string) {
			r := httptest.NewRequestWithContext(t.Context(), method, "/", nil)
			if method == http.MethodPost {
				r = httptest.NewRequestWithContext(t.Context(), method, "/", strings.NewReader(body))
				r.Header.Set("Content-Type", "application/json")
			}
			r.URL = &url.URL{Path: target, RawQuery: query}
			r.Header.Set("Authorization", "Bearer "+token)
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			require.Less(t, w.Code, http.StatusInternalServerError, "%s %s?%s %s: %s", method, target, query, body, w.Body)
			require.True(t, json.Valid(w.Body.Bytes()), "%s", w.Body)
		}
		ask(http.MethodGet, reads[int(path)%len(reads)], "")
		ask(http.MethodPost, changes[int(path)%len(changes)], body)
	})
}
