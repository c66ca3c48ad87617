package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/subscription"
)

const (
	reading   = "reading-of-the-tests"
	operating = "operating-of-the-tests"
)

// staffed is a configuration with a token of each role.
func (b *bench) staffed() Config {
	cfg := b.config()
	cfg.Server.Tokens = []Token{
		{Name: "grafana", Role: RoleRead, Token: reading},
		{Name: "oncall", Role: RoleOperate, Token: operating},
	}
	return cfg
}

// as are the headers of who has a token, and sends a body.
func as(token string) map[string]string {
	return map[string]string{"Authorization": "Bearer " + token, "Content-Type": "application/json"}
}

// readable are the paths that only some may read.
func (e *Engine) readable() []string {
	var paths []string
	for _, r := range e.routes(connected) {
		if r.may == readers {
			paths = append(paths, strings.NewReplacer("{message_id}", "0198f3c2-7d8e-7b9a-8c6d-5e4f3a2b1c0d", "{id}", "0198f3c2-7d8e-7b9a-8c6d-5e4f3a2b1c0d").Replace(r.path))
		}
	}
	return paths
}

// S2: with a token, reading needs one too, also on this machine and whoever serves.
func TestHTTP_S2_WithATokenReadingNeedsOne(t *testing.T) {
	b := setup(t)
	e := b.make(b.staffed())
	for _, h := range []http.Handler{e.server.http.Handler, e.Handler()} {
		for _, path := range e.readable() {
			w := askWith(h, "HEAD", path, "", nil)
			require.Equal(t, 401, w.Code, path)
			require.Contains(t, w.Header().Get("WWW-Authenticate"), "Bearer")
			require.NotContains(t, []int{401, 403}, askWith(h, "HEAD", path, "", as(reading)).Code, path)
		}
		for _, path := range []string{"/livez", "/readyz", "/", "/openapi.json"} {
			require.NotContains(t, []int{401, 403}, askWith(h, "GET", path, "", nil).Code, path)
		}
		require.JSONEq(t, `{"status": "starting"}`, askWith(h, "GET", "/readyz", "", nil).Body.String())
		require.Contains(t, askWith(h, "GET", "/readyz", "", as(reading)).Body.String(), "components")
	}
}

// S2: without a token, what a proxy passed on is read by nobody, as whom that lets
// in is not known.
func TestHTTP_S2_WhatAProxyPassedOnIsNotReadFreely(t *testing.T) {
	b := setup(t)
	e := b.make(b.config())
	for _, h := range []http.Handler{e.server.http.Handler, e.Handler()} {
		require.Equal(t, 200, askWith(h, "GET", "/api/outbox", "", nil).Code)
		for _, name := range []string{"Forwarded", "X-Forwarded-For", "x-forwarded-host", "X-Forwarded-Anything", "X-Real-IP", "Via", "CF-Connecting-IP", "X-Original-URL", "X-Envoy-External-Address"} {
			w := askWith(h, "GET", "/api/outbox", "", map[string]string{name: ""})
			require.Equal(t, 403, w.Code, name)
			require.Contains(t, w.Body.String(), "a proxy passed this on", name)
			require.Contains(t, w.Body.String(), "set server.token")
			require.JSONEq(t, `{"status": "starting"}`, askWith(h, "GET", "/readyz", "", map[string]string{name: ""}).Body.String())
		}
		old := httptest.NewRequest(http.MethodGet, "/api/outbox", http.NoBody)
		old.Host, old.Proto, old.ProtoMinor = "127.0.0.1:9000", "HTTP/1.0", 0
		old = old.WithContext(context.WithValue(old.Context(), http.LocalAddrContextKey, net.Addr(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})))
		w := httptest.NewRecorder()
		h.ServeHTTP(w, old)
		require.Equal(t, 403, w.Code, "as nginx does by default")
	}
}

// S2: a reverse proxy on this machine opens nothing, whether it says that it is one
// or not.
func TestHTTP_S2_AReverseProxyOpensNothing(t *testing.T) {
	b := setup(t)
	e := b.start(b.guarded())
	backend := &url.URL{Scheme: "http", Host: e.Addr()}
	for name, rewrite := range map[string]func(*httputil.ProxyRequest){
		"it says so":         func(r *httputil.ProxyRequest) { r.SetURL(backend); r.SetXForwarded() },
		"it says nothing":    func(r *httputil.ProxyRequest) { r.SetURL(backend) },
		"it passes the Host": func(r *httputil.ProxyRequest) { r.SetURL(backend); r.Out.Host = r.In.Host },
	} {
		t.Run(name, func(t *testing.T) {
			transport := &http.Transport{DisableKeepAlives: true}
			proxy := httptest.NewServer(&httputil.ReverseProxy{Rewrite: rewrite, Transport: transport})
			defer proxy.Close()
			for _, path := range []string{"/api/outbox", "/metrics", "/api/dead-letters", "/api/stream"} {
				for authorization, want := range map[string]int{"": 401, "Bearer " + token: 200} {
					r, err := http.NewRequestWithContext(t.Context(), http.MethodHead, proxy.URL+path, http.NoBody)
					require.NoError(t, err)
					r.Header.Set("Authorization", authorization)
					if authorization == "" {
						r.Header.Del("Authorization")
					}
					w, err := transport.RoundTrip(r)
					require.NoError(t, err)
					require.NoError(t, w.Body.Close())
					require.Equal(t, want, w.StatusCode, path)
				}
			}
		})
	}
}

