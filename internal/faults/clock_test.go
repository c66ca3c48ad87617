package faults

import (
	"github.com/waybill-go/waybill/internal/relay"

	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/outbox/outboxtest"
	"github.com/waybill-go/waybill/uow/postgres"
)

// aTime is a moment of these years, as a date or as seconds or fractions of them
// since 1970.
var aTime = regexp.MustCompile(`\b20[2-9]\d-[01]\d-[0-3]\d|\b[12]\d{9}(\d{3}|\d{6}|\d{9})?\b`)

// C-47, A31, F-15: no process tells the database what time it is: nothing that a
// processor sends in its life holds a time. So its clock can't change whose a
// partition is, or when a row is due. With WAYBILL_LONG,
// TestClock_C_47_A31_F_15_TenMinutesOff shows it.
func TestClock_C_47_A31_F_15_NoStatementHoldsATime(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"2026-01-02 03:04:05", "2026-01-02T03:04:05Z", "1795268512", "1795268512095", "1795268512.095"} {
		require.Regexp(t, aTime, at)
	}
	w := newWorld(t, 0)
	w.save(10, 5)
	p, err := postgres.Open(t.Context(), postgres.Config{DSN: w.dsn})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	var sent outboxtest.Queries
	db := p.DB().WithQueryHook(&sent)
	m := memory.New(memory.Config{})
	refused := w.strings("SELECT message_id::text FROM outbox ORDER BY seq")
	m.FailNext(2, broker.Unavailable)
	m.FailWhere(func(msg broker.Message) error {
		switch msg.ID {
		case refused[0]:
			return errors.New("not now")
		case refused[9]:
			return broker.Classify(broker.Permanent, errors.New("never"))
		}
		return nil
	})
	w.claimedByTheDead()
	processor, err := relay.New(relay.Config{
		Provider: "default", Store: outboxdb.New(db, db), Lanes: []relay.Lane{{Target: "default", Broker: m}},
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
	require.NoError(t, processor.Start(t.Context()))
	eventually(t, func() bool { return w.count("outbox") == 2 && w.count("outbox WHERE status = 'abandoned'") == 2 }, "what is published is purged")
	stop, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(t, processor.Stop(stop))

	all := sent.Take()
	for _, part := range []string{
		"INSERT INTO outbox_workers", "UPDATE outbox_partitions SET locked_by", "UPDATE outbox_partitions SET locked_until", // announce, take, renew
		"status = 'processing'", "losses = losses + 1", "status = 'published'", "status = v.status", // claim, takeover, settle
		"DELETE FROM outbox", "outbox_jobs", "DELETE FROM outbox_workers", "locked_by = NULL",
	} {
		require.True(t, slices.ContainsFunc(all, func(s string) bool { return strings.Contains(s, part) }), "%s was tried", part)
	}
	for _, statement := range all {
		require.NotRegexp(t, aTime, statement)
	}
}

// claimedByTheDead leaves a row in the hand of somebody whose lease has run out.
func (w *world) claimedByTheDead() {
	w.t.Helper()
	p, err := postgres.Open(w.t.Context(), postgres.Config{DSN: w.dsn})
	require.NoError(w.t, err)
	defer p.Close()
	store := outboxdb.New(p.DB(), p.Reader())
	n, err := store.EnsurePartitions(w.t.Context(), "default")
	require.NoError(w.t, err)
	leases, _, err := store.Acquire(w.t.Context(), outbox.Owner{Target: "default", Worker: "dead-1-a-1", Lease: 3 * time.Second}, n)
	require.NoError(w.t, err)
	claim, err := store.Claim(w.t.Context(), outbox.ClaimRequest{Target: "default", Worker: "dead-1-a-1", Leases: leases, Limit: 3, MaxAttempts: 3})
	require.NoError(w.t, err)
	require.Len(w.t, claim.Rows, 3)
}

// shiftVar is by how many seconds the clock of a shifted node is off.
const shiftVar = "WAYBILL_FAULTS_SHIFT"

// shifted is a node with a wall clock that is off: it is built with a package
// time that adds to what the system says. The monotonic clock goes as always.
func shifted(t *testing.T) string {
	t.Helper()
	root, err := exec.Command("go", "env", "GOROOT").Output()
	require.NoError(t, err)
	original := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go")
	text, err := os.ReadFile(original)
	require.NoError(t, err)
	const now = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	require.Equal(t, 1, strings.Count(string(text), now), "time.Now is not what it was")
	changed := strings.Replace(string(text), now, now+"\tsec += shift\n", 1) + `
var shift = shiftFromEnvironment()

func shiftFromEnvironment() int64 {
	text, _ := syscall.Getenv("` + shiftVar + `")
	sign := int64(1)
	if text != "" && text[0] == '-' {
		sign, text = -1, text[1:]
	}
	n, _ := atoi(text)
	return sign * int64(n)
}
`
	changed = strings.Replace(changed, "import (\n", "import (\n\t\"syscall\"\n", 1)
	replacement := filepath.Join(scratch, "time.go")
	require.NoError(t, os.WriteFile(replacement, []byte(changed), 0o600))
	overlay := filepath.Join(scratch, "overlay.json")
	require.NoError(t, os.WriteFile(overlay, fmt.Appendf(nil, `{"Replace": {%q: %q}}`, original, replacement), 0o600))
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
		p := start(t, path, name, cfg, shiftVar+"="+seconds)
		w.nodes = append(w.nodes, p)
		p.until("running", 1)
		return p
	}
	engine := w.config(lease(6*time.Second), func(c *nodeConfig) { c.Trap.Delay = 30 * time.Millisecond })
	fast, slow, right := run("fast", "600", engine), run("slow", "-600", engine), run("right", "0", engine)
	for p, off := range map[*process]time.Duration{fast: 10 * time.Minute, slow: -10 * time.Minute, right: 0} {
		require.WithinDuration(t, time.Now().Add(off), readLog([]byte(p.logged()))[0].Time, time.Minute, p.name)
	}
	writer := nodeConfig{Role: "writer", DSN: w.dsn, Accounts: 40, Writers: 2, Pause: 20 * time.Millisecond}
	writers := []*process{run("fast-writer", "600", writer), run("slow-writer", "-600", writer)}
	published := func(n int) {
		before := w.count("outbox WHERE status = 'published'")
		eventually(t, func() bool { return w.count("outbox WHERE status = 'published'") > before+n }, "rows are published")
	}
	published(1000)
	require.Zero(t, w.count("witness WHERE lost"))
	for _, p := range []*process{fast, slow, right} {
		share := w.count("outbox_partitions") / 3
		eventually(t, func() bool { n := w.held(p); return share-10 <= n && n <= share+10 }, "%s has its share", p.name)
	}
	w.kill(right)
	published(500)
	w.kill(fast)
	published(500)
	for _, p := range writers {
		p.terminate()
	}
	w.drain()
	r := w.check() // among others that no running lease was broken
	require.Zero(t, r.incidents["late renewals"])
	require.Positive(t, r.taken)
	slow.terminate()
}

// TestClock_C_47_A31_F_15_TenMinutesOff compiles the standard library anew, which
// is why it needs WAYBILL_LONG.
func TestClock_C_47_A31_F_15_TenMinutesOff(t *testing.T) {
	if long() {
		clocks(t)
	}
}
