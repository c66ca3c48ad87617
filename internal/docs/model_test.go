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
	modelSwitch = regexp.MustCompile("(?m)^\\| `?([A-Z]+|none)`?[^|]* \\| `([A-Z]+)` \\| [^|]+ \\|(?: ([^|]+) \\|)?$")
	testName    = regexp.MustCompile("`(Test[^`]+)`")
	modelCheck  = regexp.MustCompile(`(?m)^(?:check|large) ([A-Z]+) (\w+) \S+(?:.* ([A-Z]+)(?:=1)?)?$`)
)

// Every rule that model/check leaves out has a row in model/README.md, with the
// property that fails; every row is checked; every test that a row names exists.
func TestModel_SwitchesAreDescribedAndNameTestsThatExist(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "model/README.md"))
	require.NoError(t, err)
	commands, err := os.ReadFile(filepath.Join(root, "model/check"))
	require.NoError(t, err)
	sources := testSources(t)

	described := map[string]bool{}
	for _, section := range strings.Split(string(text), "\n### ")[1:] {
		model, rows, _ := strings.Cut(section, ".pml: ")
		for _, row := range modelSwitch.FindAllStringSubmatch(rows, -1) {
			described[model+" "+row[1]+" "+row[2]] = true
			for _, test := range testName.FindAllStringSubmatch(row[3], -1) {
				require.True(t, declared(sources, test[1]), "model/README.md, %s %s: %s is nowhere", model, row[1], test[1])
			}
		}
	}
	require.NotEmpty(t, described)
	checked := map[string]bool{}
	for _, run := range modelCheck.FindAllStringSubmatch(string(commands), -1) {
		name := run[3]
		if name == "" {
			name = "none"
		}
		checked[run[2]+" "+name+" "+run[1]] = true
	}
	require.Equal(t, checked, described)
}

// declared says whether a test is in a source, or for Test/part its part.
func declared(sources map[string]string, name string) bool {
	top, part, sub := strings.Cut(name, "/")
	for _, source := range sources {
		if top == "TestStore" && sub { // the suite of all databases
			if strings.Contains(source, `test("`+part+`"`) {
				return true
			}
			continue
		}
		if strings.Contains(source, "func "+top+"(") && (!sub || strings.Contains(source, `"`+part+`"`)) {
			return true
		}
	}
	return false
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
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		files[path] = string(text)
		return err
	}))
	return files
}
