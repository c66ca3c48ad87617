package processdb_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun/dialect"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/processdb"
	"github.com/waybill-go/waybill/internal/timerdb"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/process"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a migrated database with processes.
type world struct {
	*outboxdbtest.Bench
	*processdb.Store

	p uow.Provider
}

func each(t *testing.T, f func(t *testing.T, w *world)) {
	t.Parallel()
	for name, open := range map[string]func(testing.TB) outboxdbtest.Database{"SQLite": outboxdbtest.SQLite, "PostgreSQL": outboxdbtest.PostgreSQL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := open(t)
			w := &world{Bench: outboxdbtest.Open(t, db), p: db.(uow.Provider)}
			w.Store = processdb.New(w.p)
			require.ErrorContains(t, w.Check(t.Context()), "tables of process are missing")
			require.NoError(t, process.Migrations().Up(t.Context(), w.DB))
			require.NoError(t, timerdb.Migrations().Up(t.Context(), w.DB))
			require.NoError(t, subscription.Migrations().Up(t.Context(), w.DB))
			require.NoError(t, w.Check(t.Context()))
			f(t, w)
		})
	}
}

// begin stores a process that began some time ago and has heard nothing since.
func (w *world) begin(t *testing.T, name, id, status string, ago time.Duration) {
	t.Helper()
	at := dbtime.Value(w.DB.Dialect(), time.Now().Add(-ago))
	var ended, forget any
	if status == processdb.Ended {
		ended = at
	}
	if status != processdb.Running {
		forget = at
	}
	_, err := w.DB.ExecContext(t.Context(), "INSERT INTO processes (process, id, version, status, state, began_at, last_at, ended_at, forget_at, heard) VALUES (?, ?, 3, ?, ?, ?, ?, ?, ?, ?)",
		name, id, status, `{"Steps":[1]}`, at, at, ended, forget, `[{"at":"2026-01-02T03:04:05Z","type":"Library.LoanPlaced.v1","id":"m-1"}]`)
	require.NoError(t, err)
}

func (w *world) setTimer(t *testing.T, name, id, timer string) {
	t.Helper()
	row := outboxdbtest.Row("o-1")
	set := timerdb.Set(timerdb.Timer{Owner: process.Owner(name, id), Name: timer, At: time.Now().Add(time.Hour), Row: row})
	require.NoError(t, w.p.Session().Commit(t.Context(), []uow.Statement{{Query: set, Rows: -1}}))
}

const day = 24 * time.Hour

func ids(p processdb.Page) (all []string) {
	for _, found := range p.Processes {
		all = append(all, found.ID)
	}
	return all
}

// The oldest comes first, a page at a time, chosen by what a filter says.
func TestFind(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.begin(t, "library.lending", "young", processdb.Running, day)
		w.begin(t, "library.lending", "old", processdb.Running, 40*day)
		w.begin(t, "library.lending", "set, once", processdb.Running, 50*day)
		w.begin(t, "library.lending", "over", processdb.Ended, 60*day)
		w.begin(t, "billing.dunning", "old", processdb.Awaited, 70*day)
		w.setTimer(t, "library.lending", "set, once", "due")
		find := func(f processdb.Filter) processdb.Page {
			p, err := w.Find(t.Context(), f)
			require.NoError(t, err)
			return p
		}
		require.Equal(t, []string{"old", "over", "set, once", "old", "young"}, ids(find(processdb.Filter{})))
		f, all := processdb.Filter{Limit: 1}, []string(nil)
		for {
			p := find(f)
			all = append(all, ids(p)...)
			if f.After = p.Next; f.After == "" {
				break
			}
			require.NoError(t, processdb.CheckAfter(f.After))
		}
		require.Equal(t, []string{"old", "over", "set, once", "old", "young"}, all)
		require.Equal(t, []string{"set, once", "old", "young"}, ids(find(processdb.Filter{Process: "library.lending", Status: processdb.Running})))
		require.Equal(t, []string{"old", "old"}, ids(find(processdb.Filter{IDs: []string{"old"}})))
		require.Equal(t, []string{"old"}, ids(find(processdb.Filter{Idle: true})), "it has heard nothing for 30 days, and has no timer")
		require.Equal(t, []string{"old"}, ids(find(processdb.Filter{From: time.Now().Add(-45 * day), Until: time.Now().Add(-2 * day)})))
		_, err := w.Find(t.Context(), processdb.Filter{Status: "gone"})
		require.ErrorContains(t, err, "there are running, awaited, ended")
		require.Error(t, processdb.CheckAfter("yesterday"))

		stats, err := w.Stats(t.Context())
		require.NoError(t, err)
		require.Len(t, stats, 2)
		require.InDelta(t, (50 * day).Seconds(), *stats["library.lending"].OldestSeconds, 60)
		n := stats["library.lending"]
		n.OldestSeconds = nil
		require.Equal(t, processdb.Stats{Running: 3, Ended: 1, Idle: 1}, n)
		require.Equal(t, processdb.Stats{Awaited: 1}, stats["billing.dunning"])
	})
}

