package main

import (
	"bufio"
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/netfault"
)

// twoDatabases is a configuration whose second one is behind what can be cut.
func twoDatabases(t *testing.T) (file string, between *netfault.Relay) {
	t.Helper()
	u, err := url.Parse(server(t))
	require.NoError(t, err)
	between, err = netfault.New(t.Context(), u.Host)
	require.NoError(t, err)
	t.Cleanup(between.Close)
	u.Host = between.Address
	file = filepath.Join(t.TempDir(), "waybill.yaml")
	text := fmt.Sprintf("providers:\n  default: {dialect: sqlite, path: %q}\n  far: {dialect: postgres, dsn: %q}\n", filepath.Join(t.TempDir(), "a.db"), u)
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	require.Zero(t, waybill(t, "--config", file, "migrate").code)
	return file, between
}

// While one database is away, operators see and change the others.
func TestConfig_OneOfTheDatabasesIsAway(t *testing.T) {
	file, between := twoDatabases(t)
	run := func(args string) result {
		return waybill(t, append([]string{"--config", file}, strings.Fields(args)...)...)
	}
	r := run("outbox list --provider default")
	require.Equal(t, result{0, "No unpublished rows match; --status published searches the published ones.\n", ""}, r)
	between.Cut()

	const away = `provider "far": postgres: provider "far": no PostgreSQL answers at `
	for _, args := range []string{"outbox list", "outbox log", "timers list", "dead-letters summary", "processes list", "trace c-1", "outbox stats", "partitions"} {
		r := run(args)
		require.Equal(t, exitFailed, r.code, args)
		require.Contains(t, r.stderr, "waybill: "+away, args)
		require.NotContains(t, r.stderr, "default", args)
	}
	r = run("--json outbox stats")
	require.Regexp(t, `(?s)"default": \{.*"counts".*"far": null`, r.stdout)
	require.Regexp(t, `(?m)^default +default +0 .*\nfar +\? +-`, run("outbox stats").stdout)
	r = run("--json outbox list")
	require.JSONEq(t, `{"providers": {"default": {"messages": [], "next": 0}}}`, r.stdout)
	require.Zero(t, run("outbox list --provider default").code)
	require.Zero(t, run("migrate --provider default").code)
	require.Zero(t, run("migrate --provider default --dry-run").code)

	// A change of all is one of none, and of those that answer if they are named.
	r = run("outbox retry --status failed --yes --actor ada")
	require.Equal(t, exitFailed, r.code)
	require.Contains(t, r.stderr, "waybill: nothing was changed: "+away)
	r = run("outbox retry --status failed --yes --actor ada --provider default")
	require.Equal(t, result{0, "retry  0  rows\n", ""}, r)
	require.Contains(t, run("observatory --addr nowhere").stderr, "\nThe page has the other databases. Start it again when that is back.\n")
	r = run("outbox list --provider other")
	require.Equal(t, exitUsage, r.code)
	require.Contains(t, r.stderr, `the configuration has no provider "other"`)
}

// Who watches sees a database again that is back.
func TestStats_WatchSeesADatabaseThatIsBack(t *testing.T) {
	file, between := twoDatabases(t)
	between.Cut()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, binary, "--config", file, "outbox", "stats", "--watch", "--every", "100ms")
	stdout, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	seen := bufio.NewScanner(stdout)
	see := func(far string) {
		for seen.Scan() {
			if strings.HasPrefix(seen.Text(), "far ") && strings.Contains(seen.Text(), far) {
				return
			}
		}
		require.FailNow(t, "it has ended")
	}
	see(" ? ")
	between.Mend()
	see(" default ")
	require.NoError(t, c.Process.Signal(os.Interrupt))
	for seen.Scan() { // to its end
		continue
	}
	require.NoError(t, c.Wait())
}
