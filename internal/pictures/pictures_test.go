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
// each is shown by its page.
func TestPictures_AreWhatTheirSourcesGive(t *testing.T) {
	all, err := pictures(root)
	require.NoError(t, err)
	var drawn []string
	for _, kind := range kinds {
		files, err := filepath.Glob(filepath.Join(root, kind.drawn, "*.svg"))
		require.NoError(t, err)
		drawn = append(drawn, files...)
	}
	require.Len(t, drawn, len(all), "a picture has no source: %s", drawn)
	for path, svg := range all {
		text, err := os.ReadFile(filepath.Join(root, path))
		require.NoError(t, err)
		require.Equal(t, svg, string(text), "%s is not what its source gives: go run ./internal/pictures", path)
		page, shown := "README.md", path
		if concept, ok := strings.CutPrefix(path, "docs/images/concepts/"); ok {
			page, shown = "docs/concepts/promises.md", "../images/concepts/"+concept
		}
		document, err := os.ReadFile(filepath.Join(root, page))
		require.NoError(t, err)
		require.Contains(t, string(document), shown)
		require.NoError(t, xml.Unmarshal(text, new(struct {
			Title string `xml:"title"`
		})))
	}
}

func TestParseBoxes_SaysWhatIsWrong(t *testing.T) {
	const head = "title: t\nabout: a\ntransaction a 1 1: A | x < y\nbox b 2 1: B\n"
	for text, want := range map[string]string{
		head:                     "it needs a title, what it is about, two boxes at least, and arrows",
		head + "a -> c":          `line 5: there is no box "c"`,
		head + "a.2 -> b":        "a has no row 2",
		head + "b.1 -> a":        "b has no row 1",
		head + "b -> a":          "an arrow goes to a column on the right or downwards",
		head + "box c 2 1: C":    "another box is called c, or is at its place",
		head + "broker c 0 1: C": "c is in no column and row",
		head + "under c: x":      `there is no box "c"`,
		head + "box c 3 1":       "has no text",
		head + "circle c 3 1: C": "is nothing that can be drawn",
	} {
		_, err := parseBoxes(text)
		require.ErrorContains(t, err, want, text)
	}
	p, err := parseBoxes(head + "broker c 3 2: C\na.1 -> b\nb -> c")
	require.NoError(t, err)
	svg := p.svg()
	require.Contains(t, svg, "x &lt; y")
	require.Equal(t, 1, strings.Count(svg, `class="frame"`))
	require.Regexp(t, `^M103 56H173$`, p.arrows[0].path(), "level, from the middle of the row")
	require.Regexp(t, `^M213 64C.* 283 146$`, p.arrows[1].path(), "a curve from below the middle to a lower box")
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
