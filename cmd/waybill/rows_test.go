package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
)

// outboxBench is an outbox, and what operators see of it.
type outboxBench struct{ *outboxdbtest.Bench }

// Entries are all rows, in order.
func (b outboxBench) Entries() []outbox.Entry {
	b.T.Helper()
	entries, err := b.Find(b.T.Context(), outbox.Filter{Limit: maxPage})
	require.NoError(b.T, err)
	return entries
}

// Statuses are the statuses of all rows, in order.
func (b outboxBench) Statuses() (statuses []outbox.Status) {
	b.T.Helper()
	for _, e := range b.Entries() {
		statuses = append(statuses, e.Status)
	}
	return statuses
}

// bench is an outbox with one row in each state, by key, and the rows themselves.
func bench(t *testing.T, p uow.Provider) (outboxBench, map[string]outbox.Row) {
	t.Helper()
	b := outboxBench{&outboxdbtest.Bench{Store: outboxdb.New(p.DB(), p.Reader()), T: t, DB: p.DB(), As: p.DB()}}
	require.NoError(t, b.WriteRetention(t.Context(), outbox.Config{}.WithDefaults()))
	keys := []string{"published", "failed", "abandoned", "held", "processing", "pending"}
	rows := map[string]outbox.Row{}
	for i, row := range b.Insert(keys...) {
		rows[keys[i]] = row
	}
	rows["follower"] = b.Insert("held")[0]
	m := b.Join("w1", time.Hour, outbox.DefaultPartitions)
	queued := m.Look(100)
	slices.SortFunc(queued, func(a, b relay.QueueRow) int { return cmp.Compare(a.Seq, b.Seq) })
	c := m.Claim(queued[:4]...)
	require.Len(t, c, 4)
	settled := m.Settlement(c[0])
	settled.Failed = []relay.Failure{
		{RowRef: c[1].Ref(), Attempts: 1, Class: "transient", Error: "no \x1b[31mleader", DueIn: time.Hour},
		{RowRef: c[3].Ref(), Attempts: 1, Class: "unknown", Error: "timeout", Held: true},
	}
	settled.Abandoned = []relay.Abandonment{{RowRef: c[2].Ref(), Attempts: 1, Class: "permanent", Error: "too large"}}
	require.True(t, m.Settle(settled))
	require.Len(t, m.Claim(queued[4]), 1)
	return b, rows
}

// command runs outbox commands against one database and checks their exit status.
func command(t *testing.T, file string) func(code int, args ...string) result {
	return func(code int, args ...string) result {
		t.Helper()
		r := waybill(t, append([]string{"--config", file}, args...)...)
		require.Equal(t, code, r.code, "%s%s", r.stdout, r.stderr)
		return r
	}
}