// S2, S-low: pages of other sites may ask for nothing, also what would only load the
// database; what is no browser goes on working, and so do probes.
func TestHTTP_S2_APageOfAnotherSiteMayAskForNothing(t *testing.T) {
	b := setup(t)
	for name, e := range map[string]*Engine{"free": b.make(b.config()), "with tokens": b.make(b.staffed())} {
		t.Run(name, func(t *testing.T) {
			ask := func(method, path string, headers map[string]string) int {
				all := as(operating)
				maps.Copy(all, headers)
				return askWith(e.Handler(), method, path, "{}", all).Code
			}
			for _, foreign := range []map[string]string{
				{"Sec-Fetch-Site": "cross-site"},
				{"Sec-Fetch-Site": "same-site"},
				{"Origin": "https://evil.example"},
				{"Origin": "null"},
				{"Origin": "http://localhost:81"},
				{"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost"},
			} {
				require.Equal(t, 403, ask("GET", "/api/outbox", foreign), foreign)
				require.Equal(t, 403, ask("GET", "/metrics", foreign), foreign)
				require.Equal(t, 403, ask("POST", "/api/outbox/messages/retry", foreign), foreign)
				require.Equal(t, 200, ask("GET", "/livez", foreign))
			}
			for _, own := range []map[string]string{nil, {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}, {"Origin": "http://localhost"}} {
				require.Equal(t, 200, ask("GET", "/api/outbox", own), own)
			}
		})
	}
}

// S7: a token of role read acts on nothing, and sees no process; one of role operate does,
// and several are good at a time.
func TestHTTP_S7_RolesOfTokens(t *testing.T) {
	b := setup(t)
	cfg := b.staffed()
	cfg.Server.Token = token
	e := b.make(cfg)
	for _, r := range e.routes(connected) {
		if r.may != operators {
			continue
		}
		w := askWith(e.Handler(), r.method, r.path, "{}", as(reading))
		require.Equal(t, 403, w.Code, r.path)
		require.Contains(t, w.Body.String(), "token grafana has role read, and this takes role operate")
		for _, good := range []string{operating, token} {
			let := map[string]int{http.MethodPost: 400, http.MethodGet: 404}[r.method]
			if r.path == "/api/traces/{correlation_id}" {
				let = 200 // a correlation that nothing has is no error
			}
			require.Equal(t, let, askWith(e.Handler(), r.method, r.path, "{}", as(good)).Code, r.path)
		}
	}
	w := ask(e.Handler(), "GET", "/api/outbox", "host", "10.1.2.3:9000", "Bearer "+reading)
	require.Equal(t, 200, w.Code)
	r := httptest.NewRequest(http.MethodGet, "/api/outbox", http.NoBody)
	r.Header["Authorization"] = []string{"Bearer " + reading, "Bearer " + operating}
	twice := httptest.NewRecorder()
	e.Handler().ServeHTTP(twice, r)
	require.Equal(t, 401, twice.Code, "nobody knows which one counts for whatever stands before")
}

