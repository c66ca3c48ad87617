package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/subscription"
)

const token = "secret-of-the-tests"

// guarded is a configuration with a token.
func (b *bench) guarded() Config {
	cfg := b.config()
	cfg.Server.Token = token
	return cfg
}

// call sends a request to an engine's own server, with the token, and decodes the
// answer.
func call(t *testing.T, e *Engine, method, path, body string, into any) int {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(t.Context(), method, "http://"+e.Addr()+path, strings.NewReader(body))
	require.NoError(t, err)
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(into), "%s", text)
	return response.StatusCode
}

// refused is what an engine says that refuses a request.
func refused(t *testing.T, e *Engine, code int, method, path, body string) string {
	t.Helper()
	var wrong struct {
		Error string `json:"error"`
	}
	require.Equal(t, code, call(t, e, method, path, body, &wrong), wrong.Error)
	require.NotContains(t, wrong.Error, token)
	return wrong.Error
}

// withLetters is an engine whose subscription has set all sales of less than 10
// aside; broken says whether it still would.
func withLetters(t *testing.T, cfg func(*Config)) (*bench, *Engine, func(fixed bool)) {
	t.Helper()
	b := setup(t)
	fixed := make(chan bool, 1)
	fixed <- false
	s := b.orders(func(_ context.Context, sold Sold) error {
		is := <-fixed
		fixed <- is
		if sold.Amount < 10 && !is {
			return fmt.Errorf("amount %d is too small", sold.Amount)
		}
		return nil
	})
	s.MaxAttempts = 1
	c := b.guarded()
	c.Subscriptions = []subscription.Stream{s}
	if cfg != nil {
		cfg(&c)
	}
	return b, b.start(c), func(is bool) { <-fixed; fixed <- is }
}

func parkedLetters(t *testing.T, e *Engine, n int) lettersReport {
	t.Helper()
	var got lettersReport
	eventually(t, func() bool {
		got = lettersReport{}
		require.Equal(t, 200, call(t, e, "GET", "/api/dead-letters", "", &got))
		return len(got.Letters) == n && got.Total["default"] == int64(n) // two looks at a table that grows
	})
	return got
}

// C-12, C-14: what could not be handled is listed by every filter, a page at a
// time, with how much there is.
func TestAPI_C_12_C_14_ListDeadLetters(t *testing.T) {
	b, e, _ := withLetters(t, nil)
	b.sell(3)
	all := parkedLetters(t, e, 3)
	require.Equal(t, map[string]int64{"default": 3}, all.Total)
	require.Empty(t, all.Next)
	of := all.Letters[1]
	require.Equal(t, "default", of.Provider)
	require.Equal(t, "parcels", of.Subscription)
	require.Equal(t, subscription.DeadLetterParked, of.Status)
	require.Equal(t, "failed", of.Reason)
	require.Contains(t, of.Error, "is too small")
	require.Positive(t, of.Attempts)

	var got lettersReport
	list := func(query string) int {
		got = lettersReport{}
		require.Equal(t, 200, call(t, e, "GET", "/api/dead-letters?"+query, "", &got), query)
		return len(got.Letters)
	}
	for query, want := range map[string]int{
		"provider=default":                 3,
		"subscription=parcels":             3,
		"subscription=others":              0,
		"type=Sales.SaleMade.v1":           3,
		"type=Sales.SaleNoted.v1":          0,
		"reason=failed":                    3,
		"reason=undecodable":               0,
		"status=parked&status=held":        3,
		"status=replayed":                  0,
		"key=" + of.Key:                    1,
		"message=" + of.MessageID:          1,
		"error=amount%202":                 1,
		"error_type=*errors.errorS":        0,
		"from=2020-01-02T03:04:05Z":        3,
		"until=2020-01-02T03:04:05Z":       0,
		"from=9999-12-31T23:59:59Z":        0,
		"from=0001-02-03T04:05:06%2B14:00": 3,
	} {
		require.Equal(t, want, list(query), query)
	}
	require.Equal(t, 3, list("error_type="+of.ErrorType))
	require.Equal(t, 2, list("limit=2"))
	require.EqualValues(t, 3, got.Total["default"])
	next := got.Next["default"]
	require.Equal(t, got.Letters[1].Seq, next)
	require.Equal(t, 1, list(fmt.Sprintf("limit=2&after=%d", next)))
	require.Empty(t, got.Next)

	// N3: what a build has to read that is to handle it.
	_, err := b.db.DB().ExecContext(t.Context(), "UPDATE dead_letters SET reason = 'newer_version', needs = 'Sales.SaleMade.v2' WHERE id = ?", of.ID)
	require.NoError(t, err)
	require.Equal(t, 1, list("reason=newer_version"))
	require.Equal(t, "Sales.SaleMade.v2", got.Letters[0].Needs)
}