// A86, S3-30: what an operator sees of rows.
func TestOutbox_A86_S3_30_Look(t *testing.T) {
	eachProvider(t, func(t *testing.T, provider string, p uow.Provider) {
		run := command(t, configured(t, "default: "+provider))
		require.Equal(t, result{0, "No unpublished rows match; --status published searches the published ones.\n", ""}, run(0, "outbox", "list"))
		require.JSONEq(t, `{"providers":{"default":{"messages":[],"next":0}}}`, run(0, "outbox", "list", "--json").stdout)
		require.Equal(t, "Nothing has been retried, skipped, abandoned or removed, and no timers moved or stopped.\n", run(0, "outbox", "log").stdout)
		require.Equal(t, "No partition has an owner or a row yet.\n", run(0, "partitions").stdout)

		b, rows := bench(t, p)
		require.Regexp(t, `^SEQ  MESSAGE +TARGET +STATUS +TYPE +KEY +ATTEMPTS  STORED +ERROR
2 +`+rows["failed"].MessageID+`  default  failed  +Ordering.OrderPlaced.v1  failed +1 of 5    20\S+Z  no  \[31mleader
3 .* abandoned +Ordering.* too large
4 .* abandoned, held .* timeout
5 .* processing .*  -
6 .* pending .*  0 of 5 .*  -
7 .* pending .*
$`, run(0, "outbox", "list").stdout)
		seqs := func(args ...string) (seqs []int64) {
			var page struct {
				Providers map[string]rowsPage
			}
			require.NoError(t, json.Unmarshal([]byte(run(0, append([]string{"outbox", "list", "--json"}, args...)...).stdout), &page))
			for _, e := range page.Providers["default"].Messages {
				seqs = append(seqs, e.Seq)
			}
			return seqs
		}
		for want, args := range map[string][]string{
			"[1]":           {"--status", "published"},
			"[2]":           {"--error", "leader"},
			"[3]":           {"--class", "permanent", "--status", "abandoned", "--status", "failed"},
			"[4]":           {"--held"},
			"[4 7]":         {"--key", "held"},
			"[5]":           {"--seq", "5"},
			"[6]":           {"--correlation", "c-pending"},
			"[7]":           {"--message", rows["follower"].MessageID, "--stream", "ordering::order-held", "--type", "Ordering.OrderPlaced.v1", "--category", "ordering::order", "--target", "default", "--from", "1h", "--until", "2100-01-01T00:00:00Z"},
			"[]":            {"--causation", "x"},
			"[1 2 3 4 5 6]": {"--seq", "1", "--seq", "2", "--seq", "3", "--seq", "4", "--seq", "5", "--seq", "6"},
			"[3 4]":         {"--after", "2", "--limit", "2"},
		} {
			require.Equal(t, want, fmt.Sprint(seqs(args...)), args)
		}
		r := run(0, "outbox", "list", "--limit", "2", "--after", "3")
		require.Equal(t, "There are more; continue with --after 5\n", r.stderr)
		require.Empty(t, run(0, "outbox", "list", "--limit", "2", "--after", "5").stderr)
		require.Empty(t, seqs("--stale"))

		shown := run(0, "outbox", "show", rows["failed"].MessageID).stdout
		require.Regexp(t, `^Message         `+rows["failed"].MessageID+`, provider default
Type            Ordering.OrderPlaced.v1
Stream          ordering::order-failed, version 2
Key             failed, partition \d
Correlation     c-failed
Raised          2026-01-02T03:04:05Z \(\d+ days ago\)

To default      failed: is tried again when it is due
  Row           2, stored 20\S+Z \(\d+s ago\)
  Attempts      1 of 5, the last 20\S+Z \(\d+s ago\)
  Next attempt  20\S+Z, in (1h0m0s|59m\d+s)
  Partition     \d+, held by w1 until 20\S+Z \((59m\d+s|1h0m0s)\)
  Error         no \x{FFFD}\[31mleader
  Class         transient: refused for now
  waybill outbox retry   --seq 2   tries it again at once
  waybill outbox abandon --seq 2   gives it up
$`, shown)
		require.Equal(t, shown[:40], run(0, "outbox", "show", "2").stdout[:40], "by its seq")
		shown = run(0, "outbox", "show", rows["follower"].MessageID, "--payload").stdout
		require.Contains(t, shown, "  Next attempt  due now, behind the rows of its key\n")
		require.Contains(t, shown, "  Waits for     row 4 of its key, message "+rows["held"].MessageID+", which is abandoned, held\n")
		require.Contains(t, shown, "  Payload       11 bytes, application/json\n{\n  \"data\": {}\n}\n")
		shown = run(0, "outbox", "show", "4").stdout
		require.Contains(t, shown, "  Class         unknown: unknown: it may have arrived\n")
		require.Contains(t, shown, "  waybill outbox skip  --seq 4   releases the rows behind it\n")
		require.Regexp(t, `  In hand of    w1, by a lease until 20\S+Z at least \((59m\d+s|1h0m0s)\)\n`, run(0, "outbox", "show", "5").stdout)
		require.Regexp(t, `  Published     20\S+Z \(\d+s after it was stored\)\n  Kept until    20\S+Z, for \d days\n`, run(0, "outbox", "show", "1").stdout)
		require.Contains(t, run(0, "outbox", "show", "3").stdout, "tries it again, after what has followed it in its key")
		var all struct {
			MessageID string `json:"message_id"`
			Rows      []map[string]any
		}
		require.NoError(t, json.Unmarshal([]byte(run(0, "outbox", "show", "7", "--json", "--payload").stdout), &all))
		require.Equal(t, rows["follower"].MessageID, all.MessageID)
		require.Equal(t, []any{"default", 7.0, 1.0, map[string]any{"data": map[string]any{}}}, []any{all.Rows[0]["provider"], all.Rows[0]["seq"], all.Rows[0]["before"], all.Rows[0]["payload"]})
		require.Equal(t, "held", all.Rows[0]["head"].(map[string]any)["key"])
		require.NotContains(t, run(0, "outbox", "show", "7", "--json").stdout, "payload")

		text := run(0, "partitions").stdout
		require.Regexp(t, `^TARGET +PARTITION  OWNER  LEASE UNTIL +UNFINISHED  OLDEST  HELD\ndefault  0 +w1 +20\S+Z +\d+ `, text)
		require.Regexp(t, fmt.Sprintf(`(?m)^default  %d +w1 +20\S+Z  +[2-6] +\d+s +1$`, rows["held"].Partition), text)
		require.Len(t, strings.Split(strings.TrimSpace(text), "\n"), 65)
		b.Expire()
		require.Regexp(t, `  Partition     \d+, which has no owner: `, run(0, "outbox", "show", "2").stdout)
		require.Contains(t, run(0, "partitions").stdout, ": it has run out")
		require.Equal(t, []int64{5}, seqs("--stale"))
		require.Contains(t, run(0, "outbox", "show", "5").stdout, "w1, whose lease has run out: whoever takes its partition publishes it again")
		var owned struct {
			Providers map[string]map[string][]outbox.Owned
		}
		require.NoError(t, json.Unmarshal([]byte(run(0, "partitions", "--json", "--target", "default").stdout), &owned))
		require.Len(t, owned.Providers["default"]["default"], 64)
		one := owned.Providers["default"]["default"][rows["held"].Partition]
		require.Equal(t, []any{rows["held"].Partition, "w1", false, int64(1)}, []any{one.Partition, *one.Owner, one.Live, one.Held})
		require.NotNil(t, one.OldestSeconds)
		require.Equal(t, "No partition has an owner or a row yet.\n", run(0, "partitions", "--target", "nobody").stdout)
	})
}

