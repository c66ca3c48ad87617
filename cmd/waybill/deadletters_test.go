package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

// letter puts a row into dead_letters and returns its id.
func letter(t *testing.T, p uow.Provider, sub, key, status string, body []byte) string {
	t.Helper()
	id := uuid.Must(uuid.NewV7()).String()
	d := p.DB().Dialect()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	reason := map[string]string{"held": "held"}[status]
	if reason == "" {
		reason = "failed"
	}
	_, err := p.DB().ExecContext(t.Context(), "INSERT INTO dead_letters (id, subscription, topic, partition_key, key_id, message_id, message_type, body, headers, error, error_type, stack, reason, attempts, first_at, last_at, status, holds)"+
		" VALUES (?, ?, 'ordering.order', ?, ?, ?, ?, ?, ?, ?, '*errors.errorString', ?, ?, 8, ?, ?, ?, ?)",
		id, sub, key, key, "m-"+key, "Ordering.OrderPlaced.v1", body, `{"type":"Ordering.OrderPlaced.v1","a":"\u001b[31m"}`, "no customer\nat \x1b[31mall", bun.NullZero("main.go:17\nmain.go:18\n"),
		reason, dbtime.Value(d, at), dbtime.Value(d, at.Add(time.Minute)), status, sub != "mailing")
	require.NoError(t, err)
	return id
}

func configured(t *testing.T, providers string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "waybill.yaml")
	require.NoError(t, os.WriteFile(file, []byte("providers: {"+providers+"}\n"), 0o600))
	require.Zero(t, waybill(t, "--config", file, "migrate").code)
	return file
}

// A72, C-17: what an operator sees.
func TestDeadLetters_A72_C_17_Look(t *testing.T) {
	eachProvider(t, func(t *testing.T, provider string, p uow.Provider) {
		file := configured(t, "default: "+provider)
		run := func(args ...string) result {
			r := waybill(t, append([]string{"--config", file, "dead-letters"}, args...)...)
			require.Zero(t, r.code, r.stderr)
			return r
		}
		require.Equal(t, result{0, "No dead letters match.\n", ""}, run("list"))
		require.Equal(t, result{0, "There are no dead letters.\n", ""}, run("summary"))
		require.Equal(t, result{0, "Nothing has been replayed, discarded, removed or retired.\n", ""}, run("log"))
		require.Equal(t, exitUsage, waybill(t, "--config", file, "dead-letters", "log", "--limit", "0").code)
		require.JSONEq(t, `{"providers":{"default":{"dead_letters":[],"total":0,"next":0}}}`, run("list", "--json").stdout)

		one := letter(t, p, "shipping", "o-1", "parked", []byte(`{"order_id":"o-1"}`))
		two := letter(t, p, "shipping", "o-1", "held", []byte{0, 0xff, 'x'})
		mail := letter(t, p, "mailing", "o-2", "parked", nil)
		require.Regexp(t, `^ID +SUBSCRIPTION  STATUS  REASON  TYPE +KEY  ATTEMPTS  LAST ATTEMPT +ERROR
`+one+`  shipping +parked  failed  Ordering.OrderPlaced.v1  o-1  8 +2026-01-02T03:05:05Z  no customer at  \[31mall
`+two+`  shipping +held    held    .*
`+mail+`  mailing +parked  failed  .*
$`, run("list").stdout)
		r := run("list", "--limit", "1", "--subscription", "shipping")
		require.Equal(t, "1 of 2; continue with --after 1\n", r.stderr)
		require.Contains(t, r.stdout, one)
		require.NotContains(t, r.stdout, two)
		r = run("list", "--limit", "1", "--subscription", "shipping", "--after", "1")
		require.Empty(t, r.stderr)
		require.Contains(t, r.stdout, two)
		require.Contains(t, run("list", "--key", "o-2", "--type", "Ordering.OrderPlaced.v1", "--error", "customer", "--error-type", "*errors.errorString", "--reason", "failed", "--status", "parked", "--status", "held",
			"--from", "2026-01-02T03:05:05Z", "--until", "1h", "--id", mail, "--provider", "default").stdout, mail)
		require.Equal(t, "No dead letters match.\n", run("list", "--from", "1h").stdout)

		require.Regexp(t, `^Dead letter   `+one+`, provider default
Subscription  shipping
Status        parked: waits for an operator
Reason        failed: it had its attempts
Message       Ordering.OrderPlaced.v1, m-o-1
Topic, key    ordering.order, o-1
Place         first of its key; 1 behind it
Attempts      8, from 2026-01-02T03:04:05Z to 2026-01-02T03:05:05Z \(\d+ days ago\)
Error         no customer
              at \x{FFFD}\[31mall
Error type    \*errors.errorString
Stack         main.go:17
              main.go:18
Headers       a: \x{FFFD}\[31m
              type: Ordering.OrderPlaced.v1
Body          18 bytes
{
  "order_id": "o-1"
}

waybill dead-letters replay --subscription shipping --id `+one+` +handles it again
waybill dead-letters discard --subscription shipping --id `+one+` +gives it up
$`, run("show", one).stdout)
		r = run("show", two)
		require.Contains(t, r.stdout, "Place         1 of its key before it, the first is "+one+"; 0 behind it\n")
		require.Contains(t, r.stdout, "Body          3 bytes, no text; the first 3:\n00000000  00 ff 78 ")
		r = run("show", mail)
		require.Contains(t, r.stdout, "Body          none\n")
		require.Contains(t, r.stdout, "its subscription skips")
		var all map[string]any
		require.NoError(t, json.Unmarshal([]byte(run("show", "--json", one).stdout), &all))
		require.Equal(t, []any{"default", one, `{"order_id":"o-1"}`, "eyJvcmRlcl9pZCI6Im8tMSJ9", "main.go:17\nmain.go:18\n", 1.0}, []any{all["provider"], all["id"], all["text"], all["body"], all["stack"], all["behind"]})

		require.Regexp(t, `^SUBSCRIPTION  COUNT  STATUS  REASON  TYPE +ERROR TYPE +FIRST ATTEMPT +LAST ATTEMPT
mailing       1      parked  .*
shipping      1      parked .*
shipping      1      held .*
$`, run("summary").stdout)
		require.Contains(t, run("summary", "--json", "--until", "1h").stdout, `"count": 1`)

		// N3: what a build has to read that is to handle it.
		for _, c := range []struct{ needs, says string }{
			{"Ordering.OrderPlaced.v2", "a build that reads Ordering.OrderPlaced.v2: the first"},
			{"stored:library::book.v2", "a build that reads library::book.v2, which its handler loads: the first"},
		} {
			execute(t, p, "UPDATE dead_letters SET reason = 'newer_version', needs = ? WHERE id = ?", c.needs, mail)
			require.Contains(t, run("list").stdout, " newer_version, needs "+c.needs+" ")
			require.Contains(t, run("show", mail).stdout, "Needs         "+c.says+" one that runs handles it by itself\n")
		}
	})
}