// Kinds of which some run are heard for as long as a subscription of one of their streams
// gives a sign, whichever program runs it.
func TestUnheard(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.begin(t, "library.lending", "l1", processdb.Running, day)
		w.begin(t, "library.lending-old", "l1", processdb.Running, day)
		w.begin(t, "library.over", "l1", processdb.Ended, day)
		unheard := func() []string {
			names, err := w.Unheard(t.Context())
			require.NoError(t, err)
			return names
		}
		require.Equal(t, []string{"library.lending", "library.lending-old"}, unheard())
		_, err := w.DB.ExecContext(t.Context(), "INSERT INTO subscription_runs (subscription, run) VALUES ('library.lending.library.loan', 'library/r1')")
		require.NoError(t, err)
		require.Equal(t, []string{"library.lending-old"}, unheard())
		_, err = w.DB.ExecContext(t.Context(), "UPDATE subscription_runs SET seen_at = ?", dbtime.Value(w.DB.Dialect(), time.Now().Add(-time.Minute)))
		require.NoError(t, err)
		require.Equal(t, []string{"library.lending", "library.lending-old"}, unheard())
	})
}

func TestShow(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.begin(t, "library.lending", "l1", processdb.Running, day)
		w.setTimer(t, "library.lending", "l1", "due")
		w.setTimer(t, "library.lending", "l2", "due")
		id := uuid.NewString()
		_, err := w.DB.ExecContext(t.Context(), "INSERT INTO dead_letters (id, subscription, topic, partition_key, key_id, message_id, headers, error, reason, attempts, first_at, last_at, status, holds)"+
			" VALUES (?, 'library.lending', 'billing.charge', 'l1', 'l1', 'm', '{}', 'no', 'failed', 8, ?1, ?1, 'parked', TRUE)", id, dbtime.Value(w.DB.Dialect(), time.Now()))
		require.NoError(t, err)
		d, err := w.Show(t.Context(), "library.lending", "l1")
		require.NoError(t, err)
		require.JSONEq(t, `{"Steps":[1]}`, string(d.State))
		require.Equal(t, int64(3), d.Version)
		require.Equal(t, []string{"Library.LoanPlaced.v1"}, []string{d.Heard[0].Type})
		require.Len(t, d.Timers, 1)
		require.Equal(t, id, d.Letters[0].ID)
		require.Equal(t, int64(1), d.LettersTotal)
		_, err = w.Show(t.Context(), "library.lending", "l2")
		require.ErrorIs(t, err, processdb.ErrNone)
	})
}