// A86, C-17: nothing is changed unasked, and what is done is said and on record.
func TestOutbox_A86_C_17_Change(t *testing.T) {
	eachProvider(t, func(t *testing.T, provider string, p uow.Provider) {
		run := command(t, configured(t, "default: "+provider))
		b, rows := bench(t, p)
		before := b.Entries()
		nobody := uuid.NewString()
		for want, args := range map[string][]string{
			"retry what? Choose rows by --seq":                         {"retry", "--yes", "--provider", "default"},
			"abandon what? Choose rows by --seq":                       {"abandon", "--dry-run"},
			"who asks? Give --actor":                                   {"skip", "--held", "--yes", "--actor", ""},
			"can't ask for confirmation without a terminal: check":     {"skip", "--held", "--actor", "ada"},
			"--rate is a number of rows per second above 0":            {"retry", "--held", "--yes", "--actor", "ada", "--rate=nan"},
			"--limit is above 0":                                       {"retry", "--held", "--yes", "--actor", "ada", "--limit=-1"},
			"neither a time as in 2026-01-02T15:04:05Z nor how long":   {"list", "--from", "yesterday"},
			`the configuration has no provider "x"`:                    {"retry", "--held", "--dry-run", "--provider", "x"},
			`must be one of "pending","processing","published","faile`: {"list", "--status", "x"},
			"--limit is 10001: from 1 to 10000":                        {"list", "--limit", "10001"},
			"--limit is 0: from 1 to 10000":                            {"log", "--limit", "0"},
			`"x" is neither the id of a message`:                       {"show", "x"},
			"unknown flag --rate":                                      {"skip", "--held", "--rate", "3"},
			"--older-than is an age above 0":                           {"purge", "--older-than=-1h"},
			"can't ask for confirmation without a terminal":            {"purge", "--older-than=1ns", "--actor", "ada"},
			`must be one of "published","abandoned" but got "failed"`:  {"purge", "--status", "failed"},
		} {
			require.Contains(t, run(exitUsage, append([]string{"outbox"}, args...)...).stderr, want)
		}
		for want, args := range map[string][]string{
			"there is no row 998, 999; nothing was changed":                 {"retry", "--seq", "999", "--seq", "2", "--seq", "998", "--yes", "--actor", "ada"},
			"no row of message " + nobody + " matches; nothing was changed": {"abandon", "--message", nobody, "--yes", "--actor", "ada"},
			"there is no row 999":                                                     {"show", "999"},
			"no row is of message " + nobody:                                          {"show", nobody},
			`"x' OR" is not the id of a message, which is a UUID`:                     {"list", "--message", "x' OR"},
			"chooses none but [published] rows, and only [failed abandoned] ones can": {"retry", "--status", "published", "--yes", "--actor", "ada"},
		} {
			require.Contains(t, run(exitFailed, append([]string{"outbox"}, args...)...).stderr, want)
		}
		require.Equal(t, "retry  0  rows\n", run(0, "outbox", "retry", "--yes", "--actor", "ada", "--key", `%'; DROP TABLE outbox; -- "?`).stdout)

		r := run(0, "outbox", "retry", "--dry-run", "--type", "Ordering.OrderPlaced.v1")
		require.Equal(t, "retry  3  rows, 1 of them out of order\n"+
			"left   2  that are pending: only failed and abandoned ones can be retried\n"+
			"left   1  that are processing: only failed and abandoned ones can be retried\n", r.stdout)
		require.Equal(t, "Out of order: 1 row was abandoned without a hold, so what followed in the same key may have been published already.\n", r.stderr)
		require.Equal(t, before, b.Entries())
		require.Empty(t, b.Entries()[0].LastError)

		r = run(0, "outbox", "skip", "--held", "--yes", "--actor", "ada")
		require.Equal(t, "skip  1  rows\n1 row skipped: later rows of their keys are published; action 1, by ada.\n", r.stdout)
		r = run(0, "outbox", "retry", "--status", "failed", "--status", "abandoned", "--rate", "0.5", "--limit", "2", "--yes", "--actor", "ada")
		require.Contains(t, r.stdout, "2 rows pending again, the last of them due in 2s; action 2, by ada.\n")
		r = run(0, "outbox", "abandon", "--message", rows["pending"].MessageID, "--yes", "--actor", "bob", "--json")
		var done struct {
			DryRun    bool `json:"dry_run"`
			Providers map[string]outbox.ChangeResult
		}
		require.NoError(t, json.Unmarshal([]byte(r.stdout), &done))
		require.False(t, done.DryRun)
		require.EqualValues(t, 3, done.Providers["default"].Action)
		require.EqualValues(t, 1, done.Providers["default"].Changed)
		require.Equal(t, []outbox.Status{"published", "pending", "pending", "abandoned", "processing", "abandoned", "pending"}, b.Statuses())

		require.Equal(t, "Provider default: 0 published and 0 abandoned rows have expired.\n", run(0, "outbox", "purge", "--actor", "ada").stdout, "nothing to ask")
		require.Equal(t, "Provider default: 1 published and 2 abandoned rows were finished more than 0s ago.\n", run(0, "outbox", "purge", "--older-than", "1ms", "--dry-run").stdout)
		r = run(0, "outbox", "purge", "--older-than", "1ms", "--status", "abandoned", "--yes", "--actor", "ada")
		require.Contains(t, r.stdout, "Provider default: 0 published and 2 abandoned rows removed; action 4, by ada.\n")
		require.JSONEq(t, `{"dry_run":false,"providers":{"default":{"published":1,"abandoned":0,"action":5}}}`, run(0, "outbox", "purge", "--older-than", "1ms", "--yes", "--actor", "ada", "--json").stdout)
		require.Equal(t, []outbox.Status{"pending", "pending", "processing", "pending"}, b.Statuses())
		require.Regexp(t, `^ACTION  AT +WHO  WHAT     ROWS  ASKED FOR
5       20\S+Z  ada  purge    1     \{"older_than": ?"1ms"\}
4       20\S+Z  ada  purge    2     .*
3       20\S+Z  bob  abandon  1     .*`+rows["pending"].MessageID+`.*
2       20\S+Z  ada  retry    2     .*"rate": ?0.5.*
1       20\S+Z  ada  skip     1     .*"held": ?true.*
$`, run(0, "outbox", "log").stdout)
		require.Contains(t, run(0, "outbox", "log", "--json", "--limit", "1").stdout, `"action": "purge"`)
	})
}

