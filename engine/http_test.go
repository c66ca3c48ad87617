package engine

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

// S3-28: every lane, also an empty one, with the contract's keys.
func TestAPI_S3_28_Outbox(t *testing.T) {
	b := setup(t)
	e := b.start(b.config())
	var got map[string]map[string]map[string]map[string]any
	require.Equal(t, 200, get(t, e, "/api/outbox", &got))
	for _, target := range []string{"default", "partner"} {
		lane := got["providers"]["default"][target]
		owners, ok := lane["lease_owners"].([]any)
		require.True(t, ok, "a list, not null: %v", lane)
		require.LessOrEqual(t, len(owners), 1)
		delete(lane, "lease_owners")
		require.Contains(t, lane, "latency_seconds")
		require.Nil(t, lane["latency_seconds"]) // nothing was published
		delete(lane, "latency_seconds")
		members, ok := lane["members"].([]any)
		require.True(t, ok, "a list, not null: %v", lane)
		require.LessOrEqual(t, len(members), 1)
		delete(lane, "members")
		text, err := json.Marshal(lane)
		require.NoError(t, err)
		require.JSONEq(t, `{"counts": {"pending": 0, "processing": 0, "published": 0, "failed": 0, "abandoned": 0},
			"retry_rate": 0.0, "oldest_pending_seconds": null, "in_flight": 0, "breaker": "closed",
			"published_per_second": 0.0, "last_error": null, "doing": ""}`, string(text))
	}
	require.Len(t, got["providers"]["default"], 2)

	b.partner.FailNext(1, broker.Permanent)
	b.sell(1)
	eventually(t, func() bool {
		require.Equal(t, 200, get(t, e, "/api/outbox", &got))
		main, partner := got["providers"]["default"]["default"], got["providers"]["default"]["partner"]
		return main["counts"].(map[string]any)["published"] == 1.0 && main["last_error"] == nil &&
			partner["counts"].(map[string]any)["abandoned"] == 1.0 && partner["last_error"] != nil
	})
}

// S3-28: what can't be computed is null, never 0, and says why.
func TestAPI_S3_28_ADatabaseThatIsDown(t *testing.T) {
	b := setup(t)
	cfg, other := b.withAnalytics()
	e := b.start(cfg)

	for name, fault := range map[string]func(bool){"down": other.down.Store, "hung": other.hung.Store} {
		fault(true)
		var lane, healthy laneReport
		eventually(t, func() bool {
			var report outboxReport
			require.Equal(t, 200, get(t, e, "/api/outbox", &report))
			lane, healthy = report.Providers["analytics"]["default"], report.Providers["default"]["default"]
			return lane.Error != ""
		})
		require.Nil(t, lane.Counts, name)
		require.Nil(t, lane.OldestPendingSeconds, name)
		require.Nil(t, lane.LeaseOwners, name)
		require.NotNil(t, lane.InFlight, "the process knows that: "+name)
		require.NotNil(t, healthy.Counts, name)
		require.Empty(t, healthy.Error, name)
		var h health
		eventually(t, func() bool { return get(t, e, "/readyz", &h) == 503 })
		if name == "hung" {
			eventually(t, func() bool {
				return get(t, e, "/readyz", &h) == 503 && h.Components.Providers["analytics"].OK == nil
			})
		}
		require.Equal(t, 200, get(t, e, "/livez", &map[string]string{}))
		fault(false)
		eventually(t, func() bool { return get(t, e, "/readyz", &h) == 200 })
	}
}

