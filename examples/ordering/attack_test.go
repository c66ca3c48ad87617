package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/sqlite"
)

// What the attackers are after.
const (
	victim      = "alice@example.org" // a customer, in a payload and in the text of an error
	victimOrder = "orders-1"          // a key
	card        = "4111111111111111"  // redacted even for operators

	grafana = "token-of-grafana-1"
	oncall  = "token-of-oncall-22"
	expired = "token-of-oncall-11"
)

// attempt is something that somebody tries, and what must come of it.
type attempt struct {
	what    string
	at      []string // of the places; nil: all that have tokens
	method  string   // GET
	path    string
	host    string // as the URL has it
	headers map[string]string
	token   string
	body    string
	raw     string // sent as it is, instead of all above; HOST stands for the host

	want  []int    // statuses, one of which must come; of raw: none but these
	shows []string // what the answer must have
	free  bool     // it may show numbers
	sees  bool     // it may show what messages brought
}

// outcome is what came of an attempt in some places.
type outcome struct {
	got   string
	where []string
}

// numbers are in no answer to those who may read nothing.
var numbers = []string{`"counts"`, `"components"`, `"lease_owners"`, `"dead_letters"`, "waybill_outbox_", "waybill_ready", `"messages"`, `"reasons"`, "event: state"}

const (
	behindTokens   = "with tokens"
	behindProxy    = "with tokens, proxy"
	behindSilent   = "with tokens, silent proxy"
	inMux          = "with tokens, own mux"
	untokened      = "no token"
	untokenedProxy = "no token, proxy"
	untokenedOld   = "no token, HTTP/1.0 proxy"
)

var guarded = []string{behindTokens, behindProxy, behindSilent, inMux}