// An operator's end is that of the process: its timers are gone with it, and who did it
// is on record. What doesn't run is left.
func TestEnd(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.begin(t, "library.lending", "l1", processdb.Running, day)
		w.begin(t, "library.lending", "l2", processdb.Running, day)
		w.begin(t, "library.lending", "l3", processdb.Ended, day)
		for _, id := range []string{"l1", "l2"} {
			w.setTimer(t, "library.lending", id, "due")
		}
		_, err := w.End(t.Context(), processdb.Filter{}, processdb.End{Actor: "ada", Retention: day})
		require.ErrorContains(t, err, "chooses every process")
		_, err = w.End(t.Context(), processdb.Filter{Process: "library.lending"}, processdb.End{Retention: day})
		require.ErrorContains(t, err, "Actor is missing")
		_, err = w.End(t.Context(), processdb.Filter{Process: "library.lending"}, processdb.End{Actor: "ada"})
		require.ErrorContains(t, err, "above 0")
		f := processdb.Filter{Process: "library.lending", IDs: []string{"l1", "l3"}}
		done, err := w.End(t.Context(), f, processdb.End{Retention: day, DryRun: true})
		require.NoError(t, err)
		require.Equal(t, processdb.Changed{Changed: 1, Left: 1}, done)
		d, err := w.Show(t.Context(), "library.lending", "l1")
		require.NoError(t, err)
		require.Equal(t, processdb.Running, d.Status)
		require.Len(t, d.Timers, 1)

		// Who was shown what had begun before a moment has not seen what began in that moment.
		for before, changed := range map[time.Time]int64{d.BeganAt: 0, d.BeganAt.Add(time.Millisecond): 1} {
			done, err = w.End(t.Context(), processdb.Filter{Process: "library.lending", IDs: []string{"l1"}}, processdb.End{Retention: day, DryRun: true, Before: before})
			require.NoError(t, err)
			require.Equal(t, processdb.Changed{Changed: changed}, done)
		}

		done, err = w.End(t.Context(), f, processdb.End{Retention: day, Actor: "ada"})
		require.NoError(t, err)
		require.Equal(t, processdb.Changed{Changed: 1, Left: 1, Action: done.Action}, done)
		d, err = w.Show(t.Context(), "library.lending", "l1")
		require.NoError(t, err)
		require.Equal(t, processdb.Ended, d.Status)
		require.WithinDuration(t, time.Now(), *d.EndedAt, time.Minute)
		require.Equal(t, int64(4), d.Version, "who has read the row before sees that it has changed")
		require.Empty(t, d.Timers)
		d, err = w.Show(t.Context(), "library.lending", "l2")
		require.NoError(t, err)
		require.Equal(t, processdb.Running, d.Status)
		require.Len(t, d.Timers, 1)
		actions, err := outboxdb.New(w.DB, w.p.Reader()).Actions(t.Context(), 10)
		require.NoError(t, err)
		require.Equal(t, []any{"ada", "processes-end", int64(1)}, []any{actions[0].Actor, actions[0].Action, actions[0].Rows})
		require.JSONEq(t, `{"process":"library.lending","ids":["l1","l3"],"retention":"24h0m0s"}`, string(actions[0].Filter))
		purged, err := process.Purge(t.Context(), w.DB, 10)
		require.NoError(t, err)
		require.Equal(t, int64(1), purged, "l3; l1 is known for a day")
	})
}

// One that somebody has locked comes last: the others don't wait for it.
func TestEnd_TheLockedOneComesLast(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.begin(t, "library.lending", "l1", processdb.Running, 2*day)
		w.begin(t, "library.lending", "l2", processdb.Running, day)
		if w.DB.Dialect().Name() == dialect.SQLite {
			return // It has one writer.
		}
		other, err := w.DB.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { _ = other.Rollback() }()
		_, err = other.ExecContext(t.Context(), "UPDATE processes SET version = version + 1 WHERE id = 'l1'")
		require.NoError(t, err)
		type outcome struct {
			done processdb.Changed
			err  error
		}
		ended := make(chan outcome, 1)
		go func() {
			done, err := w.End(t.Context(), processdb.Filter{Process: "library.lending"}, processdb.End{Retention: day, Actor: "ada"})
			ended <- outcome{done, err}
		}()
		waittest.Until(t, func() bool {
			return w.Count("SELECT count(*) FROM processes WHERE id = 'l2' AND status = 'ended'") == 1
		})
		require.NoError(t, other.Rollback())
		got := <-ended
		require.NoError(t, got.err)
		require.EqualValues(t, 2, got.done.Changed)
		require.EqualValues(t, 2, w.Count("SELECT rows FROM outbox_actions WHERE id = ?", got.done.Action))
	})
}

// Who heard a message is found among processes that are named, by what they remember.
func TestHearers(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		names, err := w.Names(t.Context())
		require.NoError(t, err)
		require.Empty(t, names)
		w.begin(t, "library.lending", "l1", processdb.Running, day)
		w.begin(t, "library.lending", "l2", processdb.Ended, day)
		w.begin(t, "billing.dunning", "l1", processdb.Awaited, day)
		names, err = w.Names(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{"billing.dunning", "library.lending"}, names)
		found, err := w.Hearers(t.Context(), "library.lending", []string{"l2", "l3"})
		require.NoError(t, err)
		require.Len(t, found, 1)
		require.Equal(t, []string{"l2", processdb.Ended}, []string{found[0].ID, found[0].Status})
		require.True(t, found[0].Has("m-1"))
		require.False(t, found[0].Has("m-2"))
	})
}
