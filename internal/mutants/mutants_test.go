package main

import (
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// listed are the mutants of the list.
func listed(t *testing.T) []mutant {
	text, err := os.ReadFile("mutants.txt")
	require.NoError(t, err)
	all, err := parse(string(text))
	require.NoError(t, err)
	return all
}

// The list names what is there: each snippet once in its file, and a test of its package.
func TestList_NamesWhatIsThere(t *testing.T) {
	all := listed(t)
	require.NotEmpty(t, all)
	_, err := weave("../..", t.TempDir(), all)
	require.NoError(t, err)
	for _, m := range all {
		files, err := filepath.Glob(filepath.Join("../..", m.pkg, "*_test.go"))
		require.NoError(t, err)
		name, exact := strings.CutSuffix(strings.TrimPrefix(m.test, "^"), "$")
		require.True(t, exact, "mutants.txt:%d: the pattern of a test begins with ^ and ends with $", m.at)
		found := false
		for _, f := range files {
			source, err := os.ReadFile(f)
			require.NoError(t, err)
			found = found || strings.Contains(string(source), "func "+name+"(")
		}
		require.True(t, found, "mutants.txt:%d: there is no %s in %s", m.at, name, m.pkg)
	}
}

// A mutant that doesn't compile takes those of its whole package along.
func TestList_Compiles(t *testing.T) {
	all := listed(t)
	w, err := weave("../..", t.TempDir(), all)
	require.NoError(t, err)
	packages := map[string]bool{}
	for _, m := range all {
		if strings.HasSuffix(m.file, ".go") {
			packages["./"+filepath.Dir(m.file)] = true
		}
	}
	build := exec.CommandContext(t.Context(), "go", append([]string{"build", "-overlay", w.overlay}, slices.Sorted(maps.Keys(packages))...)...) //nolint:gosec // It builds what the list names.
	build.Dir = "../.."
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// The page has the list's rules, and the long run's are enough.
func TestPage_IsMadeOfTheList(t *testing.T) {
	all := listed(t)
	made, err := os.ReadFile("mutants.md")
	require.NoError(t, err)
	if string(made) != page(all) {
		t.Fatal("mutants.md is not what mutants.txt gives: run go generate ./internal/mutants")
	}
	require.GreaterOrEqual(t, len(all), 150)
}

func TestParse_SaysWhatIsWrong(t *testing.T) {
	_, err := parse("rule: a\nfile: b.go\n- x\n+ x\ntest: ./b ^T$\n\n- y\n+ z\nwhat\n")
	require.EqualError(t, err, "mutants.txt:1: a mutant has a rule, a file, a line that changes, and a test\nmutants.txt:9: what is \"what\"?\n"+
		"mutants.txt:1: a mutant has a rule, a file, a line that changes, and a test")
	all, err := parse("## s\n\nrule: a\nfile: b.go\n- x\n- y\n+\ntest: ./b ^T$\n")
	require.NoError(t, err)
	require.Equal(t, []mutant{{number: 1, section: "s", rule: "a", file: "b.go", before: "x\ny", pkg: "./b", test: "^T$", at: 3}}, all)
}

// Functions of every form can be chosen between, and what is no part of one is apart.
func TestWeave_EveryFormOfFunction(t *testing.T) {
	dir := t.TempDir()
	source := `package x

const most = 8

type list[T any] struct{ all []T }

func (l *list[T]) add(_ string, more ...T) (n int) { l.all = append(l.all, more...); return len(l.all) }

func (list[T]) none(int) { println("none") }

func first[T any](all []T) T { return all[0] }
`
	require.NoError(t, os.WriteFile(filepath.Join(dir, "x.go"), []byte(source), 0o600))
	list := []mutant{
		{number: 1, file: "x.go", before: "len(l.all)", after: "0", at: 1},
		{number: 2, file: "x.go", before: `println("none")`, after: "", at: 2},
		{number: 3, file: "x.go", before: "all[0]", after: "all[1]", at: 3},
		{number: 4, file: "x.go", before: "most = 8", after: "most = 9"},
	}
	out := t.TempDir()
	w, err := weave(dir, out, list)
	require.NoError(t, err)
	require.Equal(t, map[int]string{4: strings.Replace(source, "8", "9", 1)}, w.apart)
	text, err := os.ReadFile(w.replace[filepath.Join(dir, "x.go")])
	require.NoError(t, err)
	_, err = parser.ParseFile(token.NewFileSet(), "x.go", text, 0)
	require.NoError(t, err, string(text))
	for _, want := range []string{
		`func (l *list[T]) add(unnamed1 string, more ...T) (n int) { if mutantAlive == "1" { return l.addMutant1(unnamed1, more...) }; `,
		`func (unnamed1 list[T]) none(unnamed2 int) { if mutantAlive == "2" { unnamed1.noneMutant2(unnamed2); return }; `,
		`func first[T any](all []T) T { if mutantAlive == "3" { return firstMutant3[T](all) }; `,
		"func firstMutant3[T any](all []T) T { return all[1] }",
	} {
		require.Contains(t, string(text), want)
	}
	_, err = weave(dir, out, []mutant{{number: 1, file: "x.go", before: "T any", after: "T", at: 7}})
	require.EqualError(t, err, `mutants.txt:7: x.go has "T any" 2 times`)
}

func TestChoose_ASampleIsOfItsSeed(t *testing.T) {
	all := []mutant{{number: 1, file: "a"}, {number: 2, file: "b"}, {number: 3, file: "b"}, {number: 4, file: "b"}}
	require.Len(t, choose(all, options{}), 4)
	require.Equal(t, all[:1], choose(all, options{only: regexp.MustCompile("a"), sample: 3}))
	sampled := choose(all, options{sample: 2, seed: 7})
	require.Len(t, sampled, 2)
	require.Equal(t, sampled, choose(all, options{sample: 2, seed: 7}))
	all[0].pkg, all[1].pkg = "x", "y"
	for seed := range uint64(10) {
		sampled := choose(all, options{sample: 3, seed: seed})
		for _, m := range sampled {
			require.Equal(t, sampled[0].pkg, m.pkg)
		}
	}
}

func TestFallen_IsTheInnermost(t *testing.T) {
	require.Equal(t, "TestA/b/c", fallen("--- FAIL: TestA (0s)\n    --- FAIL: TestA/b (0s)\n        --- FAIL: TestA/b/c (0s)\n"))
	require.Equal(t, "a panic", fallen("panic: oh"))
	require.Equal(t, "a test that doesn't end", fallen(""))
}