// A86: what a processor gave up, or holds, is published when an operator has said
// so, in the order of its key.
func TestOutbox_A86_RetriedIsPublished(t *testing.T) {
	eachProvider(t, func(t *testing.T, provider string, p uow.Provider) {
		run := command(t, configured(t, "default: "+provider))
		units, err := uow.New(uow.Config{Domain: ordering, Providers: []uow.Provider{p}})
		require.NoError(t, err)
		require.NoError(t, engine.Migrate(t.Context(), units))
		m, broken := memory.New(memory.Config{}), atomic.Bool{}
		m.FailWhere(func(broker.Message) error {
			if broken.Load() {
				return broker.Classify(broker.Permanent, errors.New("not authorised"))
			}
			return nil
		})
		broken.Store(true)
		e, err := engine.New(engine.Config{
			Units: []*uow.Manager{units}, Brokers: map[string]broker.Broker{"default": m},
			Outbox: outbox.Config{PollInterval: 20 * time.Millisecond, MaxPollInterval: 20 * time.Millisecond, OnAbandoned: outbox.Hold},
		})
		require.NoError(t, err)
		require.NoError(t, e.Start(t.Context()))
		t.Cleanup(func() { require.NoError(t, e.Stop(context.Background())) })
		o := &order{Root: domain.NewRoot()}
		for _, note := range []string{"one", "two", "three"} {
			o.Raise(placed{Note: note})
		}
		require.NoError(t, repository.New[*order](units).Save(t.Context(), o))
		store := outboxdb.New(p.DB(), p.Reader())
		statuses := func() (text string) {
			rows, err := store.Find(context.Background(), outbox.Filter{})
			require.NoError(t, err)
			for _, r := range rows {
				text += string(r.Status[:2]) + " "
			}
			return text
		}
		eventually := func(want string) {
			t.Helper()
			waittest.Until(t, func() bool { return statuses() == want }, "%s", want)
		}
		eventually("ab pe pe ")
		require.Contains(t, run(0, "outbox", "show", "2").stdout, "which is abandoned, held\n")
		require.Contains(t, run(0, "outbox", "skip", "--seq", "1", "--yes", "--actor", "ada").stdout, "1 row skipped")
		eventually("ab ab pe ")
		broken.Store(false)
		r := run(0, "outbox", "retry", "--status", "abandoned", "--yes", "--actor", "ada")
		require.Contains(t, r.stderr, "Out of order: 1 row was")
		eventually("pu pu pu ")
		require.Equal(t, "retry  0  rows\n", run(0, "outbox", "retry", "--status", "abandoned", "--yes", "--actor", "ada").stdout)
	})
}

