package main

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/correlation"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

// store puts a message into the outbox, of correlation c-1.
func store(t *testing.T, p uow.Provider, kind, category, causation string, at time.Time) string {
	t.Helper()
	b := &outboxdbtest.Bench{Store: outboxdb.New(p.DB(), p.Reader()), T: t, DB: p.DB(), As: p.DB()}
	row := outboxdbtest.Row("k")
	row.MessageType, row.StreamCategory, row.Stream = kind, category, category+"-1"
	row.CorrelationID, row.CausationID, row.OccurredAt = "c-1", causation, at
	b.InsertRows(row)
	return row.MessageID
}

// U-21: what became of all that one request began, in two databases: messages by cause,
// who has handled them, what waits for its time, what failed.
func TestTrace_U_21_ATreeOverDatabases(t *testing.T) {
	eachProvider(t, func(t *testing.T, provider string, p uow.Provider) {
		path := filepath.Join(t.TempDir(), "billing.db")
		file := configured(t, fmt.Sprintf("default: %s, billing: {dialect: sqlite, path: %q}", provider, path))
		run := func(args ...string) result {
			return waybill(t, append([]string{"--config", file, "trace"}, args...)...)
		}
		require.Equal(t, result{0, "No message, timer or dead letter has correlation c-1. Published rows are removed after their retention.\n", ""}, run("c-1"))
		billing := openFor(t, path)
		at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		done := uuid.Must(uuid.NewV7()).String() // a command that was done at once
		placed := store(t, p, "Library.LoanPlaced.v1", "library::loan", done, at)
		charge := store(t, p, "Billing.ChargeFee.v1", "billing::commands", placed, at.Add(time.Second))
		charged := store(t, billing, "Billing.FeeCharged.v1", "billing::charge", charge, at.Add(2*time.Second))
		due := setTimer(t, p, "loan-1", "due", at.Add(time.Hour))
		exec := func(p uow.Provider, query string, args ...any) {
			_, err := p.DB().ExecContext(t.Context(), query, args...)
			require.NoError(t, err)
		}
		exec(billing, "INSERT INTO inbox (subscription, message_id) VALUES ('billing.commands', ?)", charge)
		failed := letter(t, p, "library.lending", "k", "parked", nil)
		exec(p, "UPDATE dead_letters SET message_id = ?", charged)
		exec(p, "INSERT INTO inbox (subscription, message_id) VALUES ('library.lending', ?)", charged)

		r := run("c-1")
		require.Zero(t, r.code, r.stderr)
		require.Regexp(t, `(?s)^message of no known type  `+done+`\n  · no row of it is here: a command that was done at once.*`+
			`\n  event Library.LoanPlaced.v1  `+placed+`  2026-01-02T03:04:05Z\n    · to default: pending\n`+
			`    command Billing.ChargeFee.v1  `+charge+`  .*\n      · to default: pending\n      · handled by billing.commands, .*\n`+
			`      event Billing.FeeCharged.v1  `+charged+`  .*\n        · to default: pending\n`+
			`        · dead letter `+failed+` of library.lending, parked \(failed\): no customer at .*\n`+
			`timer Library.MarkOverdue.v1  `+due+`  .*\n  · timer due of loan-1, waits until 2026-01-02T04:04:05Z\n$`, r.stdout)
		require.Equal(t, 1, strings.Count(r.stdout, "handled by"), "what is set aside took no effect")

		var all correlation.Trace
		require.NoError(t, json.Unmarshal([]byte(run("c-1", "--json").stdout), &all))
		require.Empty(t, all.Missing)
		require.Len(t, all.Messages, 2)
		event := all.Messages[0].Caused[0]
		require.Equal(t, []string{"unknown", "event", "command", "event", "timer"}, []string{
			all.Messages[0].Kind, event.Kind, event.Caused[0].Kind, event.Caused[0].Caused[0].Kind, all.Messages[1].Kind,
		})
		require.Equal(t, "default", event.Rows[0].Provider)
		require.Equal(t, "billing", event.Caused[0].Handled[0].Provider)
		require.Equal(t, outbox.TimerWaiting, all.Messages[1].Timer.Status)

		require.Contains(t, run("c-1", "--limit", "1").stdout, "Provider default: …and more rows of the outbox; --limit 1000 reads more.")
		require.Equal(t, exitUsage, run("c-1", "--limit", "0").code)
		require.Equal(t, exitUsage, run("").code)
	})
}

