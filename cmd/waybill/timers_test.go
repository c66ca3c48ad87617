package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/timerdb"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

// setTimer stores a timer, and returns its id.
func setTimer(t *testing.T, p uow.Provider, owner, name string, at time.Time) string {
	t.Helper()
	id := uuid.Must(uuid.NewV7()).String()
	set := timerdb.Set(timerdb.Timer{Owner: owner, Name: name, At: at, Row: outbox.Row{
		ID: id, MessageID: id, TargetBroker: "default", Stream: "library::commands", StreamCategory: "library::commands", PartitionKey: "k-" + owner,
		MessageType: "Library.MarkOverdue.v1", AggregateType: "commands", AggregateID: owner, Payload: []byte(`{"loan_id":"` + owner + `"}`),
		ContentType: "application/json", CorrelationID: "c-1", OccurredAt: time.Now(),
	}})
	require.NoError(t, p.Session().Commit(t.Context(), []uow.Statement{{Query: set, Rows: -1}}))
	return id
}

func TestTimers_ListAndShow(t *testing.T) {
	eachProvider(t, func(t *testing.T, provider string, p uow.Provider) {
		file := configured(t, "default: "+provider)
		run := func(args ...string) result {
			return waybill(t, append([]string{"--config", file, "timers"}, args...)...)
		}
		require.Equal(t, result{0, "No timers match.\n", ""}, run("list"))
		due, far := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
		late, later := setTimer(t, p, "loan-1", "due", due), setTimer(t, p, "loan-2", "due", far)

		r := run("list")
		require.Zero(t, r.code, r.stderr)
		require.Regexp(t, `(?s)ID +OWNER +NAME +TYPE +STATUS +DUE +SET +SENT.*`+late+` +loan-1 +due +Library.MarkOverdue.v1 +waiting .*`+later, r.stdout)
		r = run("list", "--limit", "1")
		require.NotContains(t, r.stdout, later)
		_, after, ok := strings.Cut(strings.TrimSpace(r.stderr), "continue with --after ")
		require.True(t, ok, r.stderr)
		require.Contains(t, run("list", "--after", after).stdout, later)
		require.Equal(t, exitUsage, run("list", "--limit", "0").code)
		require.NotContains(t, run("list", "--owner", "loan-2").stdout, late)
		var list struct {
			Providers map[string]outbox.TimerPage `json:"providers"`
		}
		require.NoError(t, json.Unmarshal([]byte(run("list", "--json", "--until", "0s").stdout), &list))
		require.Equal(t, late, list.Providers["default"].Timers[0].ID)
		require.Len(t, list.Providers["default"].Timers, 1)

		r = run("show", late)
		require.Zero(t, r.code, r.stderr)
		for _, part := range []string{"loan-1, due", "waiting, due ", "an engine of its database sends it", "k-loan-1", `"loan_id": "loan-1"`, "waybill timers fire --id " + late} {
			require.Contains(t, r.stdout, part)
		}
		require.Contains(t, run("show", later).stdout, "waiting, due ")
		_, err := timerdb.New(p.DB(), p.Reader()).Promote(t.Context(), "default", 1)
		require.NoError(t, err)
		r = run("show", late)
		require.Contains(t, r.stdout, "`waybill outbox show "+late+"`")
		require.NotContains(t, r.stdout, "fire")
		require.Zero(t, waybill(t, "--config", file, "outbox", "show", late).code)
		require.Contains(t, run("show", "--json", late).stdout, `"text": "{\"loan_id\":\"loan-1\"}"`)
		r = run("show", uuid.NewString())
		require.Equal(t, exitFailed, r.code)
		require.Contains(t, r.stderr, "there is no timer")
	})
}

// One whose message isn't what was stored is shown all the same, with what is wrong.
// The time that programs write for none at all stops no timers.
func TestTimers_ToNoTimeIsNoMove(t *testing.T) {
	eachProvider(t, func(t *testing.T, provider string, p uow.Provider) {
		file := configured(t, "default: "+provider)
		id := setTimer(t, p, "loan-1", "due", time.Now().Add(time.Hour))
		r := waybill(t, "--config", file, "timers", "move", "--id", id, "--to", "0001-01-01T00:00:00Z", "--yes", "--actor", "ada")
		require.Equal(t, exitUsage, r.code)
		require.Contains(t, r.stderr, "is no time")
		require.Contains(t, waybill(t, "--config", file, "timers", "list").stdout, id)
	})
}