// C-17, F-78: nothing is changed unasked, and what is done is said and on record.
func TestDeadLetters_C_17_F_78_Change(t *testing.T) {
	eachProvider(t, func(t *testing.T, provider string, p uow.Provider) {
		file := configured(t, "default: "+provider)
		run := func(code int, args ...string) result {
			r := waybill(t, append([]string{"--config", file, "dead-letters"}, args...)...)
			require.Equal(t, code, r.code, "%s%s", r.stdout, r.stderr)
			return r
		}
		one := letter(t, p, "shipping", "o-1", "parked", nil)
		two := letter(t, p, "shipping", "o-1", "held", nil)
		letter(t, p, "shipping", "o-2", "parked", nil)
		mail := letter(t, p, "mailing", "o-2", "parked", nil)
		count := func(status string) (n int) {
			require.NoError(t, p.DB().NewRaw("SELECT count(*) FROM dead_letters WHERE status = ?", status).Scan(t.Context(), &n))
			return n
		}

		for want, args := range map[string][]string{
			"replay what? Name --subscription or --id":                                   {"replay", "--type", "x", "--yes"},
			"discard what? Name --subscription or --id":                                  {"discard", "--yes", "--actor", "ada"},
			"who asks? Give --actor":                                                     {"replay", "--subscription", "shipping", "--yes", "--actor", ""},
			"can't ask for confirmation without a terminal":                              {"discard", "--subscription", "shipping", "--actor", "ada"},
			"--limit is 0: from 1 to 10000":                                              {"list", "--limit", "0"},
			"--rate and --limit are above 0":                                             {"replay", "--subscription", "shipping", "--yes", "--actor", "ada", "--rate=-1"},
			"neither a time as in 2026-01-02T15:04:05Z nor how long":                     {"list", "--from", "yesterday"},
			`the configuration has no provider "x"`:                                      {"list", "--provider", "x"},
			`must be one of "parked","held","waiting","early","replay","replayed","disc`: {"list", "--status", "x"},
		} {
			require.Contains(t, run(exitUsage, args...).stderr, want)
		}
		nobody := uuid.NewString()
		r := run(exitFailed, "replay", "--id", nobody, "--id", one, "--yes", "--actor", "ada")
		require.Equal(t, "waybill: there is no such dead letter, or it is of another subscription: "+nobody+"; nothing was changed\n", r.stderr)
		require.Contains(t, run(exitFailed, "show", nobody).stderr, "there is no dead letter "+nobody)
		require.Contains(t, run(exitFailed, "replay", "--id", one, "--id", mail, "--yes", "--actor", "ada").stderr, "the ids are of several subscriptions, mailing, shipping: name one")
		require.Equal(t, 3, count("parked"))

		r = run(0, "replay", "--dry-run", "--id", two)
		require.Equal(t, "replay    0  of subscription shipping\nleft out  1  behind parked messages of their keys that are not chosen: add --id "+one+"\n", r.stdout)
		r = run(0, "replay", "--dry-run", "--subscription", "shipping")
		require.Equal(t, "replay  2  of subscription shipping\nfollow  1  held behind them: these follow by themselves\n", r.stdout)
		require.Equal(t, "No process runs subscription shipping now: what is marked is handled once one does. `waybill subscriptions list` has their names.\n", r.stderr)
		require.Equal(t, 3, count("parked"))
		execute(t, p, "UPDATE dead_letters SET needs = 'stored:Ordering.OrderPlaced.v2' WHERE id = '"+one+"'")
		require.Contains(t, run(0, "replay", "--dry-run", "--subscription", "shipping").stderr, "Some wait for a build that knows Ordering.OrderPlaced.v2: it handles them by itself, once it runs, and others leave them alone.\n")
		execute(t, p, "UPDATE dead_letters SET needs = NULL")
		execute(t, p, "INSERT INTO subscription_runs (subscription, run) VALUES ('shipping.orders', 'r')") // a stream of it
		r = run(0, "replay", "--yes", "--actor", "ada", "--subscription", "shipping", "--rate", "0.5")
		require.Equal(t, "replay  2  of subscription shipping\nfollow  1  held behind them: these follow by themselves\n2 messages marked for the runners of shipping, the last of them in 2s; action 1, by ada.\n", r.stdout)
		require.Empty(t, r.stderr)
		require.Equal(t, []int{1, 1, 2}, []int{count("parked"), count("held"), count("replay")})
		r = run(0, "replay", "--yes", "--actor", "ada", "--subscription", "shipping")
		require.Equal(t, "replay    0  of subscription shipping\nheld      1  follow by themselves when the messages before them are replayed or discarded\nunderway  2  in replay already\n", r.stdout)

		r = run(0, "replay", "--yes", "--actor", "ada", "--id", mail, "--json")
		require.Contains(t, r.stderr, "Out of order: later messages of the keys of 1 were handled already")
		var done struct {
			DryRun    bool `json:"dry_run"`
			Providers map[string]subscription.DeadLetterResult
		}
		require.NoError(t, json.Unmarshal([]byte(r.stdout), &done))
		require.False(t, done.DryRun)
		require.EqualValues(t, 2, done.Providers["default"].Action)
		require.EqualValues(t, 1, done.Providers["default"].Marked)

		r = run(0, "discard", "--yes", "--actor", "bob", "--id", two)
		require.Equal(t, "discard  1  of subscription shipping\n1 message of shipping discarded; action 3, by bob.\n", r.stdout)
		require.Regexp(t, `^ACTION  AT +WHO  WHAT     SUBSCRIPTION  MESSAGES  ASKED FOR
3       20\S+Z  bob  discard  shipping      1         .*
2       20\S+Z  ada  replay   mailing       1         .*
1       20\S+Z  ada  replay   shipping      2         .*"rate": ?0.5.*
$`, run(0, "log").stdout)
		require.Contains(t, run(0, "log", "--json", "--limit", "1").stdout, `"actor": "bob"`)
	})
}