// U-21: of each message that processes got the tree says which one heard it, and what became
// of that: by what it remembers to have heard, or else by what it sent and set.
func TestTrace_U_21_WhichProcessesHeardIt(t *testing.T) {
	eachProvider(t, func(t *testing.T, provider string, p uow.Provider) {
		file := configured(t, "default: "+provider)
		at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		exec := func(query string, args ...any) {
			_, err := p.DB().ExecContext(t.Context(), query, args...)
			require.NoError(t, err)
		}
		body := func(id, data, command string) {
			exec("UPDATE outbox_messages SET payload = ? WHERE message_id = ?", []byte(`{"data":`+data+`,"metadata":{"headers":{"id":"x","type":"x"},"domain":{"kind":"COMMAND"},"command":`+command+`}}`), id)
		}
		handled := func(subscription, id string) {
			exec("INSERT INTO inbox (subscription, message_id) VALUES (?, ?)", subscription, id)
		}
		message := func(kind, category, causation string, second int) string {
			return store(t, p, kind, category, causation, at.Add(time.Duration(second)*time.Second))
		}
		for id, status := range map[string]string{"l1": "running", "l2": "ended", "l3": "awaited", "l4": "running"} {
			beginProcess(t, p, id, time.Hour)
			exec("UPDATE processes SET status = ?, ended_at = CASE WHEN ? = 'ended' THEN began_at END, forget_at = CASE WHEN ? <> 'running' THEN began_at END WHERE id = ?", status, status, status, id)
		}
		hears := func(id, message string) {
			exec("UPDATE processes SET heard = ? WHERE id = ?", `[{"at":"2026-01-02T03:04:05Z","type":"x","id":"`+message+`"}]`, id)
		}

		placed := message("Library.LoanPlaced.v1", "library::loan", "", 0) // by what is in it
		body(placed, `{"isbn":"l4","loan_id":"l1"}`, "null")
		handled("library.lending.library.loan", placed)
		hears("l1", placed)
		fee := message("Billing.FeePaid.v1", "billing::charge", "", 1) // by the command that it sent
		handled("library.lending.billing.charge", fee)
		confirm := message("Library.ConfirmLoan.v1", "library::commands", fee, 2)
		body(confirm, `{}`, `{"reply":"library/lending/l2"}`)
		checked := message("Library.LoanChecked.v1", "library::loan", "", 3) // by the timer that it set
		handled("library.lending.library.loan", checked)
		rings := message("waybill.ProcessTimerDue.v1", "library::processes", checked, 4)
		exec("UPDATE outbox_messages SET stream = 'library::processes-lending-l4' WHERE message_id = ?", rings)
		body(rings, `{"process":"lending","id":"l4","timer":"due"}`, "null")
		handled("library.lending.library.processes", rings)
		other := message("waybill.ProcessTimerDue.v1", "library::processes", "", 5) // another process's
		body(other, `{"process":"reading","id":"l4","timer":"due"}`, "null")
		handled("library.lending.library.processes", other)
		early := message("Billing.FeePaid.v1", "billing::charge", "", 6) // by its dead letter
		letter(t, p, "library.lending", "l3", "early", nil)
		exec("UPDATE dead_letters SET message_id = ?", early)
		handled("library.lending.billing.charge", early)
		gone := message("Billing.FeePaid.v1", "billing::charge", "", 7) // ended long ago
		handled("library.lending.billing.charge", gone)
		void := message("Library.CancelLoan.v1", "library::commands", gone, 8)
		body(void, `{}`, `{"reply":"library/lending/l9"}`)
		unknown := message("Library.LoanClosed.v1", "library::loan", "", 9)
		handled("library.lending.library.loan", unknown)

		r := waybill(t, "--config", file, "trace", "c-1")
		require.Zero(t, r.code, r.stderr)
		for id, became := range map[string]string{
			placed: "library.lending l1: running, has heard 1 message, the last 20", fee: "library.lending l2: ended 20", checked: "library.lending l4: running",
			rings: "library.lending l4: running", early: "library.lending l3: awaited, as what begins it has not come",
			gone: "library.lending l9: there is none, or none any more", unknown: "library.lending: which one, if any, can't be known",
		} {
			require.Regexp(t, id+`  20[^\n]*\n( +· (to|handled|dead)[^\n]*\n)+ +· process `+regexp.QuoteMeta(became), r.stdout)
		}
		require.Equal(t, 7, strings.Count(r.stdout, "· process "))
		require.Contains(t, r.stdout, "message waybill.ProcessTimerDue.v1  "+rings)
		require.Contains(t, waybill(t, "--config", file, "trace", "c-1", "--json").stdout, `"id": "l4",`)
	})
}

