package domain

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"

	"github.com/waybill-go/waybill/internal/jsonfields"
)

// Forms are the versions in which an event's data or a stored state is read, and the one
// in which it is written. They must not be changed.
type Forms struct {
	Version int // that of the Go type
	// Written is the version in which it is written: Version, unless [WriteVersion] or
	// [WriteState] says otherwise.
	Written int
	goType  reflect.Type
	up      map[int]step // by the version that is read
	down    map[int]step // by the version that is rewritten
	strict  bool         // a field that the Go type doesn't have is an error
}

// step makes one version of another: the next one or, downwards, an older one.
type step struct {
	from, to reflect.Type
	target   int // Down: the version that it makes.
	apply    func(any) any
}

func newForms(t reflect.Type) Forms {
	return Forms{Version: 1, goType: t, up: map[int]step{}, down: map[int]step{}}
}

// Reads are the versions that can be read, the oldest first.
func (f *Forms) Reads() []int {
	return append(slices.Sorted(maps.Keys(f.up)), f.Version)
}

func (f *Forms) reads(version int) bool { return f.TypeOf(version) != nil }

// TypeOf is the Go type of a version; nil: it can't be read.
func (f *Forms) TypeOf(version int) reflect.Type {
	if version == f.Version {
		return f.goType
	}
	return f.up[version].from
}

// Reaches says whether data of one version can be made into one of another.
func (f *Forms) Reaches(from, to int) bool {
	for from != to {
		_, ok := f.up[from]
		next := from + 1
		if to < from {
			var s step
			s, ok = f.down[from]
			next = s.target
		}
		if !ok || from < to && next > to || from > to && next < to {
			return false
		}
		from = next
	}
	return f.reads(from)
}

// Recast makes data of one version into data of another. If it is the same it is read
// and written all the same, so that what the Go type doesn't keep shows.
func (f *Forms) Recast(data []byte, from, to int) ([]byte, error) {
	if !f.Reaches(from, to) {
		return nil, fmt.Errorf("can't become version %d, as a step between them is missing: declare it", to)
	}
	v, err := f.read(data, from)
	if err != nil {
		return nil, err
	}
	return jsonfields.Marshal(f.along(v, from, to))
}

// decode reads data of a version as the current Go type. The version can be read.
func (f *Forms) decode(data []byte, version int) (any, error) {
	v, err := f.read(data, version)
	if err != nil {
		return nil, err
	}
	return f.along(v, version, f.Version), nil
}

// read reads data of a version as its own type: a pointer if that is one.
func (f *Forms) read(data []byte, version int) (any, error) {
	t := f.TypeOf(version)
	of := t
	if t.Kind() == reflect.Pointer {
		of = t.Elem()
	}
	v := reflect.New(of)
	var err error
	if f.strict {
		err = decodeStrictly(data, v.Interface())
	} else {
		err = json.Unmarshal(data, v.Interface())
	}
	if err != nil {
		return nil, fmt.Errorf("can't be decoded as %s: %w", t, err)
	}
	if of != t {
		return v.Interface(), nil
	}
	return v.Elem().Interface(), nil
}

func decodeStrictly(doc []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(doc))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows it")
	}
	return nil
}

// along applies the steps from one version to another that it reaches.
func (f *Forms) along(v any, from, to int) any {
	for from < to {
		v = f.up[from].apply(v)
		from++
	}
	for from > to {
		s := f.down[from]
		v = s.apply(v)
		from = s.target
	}
	return v
}

// wording is how mistakes in a declaration of forms are told.
type wording struct{ of, up, down, write string }

var (
	eventWording = wording{"event %s", "domain.Upcast", "domain.Downcast", "domain.WriteVersion"}
	stateWording = wording{"the state of %s", "domain.UpcastState", "domain.WriteState", "domain.WriteState"}
)

// checkForms finds gaps, and steps whose types don't meet. What begins its chain later
// than with version 1 says so by oldest.
func (b *builder) checkForms(f *Forms, w wording, name string, oldest int) {
	what := fmt.Sprintf(w.of, name)
	mistakes := len(b.errs)
	for _, v := range slices.Sorted(maps.Keys(f.up)) {
		if v < 1 || v >= f.Version {
			b.errorf("%s is version %d, so nothing is upcast from version %d: take %s(%d, …) out, or correct a number", what, f.Version, v, w.up, v)
			continue
		}
		oldest = min(oldest, v)
	}
	for v := oldest; v < f.Version; v++ {
		s, ok := f.up[v]
		next, more := f.up[v+1]
		want := f.goType
		if more && v+1 < f.Version {
			want = next.from
		}
		of := f.goType
		if of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
		switch {
		case !ok:
			b.errorf("%s is version %d but nothing reads version %d: add %s(%d, func(old %sV%d) %s {…})", what, f.Version, v, w.up, v, of.Name(), v, want)
		case s.to != want && (more || v+1 == f.Version):
			b.errorf("%s: %s(%d, …) returns %s, and version %d is %s: return that", what, w.up, v, s.to, v+1, want)
		}
	}
	if len(b.errs) == mistakes {
		b.checkDown(f, w, what)
	}
}

// checkDown finds what can't be written, or not read again.
func (b *builder) checkDown(f *Forms, w wording, what string) {
	mistakes := len(b.errs)
	for _, v := range slices.Sorted(maps.Keys(f.down)) {
		s := f.down[v]
		switch {
		case s.target < 1 || v > f.Version || s.target >= f.Version || !f.reads(s.target):
			b.errorf("%s is version %d, and %s makes version %d: let it make one that is older and can be read, or take it out", what, f.Version, w.down, s.target)
		case s.from != f.TypeOf(v):
			b.errorf("%s: the %s that makes version %d takes %s, and version %d is %s: let it take that", what, w.down, s.target, s.from, v, f.TypeOf(v))
		case s.to != f.TypeOf(s.target):
			b.errorf("%s: the %s that makes version %d returns %s, and %s(%d, …) reads %s: return that", what, w.down, s.target, s.to, w.up, s.target, f.TypeOf(s.target))
		default:
			for _, problem := range jsonfields.Lost(s.to, reflect.TypeFor[Root](), "") {
				b.errorf("%s: version %d is written: %s", what, s.target, problem)
			}
		}
	}
	switch {
	case len(b.errs) > mistakes:
	case f.Written == 0:
		f.Written = f.Version
	case f.Written < 1 || f.Written > f.Version:
		b.errorf("%s is version %d, and %s says %d: write one that is older, or take it out", what, f.Version, w.write, f.Written)
	case f.Written == f.Version:
		b.errorf("%s is version %d, which is written anyway: take %s(%d) out", what, f.Version, w.write, f.Written)
	case !f.Reaches(f.Version, f.Written):
		for v := f.Version; v > f.Written; v-- {
			if _, ok := f.down[v]; !ok {
				b.errorf("%s is written in version %d, and nothing makes version %d of version %d: add %s(%d, func(e %s) %s {…})", what, f.Written, v-1, v, w.down, v, f.TypeOf(v), f.TypeOf(v-1))
			}
		}
	}
}
