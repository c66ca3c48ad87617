package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// F-39: two contracts are compared by their files alone.
func TestContract_F39_TellsWhatBreaks(t *testing.T) {
	file := func(text string) string {
		path := filepath.Join(t.TempDir(), "contract.json")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	old := file(`{"context": "library", "messages": {"Library.Lent.v1": {"kind": "event", "stream": "library::book", "shared": true, "written": true}}}`)
	gone := file(`{"context": "library", "messages": {}}`)
	run := func(code int, args ...string) result {
		r := waybill(t, args...)
		require.Equal(t, code, r.code, "%s%s", r.stdout, r.stderr)
		return r
	}
	require.Equal(t, result{0, "library: no breaking changes.\n", ""}, run(0, "contract", old, old))
	require.JSONEq(t, `{"context": "library", "breaks": []}`, run(0, "contract", old, old, "--json").stdout)
	got := run(1, "contract", old, gone)
	require.Contains(t, got.stdout, "Library.Lent.v1: is gone, which breaks history: declare it again")
	require.Contains(t, got.stderr, "1 breaking differences")
	require.Contains(t, run(1, "contract", old, gone, "--json").stdout, `"problem": "is gone"`)
	require.Contains(t, run(2, "contract", old, file(`{"context": "billing", "messages": {}}`)).stderr, `is of context "library" and`)
	require.Contains(t, run(2, "contract", old, file(`{}`)).stderr, "is no contract of a context")
	require.Contains(t, run(2, "contract", old, "nowhere.json").stderr, "nowhere.json")
}
