package relay_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// crossed is how many functions an event crosses at most from its insert to its
// settlement, those of a line and those of the lane's turn included: what was counted
// last, and a few for what happens to run beside it. Lower it when the count falls.
const crossed = 180

// The way of one event through outbox, internal/outboxdb and internal/relay, which
// docs/architecture.md walks.
func TestWay_FunctionsThatOneEventCrosses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	program, counters := filepath.Join(dir, "way"), filepath.Join(dir, "counters")
	require.NoError(t, os.Mkdir(counters, 0o700))
	run := func(name string, args ...string) string {
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Env = append(os.Environ(), "GOCOVERDIR="+counters)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s: %s", cmd, out)
		return string(out)
	}
	const module = "github.com/waybill-go/waybill/"
	packages := module + "outbox," + module + "internal/relay," + module + "internal/outboxdb,"
	run("go", "build", "-cover", "-covermode=atomic", "-coverpkg="+packages+module+"internal/relay/testdata/way", "-o", program, "./testdata/way")
	run(program, filepath.Join(dir, "outbox.db"))

	var functions []string
	files := map[string]bool{}
	line := regexp.MustCompile(`(?m)^` + module + `(\S+):\d+:\s+(\S+)\s+([\d.]+)%$`)
	for _, f := range line.FindAllStringSubmatch(run("go", "tool", "covdata", "func", "-i", counters), -1) {
		if f[3] != "0.0" && !strings.Contains(f[1], "/testdata/") {
			functions = append(functions, f[1]+" "+f[2])
			files[f[1]] = true
		}
	}
	slices.Sort(functions)
	t.Logf("%d functions in %d files:\n%s", len(functions), len(files), strings.Join(functions, "\n"))
	for _, step := range []string{
		"internal/outboxdb/insert.go insert.AppendQuery", "internal/relay/relay.go *Relay.Wake", "internal/relay/wake.go *wake.poke",
		"internal/relay/lane.go *lane.turn", "internal/relay/read.go *lane.looks", "internal/outboxdb/queue.go *Store.Look",
		"internal/relay/choose.go *track.choose", "internal/outboxdb/claim.go *Store.Claim", "internal/relay/call.go *call.publish",
		"internal/relay/settle.go *track.judge", "internal/outboxdb/settle.go *Store.Settle", "internal/relay/flight.go *flight.settled",
	} {
		require.Contains(t, functions, step)
	}
	require.LessOrEqual(t, len(functions), crossed)
}