// A84, D5: a broker that is down shows in health, metrics and API: what waits and
// failed, since when, and why. No rows wait elsewhere.
func TestAPI_A84_D5_ABrokerThatIsDown(t *testing.T) {
	b := setup(t)
	e := b.start(b.config())
	b.partner.FailWhere(func(broker.Message) error { return refusedRow("not now") })
	b.sell(1)
	lane := func(target string) laneReport {
		var report outboxReport
		require.Equal(t, 200, get(t, e, "/api/outbox", &report))
		return report.Providers["default"][target]
	}
	eventually(t, func() bool { return lane("partner").Counts[outbox.Failed] == 1 })
	b.partner.SetOutage(true)
	b.sell(1)
	eventually(t, func() bool {
		l := lane("partner")
		return *l.Breaker != "closed" && l.Counts[outbox.Failed] == 1 && l.Counts[outbox.Pending] == 1 && lane("default").Counts[outbox.Published] == 2
	})
	down := lane("partner")
	require.Positive(t, *down.OldestPendingSeconds)
	require.NotEmpty(t, *down.LastError)
	well := lane("default")
	require.Equal(t, "closed", *well.Breaker)
	require.Nil(t, well.OldestPendingSeconds)
	require.Nil(t, well.LastError)
	var h health
	require.Equal(t, 200, get(t, e, "/readyz", &h), "what waits for a broker loses nothing")
	require.Equal(t, "degraded", h.Status)
	require.False(t, *h.Components.Brokers["partner"].OK)
	require.NotEmpty(t, *h.Components.Brokers["partner"].Error)
	require.True(t, *h.Components.Brokers["default"].OK)
	got := scraped(t, e, map[string]float64{
		`waybill_outbox_failed{provider="default",target="partner"}`:          1,
		`waybill_outbox_pending{provider="default",target="partner"}`:         1,
		`waybill_processor_breaker_open{provider="default",target="partner"}`: 1,
		`waybill_processor_breaker_open{provider="default",target="default"}`: 0,
		`waybill_outbox_failed{provider="default",target="default"}`:          0,
	})
	require.Positive(t, got[`waybill_outbox_oldest_pending_seconds{provider="default",target="partner"}`])
}

// F-20, F-21, S2-13: a target that nobody publishes to any more still shows its
// rows, how long they wait, and that it has no lane.
func TestAPI_RowsWithoutALane(t *testing.T) {
	b := setup(t)
	b.sell(1)
	cfg := b.config()
	cfg.Units = []*uow.Manager{b.parcels}
	e := b.start(cfg)
	var report outboxReport
	require.Equal(t, 200, get(t, e, "/api/outbox", &report))
	lane := report.Providers["default"]["partner"]
	require.EqualValues(t, 1, lane.Counts[outbox.Pending])
	require.Positive(t, *lane.OldestPendingSeconds)
	require.Nil(t, lane.Breaker)
	require.Nil(t, lane.InFlight)
}

