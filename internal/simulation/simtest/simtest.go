// Package simtest is what the simulations share: building their tests with parts of the
// code changed, making a schedule smaller, measuring a search, and reading the kept seeds.
//
// For this module's tests.
package simtest

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Patch replaces a text of a file. Where the text isn't there any more, the code is
// written in another way, and the patch has to follow.
type Patch struct {
	File     string // from the package that is tested
	Old, New string
	Times    int // that Old is there; 0: once
}

// Build compiles the tests of the package that is tested, without the race detector, and
// returns the program. New files are named as those of patches.
func Build(t *testing.T, patches []Patch, files map[string]string) (program string) {
	t.Helper()
	dir := t.TempDir()
	texts := map[string]string{}
	maps.Copy(texts, files)
	for _, p := range patches {
		if _, read := texts[p.File]; !read {
			text, err := os.ReadFile(filepath.FromSlash(p.File))
			require.NoError(t, err)
			texts[p.File] = string(text)
		}
		require.Equal(t, max(p.Times, 1), strings.Count(texts[p.File], p.Old), "%s has not as often as the patch says:\n%s", p.File, p.Old)
		texts[p.File] = strings.ReplaceAll(texts[p.File], p.Old, p.New)
	}
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for name, text := range texts {
		place, err := filepath.Abs(filepath.FromSlash(name))
		require.NoError(t, err)
		to := filepath.Join(dir, fmt.Sprintf("%d_%s", len(overlay.Replace), filepath.Base(name)))
		require.NoError(t, os.WriteFile(to, []byte(text), 0o600))
		overlay.Replace[place] = to
	}
	text, err := json.Marshal(overlay)
	require.NoError(t, err)
	path := filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(path, text, 0o600))
	program = filepath.Join(dir, "simulation.test")
	cmd := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-o", program, "-overlay", path, ".")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

// Shrink leaves acts out of a schedule, as long as it still fails: halves first, then
// ever smaller parts, at last each alone (Zeller and Hildebrandt's ddmin, 2002). Fails runs a
// schedule, and returns the acts of it that happened. What is left can't do without any of
// its acts, unless that takes longer than most.
func Shrink[A any](acts []A, most time.Duration, fails func([]A) ([]A, bool)) []A {
	begin := time.Now()
	for size := len(acts) / 2; size > 0 && time.Since(begin) < most; {
		smaller := false
		for at := 0; at < len(acts) && time.Since(begin) < most; {
			if left, still := fails(slices.Concat(acts[:at], acts[min(at+size, len(acts)):])); still {
				acts, smaller = left, true
				continue
			}
			at += size
		}
		if !smaller || size > 1 {
			size /= 2
		}
	}
	return acts
}

// kept is a row of a table of seeds: a switch, where it is from, and the seed that finds it.
var kept = regexp.MustCompile("(?m)^\\| `([A-Z]+)` \\| [^|]+ \\| (\\d+) \\|")

// Seeds are the kept ones of a file, by switch.
func Seeds(t *testing.T, file string) map[string]uint64 {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	all := map[string]uint64{}
	for _, row := range kept.FindAllStringSubmatch(string(text), -1) {
		all[row[1]], err = strconv.ParseUint(row[2], 10, 64)
		require.NoError(t, err)
	}
	return all
}

// Number is a variable of the environment.
func Number(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	require.NoError(t, err, name)
	return n
}
