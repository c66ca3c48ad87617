package engine

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/timerdb"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

// timer is one of parcels, for the broker "default".
func timer(owner string, at time.Time) timerdb.Timer {
	id := uuid.Must(uuid.NewV7()).String()
	return timerdb.Timer{Owner: owner, Name: "due", At: at, Row: outbox.Row{
		ID: id, MessageID: id, TargetBroker: "default", Stream: "parcels::parcel-" + owner, StreamCategory: "parcels::parcel",
		PartitionKey: owner, Partition: outbox.PartitionOf(owner, outbox.DefaultPartitions), MessageType: "Parcels.ParcelSent.v1",
		AggregateType: "parcel", AggregateID: owner, AggregateVersion: 1, Payload: []byte("{}"), ContentType: "application/json",
		CorrelationID: "c", OccurredAt: time.Now(),
	}}
}

func (b *bench) setTimer(timers ...timerdb.Timer) {
	b.t.Helper()
	var all []uow.Statement
	for _, t := range timers {
		all = append(all, uow.Statement{Query: timerdb.Set(t), Rows: -1})
	}
	require.NoError(b.t, b.db.Session().Commit(b.t.Context(), all))
}

// A timer that was due while no engine ran is sent late, others when they are due: the
// lane is woken, however seldom it looks.
func TestTimers_AreSentWhenTheyAreDue(t *testing.T) {
	b := setup(t)
	b.setTimer(timer("missed", time.Now().Add(-time.Hour)), timer("far", time.Now().Add(time.Hour)))
	cfg := b.config()
	cfg.Outbox = outbox.Config{PollInterval: 10 * time.Minute, MaxPollInterval: 10 * time.Minute}
	e := b.start(cfg)
	arrived := func(owner string) bool {
		for _, m := range b.main.Messages("parcels.parcel") {
			if strings.Contains(m.Key, owner) {
				return true
			}
		}
		return false
	}
	eventually(t, func() bool { return arrived("missed") })
	soon := time.Now().Add(200 * time.Millisecond)
	b.setTimer(timer("soon", soon))
	e.databases[0].timerSet(soon)
	eventually(t, func() bool { return arrived("soon") })
	require.False(t, time.Now().Before(soon))
	require.False(t, arrived("far"))
	scraped(t, e, map[string]float64{`waybill_timers_waiting{provider="default"}`: 1, `waybill_timers_late_seconds{provider="default"}`: 0})
}

// Timers that can't be sent are a reason, with what helps, and one line in the log.
func TestTimers_SayThatTheyCantBeSent(t *testing.T) {
	b := setup(t)
	b.setTimer(timer("far", time.Now().Add(time.Hour)))
	rename := func(from, to string) {
		_, err := b.db.DB().ExecContext(t.Context(), "ALTER TABLE "+from+" RENAME TO "+to)
		require.NoError(t, err)
	}
	e := b.start(b.config())
	diagnosed(t, e)
	rename("timers", "gone")
	d := diagnosed(t, e, "database_refuses")
	require.Contains(t, d.Reasons[0].Text, "refuses to let it send timers that are due (")
	require.Contains(t, d.Reasons[0].Text, "`waybill doctor`")
	require.Equal(t, degraded, d.State)
	rename("gone", "timers")
	diagnosed(t, e)
	eventually(t, func() bool { return len(b.logs.with("the database answers again", "provider=default")) == 1 })
	require.Len(t, b.logs.with(`what="send timers that are due"`, "provider=default"), 1)
}

// Timers that nobody sends are late, whoever looks.
func TestTimers_AreLateWhereNobodySendsThem(t *testing.T) {
	b := setup(t)
	b.setTimer(timer("missed", time.Now().Add(-2*time.Minute)))
	o, err := NewObservatory(ObservatoryConfig{Providers: []uow.Provider{b.db}, Server: Server{Addr: "127.0.0.1:0"}})
	require.NoError(t, err)
	require.NoError(t, o.Start(t.Context()))
	defer func() { require.NoError(t, o.Stop(context.WithoutCancel(t.Context()))) }()
	d := diagnosed(t, o, "timers_late")
	require.Regexp(t, `a waiting timer was due 2m\d+s ago; its message goes to broker "default"`, d.Reasons[0].Text)
	require.Contains(t, d.Reasons[0].Text, "`waybill timers list --status waiting`")
	var page timersReport
	require.Equal(t, 200, get(t, o, "/api/timers", &page))
	require.Less(t, *page.Timers[0].DueInSeconds, -119.0)
	counts := page.Counts["default"]
	require.Equal(t, []int64{1, 1, 0}, []int64{counts.Waiting, counts.Due, counts.Sent})
	require.Greater(t, counts.LateSeconds, 119.0)
}

