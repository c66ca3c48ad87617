package main

import (
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// test is a test as its source has it: a function, or a part of the suite that all databases run.
type test struct {
	file    string
	text    string // its comment, and all of its source
	long    bool   // the ordinary run leaves it out
	skipped bool   // it may be skipped, or stands in a file that builds on Linux don't have
}

// tests are all of them by name. A name may be there twice, in packages of their own.
type tests map[string][]test

// The modules that only the long run tests.
var longModules = []string{"e2e/", "examples/watermill/"}

var (
	suitePart = regexp.MustCompile(`(?m)^\t*test\("([^"]+)", ?(\w*).*$`)
	skips     = regexp.MustCompile(`\bt\.Skip(f|Now)?\(`)
)

// testsOf reads the sources of all tests.
func testsOf(root string) (tests, error) {
	found := tests{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		// The servers' files come and go while the tests run.
		if err == nil && d.IsDir() && path != root && strings.HasPrefix(d.Name(), ".") {
			return filepath.SkipDir
		}
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		return found.add(root, path)
	})
	return found, err
}

func (found tests) add(root, path string) error {
	source, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, path, source, parser.ParseComments)
	if err != nil {
		return err
	}
	name, err := filepath.Rel(root, path)
	if err != nil {
		return err
	}
	name = filepath.ToSlash(name)
	at := func(p token.Pos) int { return files.Position(p).Offset }
	functions := map[string]string{}
	for _, decl := range parsed.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Recv != nil || f.Body == nil {
			continue
		}
		begin := f.Pos()
		if f.Doc != nil {
			begin = f.Doc.Pos()
		}
		text := string(source[at(begin):at(f.End())])
		functions[f.Name.Name] = text
		if strings.HasPrefix(f.Name.Name, "Test") && f.Name.Name != "TestMain" {
			found[f.Name.Name] = append(found[f.Name.Name], test{
				file: name, text: text, long: onlyLong(name, f, func(n ast.Node) string { return string(source[at(n.Pos()):at(n.End())]) }),
				skipped: skips.MatchString(text) || constrained(parsed, name),
			})
		}
	}
	if strings.HasPrefix(name, "internal/outboxdb/suite") {
		for _, m := range suitePart.FindAllStringSubmatch(string(source), -1) {
			text := m[0] + "\n" + functions[m[2]]
			found["TestStore/"+m[1]] = append(found["TestStore/"+m[1]], test{file: name, text: text, skipped: skips.MatchString(text)})
		}
	}
	return nil
}

// onlyLong says whether the ordinary run leaves a test out: its module is one of the long run, it returns at once
// unless WAYBILL_LONG is set, or all that it does stands behind that.
func onlyLong(file string, f *ast.FuncDecl, source func(ast.Node) string) bool {
	if slices.ContainsFunc(longModules, func(module string) bool { return strings.HasPrefix(file, module) }) {
		return true
	}
	for i, statement := range f.Body.List {
		if _, ok := statement.(*ast.ExprStmt); ok && source(statement) == "t.Parallel()" {
			continue
		}
		condition, ok := statement.(*ast.IfStmt)
		if !ok {
			return false
		}
		asked := source(condition.Cond)
		if strings.Contains(asked, `("WAYBILL_LONG") == ""`) || asked == "!long()" {
			last := condition.Body.List[len(condition.Body.List)-1]
			_, returns := last.(*ast.ReturnStmt)
			return returns
		}
		return i == len(f.Body.List)-1 && condition.Else == nil && (asked == "long()" || strings.Contains(asked, `("WAYBILL_LONG") != ""`))
	}
	return false
}

// constrained says whether a file is no part of the builds that scripts/test makes, on Linux.
func constrained(file *ast.File, name string) bool {
	for _, group := range file.Comments {
		for _, comment := range group.List {
			if group.Pos() > file.Package || !constraint.IsGoBuild(comment.Text) {
				continue
			}
			expr, err := constraint.Parse(comment.Text)
			if err != nil || !expr.Eval(func(tag string) bool { return slices.Contains([]string{"linux", "unix", "cgo", "race"}, tag) }) {
				return true
			}
		}
	}
	base := strings.TrimSuffix(filepath.Base(name), "_test.go")
	return slices.Contains([]string{"windows", "darwin", "arm64"}, base[strings.LastIndex(base, "_")+1:])
}

// onlyLong are the names of the tests that the ordinary run leaves out.
func (found tests) onlyLong() []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(found)) {
		for _, t := range found[name] {
			if t.long {
				names = append(names, t.file+": "+name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// of are the tests that a row means: Test/part is a test that has such a part.
func (found tests) of(name string) []test {
	if t := found[name]; len(t) > 0 {
		return t
	}
	top, part, _ := strings.Cut(name, "/")
	return slices.DeleteFunc(slices.Clone(found[top]), func(t test) bool {
		return part != "" && !strings.Contains(t.text, `"`+part+`"`)
	})
}

// names says whether a text has an id, as S3-01, S3_01 or S301.
func names(text, id string) bool {
	variants := []string{id, strings.ReplaceAll(id, "-", "_"), strings.ReplaceAll(id, "-", "")}
	for _, at := range regexp.MustCompile(strings.Join(variants, "|")).FindAllStringIndex(text, -1) {
		before, after := text[:at[0]], text[at[1]:]
		if !wordEnd.MatchString(before) && !wordStart.MatchString(after) {
			return true
		}
	}
	return false
}

// What makes an id a part of another word: S2 isn't in S2-01, S21 or XS2.
var (
	wordEnd   = regexp.MustCompile(`[A-Za-z0-9-]$`)
	wordStart = regexp.MustCompile(`^([A-Za-z0-9]|[-_][0-9])`)
)
