package domain

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/waybill-go/waybill/internal/jsonfields"
	"github.com/waybill-go/waybill/internal/processmsg"
)

// StateType describes how the state of an aggregate or a process is kept as a document.
// It must not be changed.
type StateType struct {
	Forms
	// KeepUnknown is the option of this name.
	KeepUnknown bool
	name        string // "book"
	key         string // "library::book"
	write       step   // of WriteState
}

func newState(name, key string, t reflect.Type) StateType {
	s := StateType{Forms: newForms(t), name: name, key: key}
	s.strict = true
	return s
}

// StateOption concerns how the state of an aggregate or a process is kept as a document.
type StateOption interface {
	AggregateOption
	ProcessOption
}

type stateOption func(b *builder, what string, s *StateType)

func (f stateOption) addToAggregate(b *builder, t *AggregateType) {
	f(b, fmt.Sprintf("aggregate %q", t.Name), &t.State)
}

func (f stateOption) addToProcess(b *builder, t *ProcessType) {
	f(b, fmt.Sprintf("process %q", t.Name), &t.State)
}

// StateVersion states the version of a document: of the form that the Go type's exported
// fields have in JSON. Defaults to 1. Every older version needs an [UpcastState]. A
// document of a newer one is a [*NewerStateError], and stays as it is.
//
// Versions are of aggregates that repository.New keeps, and of processes. One that is kept
// in tables of its own has none; of one that is kept as its events, snapshots have it, and
// those of another version are passed over.
func StateVersion(version int) StateOption {
	return stateOption(func(b *builder, what string, s *StateType) {
		if version < 1 {
			b.errorf("%s can't have state version %d: versions start at 1", what, version)
			return
		}
		s.Version = version
	})
}

// UpcastState says how a document of version from reads as from+1: From and To are plain
// structs, and the last To is the pointer to the aggregate or the process, of which the
// fields are filled and nothing else. The document is written in the new form by the
// next save that changes something.
func UpcastState[From, To any](from int, f func(From) To) StateOption {
	return stateOption(func(b *builder, what string, s *StateType) {
		if f == nil {
			b.errorf("%s: domain.UpcastState(%d, nil) has no function: give it one", what, from)
		}
		if _, dup := s.up[from]; dup {
			b.errorf("%s has two domain.UpcastState from version %d: take one out", what, from)
		}
		s.up[from] = step{from: reflect.TypeFor[From](), to: reflect.TypeFor[To](), apply: func(v any) any { return f(v.(From)) }}
	})
}

// WriteState keeps writing an older version of the document, for as long as builds run
// that read nothing newer: down makes it. Take it out with the next deployment.
//
// A document that is stored in a newer version stays in that one: somebody writes it, so
// no build is left that can't read it, and down might lose what it says.
func WriteState[A, Old any](version int, down func(A) Old) StateOption {
	return stateOption(func(b *builder, what string, s *StateType) {
		if down == nil {
			b.errorf("%s: domain.WriteState(%d, nil) has no function: give it one", what, version)
		}
		if s.write.apply != nil {
			b.errorf("%s has two domain.WriteState: take one out", what)
		}
		s.Written = version
		s.write = step{from: reflect.TypeFor[A](), to: reflect.TypeFor[Old](), target: version, apply: func(v any) any { return down(v.(A)) }}
	})
}

// KeepUnknown lets a document have fields that its Go type doesn't have, and writes them
// back as they were. So builds of before and after a new field can run side by side. It
// is about the fields of the aggregate or the process itself: those that the structs in
// it don't have are refused all the same.
//
// Without it such a document is an [*UnknownFieldsError]: the field was renamed or
// removed, or a newer build has written it, and a save would lose it.
func KeepUnknown() StateOption {
	return stateOption(func(_ *builder, _ string, s *StateType) { s.KeepUnknown = true })
}

func (b *builder) checkState(what string, s *StateType) {
	if s.goType.Kind() != reflect.Pointer {
		return // which is a mistake of its own
	}
	if s.write.apply != nil {
		s.down[s.Version] = s.write
	}
	oldest := 1
	if s.goType.Implements(reflect.TypeFor[Sourced]()) {
		oldest = s.Version // Its snapshots are never upcast.
	}
	b.checkForms(&s.Forms, stateWording, what, oldest)
	if s.KeepUnknown && s.goType.Implements(reflect.TypeFor[json.Marshaler]()) {
		b.errorf("%s is declared with domain.KeepUnknown() and %s has MarshalJSON, so what it doesn't know is its own matter: take one of them out", what, s.goType)
	}
}

