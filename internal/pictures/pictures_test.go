package main

import (
	"encoding/xml"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = "../.."

// The pictures of the documentation are what their sources give, and none has no source;
// each is shown by the page, and its text fits.
func TestPictures_AreWhatTheirSourcesGive(t *testing.T) {
	all, err := pictures(root)
	require.NoError(t, err)
	page, err := os.ReadFile(filepath.Join(root, "docs/concepts/promises.md"))
	require.NoError(t, err)
	files, err := filepath.Glob(filepath.Join(root, drawn, "*.svg"))
	require.NoError(t, err)
	require.Len(t, files, len(all))
	for name, svg := range all {
		text, err := os.ReadFile(filepath.Join(root, drawn, name+".svg"))
		require.NoError(t, err)
		require.Equal(t, svg, string(text), "%s is not what its source gives: go run ./internal/pictures", name)
		require.Contains(t, string(page), "../images/concepts/"+name+".svg")
		require.NoError(t, xml.Unmarshal(text, new(struct {
			Title string `xml:"title"`
		})))
	}
}

func TestParse_SaysWhatIsWrong(t *testing.T) {
	const head = "title: t\nabout: a\nlane a: A\nlane b: B\n"
	for text, want := range map[string]string{
		"title: t":            "needs a title",
		head + "a -> c: x":    `line 5: there is no lane "c"`,
		head + "a => b: x":    "is nothing that can be drawn",
		head + "a -> b":       "has no text",
		head + "begin: x":     "what begins has no end",
		head + "note a b c:":  "has no text",
		head + "crash d: off": `there is no lane "d"`,
	} {
		_, err := parse(text)
		require.ErrorContains(t, err, want, text)
	}
	p, err := parse(head + "note b: x")
	require.NoError(t, err)
	require.Equal(t, step{note, 1, 1, "x"}, p.steps[0])
	p, err = parse(head + "begin: together\na -> b: x < y\nend\nnote a b: both")
	require.NoError(t, err)
	require.Contains(t, p.svg(), "x &lt; y")
	require.Equal(t, 1, strings.Count(p.svg(), `class="frame"`))
}

func TestWrap_BreaksBetweenWords(t *testing.T) {
	require.Equal(t, []string{"one two", "three"}, wrap("one two three", 60))
}
