package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// avoid has what sounds translated, with what to write instead.
var avoid = map[*regexp.Regexp]string{
	regexp.MustCompile(`(?i)\b(goes|go) on by (it|them)sel`):        "continues by itself",
	regexp.MustCompile(`(?i)\ball goes on\b`):                       "everything is running",
	regexp.MustCompile(`(?i)\b(is|are) like that\b`):                "no rows match",
	regexp.MustCompile(`(?i)\bnobody pays\b|\bpays? no attempt`):    "no attempts are used up",
	regexp.MustCompile(`(?i)\bleaves the house\b`):                  "is published",
	regexp.MustCompile(`(?i)\bstands? still\b`):                     "is stuck, is blocked, has stopped",
	regexp.MustCompile(`(?i)\b(made|making|makes?|make) \w* ?anew`): "rebuilt",
	regexp.MustCompile(`(?i)\bof the time before\b`):                "earlier",
	regexp.MustCompile(`(?i)\bmakes? no sense\b`):                   "is wrong",
	regexp.MustCompile(`(?i)\bin the hands? of\b`):                  "held by, claimed by",
	regexp.MustCompile(`(?i)\bdearest\b|\bdearer\b`):                "costs most, costs more",
	regexp.MustCompile(`(?i)\bkeeps? house\b`):                      "cleans up",
	regexp.MustCompile(`(?i)\b(is|are) no more[:;,.]`):              "was removed",
	regexp.MustCompile(`(?i)\blooks? after\b|\blooking after\b`):    "manages",
	regexp.MustCompile(`(?i)\btried again and again\b`):             "is retried repeatedly",
}

// What people read is in the field's usual words: documents, what the program's strings and its comments say, the observatory,
// dashboards, alerts and manifests.
// The protocol has a glossary of words of its own, and the changelog says what was.
func TestWords_AreThoseOfTheField(t *testing.T) {
	check := func(path, text string) {
		for word, better := range avoid {
			if at := word.FindStringIndex(text); at != nil {
				t.Errorf("%s: %q; write: %s", path, text[max(0, at[0]-40):min(len(text), at[1]+40)], better)
			}
		}
	}
	for _, document := range documents(t) {
		switch {
		case document == "CHANGELOG.md", document == "docs/protocol.md", document == "docs/conformance.md",
			strings.HasPrefix(document, "docs/decisions/"), strings.HasPrefix(document, "model/"):
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, document))
		require.NoError(t, err)
		check(document, string(text))
	}
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "uplot"):
			return filepath.SkipDir
		case d.IsDir() || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		switch filepath.Ext(path) {
		case ".go":
			for _, text := range written(t, path) {
				check(path, text)
			}
		case ".js", ".html", ".json", ".yaml", ".yml":
			text, err := os.ReadFile(path)
			check(path, string(text))
			return err
		}
		return nil
	}))
}

// written is what somebody wrote in a source for people: its strings, and its comments without their marks. Lines of comments that
// follow each other are one text, as a sentence goes over several.
func written(t *testing.T, path string) (all []string) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, text, parser.ParseComments|parser.SkipObjectResolution)
	require.NoError(t, err)
	for _, group := range file.Comments {
		all = append(all, strings.Join(strings.Fields(group.Text()), " "))
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING {
			all = append(all, literal.Value)
		}
		return true
	})
	return all
}