// A row's seq is its database's own: with several, one is named.
func TestOutbox_SeveralProviders(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a.db"), filepath.Join(dir, "b.db")
	file := configured(t, fmt.Sprintf("one: {dialect: sqlite, path: %q}, two: {dialect: sqlite, path: %q}", a, b))
	run := command(t, file)
	bench(t, openFor(t, a))
	second, rows := bench(t, openFor(t, b))
	require.Regexp(t, `^PROVIDER  SEQ .*\none       2 .*\ntwo       2 .*\n$`, run(0, "outbox", "list", "--status", "failed").stdout)
	require.Equal(t, "There are more; continue with --provider one --after 2\nThere are more; continue with --provider two --after 2\n", run(0, "outbox", "list", "--limit", "1").stderr)
	require.Contains(t, run(exitUsage, "outbox", "retry", "--seq", "2", "--yes", "--actor", "ada").stderr, "name --provider with --seq")
	require.Equal(t, "retry  1  rows\n", run(0, "outbox", "retry", "--seq", "2", "--dry-run", "--provider", "two").stdout)
	shown := run(0, "outbox", "show", "2").stdout
	require.Contains(t, shown, "provider one\n")
	require.Contains(t, shown, "provider two\n")
	r := run(0, "outbox", "retry", "--message", rows["failed"].MessageID, "--yes", "--actor", "ada")
	require.Equal(t, "Provider two\nretry  1  rows\n1 row pending again; action 1, by ada.\n", r.stdout)
	require.Equal(t, outbox.Pending, second.Statuses()[1])
	require.NoError(t, os.Remove(b))
	r = run(exitFailed, "outbox", "list", "--status", "failed")
	require.Contains(t, r.stdout, " failed ", "what is known is shown")
	require.Contains(t, r.stderr, `provider "two": tables of outbox are missing; run `+"`waybill migrate`")
	run(exitFailed, "partitions")
	run(exitFailed, "outbox", "retry", "--status", "failed", "--yes", "--actor", "ada")
	run(exitFailed, "outbox", "purge", "--yes", "--actor", "ada")
}