func TestAPI_ParametersThatAreWrong(t *testing.T) {
	_, e, _ := withLetters(t, nil)
	for query, want := range map[string]string{
		"status=parkd":                           `status is "parkd": it takes one of parked, held, waiting, early, replay, replayed, discarded`,
		"reason=why":                             `reason is "why": it takes one of undecodable`,
		"reason=held&reason=held":                "reason stands there 2 times",
		"limit=1001":                             `limit is "1001": it takes a whole number from 1 to 1000`,
		"limit=0":                                "limit",
		"limit=ten":                              "limit",
		"after=-1":                               "after",
		"from=yesterday":                         "from is \"yesterday\": it takes a time such as 2026-01-02T15:04:05Z",
		"typ=x":                                  `there is no parameter "typ"; there are provider, `,
		"type=":                                  "type is empty: it takes text, or leave it out",
		"type=%00":                               "type is not UTF-8 text without NUL",
		"type=%ff":                               "type is not UTF-8",
		"type=%zz":                               "the query is not of the form",
		"type=" + strings.Repeat("x", maxText+1): "type is longer than 1024 characters",
		"limit=0&from=x":                         "; limit is",
	} {
		require.Contains(t, refused(t, e, 400, "GET", "/api/dead-letters?"+query, ""), want, query)
	}
	require.Contains(t, refused(t, e, 404, "GET", "/api/dead-letters?provider=x", ""), `there is no provider "x" here; there are ["default"]`)
	require.Contains(t, refused(t, e, 400, "GET", "/api/dead-letters/1", ""), "which is a UUID")
	require.Contains(t, refused(t, e, 404, "GET", "/api/dead-letters/0198f3c2-7d8e-7b9a-8c6d-5e4f3a2b1c0d", ""), "there is no dead letter 0198f3c2")
	require.Contains(t, refused(t, e, 405, "GET", "/api/dead-letters/replay", ""), "use POST")
}

// C-17: a chosen letter is replayed, others are discarded; both are tried
// out first, and on record.
func TestAPI_C_17_ReplayAndDiscard(t *testing.T) {
	b, e, fix := withLetters(t, nil)
	b.sell(3)
	letters := parkedLetters(t, e, 3).Letters
	fix(true)
	filter := fmt.Sprintf(`{"subscription": "parcels", "ids": [%q]}`, letters[0].ID)
	var got subscription.DeadLetterResult
	require.Equal(t, 200, call(t, e, "POST", "/api/dead-letters/replay", `{"filter": `+filter+`, "dry_run": true}`, &got))
	require.EqualValues(t, 1, got.Marked)
	require.Zero(t, got.Action)
	parkedLetters(t, e, 3)

	require.Equal(t, 200, call(t, e, "POST", "/api/dead-letters/replay",
		`{"provider": "default", "filter": `+filter+`, "rate": 10, "limit": 5, "actor": "ann"}`, &got))
	require.EqualValues(t, 1, got.Marked)
	require.Positive(t, got.Action)
	eventually(t, func() bool {
		var one letterDetails
		require.Equal(t, 200, call(t, e, "GET", "/api/dead-letters/"+letters[0].ID, "", &one))
		return one.Status == subscription.DeadLetterReplayed
	})
	require.Equal(t, 200, call(t, e, "POST", "/api/dead-letters/discard", fmt.Sprintf(
		`{"filter": {"subscription": "parcels", "error": "too small"}, "up_to": %d, "actor": "ann"}`, letters[1].Seq), &got))
	require.EqualValues(t, 1, got.Marked)
	parkedLetters(t, e, 1)
	actions, err := subscription.NewDeadLetters(b.db).Actions(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, actions, 2, "a dry run is none")
	require.Equal(t, "token: ann", actions[0].Actor)
	require.Equal(t, "discard", actions[0].Action)
}