// Timers ring by the database's clock: an hour from now is one by that, whatever this machine's shows.
func TestTimers_HowLongUntilThenIsByTheDatabasesClock(t *testing.T) {
	now := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	for text, want := range map[string]time.Time{"1h": now.Add(time.Hour), "-1h": now.Add(-time.Hour), "2026-01-02T15:04:05Z": time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)} {
		var to coming
		require.NoError(t, to.UnmarshalText([]byte(text)))
		require.Equal(t, want, to.from(now))
	}
}

func TestTimers_ShowABrokenOne(t *testing.T) {
	eachProvider(t, func(t *testing.T, provider string, p uow.Provider) {
		file := configured(t, "default: "+provider)
		id := setTimer(t, p, "loan-1", "due", time.Now().Add(-time.Hour))
		_, err := p.DB().ExecContext(t.Context(), `UPDATE timers SET message = '{"target":"default","occurred_at":"soon"}'`)
		require.NoError(t, err)
		_, err = timerdb.New(p.DB(), p.Reader()).Promote(t.Context(), "default", 500)
		require.NoError(t, err)
		require.Contains(t, waybill(t, "--config", file, "timers", "list", "--status", "broken").stdout, id)
		r := waybill(t, "--config", file, "timers", "show", id)
		require.Zero(t, r.code, r.stderr)
		for _, part := range []string{"broken, due ", "it can't be sent: its message is not what was stored", `"loan_id": "loan-1"`, "waybill timers fire --id " + id} {
			require.Contains(t, r.stdout, part)
		}
	})
}

func TestTimers_MoveFireAndStopAreOnRecord(t *testing.T) {
	eachProvider(t, func(t *testing.T, provider string, p uow.Provider) {
		file := configured(t, "default: "+provider)
		run := func(args ...string) result {
			return waybill(t, append([]string{"--config", file, "timers"}, args...)...)
		}
		id := setTimer(t, p, "loan-1", "due", time.Now().Add(time.Hour))
		setTimer(t, p, "loan-2", "due", time.Now().Add(time.Hour))
		store := timerdb.New(p.DB(), p.Reader())
		in := func() time.Duration {
			next, err := store.Next(t.Context())
			require.NoError(t, err)
			require.Len(t, next, 1)
			return next[0].In
		}
		for _, args := range [][]string{{"stop"}, {"fire", "--provider", "default"}, {"move"}, {"move", "--id", id, "--to", "tomorrow"}, {"stop", "--id", id}} {
			require.Equal(t, exitUsage, run(args...).code, args)
		}
		require.Equal(t, result{0, "move  2  timers\n", ""}, run("move", "--name", "due", "--to", "10m", "--dry-run"))
		require.Greater(t, in(), 59*time.Minute)
		r := run("move", "--name", "due", "--to", "10m", "--actor", "ada", "--yes")
		require.Zero(t, r.code, r.stderr)
		require.Regexp(t, `^move  2  timers\n2 timers moved to .*; action \d+, by ada\.\n$`, r.stdout)
		require.InDelta(t, 10*time.Minute, in(), float64(time.Minute))
		r = run("fire", "--id", id, "--actor", "bob", "--yes")
		require.Regexp(t, `1 timer due now; action \d+, by bob`, r.stdout)
		require.LessOrEqual(t, in(), time.Duration(0))
		_, err := store.Promote(t.Context(), "default", 500)
		require.NoError(t, err)
		require.Equal(t, result{0, "fire  0  timers\nleft  1  whose messages are on their way: `waybill timers stop` stops them\n", ""}, run("fire", "--id", id, "--yes"))
		require.Contains(t, run("stop", "--name", "due", "--actor", "ada", "--yes", "--json").stdout, `"changed": 2`)
		r = run("stop", "--id", id, "--yes")
		require.Equal(t, exitFailed, r.code)
		require.Contains(t, r.stderr, "there is no such timer")
		log := waybill(t, "--config", file, "outbox", "log").stdout
		require.Regexp(t, `(?s)ada +timers-stop +2 .*bob +timers-move +1 .*ada +timers-move +2 `, log)
	})
}