// attempts are all that reviews tried. Whoever finds another adds a line.
func attempts(letter string) []attempt {
	const retry = "/api/outbox/messages/retry"
	const discard = "/api/dead-letters/discard"
	everything := []string{
		"/metrics", "/api/outbox", "/api/health", "/api/stream", "/api/outbox/messages", "/api/outbox/messages/0198f3c2-7d8e-7b9a-8c6d-5e4f3a2b1c0d",
		"/api/partitions", "/api/subscriptions", "/api/dead-letters", "/api/dead-letters/" + letter,
	}
	var all []attempt
	for _, path := range everything {
		all = append(all, attempt{what: "read without a token", path: path, want: []int{401}})
	}
	all = append(all,
		// Who may read.
		attempt{what: "the details of /readyz without a token", path: "/readyz", want: []int{200}},
		attempt{what: "HEAD instead of GET", method: "HEAD", path: "/api/outbox", want: []int{401}},
		attempt{what: "OPTIONS, as a browser asks before", method: "OPTIONS", path: retry, headers: map[string]string{"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}, want: []int{405}},
		attempt{what: "TRACE", method: "TRACE", path: "/api/outbox", token: oncall, want: []int{405}},
		attempt{what: "a wrong token", path: "/api/outbox", token: "token-of-grafana-2", want: []int{401}},
		attempt{what: "a part of a token", path: "/api/outbox", token: grafana[:8], want: []int{401}},
		attempt{what: "a token and more", path: "/api/outbox", token: grafana + "1", want: []int{401}},
		attempt{what: "an empty token", path: "/api/outbox", headers: map[string]string{"Authorization": "Bearer "}, want: []int{401}},
		attempt{what: "a token that was taken out of its file", path: "/api/outbox", token: expired, want: []int{401}},
		attempt{what: "a token as Basic", path: "/api/outbox", headers: map[string]string{"Authorization": "Basic " + oncall}, want: []int{401}},
		attempt{what: "a token in the address", path: "/api/outbox?token=" + oncall, want: []int{401}},
		attempt{what: "a token in a cookie", path: "/api/outbox", headers: map[string]string{"Cookie": "Authorization=" + oncall}, want: []int{401}},
		attempt{what: "the stream without a token", path: "/api/stream", headers: map[string]string{"Accept": "text/event-stream"}, want: []int{401}},
		attempt{what: "Host of this machine", path: "/api/outbox", host: "127.0.0.1", want: []int{401}},
		attempt{what: "X-Forwarded-For of this machine", path: "/api/outbox", headers: map[string]string{"X-Forwarded-For": "127.0.0.1", "X-Real-IP": "127.0.0.1"}, want: []int{401}},
		attempt{what: "X-Original-URL to a probe", path: "/api/outbox", headers: map[string]string{"X-Original-URL": "/livez", "X-Rewrite-URL": "/livez"}, want: []int{401}},
		attempt{what: "X-HTTP-Method-Override", path: retry, headers: map[string]string{"X-HTTP-Method-Override": "POST"}, want: []int{405}},
		attempt{what: "path //api", path: "//api/outbox", want: []int{301, 307, 401, 404}},
		attempt{what: "path /livez/../api", path: "/livez/../api/outbox", want: []int{301, 307, 401, 404}},
		attempt{what: "path %2e%2e", path: "/livez/%2e%2e/api/outbox", want: []int{301, 307, 401, 404}},
		attempt{what: "path %2f", path: "/livez%2f..%2fapi/outbox", want: []int{301, 307, 401, 404}},
		attempt{what: "path /API", path: "/API/outbox", want: []int{404}},
		attempt{what: "path /api/outbox;/livez", path: "/api/outbox;/livez", want: []int{404}},
		attempt{what: "path out of the assets", path: "/assets/../../waybill.yaml", want: []int{301, 307, 404}},
		attempt{what: "path out of the assets, %2e", path: "/assets/%2e%2e/%2e%2e/waybill.yaml", want: []int{301, 307, 404}},

		// Pages of other sites.
		attempt{what: "GET by another site's page", path: "/api/outbox", token: oncall, headers: map[string]string{"Sec-Fetch-Site": "cross-site"}, want: []int{403}},
		attempt{what: "GET by another port's page", path: "/metrics", token: oncall, headers: map[string]string{"Sec-Fetch-Site": "same-site"}, want: []int{403}},
		attempt{what: "GET by an old browser's page", path: "/api/outbox", token: oncall, headers: map[string]string{"Origin": "https://evil.example"}, want: []int{403}},
		attempt{what: "POST by another site's page", method: "POST", path: discard, token: oncall, headers: map[string]string{"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}, body: `{"filter": {"subscription": "shipping"}, "actor": "eve"}`, want: []int{403}},
		attempt{what: "POST of a form", method: "POST", path: discard, token: oncall, headers: map[string]string{"Content-Type": "text/plain"}, body: `{"filter": {"subscription": "shipping"}, "actor": "eve"}`, want: []int{415}},

		// Who may act, and what is seen.
		attempt{what: "act without a token", method: "POST", path: retry, body: `{"filter": {"target": "partner"}, "actor": "eve"}`, want: []int{401}},
		attempt{what: "act with role read", method: "POST", path: retry, token: grafana, body: `{"filter": {"target": "partner"}, "actor": "eve"}`, want: []int{403}},
		attempt{what: "a dry run with role read", method: "POST", path: discard, token: grafana, body: `{"filter": {"subscription": "shipping", "error": "alice"}, "dry_run": true}`, want: []int{403}},
		attempt{what: "keys with role read", path: "/api/outbox/messages", token: grafana, want: []int{200}, free: true, shows: []string{`"messages"`}},
		attempt{what: "error texts with role read", path: "/api/dead-letters", token: grafana, want: []int{200}, free: true, shows: []string{`"reason": "failed"`, "a token of role operate shows it"}},
		attempt{what: "payload, stack with role read", path: "/api/dead-letters/" + letter, token: grafana, want: []int{200}, free: true, shows: []string{`"payload": null`}},
		attempt{what: "search by text with role read", path: "/api/dead-letters?error=alice", token: grafana, want: []int{403}},
		attempt{what: "search by key with role read", path: "/api/outbox/messages?key=" + victimOrder, token: grafana, want: []int{403}},
		attempt{what: "search by stream with role read", path: "/api/outbox/messages?stream=a", token: grafana, want: []int{403}},
		attempt{what: "redacted fields with role operate", path: "/api/dead-letters/" + letter, token: oncall, want: []int{200}, free: true, sees: true, shows: []string{victim, "[redacted]"}},

		// Bodies.
		attempt{what: "a body of 65 kB", method: "POST", path: discard, token: oncall, body: `{"actor": "` + strings.Repeat("a", 65<<10) + `"}`, want: []int{413}},
		attempt{what: "a body nested 9,000 deep", method: "POST", path: discard, token: oncall, body: `{"filter":` + strings.Repeat(`{"a":`, 9000) + "1" + strings.Repeat("}", 9001), want: []int{400}},
		attempt{what: "a body of 60,000 brackets", method: "POST", path: discard, token: oncall, body: strings.Repeat("[", 60000), want: []int{400}},
		attempt{what: "an empty filter", method: "POST", path: retry, token: oncall, body: `{"filter": {}, "actor": "eve"}`, want: []int{400}},
		attempt{what: "no actor", method: "POST", path: retry, token: oncall, body: `{"filter": {"target": "partner"}}`, want: []int{400}},
		attempt{what: "SQL in a parameter", path: "/api/outbox/messages?target=" + url.QueryEscape("x' OR '1'='1"), token: oncall, want: []int{200}, free: true},

		// Lines that two servers read differently.
		attempt{what: "two tokens", raw: "GET /api/outbox HTTP/1.1\r\nHost: HOST\r\nAuthorization: Bearer " + grafana + "\r\nAuthorization: Bearer x\r\nConnection: close\r\n\r\n", want: []int{400, 401}},
		attempt{what: "Content-Length beside chunks", raw: "POST /livez HTTP/1.1\r\nHost: HOST\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /api/outbox HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n", want: []int{400, 401, 405}},
		attempt{what: "two Content-Lengths", raw: "POST /livez HTTP/1.1\r\nHost: HOST\r\nContent-Length: 0\r\nContent-Length: 5\r\nConnection: close\r\n\r\nGET /", want: []int{400}},
		attempt{what: "a request behind a probe", raw: "GET /livez HTTP/1.1\r\nHost: HOST\r\n\r\nGET /metrics HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n", want: []int{200, 401}},
		attempt{what: "a folded header", raw: "GET /api/outbox HTTP/1.1\r\nHost: HOST\r\nX-A: b\r\n Authorization: Bearer " + oncall + "\r\nConnection: close\r\n\r\n", want: []int{400, 401}},
		attempt{what: "an absolute URL of this machine", raw: "GET http://127.0.0.1/api/outbox HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n", want: []int{400, 401, 404}},
		attempt{what: "two Hosts", raw: "GET /api/outbox HTTP/1.1\r\nHost: HOST\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n", want: []int{400}},

		// Without any token.
		attempt{what: "read on the machine itself", at: []string{untokened}, path: "/api/outbox", want: []int{200}, free: true, shows: []string{`"counts"`}},
		attempt{what: "keys, without a token", at: []string{untokened}, path: "/api/outbox/messages", want: []int{200}, free: true},
		attempt{what: "error texts, without a token", at: []string{untokened}, path: "/api/dead-letters", want: []int{200}, free: true},
		attempt{what: "payload, stack without a token", at: []string{untokened}, path: "/api/dead-letters/" + letter, want: []int{200}, free: true},
		attempt{what: "search by text without a token", at: []string{untokened}, path: "/api/dead-letters?error=alice", want: []int{403}},
		attempt{what: "the stream's texts", at: []string{untokened}, path: "/api/stream", want: []int{200}, free: true},
		attempt{what: "a name that leads here (rebinding)", at: []string{untokened}, path: "/api/outbox", host: "evil.example", want: []int{403}},
		attempt{what: "a name that begins like this machine", at: []string{untokened}, path: "/api/outbox", host: "127.0.0.1.evil.example", want: []int{403}},
		attempt{what: "GET by another site's page", at: []string{untokened}, path: "/api/outbox", headers: map[string]string{"Sec-Fetch-Site": "cross-site"}, want: []int{403}},
		attempt{what: "GET by an old browser's page", at: []string{untokened}, path: "/api/outbox", headers: map[string]string{"Origin": "http://127.0.0.1:1"}, want: []int{403}},
		attempt{what: "act without any token", at: []string{untokened}, method: "POST", path: discard, body: `{"filter": {"subscription": "shipping"}, "actor": "eve"}`, want: []int{403}},
		attempt{what: "read by a proxy", at: []string{untokenedProxy, untokenedOld}, path: "/api/outbox", want: []int{403}},
		attempt{what: "metrics by a proxy", at: []string{untokenedProxy, untokenedOld}, path: "/metrics", want: []int{403}},
		attempt{what: "the details of /readyz by a proxy", at: []string{untokenedProxy, untokenedOld}, path: "/readyz", want: []int{200}},
	)
	return all
}

// TestAttack tries everything against the running program: directly, behind proxies,
// and in a mux of one's own; S2, S7, S13, and what reviews tried beside. By hand:
//
//	go test ./examples/ordering -run TestAttack -v
//
// ends with a table of what was tried, what had to come of it, and what came.
func TestAttack(t *testing.T) {
	places, db, letter := battlefield(t)
	table := &bytes.Buffer{}
	rows := tabwriter.NewWriter(table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(rows, "attempt\twhere\texpected\twhat happened")
	for _, a := range attempts(letter) {
		at := a.at
		if at == nil {
			at = guarded
		}
		var outcomes []outcome
		for _, place := range at {
			if a.raw != "" && place == inMux {
				continue // Go's own server stands before it
			}
			got, wrong := a.try(t, places[place])
			if wrong != "" {
				t.Errorf("%s, %s: %s", a.what, place, wrong)
				got = "GOT THROUGH: " + got
			}
			if n := len(outcomes); n == 0 || outcomes[n-1].got != got {
				outcomes = append(outcomes, outcome{got: got})
			}
			last := &outcomes[len(outcomes)-1]
			last.where = append(last.where, place)
		}
		for _, o := range outcomes {
			where := strings.Join(o.where, "; ")
			if len(o.where) == len(guarded) {
				where = "with tokens, everywhere"
			}
			fmt.Fprintf(rows, "%s %s\t%s\t%v\t%s\n", a.what, a.shortPath(), where, a.want, o.got)
		}
	}

	// Whoever acts is on record with the token's name, whatever the request says.
	spoof := attempt{method: "POST", path: "/api/dead-letters/discard", token: oncall, body: `{"filter": {"subscription": "shipping"}, "actor": "grafana: alice"}`, want: []int{200}, free: true}
	got, wrong := spoof.try(t, places[behindSilent])
	require.Empty(t, wrong)
	actions, err := subscription.NewDeadLetters(db).Actions(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, actions, 1, "of all attempts this was the only one to do anything")
	require.Equal(t, "oncall: grafana: alice", actions[0].Actor)
	fmt.Fprintf(rows, "another's name as the actor\t%s\trecorded behind oncall:\t%s, %q\n", behindSilent, got, actions[0].Actor)
	changes, err := outboxdb.New(db.DB(), db.Reader()).Actions(t.Context(), 1)
	require.NoError(t, err)
	require.Empty(t, changes)
	require.NoError(t, rows.Flush())
	t.Logf("\n%s", table)
}

func (a attempt) shortPath() string {
	if a.raw != "" {
		return ""
	}
	return cmp.Or(a.method, "GET") + " " + a.path[:min(len(a.path), 34)]
}

// try makes the attempt and says what came of it, and what is wrong with that.
func (a attempt) try(t *testing.T, base string) (got, wrong string) {
	t.Helper()
	began := time.Now()
	statuses, text := a.send(t, base)
	got = fmt.Sprint(statuses)
	if a.raw == "" {
		got += " " + strings.Join(strings.Fields(text), " ")
		got = got[:min(len(got), 70)]
	}
	for _, status := range statuses {
		if !slices.Contains(a.want, status) {
			return got, fmt.Sprintf("status %d: %s", status, text)
		}
	}
	if len(statuses) == 0 {
		return got, "there was no answer"
	}
	var secrets []string
	if !a.free {
		secrets = append(secrets, numbers...)
	}
	if !a.sees {
		secrets = append(secrets, victim, victimOrder, "goroutine 1 [", "customer_id")
	}
	for _, secret := range append(secrets, card, grafana, oncall, expired) {
		if strings.Contains(text, secret) {
			return got, "it shows " + secret
		}
	}
	for _, shown := range a.shows {
		if !strings.Contains(text, shown) {
			return got, "it doesn't show " + shown + ": " + text
		}
	}
	if took := time.Since(began); took > time.Minute {
		return got, fmt.Sprintf("it took %v", took)
	}
	return got, ""
}

// send returns the statuses of the answers, and all that they say.
func (a attempt) send(t *testing.T, base string) (statuses []int, text string) {
	t.Helper()
	at, err := url.Parse(base)
	require.NoError(t, err)
	if a.raw != "" {
		return sendRaw(t, at.Host, strings.ReplaceAll(a.raw, "HOST", at.Host))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, cmp.Or(a.method, "GET"), base, strings.NewReader(a.body))
	require.NoError(t, err)
	path, query, _ := strings.Cut(a.path, "?")
	r.URL.RawPath, r.URL.RawQuery = at.Path+path, query // as it is written
	r.URL.Path, err = url.PathUnescape(r.URL.RawPath)
	require.NoError(t, err)
	r.Host = cmp.Or(a.host, at.Host)
	if a.method == "POST" {
		r.Header.Set("Content-Type", "application/json")
	}
	if a.token != "" {
		r.Header.Set("Authorization", "Bearer "+a.token)
	}
	for name, value := range a.headers {
		r.Header.Set(name, value)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	w, err := transport.RoundTrip(r)
	require.NoError(t, err)
	defer w.Body.Close()
	require.Empty(t, w.Header.Get("Access-Control-Allow-Origin"))
	if strings.HasPrefix(w.Header.Get("Content-Type"), "text/event-stream") {
		begin := make([]byte, 16<<10) // it doesn't end
		n, _ := io.ReadAtLeast(w.Body, begin, 512)
		return []int{w.StatusCode}, string(begin[:n])
	}
	body, err := io.ReadAll(w.Body)
	require.NoError(t, err)
	return []int{w.StatusCode}, string(body)
}

func sendRaw(t *testing.T, host, lines string) (statuses []int, text string) {
	t.Helper()
	c, err := net.Dial("tcp", host)
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(2*time.Minute)))
	_, err = io.WriteString(c, lines)
	require.NoError(t, err)
	answer, _ := io.ReadAll(c)
	for line := range strings.Lines(string(answer)) {
		var status int
		if n, _ := fmt.Sscanf(line, "HTTP/1.1 %d", &status); n == 1 {
			statuses = append(statuses, status)
		}
	}
	return statuses, string(answer)
}

// battlefield starts the program twice, with tokens and without any, on databases
// that have something personal, with proxies before them.
func battlefield(t *testing.T) (places map[string]string, db uow.Provider, letter string) {
	t.Helper()
	const server = `tokens:
    - {name: oncall, role: operate, file: ./oncall}
    - {name: grafana, role: read, token: ` + grafana + `}
  show_payloads: true
  redact: [data.card]`
	places = map[string]string{}
	var dir string
	for _, c := range []struct{ name, server string }{{untokened, ""}, {behindTokens, server}} {
		dir = t.TempDir()
		write(t, dir, "oncall", expired+"\n")
		write(t, dir, "waybill.yaml", `domain: ordering
providers: {default: {dialect: sqlite, path: ./ordering.db}}
brokers:
  default: {kind: nats, embedded: ./nats}
  partner: {kind: nats, embedded: ./nats, topic_prefix: partner.}
outbox: {external_brokers: [partner]}
server:
  addr: "127.0.0.1:0"
  `+c.server+"\n")
		write(t, dir, "orders.csv", "customer,date,quantity,amount_cents\n"+victim+",2026-01-02,1,100\n")
		succeed(t, dir, "migrate")
		succeed(t, dir, "place", "--file", "orders.csv")
		p := start(t, dir, orderingProgram, "serve")
		p.eventually(func() bool { return listening.MatchString(p.stderr.String()) }, "listens")
		places[c.name] = listening.FindStringSubmatch(p.stderr.String())[1]
		write(t, dir, "oncall", oncall+"\n") // a new token, without a restart
		var err error
		db, err = sqlite.Open(t.Context(), sqlite.Config{Name: "default", Path: filepath.Join(dir, "ordering.db")})
		require.NoError(t, err)
		t.Cleanup(func(db uow.Provider) func() { return func() { require.NoError(t, db.Close()) } }(db))
		store := outboxdb.New(db.DB(), db.Reader())
		waittest.Until(t, func() bool {
			rows, err := store.Find(t.Context(), outbox.Filter{Statuses: []outbox.Status{outbox.Published}, Target: "default"})
			return err == nil && len(rows) > 0 // shipping has one to publish soon, too
		})
		letter = park(t, db)
	}
	places[behindProxy] = proxy(t, places[behindTokens], (*httputil.ProxyRequest).SetXForwarded)
	places[behindSilent] = proxy(t, places[behindTokens], func(*httputil.ProxyRequest) {})
	places[inMux] = mux(t, db)
	places[untokenedProxy] = proxy(t, places[untokened], (*httputil.ProxyRequest).SetXForwarded)
	places[untokenedOld] = oldProxy(t, places[untokened])
	return places, db, letter
}

// park puts a message into the dead letters, as if its handler had failed.
func park(t *testing.T, db uow.Provider) string {
	t.Helper()
	const id = "0198f3c2-7d8e-7b9a-8c6d-5e4f3a2b1c0d"
	body, err := json.Marshal(map[string]any{"data": map[string]any{"customer_id": victim, "card": card}})
	require.NoError(t, err)
	_, err = db.DB().ExecContext(t.Context(), "INSERT INTO dead_letters (id, subscription, topic, partition_key, key_id, message_id, message_type, body, headers, error, error_type, stack, reason, attempts, first_at, last_at, holds)"+
		" VALUES (?, 'shipping', 'ordering.order', ?, ?, ?, 'Ordering.OrderPlaced.v1', ?, '{}', ?, '*errors.errorString', 'goroutine 1 [running]', 'failed', 1, '2026-01-02T03:04:05.678Z', '2026-01-02T03:04:05.678Z', 1)",
		id, victimOrder, victimOrder, id, body, "no address of "+victim)
	require.NoError(t, err)
	letters, err := subscription.NewDeadLetters(db).List(t.Context(), subscription.DeadLetterFilter{}, subscription.DeadLetterPage{Limit: 10})
	require.NoError(t, err)
	require.Len(t, letters.Letters, 1)
	return id
}

// proxy is a reverse proxy on this machine.
func proxy(t *testing.T, backend string, say func(*httputil.ProxyRequest)) string {
	t.Helper()
	to, err := url.Parse(backend)
	require.NoError(t, err)
	transport := &http.Transport{DisableKeepAlives: true}
	s := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(to); say(r) },
		Transport: transport, FlushInterval: -1, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0),
	})
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	t.Cleanup(s.Close)
	return s.URL
}