// S7: what a file of tokens says now counts: the old and the new are good while both
// stand there, and a file that is gone, or can be written by anybody, lets nobody in.
func TestHTTP_S7_TokensAreChangedWithoutARestart(t *testing.T) {
	b := setup(t)
	file := filepath.Join(t.TempDir(), "oncall")
	write := func(lines ...string) {
		require.NoError(t, os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
	}
	const old, fresh = "the-old-one-of-oncall", "the-new-one-of-oncall"
	write(old)
	cfg := b.config()
	cfg.Server.Tokens = []Token{{Name: "oncall", Role: RoleOperate, File: file}}
	e := b.make(cfg)
	code := func(token string) int { return askWith(e.Handler(), "GET", "/api/outbox", "", as(token)).Code }
	require.Equal(t, 200, code(old))
	require.Equal(t, 401, code(fresh))
	write(old, "", fresh)
	require.Equal(t, 200, code(old))
	require.Equal(t, 200, code(fresh))
	write(fresh)
	require.Equal(t, 401, code(old))
	require.Equal(t, 200, code(fresh))
	write(fresh, "short")
	require.Equal(t, 200, code(fresh), "the good line")
	require.Equal(t, 401, code("short"))
	require.Len(t, b.logs.with("a file of tokens can't be used", "line 2 has 5 bytes"), 1)
	require.NoError(t, os.Chmod(file, 0o606))
	require.Equal(t, 401, code(fresh))
	require.Len(t, b.logs.with("can be written by everybody"), 1)
	require.NoError(t, os.Remove(file))
	require.Equal(t, 401, code(fresh))
	require.Equal(t, 401, code(""))
	write(fresh)
	require.Equal(t, 200, code(fresh))
	require.Len(t, b.logs.with("can be used again"), 1)
	require.Empty(t, b.logs.with(fresh), "no token is logged")
}

// S7: a stream ends when its token is no longer good.
func TestStream_S7_EndsWithItsToken(t *testing.T) {
	b := setup(t)
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte(reading), 0o600))
	cfg := b.config()
	cfg.Server.Tokens = []Token{{Name: "grafana", Role: RoleRead, File: file}}
	e := b.start(cfg)
	l := listenAs(t, e, reading)
	_, ok := l.next()
	require.True(t, ok)
	require.NoError(t, os.Remove(file))
	for ok {
		_, ok = l.next()
	}
}

// S7: tokens that can be guessed, files that anybody may write, and what nobody can
// tell apart are refused at the start, and no error has a token in it.
func TestNew_S7_WrongTokens(t *testing.T) {
	b := setup(t)
	dir := t.TempDir()
	file := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		require.NoError(t, os.Chmod(path, mode))
		return path
	}
	for want, s := range map[string]Server{
		"server.token has 8 bytes, which can be guessed: at least 16":          {Token: "hunter22"},
		"server.token begins or ends with a space":                             {Token: "hunter22hunter22 "},
		`server.tokens[0].name is "": say whose token it is`:                   {Tokens: []Token{{Role: RoleRead, Token: reading}}},
		`server.tokens[0].name is "a: b"`:                                      {Tokens: []Token{{Name: "a: b", Role: RoleRead, Token: reading}}},
		`server.tokens[1].name is "a", which another token has`:                {Tokens: []Token{{Name: "a", Role: RoleRead, Token: reading}, {Name: "a", Role: RoleRead, Token: operating}}},
		`server.tokens[0].name is "token", which another token has`:            {Token: token, Tokens: []Token{{Name: "token", Role: RoleRead, Token: reading}}},
		`server.tokens[0].role is "admin": read or operate`:                    {Tokens: []Token{{Name: "a", Role: "admin", Token: reading}}},
		"server.tokens[0] has either token or file":                            {Tokens: []Token{{Name: "a", Role: RoleRead}}},
		"server.tokens[0].token has 8 bytes":                                   {Tokens: []Token{{Name: "a", Role: RoleRead, Token: "hunter22"}}},
		"server.tokens[0].token is that of another name":                       {Token: token, Tokens: []Token{{Name: "a", Role: RoleRead, Token: token}}},
		`the file of token "a": open `:                                         {Tokens: []Token{{Name: "a", Role: RoleRead, File: filepath.Join(dir, "none")}}},
		"is empty: write a token into it":                                      {Tokens: []Token{{Name: "a", Role: RoleRead, File: file("empty", "\n\n", 0o600)}}},
		"line 2 has 8 bytes":                                                   {Tokens: []Token{{Name: "a", Role: RoleRead, File: file("short", reading+"\nhunter22\n", 0o600)}}},
		"can be written by everybody on this machine (mode 0602): chmod o-rwx": {Tokens: []Token{{Name: "a", Role: RoleRead, File: file("open", reading, 0o602)}}},
		"longer than 65536 bytes":                                              {Tokens: []Token{{Name: "a", Role: RoleRead, File: file("long", strings.Repeat(reading+"\n", 4000), 0o600)}}},
		"of role operate, and there is none":                                   {ShowPayloads: true, Tokens: []Token{{Name: "a", Role: RoleRead, Token: reading}}},
	} {
		cfg := b.config()
		cfg.Server = s
		_, err := New(cfg)
		require.ErrorContains(t, err, want)
		for _, secret := range []string{"hunter22", reading, operating, token} {
			require.NotContains(t, err.Error(), secret)
			require.NotContains(t, fmt.Sprint(s.Tokens), secret)
		}
	}
	cfg := b.config()
	cfg.Server.Tokens = []Token{{Name: "a", Role: RoleRead, File: file("shown", reading, 0o644)}}
	b.make(cfg)
	require.Len(t, b.logs.with("can be read by everybody on this machine", "token=a"), 1, "secrets are mounted so in containers")
}

