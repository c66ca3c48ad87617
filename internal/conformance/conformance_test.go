package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = "../.."

func list(t *testing.T) []row {
	t.Helper()
	sections, err := read(root)
	require.NoError(t, err)
	var rows []row
	for _, s := range sections {
		rows = append(rows, s.rows...)
	}
	require.NotEmpty(t, rows)
	return rows
}

// The page is what the list gives, and no line of it was written by hand.
func TestPage_IsMadeFromTheList(t *testing.T) {
	sections, err := read(root)
	require.NoError(t, err)
	made, err := os.ReadFile(filepath.Join(root, "docs/conformance.md"))
	require.NoError(t, err)
	if string(made) != page(sections) {
		t.Fatal("docs/conformance.md is not what docs/conformance.tsv gives: run go generate ./internal/conformance")
	}
}

// No id of the requirements is missing, and none is there twice.
func TestList_HasEveryID(t *testing.T) {
	text, err := os.ReadFile("testdata/ids.txt")
	require.NoError(t, err)
	listed := map[string]bool{}
	for _, r := range list(t) {
		require.False(t, listed[r.id], "%s is there twice", r.id)
		listed[r.id] = true
	}
	var missing []string
	for id := range strings.Lines(string(text)) {
		if id = strings.TrimSpace(id); !strings.HasPrefix(id, "#") && !listed[id] {
			missing = append(missing, id)
		}
	}
	require.Empty(t, missing, "docs/conformance.tsv lacks requirements")
}

// Every test that a row names exists, runs, and names the row's id in its name or its source. What only the long run
// has is marked.
func TestList_NamesTestsThatRunAndNameTheID(t *testing.T) {
	found, err := testsOf(root)
	require.NoError(t, err)
	var wrong []string
	for _, r := range list(t) {
		for _, named := range r.tests {
			if problem := judge(found.of(named.name), named, r.id); problem != "" {
				wrong = append(wrong, r.id+": "+named.name+" "+problem)
			}
		}
	}
	require.Empty(t, wrong, "%s", strings.Join(wrong, "\n"))
}

// judge says what is wrong with a test that a row names. Of several with one name, one has to be right.
func judge(tests []test, want named, id string) string {
	if len(tests) == 0 {
		return "is nowhere"
	}
	tests = slices.DeleteFunc(tests, func(t test) bool { return !names(want.name, id) && !names(t.text, id) })
	switch {
	case len(tests) == 0:
		return "doesn't name the id"
	case tests[0].skipped:
		return "may be skipped"
	case tests[0].long != want.long:
		return "is marked as (long) and isn't, or the other way round"
	}
	return ""
}

// A statement can be understood without its neighbours, and says what the reason for leaving it out is.
func TestList_StatementsStandOnTheirOwn(t *testing.T) {
	pointing := regexp.MustCompile(`^(The same,|The same as|The same with|It |So |They |This |\()`)
	for _, r := range list(t) {
		require.NotRegexp(t, pointing, r.statement, r.id)
		require.NotContains(t, r.statement+r.without, "|", "%s: a table has no room for it", r.id)
		if r.without != "" {
			_, reason, _ := strings.Cut(r.without, ": ")
			require.Greater(t, len(reason), 30, "%s: why?", r.id)
		}
	}
}

func TestParse_SaysWhatIsWrong(t *testing.T) {
	_, err := parse("X1\ta\tTestA\n## Heading\nX2 a\tTestA\nX3\ta\tNoTest\nX4\ta\tTestA TestB(long)\n")
	require.EqualError(t, err, "line 1 stands before the first heading\n"+
		"line 3: a line has an id, a statement, and tests or n/a, with one tab between them\n"+
		`line 4: X3: "NoTest" is the name of no test`)
	sections, err := parse("## Heading\nsome text\n\nX4\ta\tTestA TestB(long)\nX5\tb\topen: why\n")
	require.NoError(t, err)
	require.Contains(t, page(sections), "## Heading\n\nsome text\n\n| id | statement | tests |\n|---|---|---|\n"+
		"| X4 | a | `TestA`, `TestB` (long) |\n| X5 | b | open: why |\n")
	require.Contains(t, page(sections), "2 statements: 1 held by tests, 0 not applicable, 1 open.")
}

// What the list relies on: a source of each kind, and what becomes of it.
func TestTests_ReadsSources(t *testing.T) {
	dir := t.TempDir()
	source := func(name, text string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	source("a_test.go", `package a
// X-01 is held by this.
func TestPlain(t *testing.T) {}
func TestLong_X_06(t *testing.T) {
	t.Parallel()
	if os.Getenv("WAYBILL_LONG") == "" {
		return
	}
}
func TestAllLong(t *testing.T) {
	if long() {
		work()
	}
}
func TestMore(t *testing.T) {
	if long() {
		n = 10
	}
	work(n)
}
func TestSkipped_X_03(t *testing.T) { t.Skip() }
`)
	source("built_test.go", "//go:build windows\n\npackage a\n\nfunc TestBuilt_X_04(t *testing.T) {}\n")
	source("unix_test.go", "//go:build unix\n\npackage a\n\nfunc TestUnix_X_05(t *testing.T) {}\n")
	source("e2e/b_test.go", "package b\n\nfunc TestBrowser(t *testing.T) {}\n")
	source("internal/outboxdb/suite_test.go", "package c\n\nfunc suite() {\n\ttest(\"Part\", part) // X-02\n}\n\nfunc part() {}\n")
	found, err := testsOf(dir)
	require.NoError(t, err)
	require.Equal(t, []string{"a_test.go: TestAllLong", "a_test.go: TestLong_X_06", "e2e/b_test.go: TestBrowser"}, found.onlyLong())
	for id, want := range map[string]map[named]string{
		"X-01": {
			{"TestPlain", false}: "", {"TestPlain", true}: "is marked as (long) and isn't, or the other way round",
			{"TestNowhere", false}: "is nowhere", {"TestMore", false}: "doesn't name the id",
		},
		"X-02": {{"TestStore/Part", false}: "", {"TestStore/Other", false}: "is nowhere"},
		"X-03": {{"TestSkipped_X_03", false}: "may be skipped"},
		"X-04": {{"TestBuilt_X_04", false}: "may be skipped"},
		"X-05": {{"TestUnix_X_05", false}: ""},
		"X-06": {{"TestLong_X_06", false}: "is marked as (long) and isn't, or the other way round", {"TestLong_X_06", true}: ""},
	} {
		for named, problem := range want {
			require.Equal(t, problem, judge(found.of(named.name), named, id), "%s %v", id, named)
		}
	}
}

func TestNames_FindsWholeIDs(t *testing.T) {
	for _, text := range []string{"// S2: ", "TestX_S2_S3_Y", "TestS2", "(S2)"} {
		require.Equal(t, text != "TestS2", names(text, "S2"), text)
	}
	for _, text := range []string{"S2-01", "S21", "TestX_S2_01_Y", "XS2"} {
		require.False(t, names(text, "S2"), text)
	}
	for _, text := range []string{"S3-01", "TestX_S3_01_Y", "TestX_S301_Y"} {
		require.True(t, names(text, "S3-01"), text)
	}
}
