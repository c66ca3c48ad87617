// Package contracttest keeps a context's contract, and an example of every version of every
// event and document that was ever written, under version control, and fails a test when a
// change would break those who read them: other contexts, builds that run beside this one,
// and this one itself, which reads what older ones have stored.
package contracttest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/waybill-go/waybill/contract"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/jsonfields"
)

// variable has tests write what is new.
const variable = "WAYBILL_CONTRACT"

// Check compares a context with the files in dir and fails the test, with the remedy, when
// a change breaks somebody: a name that is gone, a field that is gone, of another type or
// newly required, a version that nothing reads or that is written before it could be
// read, a timer of a process or what correlates it, an example that isn't read any more, or reads differently.
//
// What is merely new it writes there if the test runs with WAYBILL_CONTRACT=update, and
// otherwise fails and says so. Commit the files with the change. They stand for what is
// deployed, so a change in two steps, such as domain.WriteVersion, is two commits.
//
// The files are contract.json, events/<name>.json of all events and of commands that others
// send, documents/<aggregate>.v<n>.json and processes/<process>.v<n>.json. An example has its
// data, made from the Go type when it is new, and what the upcast, and the downcast if
// there is one, make of it. They may be edited. Nobody but their authors can take a break
// back: edit contract.json, or remove an example, if nothing depends on it any more.
//
// Aggregates that aren't kept as documents are named by [InTables], unless they are
// event-sourced or JSON can't keep them.
func Check(t testing.TB, d *domain.Domain, dir string, options ...Option) {
	t.Helper()
	c := checker{t: t, d: d, dir: dir, update: os.Getenv(variable) == "update"}
	for _, o := range options {
		o(&c)
	}
	c.contract()
	c.examples()
	if len(c.stale) > 0 {
		t.Errorf("contracttest: %s: files are missing or behind: %s; if that is meant, run `%s=update go test` and commit them", d.Name(), strings.Join(c.stale, ", "), variable)
	}
}

// Option adjusts [Check].
type Option func(*checker)

// InTables names aggregates that repository.Mapped keeps: they have no documents.
func InTables(aggregates ...string) Option {
	return func(c *checker) { c.tables = append(c.tables, aggregates...) }
}

type checker struct {
	t      testing.TB
	d      *domain.Domain
	dir    string
	update bool
	tables []string
	known  []string // files
	stale  []string
}

func (c *checker) contract() {
	c.t.Helper()
	now := contract.Of(c.d)
	const name = "contract.json"
	text, err := os.ReadFile(filepath.Join(c.dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		c.write(name, now)
		return
	}
	var before contract.Contract
	if err == nil {
		err = json.Unmarshal(text, &before)
	}
	if err != nil {
		c.t.Errorf("contracttest: read %s: %v", filepath.Join(c.dir, name), err)
		return
	}
	breaks := contract.Compare(&before, now)
	for _, b := range breaks {
		c.t.Errorf("contracttest: %s", b)
	}
	if len(breaks) == 0 && !contract.Equal(&before, now) {
		c.write(name, now)
	}
}

// write writes a file of what is new, or notes that it is to be written.
func (c *checker) write(name string, v any) {
	c.t.Helper()
	if !c.update {
		c.stale = append(c.stale, name)
		return
	}
	text, err := json.MarshalIndent(v, "", "  ")
	path := filepath.Join(c.dir, name)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o755) //nolint:gosec // as what is beside it
	}
	if err == nil {
		err = os.WriteFile(path, append(text, '\n'), 0o644) //nolint:gosec // as what is beside it
	}
	if err != nil {
		c.t.Errorf("contracttest: write %s: %v", path, err)
	}
}

// example is a file.
type example struct {
	Data json.RawMessage `json:"data"`
	// Up is what the next version makes of it, and Down what an older one gets.
	Up   json.RawMessage `json:"up,omitempty"`
	Down json.RawMessage `json:"down,omitempty"`
}

func (c *checker) examples() {
	c.t.Helper()
	for _, e := range c.d.Events() {
		if e.Foreign {
			continue
		}
		for _, v := range e.Reads() {
			c.example("events/"+e.WireNameOf(v), &e.Forms, v)
		}
	}
	for _, command := range c.d.Commands() {
		if !command.FromOthers {
			continue
		}
		message, err := c.d.EventNamed(command.WireName())
		if err != nil {
			c.t.Errorf("contracttest: %v", err)
			continue
		}
		c.example("events/"+command.WireName(), &message.Forms, message.Version)
	}
	for _, a := range c.d.Aggregates() {
		if !c.isDocument(a) {
			continue
		}
		for _, v := range a.State.Reads() {
			c.example(fmt.Sprintf("documents/%s.v%d", a.Name, v), &a.State.Forms, v)
		}
	}
	for _, p := range c.d.Processes() {
		for _, v := range p.State.Reads() {
			c.example(fmt.Sprintf("processes/%s.v%d", p.Name, v), &p.State.Forms, v)
		}
	}
	c.others()
}