// S7: what is refused is counted by its reason, and logged once a minute and reason
// at most, without what was sent.
func TestHTTP_S7_RefusalsAreCountedAndLogged(t *testing.T) {
	b := setup(t)
	e := b.make(b.staffed())
	now := time.Now()
	e.refusals.now = func() time.Time { return now }
	for range 100 {
		require.Equal(t, 401, askWith(e.Handler(), "GET", "/api/outbox", "", as("a-wrong-one-somebody-tried")).Code)
	}
	require.Equal(t, 401, askWith(e.Handler(), "GET", "/metrics", "", nil).Code)
	require.Equal(t, 403, askWith(e.Handler(), "POST", "/api/outbox/messages/retry", "{}", as(reading)).Code)
	now = now.Add(refusalsEvery)
	require.Equal(t, 401, askWith(e.Handler(), "GET", "/api/outbox", "", as("a-wrong-one-somebody-tried")).Code)
	lines := b.logs.with("requests over HTTP are refused", "reason=wrong_token", "path=/api/outbox")
	require.Len(t, lines, 2)
	require.Contains(t, lines[0], "count=1 ")
	require.Contains(t, lines[1], "count=100 ")
	require.Len(t, b.logs.with("requests over HTTP are refused", "reason=no_token", "path=/metrics"), 1)
	require.Len(t, b.logs.with("requests over HTTP are refused", "reason=role", "token=grafana"), 1)
	require.Empty(t, b.logs.with("a-wrong-one"))
	text := askWith(e.Handler(), "GET", "/metrics", "", as(reading)).Body.String()
	require.Contains(t, text, `waybill_http_refused_total{reason="wrong_token"} 101`)
	require.Contains(t, text, `waybill_http_refused_total{reason="role"} 1`)
	require.Contains(t, text, `waybill_http_refused_total{reason="cross_site"} 0`)
}

// S7: the record of what was done has whose token it was, whatever the request
// says who asks.
func TestAPI_S7_TheRecordHasTheTokensName(t *testing.T) {
	b := setup(t)
	s := b.orders(func(context.Context, Sold) error { return subscription.Park(fmt.Errorf("no")) })
	cfg := b.staffed()
	cfg.Subscriptions = []subscription.Stream{s}
	e := b.start(cfg)
	b.partner.FailWhere(func(broker.Message) error { return broker.Classify(broker.Permanent, fmt.Errorf("no")) })
	b.sell(1)
	var rows messagesReport
	var letters lettersReport
	fetch := func(path string, into any) {
		w := askWith(e.Handler(), "GET", path, "", as(operating))
		require.Equal(t, 200, w.Code, w.Body)
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), into))
	}
	eventually(t, func() bool {
		rows, letters = messagesReport{}, lettersReport{}
		fetch("/api/outbox/messages?status=abandoned", &rows)
		fetch("/api/dead-letters", &letters)
		return len(rows.Messages) == 1 && len(letters.Letters) == 1
	})
	w := askWith(e.Handler(), "POST", "/api/outbox/messages/retry", `{"filter": {"target": "partner"}, "actor": "grafana: alice"}`, as(operating))
	require.Equal(t, 200, w.Code, w.Body)
	w = askWith(e.Handler(), "POST", "/api/dead-letters/discard", `{"filter": {"subscription": "parcels"}, "actor": "alice"}`, as(operating))
	require.Equal(t, 200, w.Code, w.Body)
	done, err := outboxdb.New(b.db.DB(), b.db.Reader()).Actions(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, "oncall: grafana: alice", done[0].Actor)
	of, err := subscription.NewDeadLetters(b.db).Actions(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, "oncall: alice", of[0].Actor)
}

// S-low: a body is refused by its depth before anything takes long over it.
func TestAPI_S_low_ABodyThatIsNestedDeeply(t *testing.T) {
	b := setup(t)
	e := b.make(b.guarded())
	for body, want := range map[string]string{
		`{"filter": ` + strings.Repeat(`{"a":`, 9000) + `1` + strings.Repeat("}", 9000) + `}`: "more than 16 lists and objects in each other",
		`{"filter": ` + strings.Repeat("[", 30000) + strings.Repeat("]", 30000) + `}`:         "more than 16 lists and objects in each other",
		strings.Repeat(`[`, 60000): "more than 16 lists and objects in each other",
		`{"actor": "` + strings.Repeat(`[{\"\\`, 200) + `", "filter": {"subscription": "` + "\\\\" + `"}, "x":1}`: `unknown field \"x\"`,
	} {
		w := askWith(e.Handler(), "POST", "/api/dead-letters/discard", body, as(token))
		require.Equal(t, 400, w.Code)
		require.Contains(t, w.Body.String(), want)
	}
}
