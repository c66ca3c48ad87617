package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/uow"
)

// Half a name matches nothing, and nothing reads as if none were left: what can be told from
// a whole name is refused, and of what can be called anything it is said.
func TestNames_HalfOfOneDoesNotReadAsNothing(t *testing.T) {
	eachProvider(t, func(t *testing.T, provider string, _ uow.Provider) {
		file := configured(t, "default: "+provider)
		run := func(line string) result {
			return waybill(t, append([]string{"--config", file}, strings.Fields(line)...)...)
		}
		for line, want := range map[string]string{
			"outbox list --type OrderPlaced":                `--type: "OrderPlaced" is no message type: write it with its context and version, as in Ordering.OrderPlaced.v1`,
			"outbox retry --dry-run --type Ordering.Placed": `--type: "Ordering.Placed" is no message type`,
			"outbox list --category ordering.order":         `--category: "ordering.order" is no stream category: write it with its context, as in ordering::order`,
			"outbox list --stream order-17":                 `--stream: "order-17" is no stream: write it with its context, as in ordering::order-17`,
			"timers list --type MarkOverdue":                `--type: "MarkOverdue" is no message type`,
			"timers stop --dry-run --type MarkOverdue":      `--type: "MarkOverdue" is no message type`,
			"processes list --process lending":              `--process: "lending" is no kind of process: write it with its context, as in library.lending`,
		} {
			r := run(line)
			require.Equal(t, exitUsage, r.code, line)
			require.Contains(t, r.stderr, want)
		}
		require.Equal(t, "No timers match.\n", run("timers list --type waybill.ProcessTimerDue.v1").stdout)
		require.Equal(t, "No dead letters match.\n", run("dead-letters list --type Ordering.OrderPlaced.v1").stdout)
		require.Equal(t, "No dead letters match. Types of Waybill's messages have context and version, as in Ordering.OrderPlaced.v1.\n", run("dead-letters list --type OrderPlaced").stdout)
		require.Equal(t, "No dead letters match. The database knows no subscription nobody: `waybill subscriptions list` has their names.\n", run("dead-letters list --subscription nobody").stdout)
	})
}