// Encode makes a document of a state, with what its last one had beyond the Go type.
// stored is the version of that one; 0: there is none.
func (s *StateType) Encode(state any, stored int, unknown []byte) (doc []byte, version int, err error) {
	version = max(s.Written, min(stored, s.Version))
	if !s.Reaches(s.Version, version) {
		version = s.Version // Whoever writes what is between loses nothing then.
	}
	if doc, err = jsonfields.Marshal(s.along(state, s.Version, version)); err != nil {
		return nil, 0, err
	}
	return jsonfields.Join(doc, unknown), version, nil
}

// Decode makes a state of the document of an identity, and says what it has beyond the
// Go type if that is to be kept.
func (s *StateType) Decode(id string, doc []byte, version int) (state any, unknown []byte, err error) {
	if version > s.Version {
		return nil, nil, &NewerStateError{Type: s.name, ID: id, Key: s.key, Stored: version, Known: s.Version}
	}
	t := s.TypeOf(version)
	if t == nil {
		return nil, nil, fmt.Errorf("%s %q is stored in state version %d, which was never declared: correct documents.state_version", s.name, id, version)
	}
	known := doc
	if s.KeepUnknown {
		if known, unknown, err = jsonfields.Split(elem(t), doc); err != nil {
			return nil, nil, err
		}
		// A field that only the newer form has can't be both kept and filled.
		if made := jsonfields.Known(elem(s.goType), unknown); len(made) > 0 {
			return nil, nil, s.unknownFields(id, version, made)
		}
	}
	if state, err = s.decode(known, version); err != nil {
		if fields := jsonfields.Unknown(t, known); len(fields) > 0 {
			return nil, nil, s.unknownFields(id, version, fields)
		}
		return nil, nil, fmt.Errorf("the document of %s %q %w", s.name, id, err)
	}
	if reflect.ValueOf(state).IsNil() {
		return nil, nil, fmt.Errorf("the document of %s %q: domain.UpcastState(%d, …) returned nil: let it return one always", s.name, id, s.Version-1)
	}
	return state, unknown, nil
}

func (s *StateType) unknownFields(id string, version int, fields []string) error {
	return &UnknownFieldsError{Type: s.name, ID: id, GoType: elem(s.TypeOf(version)).String(), Version: version, Fields: fields}
}

func elem(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return t
}

// Readable says whether this build reads what is called so: an event or a command by its
// name, a document by [NewerStateError.Needs], a timer or a refusal by the process that
// hears it.
func (d *Domain) Readable(name string) bool {
	if processmsg.IsNeed(name) {
		return slices.ContainsFunc(d.Processes(), func(t *ProcessType) bool { return t.hearsOf(name) })
	}
	base, version, err := splitWireName(name)
	if err != nil {
		return false
	}
	if t, ok := d.names[base]; ok {
		return t.reads(version)
	}
	for _, a := range d.aggregates {
		if a.State.key == base {
			return a.State.reads(version)
		}
	}
	for _, p := range d.processes {
		if p.State.key == base {
			return p.State.reads(version)
		}
	}
	return false
}

// NewerStateError is a document that a newer build has written. It stays as it is, and a
// subscription that meets it sets its message aside for a build that reads it.
type NewerStateError struct {
	Type, ID      string
	Key           string // What the type is called among documents: "library::book".
	Stored, Known int
}

func (e *NewerStateError) Error() string {
	return fmt.Sprintf("%s %q is stored in state version %d, and this build reads up to %d: deploy the newer build everywhere, and let that one write %d with domain.WriteState until then",
		e.Type, e.ID, e.Stored, e.Known, e.Known)
}

// Needs names what a build has to read, for [Domain.Readable]: "library::book.v2".
func (e *NewerStateError) Needs() string { return e.Key + ".v" + strconv.Itoa(e.Stored) }

// UnknownFieldsError is a document with fields that its Go type doesn't have. They would
// be lost with the next save, so it isn't loaded.
type UnknownFieldsError struct {
	Type, ID string
	GoType   string
	Version  int
	Fields   []string // "copys", "Lines[2].Colour"
}

func (e *UnknownFieldsError) Error() string {
	are := "is not a field"
	if len(e.Fields) > 1 {
		are = "are not fields"
	}
	quoted := make([]string, len(e.Fields))
	for i, f := range e.Fields {
		quoted[i] = strconv.Quote(f)
	}
	return fmt.Sprintf("%s %q: %s %s of %s in state version %d, and a save would lose that: raise domain.StateVersion with a domain.UpcastState, deploy the build that has written it, or declare domain.KeepUnknown() for fields of the %s itself",
		e.Type, e.ID, strings.Join(quoted, ", "), are, e.GoType, e.Version, e.Type)
}
