package adaptertest_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/internal/adaptertest"
)

const root = "../.."

// The guarantees' exceptions by adapter are those that the suites are run with (T8).
func TestGuarantees_ShowTheTable(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs/guarantees.md"))
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(text), "<!-- adapters -->\n\n")
	require.True(t, found)
	shown, _, found := strings.Cut(rest, "\n\n<!-- /adapters -->")
	require.True(t, found)
	require.Equal(t, strings.TrimSuffix(adaptertest.Table(), "\n"), shown, "docs/guarantees.md has another table than internal/adaptertest: put this one there:\n%s", adaptertest.Table())
}

var (
	suite = regexp.MustCompile(`\bbrokertest\.Run\(`)
	run   = regexp.MustCompile(`\badaptertest\.Run\(t, "?([^"]*?)"?, `)
)

// Nobody runs the suite with anything else, and every row is run: what is declared can't be
// said by the way.
func TestEveryAdapterRunsWithItsRow(t *testing.T) {
	for _, dir := range []string{"broker", "examples", "engine", "e2e", "bench", "cmd"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, filepath.Join(root, "examples/adapter")) {
				return err // The example is written as by somebody outside; its test says what it declares.
			}
			source, err := os.ReadFile(path)
			require.False(t, suite.Match(source), "%s runs brokertest.Run: call adaptertest.Run, with a row of internal/adaptertest", path)
			return err
		}))
	}
	for _, a := range adaptertest.All {
		dir, _, _ := strings.Cut(a.Name, ", ")
		var named bool
		files, err := filepath.Glob(filepath.Join(root, dir, "*_test.go"))
		require.NoError(t, err)
		for _, file := range files {
			source, err := os.ReadFile(file)
			require.NoError(t, err)
			named = named || run.Match(source) && strings.Contains(string(source), `"`+a.Name+`"`)
		}
		require.True(t, named, "no test in %s runs adaptertest.Run with %q", dir, a.Name)
	}
}

// An adapter whose Capabilities are others than its row says fails.
func TestRun_RefusesOtherCapabilities(t *testing.T) {
	a := adaptertest.Adapter{Capabilities: broker.Capabilities{System: "memory", Prefix: true, KeyOrder: true, Groups: true, Redelivery: true}}
	require.NoError(t, a.Check(broker.Prefixed(memory.New(memory.Config{}), "a.").Capabilities()))
	require.ErrorContains(t, a.Check(memory.New(memory.Config{Dedup: true}).Capabilities()), "Dedup:true")
	require.Error(t, a.Check(broker.Capabilities{}))
}
