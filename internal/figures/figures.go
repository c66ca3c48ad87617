// Package figures puts what the benchmark measured into the documents, so that all of them say the same. The one source
// is the file Results, which `bench record` writes. A document has blocks, each a comment with a template and, behind it,
// what the template gave:
//
//	<!-- figures
//	{{median "drain"}} events/s published from a backlog
//	-->
//
//	33,914 events/s published from a backlog
//
//	<!-- /figures -->
package figures

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"text/template"
)

// Results is the file of what was measured, from the root of the repository.
const Results = "bench/results.json"

// Remedy is what brings documents and Results together again.
const Remedy = "cd bench && go run . figures"

// Spread is what several runs of one thing gave.
type Spread struct {
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	Max    float64 `json:"max"`
}

// String has as many decimals as mean something.
func (s Spread) String() string {
	decimals := 0
	if s.Median < 100 {
		decimals = 2
	}
	return fmt.Sprintf("%.*f / %.*f / %.*f", decimals, s.Min, decimals, s.Median, decimals, s.Max)
}

// Pair is one metric of Waybill and of its limit, or of Waybill alone where there is none.
type Pair struct {
	Waybill  Spread  `json:"waybill"`
	Limit    *Spread `json:"limit,omitempty"`
	Ratio    float64 `json:"ratio,omitempty"`
	LimitNew *Spread `json:"limit_new_tables,omitempty"`
	RatioNew float64 `json:"ratio_new_tables,omitempty"`
}

// Scenario is what one scenario of the benchmark gave. Waybill, Limit and Ratios are those of the first metric, as far as
// there is a limit; Metrics has all where there are several.
type Scenario struct {
	Scenario string             `json:"scenario"`
	Unit     string             `json:"unit"`
	Waybill  Spread             `json:"waybill"`
	Limit    *Spread            `json:"limit,omitempty"`
	LimitNew *Spread            `json:"limit_new_tables,omitempty"`
	Peers    map[string]Spread  `json:"peers"`
	Ratios   map[string]float64 `json:"ratios"`
	Metrics  map[string]Pair    `json:"metrics,omitempty"`
}

// Record is a scenario with when, and at what commit, it was measured.
type Record struct {
	Date   string `json:"date"`
	Commit string `json:"commit"`
	Runs   int    `json:"runs"`
	Scenario
}

// Machine is what a file's records were measured on: one machine for all, as figures of two can't be compared.
type Machine struct {
	Processor string `json:"processor"`
	Cores     int    `json:"cores"`
	MemoryGiB int    `json:"memory_gib"`
	Postgres  string `json:"postgres"`
	Go        string `json:"go"`
}

// File is the content of Results.
type File struct {
	Machine Machine           `json:"machine"`
	Records map[string]Record `json:"records"`
}

// Read reads Results of the repository at root; a file that isn't there has no records.
func Read(root string) (File, error) {
	f := File{Records: map[string]Record{}}
	b, err := os.ReadFile(filepath.Join(root, Results))
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &f)
	}
	if err != nil {
		return f, fmt.Errorf("read %s: %w; measure again with `cd bench && go run . record`", Results, err)
	}
	return f, nil
}

// Begin makes it one of m's. Records of another machine are an error, or forgotten if all are measured anew.
func (f *File) Begin(m Machine, anew bool) error {
	switch {
	case anew:
		f.Records = map[string]Record{}
	case len(f.Records) > 0 && f.Machine != m:
		return fmt.Errorf("%s was measured on %+v, this is %+v: figures of two machines can't be compared; --anew forgets the old ones", Results, f.Machine, m)
	}
	f.Machine = m
	return nil
}

// Write writes it into the repository at root, in an order that a diff can show.
func (f File) Write(root string) error {
	b, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, Results), append(b, '\n'), 0o644)
}

var block = regexp.MustCompile(`(?s)(<!-- figures\n(.*?)-->\n)(.*?)(<!-- /figures -->)`)

// Render is a document with what its templates give now.
func (f File) Render(document string) (string, error) {
	if strings.Count(document, "<!-- figures\n") != len(block.FindAllString(document, -1)) {
		return "", errors.New("a block of figures has no end: write <!-- /figures --> behind it")
	}
	var all error
	out := block.ReplaceAllStringFunc(document, func(whole string) string {
		m := block.FindStringSubmatch(whole)
		var text strings.Builder
		t, err := template.New("figures").Funcs(f.functions()).Parse(m[2])
		if err == nil {
			err = t.Execute(&text, nil)
		}
		if all = errors.Join(all, err); err != nil {
			return whole
		}
		return m[1] + "\n" + strings.TrimSpace(text.String()) + "\n\n" + m[4]
	})
	return out, all
}

// Outside is a document without its blocks.
func Outside(document string) string { return block.ReplaceAllString(document, "") }

// Update renders the documents, which are paths from root, and names those that changed.
func (f File) Update(root string, documents []string) (changed []string, err error) {
	for _, d := range documents {
		path := filepath.Join(root, d)
		was, readErr := os.ReadFile(path)
		if readErr != nil {
			err = errors.Join(err, readErr)
			continue
		}
		is, renderErr := f.Render(string(was))
		if renderErr != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", d, renderErr))
			continue
		}
		if is != string(was) {
			changed = append(changed, d)
			err = errors.Join(err, os.WriteFile(path, []byte(is), 0o644))
		}
	}
	return changed, err
}

// Documents are the README and all pages of docs, as paths from root.
func Documents(root string) ([]string, error) {
	all := []string{"README.md"}
	err := filepath.WalkDir(filepath.Join(root, "docs"), func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".md") {
			return err
		}
		relative, err := filepath.Rel(root, path)
		all = append(all, filepath.ToSlash(relative))
		return err
	})
	return all, err
}
