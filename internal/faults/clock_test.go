package faults

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/internal/chaos"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow/postgres"
)

// aTime is what may be a moment of these years: a date, or seconds or fractions of
// them since 1970.
var aTime = regexp.MustCompile(`\b20[2-9]\d-[01]\d-[0-3]\d|\b1\d{9}(\d{3}|\d{6}|\d{9})?\b`)

// timesIn are the moments in a text. A number is one if it is of these days, as
// numbers of other things are large, too.
func timesIn(text string) (found []string) {
	for _, s := range aTime.FindAllString(text, -1) {
		if n, err := strconv.ParseInt(s, 10, 64); err == nil {
			for n > 1e11 {
				n /= 1000
			}
			if off := time.Since(time.Unix(n, 0)).Abs(); off > 30*24*time.Hour {
				continue
			}
		}
		found = append(found, s)
	}
	return found
}

// C-47, A31, F-15: no process tells the database what time it is: nothing that a
// relay sends in its life holds a time. So its clock can't change whose a partition is,
// or when a row is due. With WAYBILL_LONG, TestClock_C_47_A31_F_15_TenMinutesOff shows
// it.
// Conformance: U-26.
func TestClock_C_47_A31_F_15_NoStatementHoldsATime(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, at := range []string{now.Format(time.DateTime), now.Format(time.RFC3339), fmt.Sprint(now.Unix()), fmt.Sprint(now.UnixMilli()), fmt.Sprint(now.UnixNano())} {
		require.NotEmpty(t, timesIn("x\x00"+at+"\x00"), at)
	}
	require.Empty(t, timesIn("1234567890123456789 4711"))
	w := newWorld(t, 0)
	w.save(10, 5)
	w.claimedByTheDead()
	dsn := w.dsn
	x := newProxy(t, &dsn)
	p, err := postgres.Open(t.Context(), postgres.Config{DSN: dsn})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	m := memory.New(memory.Config{})
	refused := w.strings("SELECT message_id::text FROM outbox ORDER BY seq")
	m.FailNext(2, broker.Unavailable)
	m.FailWhere(func(msg broker.Message) error {
		switch msg.ID {
		case refused[0]:
			return broker.Scoped(broker.Transient, broker.ScopeRow, errors.New("not now"))
		case refused[9]:
			return broker.Classify(broker.Permanent, errors.New("never"))
		}
		return nil
	})
	r, err := relay.New(relay.Config{
		Provider: "default", Store: outboxdb.New(p.DB(), p.Reader()), Lanes: []relay.Lane{{Target: "default", Broker: m}},
		Outbox: outbox.Config{
			PollInterval: 20 * time.Millisecond, MaxPollInterval: 50 * time.Millisecond, Lease: 3 * time.Second,
			Retry: outbox.RetryPolicy{BaseDelay: 50 * time.Millisecond, MaxAttempts: 3},
			Retention: outbox.Retention{
				Published: 4 * time.Second, Abandoned: time.Hour, Every: 100 * time.Millisecond,
			},
		},
		Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	require.NoError(t, r.Start(t.Context()))
	eventually(t, func() bool { return w.count("outbox") == 2 && w.count("outbox WHERE status = 'abandoned'") == 2 }, "what is published is purged")
	stop, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(t, r.Stop(stop))

	all := x.received()
	var missing []string // what was sent is too much to be shown
	for _, part := range []string{
		"INSERT INTO outbox_members", "UPDATE outbox_members", "UPDATE outbox_partitions AS p SET owner", "DELETE FROM outbox_members", // join, renew, take, leave
		"INSERT INTO outbox_claims", "losses = least(q.losses + 1", "INSERT INTO outbox_log", "failed_at = clock_timestamp()", "INSERT INTO outbox_abandoned", // claim, reap, settle
		"due_at <= (SELECT clock_timestamp())", "DELETE FROM outbox_messages", "outbox_jobs",
	} {
		if !strings.Contains(all, part) {
			missing = append(missing, part)
		}
	}
	require.Empty(t, missing, "all was tried")
	require.Empty(t, timesIn(all))
}

// claimedByTheDead leaves rows in the hand of somebody whose lease runs out.
func (w *world) claimedByTheDead() {
	w.t.Helper()
	ctx := w.t.Context()
	p, err := postgres.Open(ctx, postgres.Config{DSN: w.dsn})
	require.NoError(w.t, err)
	defer p.Close()
	store := outboxdb.New(p.DB(), p.Reader())
	lanes, n, err := store.Lanes(ctx, []string{"default"})
	require.NoError(w.t, err)
	members, err := store.Join(ctx, "dead-1-a", []relay.Joining{{Lane: lanes[0], Target: "default"}}, time.Second)
	require.NoError(w.t, err)
	_, err = store.Take(ctx, members[0], lanes[0], n)
	require.NoError(w.t, err)
	rows := []relay.RowRef{}
	w.each("SELECT part, seq, key FROM outbox_queue ORDER BY seq LIMIT 3", func(scan func(...any) error) error {
		var r relay.RowRef
		err := scan(&r.Part, &r.Seq, &r.Key)
		rows = append(rows, r)
		return err
	})
	claim, err := store.Claim(ctx, relay.ClaimRequest{Member: members[0], Lane: lanes[0], N: 1, Rows: rows})
	require.NoError(w.t, err)
	require.Len(w.t, claim.Rows, 3)
}

// shifted is a node with a wall clock that is off.
func shifted(t *testing.T) string {
	t.Helper()
	overlay, err := chaos.ClockOverlay(t.Context(), scratch)
	require.NoError(t, err)
	path, err := build("shifted", "-overlay", overlay)
	require.NoError(t, err)
	return path
}

// C-47, A31, F-15: engines and writers whose clocks are ten minutes fast or slow
// change nothing: they share, renew and take over like all others, and what dies
// is taken over when its lease ends and not before.
func clocks(t *testing.T) {
	path := shifted(t)
	w := newWorld(t, 40)
	run := func(name, seconds string, cfg nodeConfig) *process {
		p := start(t, path, name, cfg, chaos.ShiftVar+"="+seconds)
		w.nodes = append(w.nodes, p)
		p.until("running", 1)
		return p
	}
	engine := w.config(lease(6*time.Second), func(c *nodeConfig) { c.Trap.Delay = 30 * time.Millisecond })
	fast, slow, right := run("fast", "600", engine), run("slow", "-600", engine), run("right", "0", engine)
	for p, off := range map[*process]time.Duration{fast: 10 * time.Minute, slow: -10 * time.Minute, right: 0} {
		require.WithinDuration(t, time.Now().Add(off), chaos.ReadLog([]byte(p.logged()))[0].Time, time.Minute, p.Name)
	}
	writer := nodeConfig{Role: "writer", DSN: w.dsn, Accounts: 40, Writers: 2, Pause: 20 * time.Millisecond}
	writers := []*process{run("fast-writer", "600", writer), run("slow-writer", "-600", writer)}
	w.publishes(1000)
	require.Zero(t, w.count("witness WHERE lost"))
	for _, p := range []*process{fast, slow, right} {
		share := w.count("outbox_partitions") / 3
		eventually(t, func() bool { n := w.held(p); return share-10 <= n && n <= share+10 }, "%s has its share", p.Name)
	}
	w.kill(right)
	w.publishes(500)
	w.kill(fast)
	w.publishes(500)
	for _, p := range writers {
		p.terminate()
	}
	w.drain()
	r := w.check() // among others that no running lease was broken
	require.Zero(t, r.Incidents["late renewals"])
	require.Positive(t, r.Taken)
	slow.terminate()
}

// TestClock_C_47_A31_F_15_TenMinutesOff compiles the standard library anew, which
// is why it needs WAYBILL_LONG.
// Conformance: U-26.
func TestClock_C_47_A31_F_15_TenMinutesOff(t *testing.T) {
	if long() {
		clocks(t)
	}
}