func (c *checker) isDocument(a *domain.AggregateType) bool {
	t := a.State.TypeOf(a.State.Version)
	return !t.Implements(reflect.TypeFor[domain.Sourced]()) && !slices.Contains(c.tables, a.Name) && len(jsonfields.Lost(t, reflect.TypeFor[domain.Root](), "")) == 0
}

// example compares one of a version with its file.
func (c *checker) example(name string, f *domain.Forms, version int) {
	c.t.Helper()
	name += ".json"
	c.known = append(c.known, name)
	path := filepath.Join(c.dir, name)
	var was example
	text, err := os.ReadFile(path)
	missing := errors.Is(err, fs.ErrNotExist)
	switch {
	case missing:
		if was.Data, err = sampleOf(f, version); err != nil {
			c.t.Errorf("contracttest: no example of %s can be made from its Go type: %v; write %s yourself: {\"data\": {…}}", strings.TrimSuffix(name, ".json"), err, path)
			return
		}
	case err == nil:
		err = json.Unmarshal(text, &was)
	}
	if err == nil && len(was.Data) == 0 {
		err = errors.New("it has no data")
	}
	if err != nil {
		c.t.Errorf("contracttest: read %s: %v", path, err)
		return
	}
	is := example{Data: was.Data}
	read, err := f.Recast(was.Data, version, version)
	if err == nil && !equal(read, was.Data) {
		err = fmt.Errorf("it reads as %s: bring back what is gone, tag what is new omitzero, or make another version", read)
	}
	if err == nil && version < f.Version {
		is.Up, err = f.Recast(was.Data, version, version+1)
	}
	for older := version - 1; err == nil && older > 0; older-- {
		if f.Reaches(version, older) {
			is.Down, err = f.Recast(was.Data, version, older)
			break
		}
	}
	switch {
	case err != nil:
	case len(was.Up) > 0 && len(is.Up) > 0 && !equal(was.Up, is.Up):
		err = fmt.Errorf("the next version made %s of it and makes %s now: let its upcast do what it did", compact(was.Up), is.Up)
	case len(was.Down) > 0 && len(is.Down) > 0 && !equal(was.Down, is.Down):
		err = fmt.Errorf("the downcast made %s of it and makes %s now: let it do what it did", compact(was.Down), is.Down)
	case missing || len(was.Up) != 0 != (len(is.Up) != 0) || len(was.Down) != 0 != (len(is.Down) != 0):
		c.write(name, is)
	}
	if err != nil {
		c.t.Errorf("contracttest: the example in %s, %s: %v", path, compact(was.Data), err)
	}
}

// others finds examples of what isn't declared any more. Under an alias an event still is.
func (c *checker) others() {
	c.t.Helper()
	for _, folder := range []string{"events", "documents", "processes"} {
		files, err := os.ReadDir(filepath.Join(c.dir, folder))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			c.t.Errorf("contracttest: %v", err)
		}
		for _, f := range files {
			name := folder + "/" + f.Name()
			message, isExample := strings.CutSuffix(f.Name(), ".json")
			if !isExample || slices.Contains(c.known, name) {
				continue
			}
			path := filepath.Join(c.dir, name)
			if folder != "events" {
				c.t.Errorf("contracttest: nothing reads %s any more: declare it again under its name; once none is stored, remove the file", path)
				continue
			}
			if !c.d.Readable(message) {
				c.t.Errorf("contracttest: nothing reads %s any more: declare it again, or its new name with a domain.Alias; once nothing stored has it, remove the file", path)
				continue
			}
			var e example
			text, err := os.ReadFile(path)
			if err == nil {
				err = json.Unmarshal(text, &e)
			}
			if err == nil {
				_, err = c.d.Decode(message, e.Data)
			}
			if err != nil {
				c.t.Errorf("contracttest: the example in %s: %v", path, err)
			}
		}
	}
}

func equal(a, b []byte) bool {
	x, errX := value(a)
	y, errY := value(b)
	return errX == nil && errY == nil && reflect.DeepEqual(x, y)
}

// value keeps numbers as they are written.
func value(text []byte) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	err = d.Decode(&v)
	return v, err
}

func compact(text []byte) string {
	var b bytes.Buffer
	if json.Compact(&b, text) != nil {
		return string(text)
	}
	return b.String()
}