func TestAPI_BodiesThatAreWrong(t *testing.T) {
	b, e, _ := withLetters(t, nil)
	b.sell(1)
	parkedLetters(t, e, 1)
	for body, want := range map[string]string{
		``:                 "is not JSON",
		`{"actor": "ann"`:  "is not JSON",
		`[]`:               "is not a JSON object",
		`{"actor": "ann"}`: "filter.subscription is missing",
		`{"filter": {"subscription": "parcels"}}`:                                       "actor is missing: say who asks",
		`{"filter": {"subscription": "parcels"}, "actor": "ann", "dryrun": true}`:       `unknown field "dryrun"`,
		`{"filter": {"subscription": "parcels", "typ": "x"}, "actor": "ann"}`:           `unknown field "typ"`,
		`{"filter": {"subscription": "parcels", "type": ""}, "actor": "ann"}`:           "filter.type is empty",
		`{"filter": {"subscription": "parcels", "type": null}, "actor": "ann"}`:         "filter.type is null",
		`{"filter": {"subscription": "parcels", "type": 7}, "actor": "ann"}`:            "filter.type can't be a number",
		`{"filter": {"subscription": "parcels", "ids": []}, "actor": "ann"}`:            "filter.ids is empty",
		`{"filter": {"subscription": "parcels", "ids": ["x"]}, "actor": "ann"}`:         "which is not a UUID",
		`{"filter": {"subscription": "parcels", "reason": "why"}, "actor": "ann"}`:      "it takes one of undecodable",
		`{"filter": {"subscription": "parcels", "statuses": ["lost"]}, "actor": "ann"}`: "it takes one of parked",
		`{"filter": {"subscription": "parcels"}, "actor": "ann", "rate": -1}`:           "rate is -1: give a number above 0",
		`{"filter": {"subscription": "parcels"}, "actor": "ann", "limit": 0}`:           "limit is 0",
		`{"filter": {"subscription": "parcels"}, "actor": "ann", "limit": 3e9}`:         "limit is 3000000000: it takes a whole number up to 2147483647",
		`{"filter": {"subscription": "parcels"}, "actor": "ann"} {}`:                    "is not JSON",
		`{"filter": {"subscription": "parcels"}, "actor": "a\u0000nn"}`:                 "actor is not UTF-8 text without NUL",
		`{"filter": {"subscription": "parcels"}, "actor": "a\nnn"}`:                     `actor is "token: a\nnn": give a name`,
		`{"filter": {"subscription": "parcels", "from": "yesterday"}, "actor": "ann"}`:  "can't be read",
	} {
		require.Contains(t, refused(t, e, 400, "POST", "/api/dead-letters/replay", body), want, body)
	}
	good := `{"filter": {"subscription": "parcels"}, "actor": "ann"}`
	require.Contains(t, refused(t, e, 413, "POST", "/api/dead-letters/discard", strings.Repeat(" ", maxBody)+good), "longer than 65536 bytes")
	require.Contains(t, refused(t, e, 400, "POST", "/api/dead-letters/discard", strings.Replace(good, "}, ", `}, "rate": 1, `, 1)), `unknown field "rate"`)
	require.Contains(t, refused(t, e, 404, "POST", "/api/dead-letters/discard", strings.Replace(good, "{", `{"provider": "x", `, 1)), `there is no provider "x"`)
	for _, kind := range []string{"", "text/plain", "application/x-www-form-urlencoded"} {
		w := askWith(e.Handler(), "POST", "/api/dead-letters/discard", good, map[string]string{"Content-Type": kind, "Authorization": "Bearer " + token})
		require.Equal(t, 415, w.Code)
		require.Contains(t, w.Body.String(), "application/json")
	}
	parkedLetters(t, e, 1)
}

