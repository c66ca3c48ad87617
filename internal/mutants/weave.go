package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// woven says what is compiled in place of the sources.
type woven struct {
	overlay string // a file for go test -overlay
	replace map[string]string
	copies  int
	apart   map[int]string // mutants that are a build of their own: the text of their file
}

// variable has the number of the mutant that is alive.
const variable = "WAYBILL_MUTANT"

// weave puts all mutants into copies of the sources: of the function that a mutant changes there are two, and the one that
// was there begins with the choice between them. So one build has all of them. What is outside of functions, or no Go, is a
// build of its own.
func weave(root, dir string, all []mutant) (woven, error) {
	w := woven{overlay: filepath.Join(dir, "overlay.json"), replace: map[string]string{}, apart: map[int]string{}}
	root, err := filepath.Abs(root)
	if err != nil {
		return w, err
	}
	files := map[string][]*mutant{}
	for i := range all {
		files[all[i].file] = append(files[all[i].file], &all[i])
	}
	var errs []error
	for _, file := range slices.Sorted(maps.Keys(files)) {
		mutants := files[file]
		source, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		text, err := w.file(string(source), file, mutants)
		errs = append(errs, err)
		if text == "" {
			continue
		}
		if err := w.put(dir, filepath.Join(root, file), text); err != nil {
			return w, err
		}
		selector := "package " + packageOf(string(source)) + "\n\nimport \"os\"\n\nvar mutantAlive = os.Getenv(\"" + variable + "\")\n"
		if err := w.put(dir, filepath.Join(root, filepath.Dir(file), "mutant_alive.go"), selector); err != nil {
			return w, err
		}
	}
	if err := errors.Join(errs...); err != nil {
		return w, err
	}
	return w, w.write(w.overlay, nil)
}

// put has a file compiled in place of another.
func (w *woven) put(dir, path, text string) error {
	copied := filepath.Join(dir, strconv.Itoa(w.copies)+filepath.Ext(path))
	w.copies++
	w.replace[path] = copied
	return os.WriteFile(copied, []byte(text), 0o600)
}

// write makes an overlay of all that is woven, and more.
func (w *woven) write(to string, more map[string]string) error {
	replace := map[string]string{}
	for _, m := range []map[string]string{w.replace, more} {
		maps.Copy(replace, m)
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return err
	}
	return os.WriteFile(to, text, 0o600)
}

func packageOf(source string) string {
	f, err := parser.ParseFile(token.NewFileSet(), "", source, parser.PackageClauseOnly)
	if err != nil {
		return ""
	}
	return f.Name.Name
}

// file is the source with the mutants of its functions, empty if there are none.
func (w *woven) file(source, name string, mutants []*mutant) (string, error) {
	var functions []*ast.FuncDecl
	if strings.HasSuffix(name, ".go") {
		parsed, err := parser.ParseFile(token.NewFileSet(), name, source, parser.SkipObjectResolution)
		if err != nil {
			return "", err
		}
		for _, d := range parsed.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil && !strings.Contains(source[f.Body.Pos()-1:f.Body.End()-1], "recover()") {
				functions = append(functions, f)
			}
		}
	}
	edits := map[*ast.FuncDecl][]*mutant{}
	var errs []error
	for _, m := range mutants {
		at := strings.Index(source, m.before)
		if n := strings.Count(source, m.before); n != 1 {
			errs = append(errs, fmt.Errorf("mutants.txt:%d: %s has %q %d times", m.at, name, m.before, n))
			continue
		}
		m.line = 1 + strings.Count(source[:at], "\n")
		i := slices.IndexFunc(functions, func(f *ast.FuncDecl) bool {
			return int(f.Body.Pos()-1) <= at && at+len(m.before) <= int(f.Body.End()-1)
		})
		if i < 0 {
			w.apart[m.number] = strings.Replace(source, m.before, m.after, 1)
			continue
		}
		edits[functions[i]] = append(edits[functions[i]], m)
	}
	if len(edits) == 0 {
		return "", errors.Join(errs...)
	}
	var text, copies strings.Builder
	last := 0
	for _, f := range functions {
		if len(edits[f]) == 0 {
			continue
		}
		s := signatureOf(source, f)
		text.WriteString(source[last:f.Pos()-1] + s.text(f.Name.Name) + "{ ")
		for _, m := range edits[f] {
			own := fmt.Sprintf("%sMutant%d", f.Name.Name, m.number)
			fmt.Fprintf(&text, "if mutantAlive == \"%d\" { %s }; ", m.number, s.call(own))
			body := strings.Replace(source[f.Body.Pos()-1:f.Body.End()-1], m.before, m.after, 1)
			fmt.Fprintf(&copies, "\n//line mutants.txt:%d\n%s%s\n", m.at, s.text(own), body)
		}
		last = int(f.Body.Pos()) // behind the brace
	}
	return text.String() + source[last:] + copies.String(), errors.Join(errs...)
}

// signature is how a function is declared and called.
type signature struct {
	before, behind string // its name
	receiver       string
	types          string
	arguments      []string
	returns        bool
}

func (s signature) text(name string) string { return s.before + name + s.behind }

func (s signature) call(name string) string {
	call := name + s.types + "(" + strings.Join(s.arguments, ", ") + ")"
	if s.receiver != "" {
		call = s.receiver + "." + call
	}
	if s.returns {
		return "return " + call
	}
	return call + "; return"
}

// signatureOf gives each parameter a name.
func signatureOf(source string, f *ast.FuncDecl) signature {
	s := signature{returns: f.Type.Results != nil}
	type edit struct {
		at, length int
		text       string
	}
	var edits []edit
	named := 0
	name := func(field *ast.Field, dots string) (names []string) {
		for _, id := range field.Names {
			if id.Name == "_" {
				named++
				edits = append(edits, edit{int(id.Pos() - 1), 1, fmt.Sprintf("unnamed%d", named)})
				names = append(names, fmt.Sprintf("unnamed%d", named)+dots)
				continue
			}
			names = append(names, id.Name+dots)
		}
		if len(field.Names) == 0 {
			named++
			edits = append(edits, edit{int(field.Pos() - 1), 0, fmt.Sprintf("unnamed%d ", named)})
			names = append(names, fmt.Sprintf("unnamed%d", named)+dots)
		}
		return names
	}
	if f.Recv != nil {
		s.receiver = name(f.Recv.List[0], "")[0]
	}
	if f.Type.TypeParams != nil {
		var types []string
		for _, field := range f.Type.TypeParams.List {
			for _, id := range field.Names {
				types = append(types, id.Name)
			}
		}
		s.types = "[" + strings.Join(types, ", ") + "]"
	}
	for _, field := range f.Type.Params.List {
		dots := ""
		if _, ok := field.Type.(*ast.Ellipsis); ok {
			dots = "..."
		}
		s.arguments = append(s.arguments, name(field, dots)...)
	}
	apply := func(from, to int) string {
		text := source[from:to]
		for _, e := range slices.Backward(edits) {
			if e.at >= from && e.at < to {
				text = text[:e.at-from] + e.text + text[e.at-from+e.length:]
			}
		}
		return text
	}
	s.before = apply(int(f.Pos()-1), int(f.Name.Pos()-1))
	s.behind = apply(int(f.Name.End()-1), int(f.Body.Pos()-1))
	return s
}