// A search that takes too long is given up, and the answer says that it isn't complete.
func TestTrace_U_21_GivesUpWhatTakesTooLong(t *testing.T) {
	dsn := server(t)
	p := openFor(t, dsn)
	file := configured(t, fmt.Sprintf("default: {dialect: postgres, dsn: %q}", dsn))
	id := store(t, p, "Library.LoanPlaced.v1", "library::loan", "", time.Now())
	for _, statement := range []string{
		"ALTER TABLE outbox_messages RENAME TO stored",
		"CREATE VIEW outbox_messages AS SELECT * FROM stored WHERE pg_sleep(3600) IS NOT NULL",
	} {
		_, err := p.DB().ExecContext(t.Context(), statement)
		require.NoError(t, err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var canceling sync.WaitGroup
	canceling.Go(func() { // What the server does when the time is up.
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			_, _ = p.DB().ExecContext(ctx, "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'")
			<-tick.C
		}
	})
	begin := time.Now()
	r := waybill(t, "--config", file, "trace", "c-1")
	stop()
	canceling.Wait()
	require.Zero(t, r.code, r.stderr)
	require.Contains(t, r.stdout, "event Library.LoanPlaced.v1  "+id)
	require.Equal(t, 1, strings.Count(r.stdout, "Provider default: its published rows are not all here: it would have taken too long"))
	require.Less(t, time.Since(begin), time.Minute)
}

// A dead letter of a message from elsewhere is found by the correlation that it came
// with, and ids that are a circle don't keep the tree from ending.
func TestTrace_U_21_FromElsewhereAndInACircle(t *testing.T) {
	eachProvider(t, func(t *testing.T, provider string, p uow.Provider) {
		file := configured(t, "default: "+provider)
		id := letter(t, p, "library.lending", "k", "parked", nil)
		_, err := p.DB().ExecContext(t.Context(), `UPDATE dead_letters SET headers = '{"correlation-id": "c-1"}'`)
		require.NoError(t, err)
		r := waybill(t, "--config", file, "trace", "c-1")
		require.Zero(t, r.code, r.stderr)
		require.Regexp(t, `^message Ordering.OrderPlaced.v1  m-k\n  · dead letter `+id+` of library.lending, parked.*\n  · no row of it is here`, r.stdout)

		now := time.Now()
		first := store(t, p, "Library.A.v1", "library::loan", "", now)
		second := store(t, p, "Library.B.v1", "library::loan", first, now)
		_, err = p.DB().ExecContext(t.Context(), "UPDATE outbox_messages SET causation_id = ? WHERE message_id = ?", second, first)
		require.NoError(t, err)
		r = waybill(t, "--config", file, "trace", "c-1")
		require.Equal(t, 1, strings.Count(r.stdout, "event Library.A.v1"))
		require.Equal(t, 1, strings.Count(r.stdout, "event Library.B.v1"))
	})
}
