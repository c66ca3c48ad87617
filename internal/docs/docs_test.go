// Package docs holds what the documentation shows to what the code does.
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
	paths := []string{"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "model/README.md", "examples/README.md"}
	examples, err := filepath.Glob(filepath.Join(root, "examples/*/README.md"))
	require.NoError(t, err)
	for _, path := range examples {
		relative, err := filepath.Rel(root, path)
		require.NoError(t, err)
		paths = append(paths, relative)
	}
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

// Every other piece of Go in the documentation stands in the examples, in the example
// of a package, or in the tests of the guide to changing things, line by line, and its page
// says where: what stands around it there is what a reader needs to type it.
func TestSnippets_StandInTheExamples(t *testing.T) {
	sources := sourcesOfSnippets(t)
	for _, document := range documents(t) {
		text, err := os.ReadFile(filepath.Join(root, document))
		require.NoError(t, err)
		for _, block := range blocks(t, document, "go") {
			if strings.HasPrefix(block, "package ") {
				continue
			}
			stands, named := false, false
			for path, source := range sources {
				if strings.Contains(source, block) {
					stands, named = true, named || names(string(text), path)
				}
			}
			require.True(t, stands, "%s has Go that is in no example:\n%s", document, block)
			require.True(t, named, "%s doesn't say in which file this stands:\n%s", document, block)
		}
	}
}

// names says whether a page has the file, or the example that the file is part of.
func names(page, path string) bool {
	parts := strings.Split(path, "/")
	return strings.Contains(page, path) || parts[0] == "examples" && strings.Contains(page, parts[0]+"/"+parts[1])
}

func sourcesOfSnippets(t *testing.T) map[string]string {
	t.Helper()
	var paths []string
	require.NoError(t, filepath.WalkDir(filepath.Join(root, "examples"), func(path string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".go") {
			paths = append(paths, path)
		}
		return err
	}))
	for _, pattern := range []string{"*/example_test.go", "internal/rolling/*_test.go"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		paths = append(paths, found...)
	}
	sources := map[string]string{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		relative, err := filepath.Rel(root, path)
		require.NoError(t, err)
		sources[filepath.ToSlash(relative)] = string(text)
	}
	return sources
}

var (
	code = regexp.MustCompile("`[^`]*`")
	link = regexp.MustCompile(`\]\(([^)#:]*)(#[^)]*)?\)`)
)

// Links between documents lead to a file, and to a heading in it.
func TestLinks_LeadSomewhere(t *testing.T) {
	for _, document := range documents(t) {
		text, err := os.ReadFile(filepath.Join(root, document))
		require.NoError(t, err)
		for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(fence.ReplaceAllString(string(text), ""), ""), -1) {
			target := document
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(document), m[1])
			}
			_, err := os.Stat(filepath.Join(root, target))
			require.NoError(t, err, "%s links to %s", document, m[1])
			if m[2] != "" && strings.HasSuffix(target, ".md") {
				require.Contains(t, anchors(t, target), m[2][1:], "%s links to %s", document, m[0])
			}
		}
	}
}

var (
	heading     = regexp.MustCompile(`(?m)^#+ (.+)$`)
	notInAnchor = regexp.MustCompile(`[^\p{L}\p{N}\p{M}_ -]`)
)

// anchors are what the headings of a document are called in links, by the rule of code hosts.
func anchors(t *testing.T, document string) (all []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, document))
	require.NoError(t, err)
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(string(text), ""), -1) {
		all = append(all, strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return all
}

// README shows the two commands that a clone is tried with: examples/ordering's tests run the
// first one, and CI is the second.
func TestReadme_ShowsTheTwoCommands(t *testing.T) {
	shown := strings.Join(blocks(t, "README.md", "sh"), "\n")
	require.Regexp(t, `(?m)^go run \./examples/ordering +#`, shown)
	require.Regexp(t, `(?m)^scripts/test +#`, shown)
	ci, err := os.ReadFile(filepath.Join(root, ".ci/run"))
	require.NoError(t, err)
	require.Contains(t, string(ci), "scripts/test")
}

// The program of the README is the one of examples/first, whose test runs it. From its first type to the end of main it has
// 25 lines that fit a page; what stands around that is its package clause, imports and a helper that ends it on an error.
func TestReadme_ProgramIsTheFirstExample(t *testing.T) {
	program, err := os.ReadFile(filepath.Join(root, "examples/first/main.go"))
	require.NoError(t, err)
	require.Equal(t, []string{string(program)}, blocks(t, "README.md", "go"))
	_, own, found := strings.Cut(string(program), "\n)\n")
	require.True(t, found, "it has imports")
	own, _, found = strings.Cut(own, "\n}\n\nfunc must[")
	require.True(t, found, "what follows main is the helper alone")
	lines := 1 // the end of main
	for line := range strings.SplitSeq(own, "\n") {
		if strings.TrimSpace(line) != "" {
			lines++
		}
		require.LessOrEqual(t, len(line), 140, line)
	}
	require.LessOrEqual(t, lines, 25)
}

// The site's navigation has every page: scripts/site fails otherwise, but isn't run with every change.
func TestSite_NavigationHasEveryPage(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "mkdocs.yml"))
	require.NoError(t, err)
	for _, document := range documents(t) {
		if page, ok := strings.CutPrefix(document, "docs/"); ok {
			require.Regexp(t, "(?m) "+regexp.QuoteMeta(page)+"$", string(text))
		}
	}
}
