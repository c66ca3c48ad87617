package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A partner is added to a service that has been running without one, with its
// history, on PostgreSQL and Kafka: `waybill outbox backfill` is killed and started
// again while two engines publish and two processes go on writing. The partner
// hears of every event once, before, during and after, each order's in order.
func TestBackfill_APartnerJoinsWhileOthersWrite(t *testing.T) {
	waybill := filepath.Join(t.TempDir(), "waybill")
	text, err := exec.CommandContext(t.Context(), "go", "build", "-o", waybill, "../../cmd/waybill").CombinedOutput()
	require.NoError(t, err, "%s", text)

	t.Setenv("WAYBILL_OUTBOX_EXTERNAL_BROKERS", "")
	s := newSite(t)
	s.file(900, 90)
	place := func(part string, more ...string) *process {
		return s.start(append([]string{"place", "--file", "orders.csv", "--part", part, "--cancel-percent", "50", "--writers", "4"}, more...)...)
	}
	alone := s.serve()
	before := place("1/3")
	require.Zero(t, before.wait(), before.stderr)
	alone.stop()

	// What an operator does; each refusal names the next step.
	require.NoError(t, os.Unsetenv("WAYBILL_OUTBOX_EXTERNAL_BROKERS"))
	refused := runIn(t, s.dir, "serve")
	require.Equal(t, 1, refused.code)
	require.Contains(t, refused.stderr, "waybill migrate --set-targets ordering=default,partner")
	set := start(t, s.dir, waybill, "migrate", "--set-targets", "ordering=default,partner")
	require.Equal(t, 2, set.wait())
	require.Contains(t, set.stderr.String(), "--history copy")
	set = start(t, s.dir, waybill, "migrate", "--set-targets", "ordering=default,partner", "--history", "copy")
	require.Zero(t, set.wait(), set.stderr)

	partner := start(t, s.dir, partnerProgram, "--kafka", s.kafka, "--topic", s.prefix+"partner.ordering.order")
	first, second := s.serve(), s.serve()
	require.Contains(t, first.stderr.String(), "external brokers are joining")
	one, two := place("2/3", "--rate", "15"), place("3/3", "--rate", "15")
	one.eventually(func() bool { return len(one.output()) > 5 && len(two.output()) > 5 }, "orders are placed")

	killed := start(t, s.dir, waybill, "outbox", "backfill")
	killed.eventually(func() bool { return strings.Contains(killed.stderr.String(), "events copied") }, "copies")
	killed.kill()
	require.Equal(t, []string{"1"}, s.strings("SELECT count(*) FROM outbox_settings WHERE name = 'backfill:ordering:partner'"), "it is joining")
	backfill := start(t, s.dir, waybill, "outbox", "backfill", "partner")
	require.Zero(t, backfill.wait(), backfill.stderr)
	require.Contains(t, strings.Join(backfill.output(), "\n"), "and is live")
	orders := len(one.output())
	one.eventually(func() bool { return len(one.output()) > orders }, "orders are placed after that")

	require.Zero(t, one.wait(), one.stderr)
	require.Zero(t, two.wait(), two.stderr)
	const events = "SELECT message_id::text FROM outbox WHERE stream_category = 'ordering::order' AND target_broker = "
	ids := s.strings(events + "'default' ORDER BY 1")
	require.Greater(t, len(ids), 1300)
	partner.eventually(func() bool { return len(partner.output()) >= len(ids) }, "hears of everything")
	require.Equal(t, ids, s.strings(events+"'partner' ORDER BY 1"))
	lines := partner.output()
	got, byOrder := heard(t, lines)
	require.Len(t, lines, len(ids), "each once")
	require.Len(t, got, len(ids))
	require.Len(t, byOrder, 900)
	for id, types := range byOrder {
		require.Equal(t, []string{"Ordering.OrderPlaced.v1", "Ordering.OrderCancelled.v2"}[:len(types)], types, id)
	}
	partner.stop()
	first.stop()
	second.stop()
}
