//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/chaos"
)

// With all faults, those of servers among them, nothing is wrong: where each commit waits for the
// standby, and where the standby is a second behind, and only what it hadn't got is missing. The
// plans of these seeds have each fault of servers at a time when no other goes on, unless they
// take long; then the next one follows. A run takes two minutes and more, which is why this needs
// WAYBILL_LONG.
func TestScript_C_95_F_54_ServersThatFailOver(t *testing.T) {
	if os.Getenv("WAYBILL_LONG") == "" {
		return
	}
	wanted := []string{"restart-postgres", "restart-kafka", "failover"}
	if os.Getuid() == 0 {
		wanted = append(wanted, "disk-full")
	}
	for name, flags := range map[string][]string{"synchronous": nil, "asynchronous": {"--asynchronous"}} {
		t.Run(name, func(t *testing.T) {
			seen := map[string]int{}
			for _, seed := range []int{1308, 2069, 170} {
				result := script(t, append(flags, "--seed", strconv.Itoa(seed), "--duration", "100s")...)
				require.Empty(t, result.Violations)
				require.Positive(t, result.Events)
				require.Positive(t, result.Effects)
				for kind, n := range result.Faults {
					seen[kind] += n
				}
				t.Logf("seed %d: %d events, faults %v, forgotten %v", seed, result.Events, result.Faults, result.Forgotten)
				if !slices.ContainsFunc(wanted, func(kind string) bool { return seen[kind] == 0 }) {
					return
				}
			}
			require.Subset(t, slices.Collect(maps.Keys(seen)), wanted)
		})
	}
}

// script runs scripts/chaos, which starts servers of its own and ends them, and which has to pass.
func script(t *testing.T, flags ...string) (result chaos.Result) {
	t.Helper()
	path, err := filepath.Abs("../../scripts/chaos")
	require.NoError(t, err)
	var out, news bytes.Buffer
	cmd := exec.CommandContext(t.Context(), path, append(flags, "--json")...) // in a directory that stays where something is found
	cmd.Stdout, cmd.Stderr = &out, &news
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // it ends its servers
	cmd.WaitDelay = 3 * time.Minute
	err = cmd.Run()
	require.NoError(t, err, "%s\n%s", news.String(), out.String())
	require.NoError(t, json.Unmarshal(out.Bytes(), &result))
	return result
}
