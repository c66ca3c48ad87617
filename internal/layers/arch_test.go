package layers_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// machine is one that programs are built for.
type machine struct{ os, arch string }

// S8: an int has 32 bits on some of the machines that programs run on. All packages and
// their tests are type-checked for one, which finds constants that don't fit. In the long
// run they are compiled, as vet does, which takes minutes.
func TestBuildsFor32Bits_S8(t *testing.T) {
	t.Parallel()
	small := machine{"linux", "386"}
	if os.Getenv("WAYBILL_LONG") != "" {
		small.run(t, "vet", module+"/...")
		return
	}
	check := small.check(t, "-test")

	constant := filepath.Join(t.TempDir(), "constant.go")
	require.NoError(t, os.WriteFile(constant, []byte("package constant\n\nvar large int = 1 << 31\n"), 0o600))
	require.ErrorContains(t, check.pkg(listed{ImportPath: module + "/constant", Dir: filepath.Dir(constant), GoFiles: []string{"constant.go"}}), "overflows")
}

// All packages are there on Windows, too. Their tests are not: some stop processes by
// signals that it doesn't have.
func TestBuildsForWindows_S8(t *testing.T) {
	t.Parallel()
	machine{"windows", "amd64"}.check(t)
}

// check type-checks all packages as they are on that machine.
func (m machine) check(t *testing.T, flags ...string) checking {
	t.Helper()
	check := checking{files: token.NewFileSet(), sizes: types.SizesFor("gc", m.arch), done: map[string]*types.Package{"unsafe": types.Unsafe}}
	own := 0
	args := append([]string{"list", "-deps", "-json=ImportPath,Dir,GoFiles,ImportMap,Module"}, flags...)
	list := json.NewDecoder(strings.NewReader(m.run(t, append(args, module+"/...")...)))
	for {
		var p listed
		err := list.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		if p.ImportPath == "unsafe" || strings.HasSuffix(p.ImportPath, ".test") { // the latter is a test's generated main
			continue
		}
		if isOwn(p.ImportPath) {
			own++
		}
		require.NoError(t, check.pkg(p), "on %s/%s", m.os, m.arch)
	}
	require.Greater(t, own, 100)
	return check
}

// run is what a go command prints for a machine.
func (m machine) run(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Env = append(os.Environ(), "GOOS="+m.os, "GOARCH="+m.arch, "CGO_ENABLED=0")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "GOOS=%s GOARCH=%s go %s:\n%s%s", m.os, m.arch, strings.Join(args, " "), out, &stderr)
	return string(out)
}

// listed is what `go list` knows of a package.
type listed struct {
	ImportPath, Dir string
	GoFiles         []string
	ImportMap       map[string]string // of imports that are written in another way
	Module          *struct{ Path, GoVersion string }
}

// checking type-checks packages, each after those that it imports.
type checking struct {
	files *token.FileSet
	sizes types.Sizes
	done  map[string]*types.Package
}

// pkg checks a package: of others' functions the signatures only.
func (c *checking) pkg(p listed) error {
	var files []*ast.File
	for _, name := range p.GoFiles {
		if !filepath.IsAbs(name) {
			name = filepath.Join(p.Dir, name)
		}
		file, err := parser.ParseFile(c.files, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files = append(files, file)
	}
	cfg := types.Config{Sizes: c.sizes, IgnoreFuncBodies: !isOwn(p.ImportPath), Importer: imports(func(path string) (*types.Package, error) {
		if to, ok := p.ImportMap[path]; ok {
			path = to
		}
		if done := c.done[path]; done != nil {
			return done, nil
		}
		return nil, fmt.Errorf("%s imports %s, which is not listed before it", p.ImportPath, path)
	})}
	if p.Module != nil && p.Module.GoVersion != "" {
		cfg.GoVersion = "go" + p.Module.GoVersion
	}
	path, _, _ := strings.Cut(p.ImportPath, " ") // "a [a.test]" is package a with its tests
	checked, err := cfg.Check(path, c.files, files, nil)
	c.done[p.ImportPath] = checked
	return err
}

type imports func(path string) (*types.Package, error)

func (i imports) Import(path string) (*types.Package, error) { return i(path) }