// ask sends one request to a handler, as if it had come by a connection to local.
func ask(h http.Handler, method, path, host, local, authorization string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, nil)
	r.Host = host
	addr, _ := net.ResolveTCPAddr("tcp", local)
	r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, net.Addr(addr)))
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// askWith is ask from this machine, with a body and headers.
func askWith(h http.Handler, method, path, body string, headers map[string]string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Host = "localhost"
	addr, _ := net.ResolveTCPAddr("tcp", "127.0.0.1:1")
	r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, net.Addr(addr)))
	for name, value := range headers {
		r.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestHTTP_WhoMayRead(t *testing.T) {
	b := setup(t)
	open := b.make(b.config())
	cfg := b.config()
	cfg.Server = Server{Addr: "0.0.0.0:0", Token: token}
	guarded := b.make(cfg)
	const inside, outside = "127.0.0.1:9000", "10.1.2.3:9000"
	for name, c := range map[string]struct {
		h                          http.Handler
		host, local, authorization string
		want                       int
	}{
		"own server on loopback":                {open.server.http.Handler, "localhost:9000", inside, "", 200},
		"own server, a page's name for it":      {open.server.http.Handler, "evil.example:9000", inside, "", 403},
		"own server for others, no token":       {guarded.server.http.Handler, "host:9000", outside, "", 401},
		"own server for others, from inside":    {guarded.server.http.Handler, "localhost:9000", inside, "", 401},
		"own server for others, wrong token":    {guarded.server.http.Handler, "host:9000", outside, "Bearer " + strings.ToUpper(token), 401},
		"own server for others, longer token":   {guarded.server.http.Handler, "host:9000", outside, "Bearer " + token + "2", 401},
		"own server for others, empty token":    {guarded.server.http.Handler, "host:9000", outside, "Bearer ", 401},
		"own server for others, another scheme": {guarded.server.http.Handler, "host:9000", outside, "Basic " + token, 401},
		"own server for others, token":          {guarded.server.http.Handler, "host:9000", outside, "Bearer " + token + "", 200},
		"own server for others, small letters":  {guarded.server.http.Handler, "host:9000", outside, "bearer " + token, 200},
		"own mux on loopback":                   {open.Handler(), "127.0.0.1:80", inside, "", 200},
		"own mux for others, without a token":   {open.Handler(), "host", outside, "", 403},
		"own mux for others, empty token":       {open.Handler(), "host", outside, "Bearer ", 403},
		"own mux for others, token":             {guarded.Handler(), "host", outside, "Bearer " + token + "", 200},
	} {
		t.Run(name, func(t *testing.T) {
			w := ask(c.h, http.MethodGet, "/api/outbox", c.host, c.local, c.authorization)
			require.Equal(t, c.want, w.Code, w.Body)
			if c.want == 401 {
				require.Contains(t, w.Header().Get("WWW-Authenticate"), "Bearer")
			}
			require.NotContains(t, w.Body.String(), token)
			require.Equal(t, c.want, ask(c.h, http.MethodGet, "/metrics", c.host, c.local, c.authorization).Code)
			require.Equal(t, 200, ask(c.h, http.MethodGet, "/livez", c.host, c.local, c.authorization).Code, "probes are free")
			ready := ask(c.h, http.MethodGet, "/readyz", c.host, c.local, c.authorization)
			require.Equal(t, 503, ready.Code)
			if c.want == 200 {
				require.Contains(t, ready.Body.String(), "components")
			} else {
				require.JSONEq(t, `{"status": "starting"}`, ready.Body.String(), "whether, and not why")
			}
		})
	}
}

func TestHTTP_ErrorsAreJSONToo(t *testing.T) {
	b := setup(t)
	h := b.make(b.config()).Handler()
	for _, c := range []struct {
		method, path string
		code         int
	}{
		{"GET", "/nothing", 404},
		{"GET", "/api/outbox/", 404},
		{"POST", "/api/outbox", 405},
		{"DELETE", "/readyz", 405},
		{"HEAD", "/api/outbox", 200},
		{"GET", "/livez", 200},
	} {
		w := ask(h, c.method, c.path, "localhost", "127.0.0.1:1", "")
		require.Equal(t, c.code, w.Code, c.path)
		require.Equal(t, "application/json", w.Header().Get("Content-Type"))
		require.Equal(t, "no-store", w.Header().Get("Cache-Control"))
		require.True(t, json.Valid(w.Body.Bytes()), w.Body)
		if c.code == 405 {
			require.Equal(t, "GET, HEAD", w.Header().Get("Allow"))
		}
	}
}

// A client that sends its request slowly, or never, holds nothing for ever.
func TestServer_HasLimits(t *testing.T) {
	b := setup(t)
	s := b.make(b.config()).server.http
	for _, limit := range []time.Duration{s.ReadHeaderTimeout, s.ReadTimeout, s.WriteTimeout, s.IdleTimeout} {
		require.Positive(t, limit)
	}
	require.Positive(t, s.MaxHeaderBytes)
}

func TestServer_PortZeroPicksOne(t *testing.T) {
	b := setup(t)
	e := b.start(b.config())
	_, port, err := net.SplitHostPort(e.Addr())
	require.NoError(t, err)
	require.NotEqual(t, "0", port)
	r, err := http.Get("http://" + e.Addr() + "/livez")
	require.NoError(t, err)
	body, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	require.NoError(t, r.Body.Close())
	require.JSONEq(t, `{"status": "alive"}`, string(body))
	http.DefaultClient.CloseIdleConnections()
}

func TestServer_NoAddrNoServer(t *testing.T) {
	b := setup(t)
	cfg := b.config()
	cfg.Server = Server{}
	e := b.start(cfg)
	require.Empty(t, e.Addr())
	require.Equal(t, 200, ask(e.Handler(), "GET", "/readyz", "localhost", "127.0.0.1:1", "").Code)
}
