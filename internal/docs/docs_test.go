// Package docs holds what the documentation shows to what the code does.
package docs

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = "../.."

var fence = regexp.MustCompile("(?ms)^```(\\w+)\n(.*?)^```$")

// blocks are the fenced blocks of one language in a document.
func blocks(t *testing.T, path, language string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	require.NoError(t, err)
	var found []string
	for _, m := range fence.FindAllStringSubmatch(string(text), -1) {
		if m[1] == language {
			found = append(found, m[2])
		}
	}
	return found
}

func documents(t *testing.T) []string {
	t.Helper()
	paths := []string{"README.md", "CHANGELOG.md"}
	require.NoError(t, filepath.WalkDir(filepath.Join(root, "docs"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".md") {
			relative, err := filepath.Rel(root, path)
			require.NoError(t, err)
			paths = append(paths, relative)
		}
		return err
	}))
	return paths
}

// The tutorial's program, in a module of its own as a reader has it, prints what
// the tutorial says, also the second time.
func TestTutorial_RunsAsWritten(t *testing.T) {
	programs := blocks(t, "docs/tutorial.md", "go")
	require.Len(t, programs, 1)
	want := blocks(t, "docs/tutorial.md", "text")
	require.Len(t, want, 1)

	dir := t.TempDir()
	here, err := filepath.Abs(root)
	require.NoError(t, err)
	module, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	mod := strings.Replace(string(module), "module github.com/waybill-go/waybill", "module example.com/todo", 1) +
		"\nrequire github.com/waybill-go/waybill v0.0.0\n\nreplace github.com/waybill-go/waybill => " + here + "\n"
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	require.NoError(t, err)
	for name, content := range map[string]string{"main.go": programs[0], "go.mod": mod, "go.sum": string(sums)} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	run := func(name string, args ...string) string {
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod")
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		require.NoError(t, err, "%s\n%s", out, stderr.String())
		return string(out)
	}
	run("go", "build", "-o", "todo", ".")
	for range 2 {
		require.Equal(t, want[0], run("./todo"))
	}
}

// Every other piece of Go in the documentation stands in the examples, or in the
// example of a package, line by line.
func TestSnippets_StandInTheExamples(t *testing.T) {
	var code strings.Builder
	require.NoError(t, filepath.WalkDir(filepath.Join(root, "examples"), func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") {
			return err
		}
		text, err := os.ReadFile(path)
		code.Write(text)
		return err
	}))
	packages, err := filepath.Glob(filepath.Join(root, "*/example_test.go"))
	require.NoError(t, err)
	for _, path := range packages {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		code.Write(text)
	}
	for _, document := range documents(t) {
		for _, block := range blocks(t, document, "go") {
			if !strings.HasPrefix(block, "package ") {
				require.Contains(t, code.String(), block, document)
			}
		}
	}
}

var (
	code = regexp.MustCompile("`[^`]*`")
	link = regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
)

// Links between documents lead somewhere.
func TestLinks_LeadSomewhere(t *testing.T) {
	for _, document := range documents(t) {
		text, err := os.ReadFile(filepath.Join(root, document))
		require.NoError(t, err)
		for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(fence.ReplaceAllString(string(text), ""), ""), -1) {
			_, err := os.Stat(filepath.Join(root, filepath.Dir(document), m[1]))
			require.NoError(t, err, "%s links to %s", document, m[1])
		}
	}
}
