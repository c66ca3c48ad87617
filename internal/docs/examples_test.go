package docs

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// codeLines are the lines of a file without blanks and, of Go, without comments.
func codeLines(t *testing.T, path string) int {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	if filepath.Ext(path) != ".go" {
		return strings.Count("\n"+strings.TrimSpace(string(text)), "\n") - strings.Count(string(text), "\n\n")
	}
	var s scanner.Scanner
	f := token.NewFileSet().AddFile(path, -1, len(text))
	s.Init(f, text, nil, 0)
	lines := map[int]bool{}
	for {
		at, kind, word := s.Scan()
		if kind == token.EOF {
			return len(lines)
		}
		if word == "\n" { // A semicolon that nobody wrote.
			continue
		}
		for i := range strings.Count(word, "\n") + 1 {
			lines[f.Line(at)+i] = true
		}
	}
}

// What the documentation says of the size of examples is so: their code, with the page, and of
// one its tests, too.
func TestExamples_AreAsShortAsTheySay(t *testing.T) {
	for dir, c := range map[string]struct {
		tests     bool
		atLeast   int // A test that counts nothing would hold.
		less      int
		documents []string
		says      string
	}{
		"examples/shop":    {false, 400, 600, []string{"README.md", "examples/shop/README.md"}, "under 600 lines"},
		"examples/lending": {true, 500, 701, []string{"README.md", "examples/lending/README.md"}, "at most 700 lines"},
	} {
		total := 0
		require.NoError(t, filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if ext := filepath.Ext(path); err == nil && !d.IsDir() && (ext == ".go" || ext == ".html") && (c.tests || !strings.HasSuffix(path, "_test.go")) {
				total += codeLines(t, path)
			}
			return err
		}))
		t.Logf("%s: %d", dir, total)
		require.Greater(t, total, c.atLeast, dir)
		require.Less(t, total, c.less, dir)
		for _, document := range c.documents {
			text, err := os.ReadFile(filepath.Join(root, document))
			require.NoError(t, err)
			if !strings.Contains(strings.Join(strings.Fields(string(text)), " "), c.says) {
				t.Errorf("%s doesn't say %q of %s", document, c.says, dir)
			}
		}
	}
}

// Every example says what to look at, and is in the list of them.
func TestExamples_HaveAReadme(t *testing.T) {
	list, err := os.ReadFile(filepath.Join(root, "examples/README.md"))
	require.NoError(t, err)
	dirs, err := os.ReadDir(filepath.Join(root, "examples"))
	require.NoError(t, err)
	for _, d := range dirs {
		if d.IsDir() {
			text, err := os.ReadFile(filepath.Join(root, "examples", d.Name(), "README.md"))
			require.NoError(t, err)
			require.Contains(t, string(text), "\n## What to look at\n", d.Name())
			require.Contains(t, string(list), "("+d.Name()+"/README.md)")
		}
	}
}
