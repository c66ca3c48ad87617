package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// commandsOf reads the reference of commands, which is made from the program, with the flags of each.
func commandsOf(t *testing.T) map[string][]string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, "docs/reference/commands.md"))
	require.NoError(t, err)
	all := map[string][]string{}
	for section := range strings.SplitSeq(string(page), "\n## ") {
		title, body, _ := strings.Cut(section, "\n")
		for _, m := range regexp.MustCompile("(?m)^\\| `(--[a-z-]+)").FindAllStringSubmatch(body, -1) {
			all[strings.Trim(title, "`")] = append(all[strings.Trim(title, "`")], m[1])
		}
		all[strings.Trim(title, "`")] = append(all[strings.Trim(title, "`")], "--help")
	}
	require.Contains(t, all, "waybill outbox retry")
	return all
}

// Commands within sentences and tables exist, with their flags; those in blocks are parsed by the program itself in its own tests.
// A name in it may be cut short, as in `waybill projections`.
func TestNames_CommandsInTextExist(t *testing.T) {
	all := commandsOf(t)
	word := regexp.MustCompile(`^[a-z-]+$`)
	seen := 0
	for _, document := range documents(t) {
		text, err := os.ReadFile(filepath.Join(root, document))
		require.NoError(t, err)
		for _, m := range regexp.MustCompile("`(waybill [-a-z][^`\n]*)`").FindAllStringSubmatch(string(text), -1) {
			command, flags, value := "waybill", []string(nil), false
			for _, w := range strings.Fields(m[1])[1:] {
				switch name, _, assigned := strings.Cut(w, "="); {
				case strings.HasPrefix(w, "--"):
					flags, value = append(flags, name), !assigned && (w == "--config" || w == "--dsn")
				case value:
					value = false
				case word.MatchString(w) && all[command] == nil:
					command += " " + w
				}
			}
			known := slices.Concat(all[command], all["Every command"])
			cut := false
			for name, of := range all {
				if all[command] == nil && strings.HasPrefix(name, command) {
					known, cut = append(known, of...), true
				}
			}
			require.True(t, all[command] != nil || cut, "%s: %s: there is no such command", document, m[1])
			for _, flag := range flags {
				require.Contains(t, known, flag, "%s: %s", document, m[1])
			}
			seen++
		}
	}
	require.Greater(t, seen, 50)
}

// Metrics within sentences and tables are ones that an engine has, by the reference that is made from one.
func TestNames_MetricsInTextExist(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/reference/metrics.md"))
	require.NoError(t, err)
	seen := 0
	for _, document := range documents(t) {
		text, err := os.ReadFile(filepath.Join(root, document))
		require.NoError(t, err)
		for _, m := range regexp.MustCompile("`(waybill_[a-z_]+[a-z])[`{]").FindAllStringSubmatch(string(text), -1) {
			if slices.Contains([]string{"waybill_app", "waybill_engine", "waybill_read", "waybill_migrations"}, m[1]) {
				continue // roles, and a table
			}
			require.Contains(t, string(page), "`"+m[1]+"`", document)
			seen++
		}
	}
	require.Greater(t, seen, 20)
}