// Actions need the token, also on this machine, and are off without one.
func TestAPI_WhoMayAct(t *testing.T) {
	b := setup(t)
	open, guarded := b.make(b.config()), b.make(b.guarded())
	for _, r := range open.routes(connected) {
		if r.method != http.MethodPost {
			continue
		}
		w := askWith(open.Handler(), r.method, r.path, "{}", map[string]string{"Content-Type": "application/json", "Authorization": "Bearer "})
		require.Equal(t, 403, w.Code, r.path)
		require.Contains(t, w.Body.String(), "set server.token")
		for _, authorization := range []string{"", "Bearer ", "Bearer wrong", "Basic " + token} {
			w = askWith(guarded.Handler(), r.method, r.path, "{}", map[string]string{"Content-Type": "application/json", "Authorization": authorization})
			require.Equal(t, 401, w.Code, r.path)
			require.Contains(t, w.Header().Get("WWW-Authenticate"), "Bearer")
		}
		w = askWith(guarded.Handler(), r.method, r.path, "{}", map[string]string{"Content-Type": "application/json", "Authorization": "Bearer " + token})
		require.Equal(t, 400, w.Code, r.path)
	}
}

// C-13: what a message carried is shown to those with the token where that is
// turned on, and never what is to be redacted.
func TestAPI_C_13_Payloads(t *testing.T) {
	b, e, _ := withLetters(t, func(cfg *Config) {
		cfg.Server.ShowPayloads = true
		cfg.Server.Redact = []string{"Amount", "TYPE"}
	})
	b.sell(1)
	path := "/api/dead-letters/" + parkedLetters(t, e, 1).Letters[0].ID
	var got letterDetails
	require.Equal(t, 200, call(t, e, "GET", path, "", &got))
	require.Nil(t, got.PayloadHidden)
	data := got.Payload.(map[string]any)["data"].(map[string]any)
	require.Equal(t, "[redacted]", data["Amount"])
	headers := got.Payload.(map[string]any)["metadata"].(map[string]any)["headers"].(map[string]any)
	require.Equal(t, "[redacted]", headers["type"], "at any depth, in any case")
	require.Equal(t, got.MessageID, headers["id"])
	require.Equal(t, "[redacted]", got.Headers["type"])
	require.Equal(t, got.MessageID, got.Headers["id"])

	cfg := b.guarded()
	off := b.make(cfg)
	w := askWith(off.Handler(), "GET", path, "", map[string]string{"Authorization": "Bearer " + token})
	require.Equal(t, 200, w.Code, w.Body)
	require.NotContains(t, w.Body.String(), "metadata")
	require.Contains(t, w.Body.String(), "server.show_payloads turns that on")
}

// Bodies that are not JSON are shown as text, or not at all.
func TestAPI_PayloadsThatAreNotJSON(t *testing.T) {
	b := setup(t)
	cfg := b.guarded()
	cfg.Server.ShowPayloads = true
	e := b.make(cfg)
	r, err := http.NewRequestWithContext(context.WithValue(t.Context(), visitorKey{}, visitor{operate: true}), http.MethodGet, "/", http.NoBody)
	require.NoError(t, err)
	deep := strings.Repeat("[", 9000) + strings.Repeat("]", 9000) // 162 MB if it were indented
	for body, want := range map[string]any{
		deep: deep, "plain": "plain", `{"a": 1} x`: `{"a": 1} x`, "12345678901234567890": json.Number("12345678901234567890"), "null": nil,
	} {
		got, hidden := e.payload(r, []byte(body))
		require.Equal(t, want, got)
		require.Empty(t, hidden)
	}
	_, hidden := e.payload(r, []byte{0xff})
	require.Equal(t, "it is no text", hidden)
	got, hidden := e.payload(r, nil)
	require.Nil(t, got)
	require.Empty(t, hidden)

	cfg.Server.Redact = []string{"card"}
	e = b.make(cfg)
	got, hidden = e.payload(r, []byte("card=1"))
	require.Nil(t, got)
	require.Contains(t, hidden, "can't be applied")
}

// Payloads can't be turned on for nobody, and a name that is none is a mistake.
func TestNew_ServerThatShowsNothing(t *testing.T) {
	b := setup(t)
	cfg := b.config()
	cfg.Server.ShowPayloads = true
	cfg.Server.Redact = []string{""}
	_, err := New(cfg)
	require.ErrorContains(t, err, "server.show_payloads shows what messages carry to those who send a token of role operate, and there is none")
	require.ErrorContains(t, err, `server.redact[0] is ""`)
}

