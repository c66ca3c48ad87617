package figures

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = "../.."

// README, guides and the page on performance say what the last records say.
func TestDocuments_SayWhatWasMeasured(t *testing.T) {
	t.Parallel()
	f, err := Read(root)
	require.NoError(t, err)
	documents, err := Documents(root)
	require.NoError(t, err)
	with := 0
	for _, d := range documents {
		text, err := os.ReadFile(filepath.Join(root, d))
		require.NoError(t, err)
		is, err := f.Render(string(text))
		require.NoError(t, err, d)
		require.Equal(t, is, string(text), "%s differs from %s: %s", d, Results, Remedy)
		if strings.Contains(is, "<!-- figures\n") {
			with++
		}
	}
	require.GreaterOrEqual(t, with, 3, "README, performance, sizing")
}

// A measured rate that is typed into the README or a guide would stay when the measurement changes.
func TestDocuments_NoRateIsTyped(t *testing.T) {
	t.Parallel()
	documents, err := Documents(root)
	require.NoError(t, err)
	rate := regexp.MustCompile(`\d,\d{3}\s+(events|rows|units|units of work|effects|messages|orders|jobs)(/s|\s+(a|per)\s+second)`)
	require.Regexp(t, rate, "at most 3,280 units of work\nper second")
	for _, d := range documents {
		if d != "README.md" && !strings.HasPrefix(d, "docs/guides/") {
			continue // the page on performance also tells of other machines and designs
		}
		text, err := os.ReadFile(filepath.Join(root, d))
		require.NoError(t, err)
		require.NotRegexp(t, rate, Outside(string(text)), "%s: write it as a figure, as the README does", d)
	}
}

func sample() File {
	limit, fresh := Spread{40000, 50000, 60000}, Spread{1, 64000, 2}
	return File{
		Machine: Machine{Processor: "Abacus", Cores: 2, MemoryGiB: 4, Postgres: "15.1", Go: "go1.26"},
		Records: map[string]Record{
			"drain": {Date: "2026-11-01", Commit: "c0ffee", Runs: 3, Scenario: Scenario{
				Waybill: Spread{30000, 33914.4, 35000}, Limit: &limit, LimitNew: &fresh, Ratios: map[string]float64{"limit": 0.678},
				Peers: map[string]Spread{"watermill": {Median: 2364}},
			}},
			"save": {Date: "2026-11-02", Commit: "facade", Runs: 1, Scenario: Scenario{
				Waybill: Spread{92, 92, 92}, Metrics: map[string]Pair{"p99": {Waybill: Spread{1, 1.951, 3}}},
			}},
		},
	}
}

func TestRender(t *testing.T) {
	t.Parallel()
	document := "before\n<!-- figures\n{{row \"all\" \"drain\"}}\n{{spreads \"all\" \"drain\"}}\n{{spread \"save\"}}; {{median \"save\" \"p99\"}}; {{limit \"save\"}}" +
		"{{times \"drain\" \"watermill\"}} times {{peer \"drain\" \"watermill\"}}\n{{measured \"drain\" \"save\"}}; {{measured \"drain\"}}\n{{machine}}\n-->\nold\n<!-- /figures -->\nbehind"
	got, err := sample().Render(document)
	require.NoError(t, err)
	require.Contains(t, got, "-->\n\n| all | 33,914 | 50,000 | 0.68 | 64,000 |\n| all | 30,000 / **33,914** / 35,000 | 40,000 / **50,000** / 60,000 | **0.68** |\n"+
		"**92**; 1.95; 14 times 2,364\n`drain`: 2026-11-01, commit c0ffee, 3 runs; `save`: 2026-11-02, commit facade, one run; 2026-11-01, commit c0ffee, 3 runs\n"+
		"2 cores of an Abacus with 4 GiB (PostgreSQL 15.1, go1.26)\n\n<!-- /figures -->\nbehind")
	require.Equal(t, "| a | | | |", cells("a", "", "", ""))
	require.NotContains(t, got, "old")
	again, err := sample().Render(got)
	require.NoError(t, err)
	require.Equal(t, got, again)
	require.Equal(t, "before\n\nbehind", Outside(got))
}

// What can't be rendered is said with its remedy, and leaves the document as it is.
func TestRender_Errors(t *testing.T) {
	t.Parallel()
	for template, want := range map[string]string{
		`{{median "rtt"}}`:         "go run . record --scenario rtt",
		`{{median "save" "max"}}`:  `it has ["p99"]`,
		`{{peer "drain" "rival"}}`: `no peer "rival"`,
		`{{times "save" "rival"}}`: `no peer "rival"`,
		`{{nothing}}`:              "nothing",
	} {
		_, err := sample().Render("<!-- figures\n" + template + "\n-->\nas it was\n<!-- /figures -->")
		require.ErrorContains(t, err, want)
	}
	_, err := sample().Render("<!-- figures\n{{median \"save\"}}\n-->\nno end")
	require.ErrorContains(t, err, "write <!-- /figures -->")
}

func TestFile_IsOfOneMachine(t *testing.T) {
	t.Parallel()
	f, other := sample(), Machine{Processor: "Difference engine"}
	require.NoError(t, f.Begin(f.Machine, false))
	require.Len(t, f.Records, 2)
	require.ErrorContains(t, f.Begin(other, false), "--anew")
	require.Len(t, f.Records, 2)
	require.NoError(t, f.Begin(other, true))
	require.Empty(t, f.Records)
	require.Equal(t, other, f.Machine)
}

func TestUpdate_WritesWhatChanged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "bench"), 0o750))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "docs"), 0o750))
	require.NoError(t, sample().Write(dir))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "README.md"), []byte("<!-- figures\n{{spread \"save\"}}\n-->\n<!-- /figures -->"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "docs/page.md"), []byte("none"), 0o600))
	f, err := Read(dir)
	require.NoError(t, err)
	require.Equal(t, sample(), f)
	documents, err := Documents(dir)
	require.NoError(t, err)
	require.Equal(t, []string{"README.md", "docs/page.md"}, documents)
	changed, err := f.Update(dir, documents)
	require.NoError(t, err)
	require.Equal(t, []string{"README.md"}, changed)
	changed, err = f.Update(dir, documents)
	require.NoError(t, err)
	require.Empty(t, changed)

	require.NoError(t, os.WriteFile(filepath.Join(dir, Results), []byte("{"), 0o600))
	_, err = Read(dir)
	require.ErrorContains(t, err, "go run . record")
}
