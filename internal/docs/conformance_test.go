package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	conformanceRow = regexp.MustCompile(`(?m)^\| ([ABCDFNOSTU][0-9-]+) \| (.+) \| (.+) \|$`)
	// What is run over every implementation stands in a package.
	suites   = regexp.MustCompile(`/relaytest/\w+\.go$`)
	testName = regexp.MustCompile("`(Test[^`]+)`")
)

// Every row of docs/conformance.md names tests that exist, in files that name
// the id.
func TestConformance_NamesTestsThatExist(t *testing.T) {
	files := testSources(t)
	text, err := os.ReadFile(filepath.Join(root, "docs/conformance.md"))
	require.NoError(t, err)
	rows := conformanceRow.FindAllStringSubmatch(string(text), -1)
	require.NotEmpty(t, rows)
	seen := map[string]bool{}
	for _, row := range rows {
		id, tests := row[1], testName.FindAllStringSubmatch(row[3], -1)
		require.False(t, seen[id], "%s stands twice", id)
		seen[id] = true
		if strings.HasPrefix(row[3], "n/a: ") {
			continue
		}
		require.NotEmpty(t, tests, "%s has no test", id)
		named := false
		for _, test := range tests {
			for _, source := range files {
				named = named || declared(map[string]string{"": source}, test[1]) && mentions(source, id)
			}
			require.True(t, declared(files, test[1]), "%s names %s, which is nowhere", id, test[1])
		}
		require.True(t, named, "no file of the tests of %s names it", id)
	}
}

// testSources are the sources of all tests, by path.
func testSources(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		// The servers' files come and go while the tests run.
		if err == nil && d.IsDir() && path != root && strings.HasPrefix(d.Name(), ".") {
			return filepath.SkipDir
		}
		if err != nil || !strings.HasSuffix(path, "_test.go") && !suites.MatchString(path) {
			return err
		}
		text, err := os.ReadFile(path)
		files[path] = string(text)
		return err
	}))
	return files
}

// mentions says whether a source has an id, as S3-01, S3_01 or S301.
func mentions(source, id string) bool {
	variants := []string{id, strings.ReplaceAll(id, "-", "_"), strings.ReplaceAll(id, "-", "")}
	return regexp.MustCompile(`(\b|_)(` + strings.Join(variants, "|") + `)(\b|_)`).MatchString(source)
}