// oldProxy asks as nginx does by default: with HTTP/1.0, its own Host, and nothing of
// whom it asks for.
func oldProxy(t *testing.T, backend string) string {
	t.Helper()
	to, err := url.Parse(backend)
	require.NoError(t, err)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, text := sendRaw(t, to.Host, r.Method+" "+r.URL.RequestURI()+" HTTP/1.0\r\nHost: "+to.Host+"\r\nConnection: close\r\n\r\n")
		head, body, _ := strings.Cut(text, "\r\n\r\n")
		var status int
		_, _ = fmt.Sscanf(head, "HTTP/1.0 %d", &status)
		w.WriteHeader(cmp.Or(status, http.StatusBadGateway))
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// mux serves the same databases below a path of one's own.
func mux(t *testing.T, db uow.Provider) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "oncall")
	require.NoError(t, os.WriteFile(file, []byte(oncall), 0o600))
	e, err := engine.NewObservatory(engine.ObservatoryConfig{Providers: []uow.Provider{db}, Logger: slog.New(slog.DiscardHandler), Server: engine.Server{
		Tokens:       []engine.Token{{Name: "oncall", Role: engine.RoleOperate, File: file}, {Name: "grafana", Role: engine.RoleRead, Token: grafana}},
		ShowPayloads: true, Redact: []string{"data.card"},
	}})
	require.NoError(t, err)
	require.NoError(t, e.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, e.Stop(context.Background())) })
	m := http.NewServeMux()
	m.Handle("/ops/", http.StripPrefix("/ops", e.Handler()))
	s := httptest.NewServer(m)
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	t.Cleanup(s.Close)
	return s.URL + "/ops"
}