// A database that doesn't answer, or has other tables, is told apart from one that
// has nothing; hosts, users and SQL are not told.
func TestAPI_DatabasesThatCantAnswer(t *testing.T) {
	b := setup(t)
	cfg, other := b.withAnalytics()
	cfg.Server.Token = token
	e := b.start(cfg)
	paths := []string{"/api/dead-letters?provider=analytics", "/api/dead-letters", "/api/dead-letters/0198f3c2-7d8e-7b9a-8c6d-5e4f3a2b1c0d"}
	ask := func(want string) {
		t.Helper()
		for _, path := range paths {
			text := refused(t, e, 503, "GET", path, "")
			require.Contains(t, text, `provider "analytics"`, path)
			require.Contains(t, text, want, path)
			require.NotContains(t, text, "refused", path)
		}
		require.Contains(t, refused(t, e, 503, "POST", "/api/dead-letters/replay",
			`{"provider": "analytics", "filter": {"subscription": "parcels"}, "actor": "ann"}`), want)
		var fine lettersReport
		require.Equal(t, 200, call(t, e, "GET", "/api/dead-letters?provider=default", "", &fine))
	}
	other.down.Store(true)
	ask("doesn't answer in time")
	other.down.Store(false)

	_, err := other.DB().ExecContext(t.Context(), "INSERT INTO waybill_migrations (feature, version, applied_at) VALUES ('subscription', 99, '2026-01-02T03:04:05.678Z')")
	require.NoError(t, err)
	ask("this build knows only 5; deploy a newer build")

	_, err = other.DB().ExecContext(t.Context(), "DELETE FROM waybill_migrations WHERE version = 99; ALTER TABLE dead_letters RENAME TO letters")
	require.NoError(t, err)
	require.Equal(t, "that went wrong; the engine's log says why", refused(t, e, 500, "GET", "/api/dead-letters?provider=analytics", ""))
	require.NotEmpty(t, b.logs.with("a request could not be answered", "dead_letters"))
	require.Contains(t, refused(t, e, 400, "GET", "/api/dead-letters?after=1", ""), "name it with provider")
	require.Contains(t, refused(t, e, 400, "POST", "/api/dead-letters/replay",
		`{"filter": {"subscription": "parcels"}, "actor": "ann"}`), "provider is missing: there are 2")
}

// answered is an error as PostgreSQL gives it.
type answered string

func (a answered) Error() string    { return "ERROR at 10.0.0.1: " + string(a) }
func (a answered) SQLState() string { return string(a) }

// What may pass by itself is a 503 that says what to do, and quotes no server.
func TestAPI_ErrorsOfADatabase(t *testing.T) {
	b := setup(t)
	e := b.make(b.config())
	for code, want := range map[answered]string{
		"55P03": "another session has locked one of the rows for long",
		"57014": "doesn't answer in time",
		"57P03": "doesn't answer in time",
		"53300": "doesn't answer in time",
	} {
		told := e.tell(httptest.NewRequest(http.MethodGet, "/", http.NoBody), e.databases[0].explain(fmt.Errorf("outbox: it ended early: %w", code)))
		require.Equal(t, 503, told.status, code)
		require.Contains(t, told.text, want)
		require.NotContains(t, told.text, "10.0.0.1")
	}
	told := e.tell(httptest.NewRequest(http.MethodGet, "/", http.NoBody), e.databases[0].explain(answered("42P01")))
	require.Equal(t, &problem{500, "that went wrong; the engine's log says why"}, told)
}

// One that says nothing at all costs a bounded time, however many ask, and keeps
// nobody from the others.
func TestAPI_ADatabaseThatHangs(t *testing.T) {
	b := setup(t)
	cfg, other := b.withAnalytics()
	cfg.Server.Token = token
	e := b.start(cfg)
	other.hung.Store(true)
	defer other.hung.Store(false)
	began := time.Now()
	var all sync.WaitGroup
	for range 20 * maxTurns { // one after the other they would take 20 times as long
		all.Go(func() {
			w := askWith(e.Handler(), "GET", "/api/dead-letters", "", map[string]string{"Authorization": "Bearer " + token})
			require.Equal(t, 503, w.Code)
			require.Contains(t, w.Body.String(), `provider \"analytics\" doesn't answer in time`)
		})
	}
	eventually(t, func() bool { return len(e.databases[1].turns) == maxTurns })
	var fine lettersReport
	require.Equal(t, 200, call(t, e, "GET", "/api/dead-letters?provider=default", "", &fine))
	all.Wait()
	require.Less(t, time.Since(began), 12*queryTimeout)
	require.Empty(t, e.databases[1].turns)
}
