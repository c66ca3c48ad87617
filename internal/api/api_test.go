// Package api records what the packages export, so that nobody breaks it by accident.
package api

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/printer"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	root     = "../.."
	module   = "github.com/waybill-go/waybill"
	baseline = "api.txt"
)

var update = flag.Bool("update", false, "write what is exported now into "+baseline)

// What is exported is what api.txt has. A change of it is seen in the diff, by who makes it and by who reviews it;
// `scripts/release check` compares with the last version by types.
func TestExported_IsWhatIsRecorded(t *testing.T) {
	now := exported(t)
	if *update {
		require.NoError(t, os.WriteFile(baseline, []byte(strings.Join(now, "\n")+"\n"), 0o600))
	}
	text, err := os.ReadFile(baseline)
	require.NoError(t, err)
	was := strings.Split(strings.TrimSpace(string(text)), "\n")
	gone, added := without(was, now), without(now, was)
	require.Empty(t, gone, "gone or changed, which breaks who uses it: the upgrade policy allows that before version 1 and in a new major version, with a line in CHANGELOG.md. "+
		"If it is meant: go test ./internal/api -update")
	require.Empty(t, added, "new, and nothing of it can be taken back within a major version. If it is meant: go test ./internal/api -update")
}

// without is a without what is in b.
func without(a, b []string) (rest []string) {
	in := map[string]bool{}
	for _, line := range b {
		in[line] = true
	}
	for _, line := range a {
		if !in[line] {
			rest = append(rest, line)
		}
	}
	return rest
}

// exported is a line for each thing that another module can name.
func exported(t *testing.T) (lines []string) {
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil && path != root {
			return filepath.SkipDir
		}
		switch name := d.Name(); {
		case path == root: // there may be a package, its name is no folder's
		case name == "internal", name == "testdata", name == "examples", name == "cmd", strings.HasPrefix(name, "."), strings.HasPrefix(name, "_"):
			return filepath.SkipDir
		}
		relative, err := filepath.Rel(root, path)
		if err == nil {
			lines = append(lines, ofPackage(t, path, strings.TrimSuffix(module+"/"+filepath.ToSlash(relative), "/."))...)
		}
		return err
	}))
	slices.Sort(lines)
	return slices.Compact(lines)
}

// ofPackage reads the sources as they are on Linux, without types: a name that is declared is one, whatever it is.
func ofPackage(t *testing.T, dir, path string) (lines []string) {
	platform := build.Default
	platform.GOOS, platform.GOARCH, platform.BuildTags = "linux", "amd64", nil
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	for _, file := range files {
		match, err := platform.MatchFile(dir, filepath.Base(file))
		require.NoError(t, err)
		if !match || strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		if f.Name.Name == "main" {
			return nil
		}
		for _, line := range ofFile(f) {
			lines = append(lines, "pkg "+path+", "+line)
		}
	}
	return lines
}

func ofFile(f *ast.File) (lines []string) {
	ast.FileExports(f)
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			d.Body, d.Doc = nil, nil
			lines = append(lines, text(d))
		case *ast.GenDecl:
			for _, s := range d.Specs {
				lines = append(lines, ofSpec(d.Tok, s)...)
			}
		}
	}
	return lines
}

func ofSpec(kind token.Token, s ast.Spec) (lines []string) {
	switch s := s.(type) {
	case *ast.ValueSpec:
		for i, name := range s.Names {
			line := kind.String() + " " + name.Name
			if s.Type != nil {
				line += " " + text(s.Type)
			}
			if kind == token.CONST && i < len(s.Values) {
				line += " = " + text(s.Values[i])
			}
			lines = append(lines, line)
		}
	case *ast.TypeSpec:
		head := "type " + s.Name.Name
		if s.TypeParams != nil {
			head += parameters(s.TypeParams)
		}
		if s.Assign.IsValid() {
			head += " ="
		}
		switch of := s.Type.(type) {
		case *ast.StructType:
			return append([]string{head + " struct"}, members(head+" struct", of.Fields, false)...)
		case *ast.InterfaceType:
			return append([]string{head + " interface"}, members(head+" interface", of.Methods, of.Incomplete)...)
		}
		return []string{head + " " + text(s.Type)}
	}
	return lines
}

// members are fields, methods or what is embedded. An interface with unexported methods is nobody else's to implement.
func members(head string, all *ast.FieldList, closed bool) (lines []string) {
	for _, m := range all.List {
		m.Doc, m.Comment, m.Tag = nil, nil, nil
		for _, name := range m.Names {
			lines = append(lines, head+", "+name.Name+" "+text(m.Type))
		}
		if len(m.Names) == 0 {
			lines = append(lines, head+", embeds "+text(m.Type))
		}
	}
	if closed {
		lines = append(lines, head+", has unexported methods")
	}
	return lines
}

func parameters(all *ast.FieldList) string {
	var parts []string
	for _, p := range all.List {
		for _, name := range p.Names {
			parts = append(parts, name.Name+" "+text(p.Type))
		}
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

// text is a node on one line.
func text(node ast.Node) string {
	var b bytes.Buffer
	if err := printer.Fprint(&b, token.NewFileSet(), node); err != nil {
		return fmt.Sprint(err)
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

// A change of each kind is another line.
func TestOfFile(t *testing.T) {
	t.Parallel()
	f, err := parser.ParseFile(token.NewFileSet(), "shop.go", `package shop
const Limit, hidden = 3, 4
const ( A Kind = iota; B )
var Err error
type Kind int
type Alias = Kind
type Box[T any] struct { Root; Value, Other T `+"`json:\"v\"`"+`; hidden int }
type Open interface { Do(ctx int) (
	string, error) }
type Closed interface { open() }
func (b *Box[T]) Get() T { return b.Value }
func (b *Box[T]) hide() {}
func New[T any](v T) *Box[T] { return nil }
func private() {}
`, parser.SkipObjectResolution)
	require.NoError(t, err)
	require.Equal(t, []string{
		"const Limit = 3", "const A Kind = iota", "const B", "var Err error", "type Kind int", "type Alias = Kind",
		"type Box[T any] struct", "type Box[T any] struct, embeds Root", "type Box[T any] struct, Value T", "type Box[T any] struct, Other T",
		"type Open interface", "type Open interface, Do func(ctx int) (string, error)",
		"type Closed interface", "type Closed interface, has unexported methods",
		"func (b *Box[T]) Get() T", "func New[T any](v T) *Box[T]",
	}, ofFile(f))
	require.Equal(t, []string{"a"}, without([]string{"a", "b"}, []string{"b", "c"}))
}
