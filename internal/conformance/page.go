package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// section is a part of the page: its heading, what stands below it, and its rows.
type section struct {
	heading string
	text    []string
	rows    []row
}

// row is one line of the list.
type row struct {
	id, statement string
	tests         []named
	without       string // why there is no test: "n/a: " or "open: " and the reason
}

// named is a test that a row names.
type named struct {
	name string
	long bool // marked as one that only the long run has
}

const (
	notApplicable = "n/a: "
	open          = "open: "
	longMark      = "(long)"
)

const intro = `# Conformance

<!-- Made from docs/conformance.tsv by go generate ./internal/conformance; changes belong there. -->

Every statement that Waybill has to keep: its id, what it says, and the tests that hold it. Tests hold that no id is missing, and
that every test named here exists, runs and names the id. "(long)" marks those that only ` + "`scripts/test --long`" + ` runs, "n/a" what
doesn't apply and why, and "open" what no test holds yet. ` + "`TestStore`" + ` stands for ` + "`TestStore_PostgreSQL`" + ` and ` + "`TestStore_SQLite`" + `, which
run the suite of ` + "`internal/outboxdb/suite_test.go`" + `; the name behind the slash is the suite's.

%d statements: %d held by tests, %d not applicable, %d open.
`

// read takes the list apart, and says all that is wrong with its form.
func read(root string) ([]section, error) {
	text, err := os.ReadFile(filepath.Join(root, "docs/conformance.tsv"))
	if err != nil {
		return nil, err
	}
	return parse(string(text))
}

func parse(text string) ([]section, error) {
	var sections []section
	var errs []error
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimRight(line, " ")
		switch {
		case line == "", strings.HasPrefix(line, "# "):
		case strings.HasPrefix(line, "## "), strings.HasPrefix(line, "### "):
			sections = append(sections, section{heading: line})
		case len(sections) == 0:
			errs = append(errs, fmt.Errorf("line %d stands before the first heading", i+1))
		case strings.Contains(line, "\t"):
			r, err := parseRow(line)
			if err != nil {
				errs = append(errs, fmt.Errorf("line %d: %w", i+1, err))
			}
			last := &sections[len(sections)-1]
			last.rows = append(last.rows, r)
		default:
			last := &sections[len(sections)-1]
			last.text = append(last.text, line)
		}
	}
	return sections, errors.Join(errs...)
}

func parseRow(line string) (row, error) {
	cells := strings.Split(line, "\t")
	if len(cells) != 3 || cells[0] == "" || cells[1] == "" || cells[2] == "" {
		return row{}, errors.New("a line has an id, a statement, and tests or n/a, with one tab between them")
	}
	r := row{id: cells[0], statement: cells[1]}
	if strings.HasPrefix(cells[2], notApplicable) || strings.HasPrefix(cells[2], open) {
		r.without = cells[2]
		return r, nil
	}
	for name := range strings.FieldsSeq(cells[2]) {
		plain, long := strings.CutSuffix(name, longMark)
		if !strings.HasPrefix(plain, "Test") {
			return r, fmt.Errorf("%s: %q is the name of no test", r.id, name)
		}
		r.tests = append(r.tests, named{plain, long})
	}
	return r, nil
}

// page is what stands in docs/conformance.md.
func page(sections []section) string {
	var b strings.Builder
	held, unneeded, missing := count(sections)
	fmt.Fprintf(&b, intro, held+unneeded+missing, held, unneeded, missing)
	for _, s := range sections {
		fmt.Fprintf(&b, "\n%s\n", s.heading)
		if len(s.text) > 0 {
			fmt.Fprintf(&b, "\n%s\n", strings.Join(s.text, "\n"))
		}
		if len(s.rows) > 0 {
			b.WriteString("\n| id | statement | tests |\n|---|---|---|\n")
		}
		for _, r := range s.rows {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", r.id, r.statement, r.evidence())
		}
	}
	return b.String()
}

func (r row) evidence() string {
	if r.without != "" {
		return r.without
	}
	cells := make([]string, len(r.tests))
	for i, t := range r.tests {
		cells[i] = "`" + t.name + "`"
		if t.long {
			cells[i] += " " + longMark
		}
	}
	return strings.Join(cells, ", ")
}

func count(sections []section) (held, unneeded, missing int) {
	for _, s := range sections {
		for _, r := range s.rows {
			switch {
			case r.without == "":
				held++
			case strings.HasPrefix(r.without, open):
				missing++
			default:
				unneeded++
			}
		}
	}
	return held, unneeded, missing
}
