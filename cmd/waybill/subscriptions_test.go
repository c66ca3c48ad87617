package main

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

func execute(t *testing.T, p uow.Provider, query string, args ...any) {
	t.Helper()
	_, err := p.DB().ExecContext(t.Context(), query, args...)
	require.NoError(t, err)
}

// S12: what is over is removed after the retention of the file or the command line,
// what is open only by its status, and nothing that holds its key.
func TestDeadLetters_S12_Purge(t *testing.T) {
	eachProvider(t, func(t *testing.T, provider string, p uow.Provider) {
		file := configured(t, "default: "+provider)
		run := func(args ...string) result {
			return waybill(t, append([]string{"--config", file, "dead-letters"}, args...)...)
		}
		r := run("purge", "--actor", "ada", "--yes")
		require.Equal(t, result{0, "Provider default: no dead letters can be removed.\n", ""}, r)
		letter(t, p, "shipping", "o-1", "replayed", nil)
		letter(t, p, "shipping", "o-2", "discarded", nil)
		letter(t, p, "mailing", "o-3", "replayed", nil)
		held := letter(t, p, "shipping", "o-4", "parked", nil)
		letter(t, p, "mailing", "o-5", "parked", nil)
		young := letter(t, p, "shipping", "o-6", "replayed", nil)
		execute(t, p, "UPDATE dead_letters SET last_at = ? WHERE id = ?", bun.Safe(dbtime.Now(p.DB().Dialect())), young)

		r = run("purge", "--dry-run", "--subscription", "shipping")
		require.Equal(t, result{0, "Provider default: 1 discarded and 1 replayed dead letters can be removed.\n", ""}, r)
		r = run("purge", "--actor", "ada")
		require.Equal(t, exitUsage, r.code)
		require.Contains(t, r.stderr, "nothing was changed")
		r = run("purge", "--actor", "ada", "--yes", "--subscription", "shipping")
		require.Zero(t, r.code, r.stderr)
		require.Regexp(t, `Provider default: 1 discarded and 1 replayed dead letters removed; action \d+, by ada.\n$`, r.stdout)
		t.Setenv("WAYBILL_SUBSCRIPTIONS_DEAD_LETTERS_RESOLVED", "-1")
		r = run("purge", "--actor", "ada", "--yes")
		require.Equal(t, exitUsage, r.code)
		require.Contains(t, r.stderr, "kept for ever: give --older-than")
		r = run("purge", "--json", "--actor", "ada", "--yes", "--older-than", "0s")
		require.Zero(t, r.code, r.stderr)
		var all struct {
			Providers map[string]subscription.PurgeResult `json:"providers"`
		}
		require.NoError(t, json.Unmarshal([]byte(r.stdout), &all))
		require.EqualValues(t, 2, all.Providers["default"].Removed["replayed"])

		r = run("purge", "--actor", "ada", "--yes", "--status", "parked", "--older-than", "1h")
		require.Equal(t, exitFailed, r.code)
		require.Contains(t, r.stdout, "Provider default: 1 can't: they hold their keys, or are in replay. Give them up before: waybill dead-letters discard --id "+held+"\n")
		require.Contains(t, r.stderr, "nothing was changed")
		r = run("purge", "--actor", "ada", "--yes", "--status", "parked", "--older-than", "1h", "--subscription", "mailing")
		require.Zero(t, r.code, r.stderr)
		require.Contains(t, r.stdout, "Provider default: 1 parked dead letters removed")
		require.Regexp(t, `(?s)ada +purge +mailing +1 .*ada +purge +- +2 .*ada +purge +shipping +2 `, run("log").stdout)
		r = run("purge", "--older-than=-1h", "--yes")
		require.Equal(t, exitUsage, r.code)
	})
}

// B14: an operator finds the subscription that runs no more, sees what would go,
// and removes it; the record says who did.
func TestSubscriptions_B14_ListAndRetire(t *testing.T) {
	eachProvider(t, func(t *testing.T, provider string, p uow.Provider) {
		file := configured(t, "default: "+provider)
		run := func(args ...string) result {
			return waybill(t, append([]string{"--config", file, "subscriptions"}, args...)...)
		}
		require.Equal(t, result{0, "The database knows no subscriptions.\n", ""}, run("list"))
		require.Equal(t, result{0, "Nothing is stored for subscription old; `waybill subscriptions list` shows which ones exist.\n", ""}, run("retire", "old", "--actor", "ada"))

		d := p.DB().Dialect()
		then := dbtime.Value(d, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
		execute(t, p, "INSERT INTO inbox (subscription, message_id, processed_at) VALUES ('old', 'm-1', ?0), ('old', 'm-2', ?0)", then)
		execute(t, p, "INSERT INTO subscription_uptime (subscription, up_from, up_until) VALUES ('old', ?0, ?0)", then)
		execute(t, p, "INSERT INTO subscription_runs (subscription, run) VALUES ('new', 'r')")
		letter(t, p, "old", "o-1", "parked", nil)
		require.Regexp(t, `^SUBSCRIPTION  RUNS  JOINED  LAST SEEN +INBOX  DEAD LETTERS  OPEN
new           yes   no      2026-\S+ \(\S+ ago\) +0 +0 +0
old           no    no      2026-01-02T03:05:05Z \(\d+ days ago\) +2 +1 +1
$`, run("list").stdout)
		var all struct {
			Providers map[string][]subscription.Listed `json:"providers"`
		}
		require.NoError(t, json.Unmarshal([]byte(run("list", "--json").stdout), &all))
		require.EqualValues(t, 2, all.Providers["default"][1].Inbox)

		r := run("retire", "new", "--actor", "ada", "--yes")
		require.Equal(t, exitFailed, r.code)
		require.Contains(t, r.stderr, "must be gone for an hour")
		r = run("retire", "old", "--actor", "ada", "--yes")
		require.Equal(t, exitFailed, r.code)
		require.Contains(t, r.stderr, "1 of its dead letters are open")
		require.Contains(t, r.stderr, "give them up with --discard")
		plan := "Provider default: 4 rows of old: 1 in dead_letters (1 open), 2 in inbox, 1 in subscription_uptime.\n"
		require.Equal(t, result{0, plan, ""}, run("retire", "old", "--discard", "--dry-run"))
		r = run("retire", "old", "--discard", "--actor", "ada")
		require.Equal(t, exitUsage, r.code, "nobody is there to be asked")
		r = run("retire", "old", "--discard", "--actor", "ada", "--yes")
		require.Zero(t, r.code, r.stderr)
		require.Regexp(t, `^`+`Provider default: 4 rows of old: .*\nProvider default: 4 rows of old removed; action \d+, by ada.\nIts consumer group stays at the broker`, r.stdout)
		require.NotContains(t, run("list").stdout, "old")
		require.Regexp(t, `ada +retire +old +4 +.*"discard": ?true`, waybill(t, "--config", file, "dead-letters", "log").stdout)
		r = run("retire", "old", "--json", "--actor", "ada", "--yes")
		require.Zero(t, r.code)
		require.JSONEq(t, `{"dry_run":false,"providers":{"default":{"rows":{},"open":0,"action":0}}}`, r.stdout)
	})
}