// Stats go on until they are interrupted; without a terminal nothing is cleared.
func TestStats_Watch(t *testing.T) {
	dsn := filepath.Join(t.TempDir(), "a.db")
	require.Zero(t, waybill(t, "--dsn", dsn, "migrate").code)
	bench(t, openFor(t, dsn))
	for _, json := range []string{"", "--json"} {
		c := exec.CommandContext(t.Context(), binary, strings.Fields("--dsn "+dsn+" outbox stats --watch --every 100ms "+json)...)
		stdout, err := c.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, c.Start())
		var text strings.Builder
		part := make([]byte, 4096)
		for strings.Count(text.String(), "default") < 8 {
			n, err := stdout.Read(part)
			require.NoError(t, err)
			text.Write(part[:n])
		}
		require.NoError(t, c.Process.Signal(os.Interrupt))
		for err == nil {
			_, err = stdout.Read(part)
		}
		require.NoError(t, c.Wait())
		require.NotContains(t, text.String(), "\x1b")
		if json == "" {
			require.Regexp(t, `^20\S+Z, every 100ms\nPROVIDER .* PUBLISHED/S .*\ndefault .* - .*\n\n20\S+Z, every 100ms\nPROVIDER .* PUBLISHED/S .*\ndefault +default +2 +1 +1 +1 +2 +0\.0 +0\.0 %`, text.String())
		}
	}
	r := waybill(t, "--dsn", dsn, "outbox", "stats", "--watch", "--every", "1ms")
	require.Equal(t, exitUsage, r.code)
	require.Contains(t, r.stderr, "--every is 1ms: at least 100ms")
	r = waybill(t, "--dsn", dsn+".none", "outbox", "stats", "--watch")
	require.Equal(t, exitFailed, r.code)
}

// bash completes commands, flags and values with the script that the program
// writes.
func TestCompletion_Bash(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "completion")
	r := waybill(t, "completion", "bash")
	require.Zero(t, r.code, r.stderr)
	require.NoError(t, os.WriteFile(script, []byte(r.stdout), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "my waybill.yaml"), nil, 0o600))
	for line, want := range map[string]string{
		"|":                                 "migrate outbox timers processes projections history partitions dead-letters subscriptions database trace doctor contract observatory completion",
		"outbox|":                           "stats list show retry skip abandon purge log backfill",
		"outbox|re":                         "retry",
		"outbox|list|--sta":                 "--status --stale",
		"outbox|list|--status|":             "pending processing published failed abandoned",
		"outbox|list|--status|=|p":          "pending processing published",
		"outbox|list|--status|=":            "pending processing published failed abandoned",
		"outbox|list|--provider|outbox|--j": "--json",
		"--json|outbox|purge|--status|":     "published abandoned",
		"--dsn|outbox|dead-letters|su":      "summary",
		"--dsn|postgres|:|//h/db|out":       "outbox",
		"--config|my":                       "my waybill.yaml",
		"--js":                              "--json",
		"completion|":                       "bash zsh fish",
		"outbox|show|":                      "",
		"nothing|":                          "migrate outbox timers processes projections history partitions dead-letters subscriptions database trace doctor contract observatory completion",
	} {
		words := strings.Split(line, "|")
		c := exec.CommandContext(t.Context(), "bash", append([]string{"-c", `source "$0"; COMP_WORDS=(waybill "$@"); COMP_CWORD=$#; _waybill; echo "${COMPREPLY[*]}"`, script}, words...)...)
		c.Dir = dir
		text, err := c.CombinedOutput()
		require.NoError(t, err, "%s", text)
		require.Equal(t, want, strings.TrimSpace(string(text)), line)
	}
	for _, shell := range []string{"zsh", "fish"} {
		r := waybill(t, "completion", shell)
		require.Zero(t, r.code, r.stderr)
		for _, want := range []string{"dead-letters", "Try failed and abandoned rows again", "pending processing published failed abandoned", "waybill"} {
			require.Contains(t, r.stdout, want)
		}
	}
	require.Equal(t, exitUsage, waybill(t, "completion", "tcsh").code)
}