// A timer whose message can't be read stops no other: it is set aside, and everybody is told.
func TestTimers_ABrokenOneIsSetAsideAndShown(t *testing.T) {
	b := setup(t)
	b.setTimer(timer("broken", time.Now().Add(-time.Hour)), timer("well", time.Now()))
	_, err := b.db.DB().ExecContext(t.Context(), `UPDATE timers SET message = '{"target":"default","occurred_at":"soon"}' WHERE owner = 'broken'`)
	require.NoError(t, err)
	e := b.start(b.guarded())
	eventually(t, func() bool { return len(b.main.Messages("parcels.parcel")) == 1 })
	d := diagnosed(t, e, "timers_broken")
	require.Equal(t, degraded, d.State)
	require.Contains(t, d.Reasons[0].Text, "1 timer can't be sent and is set aside")
	require.Len(t, b.logs.with("a timer's message can't be sent", "target=default", "provider=default"), 1)
	var page timersReport
	require.Equal(t, 200, get(t, e, "/api/timers?status=broken", &page))
	require.Contains(t, *page.Timers[0].Error, "its message is not what was stored")
	require.Nil(t, page.Timers[0].DueInSeconds)
	require.Equal(t, int64(1), page.Counts["default"].Broken)
	require.Equal(t, notShown, *page.Timers[0].withoutContent().Error)
	_, err = b.db.DB().ExecContext(t.Context(), "DELETE FROM timers WHERE owner = 'broken'")
	require.NoError(t, err)
	diagnosed(t, e)
}

// The list has what waits and what is sent; who may not see content doesn't see whose
// it is.
func TestTimers_ListedOverHTTP(t *testing.T) {
	b := setup(t)
	far := timer("loan-1", time.Date(2999, 1, 2, 3, 4, 5, 0, time.UTC))
	far.Row.TenantID = "acme"
	b.setTimer(far, timer("loan-2", far.At.Add(time.Hour)))
	e := b.start(b.guarded())
	var page timersReport
	require.Equal(t, 200, get(t, e, "/api/timers?limit=1&status=waiting", &page))
	require.Len(t, page.Timers, 1)
	got := page.Timers[0]
	require.Equal(t, []any{"default", far.Row.MessageID, "loan-1", "due", "Parcels.ParcelSent.v1", "waiting", far.At, "acme", "c"},
		[]any{got.Provider, got.ID, got.Owner, got.Name, got.Type, got.Status, got.AvailableAt, *got.TenantID, *got.CorrelationID})
	require.Greater(t, *got.DueInSeconds, 1e6)
	require.Equal(t, map[string]*timersCount{"default": {Waiting: 2}}, page.Counts)
	next := page.Next["default"]
	page = timersReport{}
	require.Equal(t, 200, get(t, e, "/api/timers?after="+next, &page))
	require.Equal(t, "loan-2", page.Timers[0].Owner)
	require.Empty(t, page.Next)
	for _, path := range []string{"/api/timers?after=7", "/api/timers?after=0000-01-01T00:00:00Z,0198f3c2-7d8e-7b9a-8c6d-5e4f3a2b1c0d", "/api/timers?status=late", "/api/timers?id=7"} {
		require.Contains(t, refused(t, e, 400, "GET", path, ""), "it takes")
	}

	plain := got.withoutContent()
	require.Equal(t, []string{notShown, notShown, notShown}, []string{plain.Owner, *plain.TenantID, *plain.CorrelationID})
	require.Equal(t, "acme", *got.TenantID)
}

// A duration has no room for what is further away than 292 years.
func TestTimers_SayWhenTheyAreDueHoweverFarAway(t *testing.T) {
	for years, want := range map[int]float64{7000: 7000 * 365.2425 * 86400, -1500: -1500 * 365.2425 * 86400, 0: 0} {
		report := newTimerReport("default", outbox.Timer{Status: outbox.TimerWaiting, AvailableAt: time.Now().AddDate(years, 0, 0)})
		require.InDelta(t, want, *report.DueInSeconds, 3*86400, years)
	}
}