// A dead letter is found in whichever database it is.
func TestDeadLetters_SeveralProviders(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a.db"), filepath.Join(dir, "b.db")
	file := configured(t, fmt.Sprintf("one: {dialect: sqlite, path: %q}, two: {dialect: sqlite, path: %q}", a, b))
	first, second := letter(t, openFor(t, a), "shipping", "o-1", "parked", nil), letter(t, openFor(t, b), "mailing", "o-1", "parked", nil)
	letter(t, openFor(t, b), "mailing", "o-1", "parked", nil)
	r := waybill(t, "--config", file, "dead-letters", "list", "--limit", "1")
	require.Regexp(t, `^PROVIDER  ID +SUBSCRIPTION .*\none       `+first+` .*\ntwo       `+second+` .*\n$`, r.stdout)
	require.Equal(t, "1 of 2; continue with --provider two --after 1\n", r.stderr)
	r = waybill(t, "--config", file, "dead-letters", "show", second)
	require.Contains(t, r.stdout, "provider two\n")
	r = waybill(t, "--config", file, "dead-letters", "discard", "--id", second, "--yes", "--actor", "ada")
	require.Zero(t, r.code, r.stderr)
	require.Equal(t, "Provider two\ndiscard  1  of subscription mailing\n1 message of mailing discarded; action 1, by ada.\n", r.stdout)
	r = waybill(t, "--config", file, "dead-letters", "replay", "--id", first, "--provider", "two", "--dry-run")
	require.Equal(t, exitFailed, r.code)
}
