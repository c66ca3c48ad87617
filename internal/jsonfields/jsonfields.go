// Package jsonfields knows what encoding/json keeps of a Go type, what it drops
// without a word, and what a document has that a type doesn't.
package jsonfields

import (
	"encoding"
	"encoding/json"
	"reflect"
	"strings"
	"unicode"
)

// field is one that is in the JSON of a struct.
type field struct {
	name   string // in JSON
	at     string // in Go: "Base.Name" if it is promoted
	typ    reflect.Type
	depth  int
	tagged bool
	maybe  bool // it may be left out
	quoted bool // by the option string
	tag    reflect.StructTag
}

// layout is a struct as encoding/json sees it.
type layout struct {
	fields []field
	hidden []reflect.StructField // unexported, and so dropped
	stuck  []reflect.StructField // embedded pointers that can't be filled
	roots  []reflect.StructField // of type beside
}

// layoutOf lists a struct's fields and those of the structs that it embeds. beside is
// a type that is kept elsewhere.
func layoutOf(t, beside reflect.Type) layout {
	var l layout
	l.collect(t, beside, "", 0, false, map[reflect.Type]bool{})
	return l
}

func (l *layout) collect(t, beside reflect.Type, prefix string, depth int, maybe bool, inside map[reflect.Type]bool) {
	if inside[t] { // it embeds a pointer to itself
		return
	}
	inside[t] = true
	defer delete(inside, t)
	for f := range t.Fields() {
		tag := f.Tag.Get("json")
		if f.Name == "_" || tag == "-" {
			continue
		}
		at := f
		at.Name = prefix + f.Name
		if f.Type == beside {
			l.roots = append(l.roots, at)
			continue
		}
		of := f.Type
		if f.Anonymous && of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
		embedded := f.Anonymous && of.Kind() == reflect.Struct
		switch {
		case !f.IsExported() && f.Type.Size() == 0: // nothing is in it
			continue
		case !f.IsExported() && !embedded:
			l.hidden = append(l.hidden, at)
			continue
		case !f.IsExported() && of != f.Type:
			l.stuck = append(l.stuck, at)
			continue
		}
		name, options, _ := strings.Cut(tag, ",")
		if !validName(name) {
			name = ""
		}
		if embedded && name == "" {
			l.collect(of, beside, at.Name+".", depth+1, maybe || of != f.Type, inside)
			continue
		}
		named := field{name: name, at: at.Name, typ: f.Type, depth: depth, tagged: name != "", maybe: maybe, tag: f.Tag}
		for option := range strings.SplitSeq(options, ",") {
			named.maybe = named.maybe || option == "omitempty" && f.Type.Kind() != reflect.Struct || option == "omitzero"
			named.quoted = named.quoted || option == "string"
		}
		if name == "" {
			named.name = f.Name
		}
		l.fields = append(l.fields, named)
	}
}

// Field is a field of a struct's JSON.
type Field struct {
	Name string
	Type reflect.Type
	// Optional says that it may be left out, and Quoted that it is written as a text.
	Optional, Quoted bool
	Tag              reflect.StructTag
}

// Fields are those of a struct as encoding/json writes them, the ones of embedded structs
// included, but for those of type beside.
func Fields(t, beside reflect.Type) []Field {
	l := layoutOf(t, beside)
	fields := make([]Field, len(l.fields))
	for i, f := range l.fields {
		fields[i] = Field{f.name, f.typ, f.maybe, f.quoted, f.tag}
	}
	return fields
}

// named finds the field that a key of a document fills.
func (l layout) named(key string) (found field, ok bool) {
	for _, f := range l.fields {
		if f.name == key {
			return f, true
		}
		if !ok && strings.EqualFold(f.name, key) {
			found, ok = f, true
		}
	}
	return found, ok
}

// validName is encoding/json's rule for names in tags.
func validName(name string) bool {
	if name == "" {
		return false
	}
	for _, c := range name {
		if !strings.ContainsRune("!#$%&()*+-./:;<=>?@[]^_{|}~ ", c) && !unicode.IsLetter(c) && !unicode.IsDigit(c) {
			return false
		}
	}
	return true
}

var (
	jsonMarshaler   = reflect.TypeFor[json.Marshaler]()
	textMarshaler   = reflect.TypeFor[encoding.TextMarshaler]()
	jsonUnmarshaler = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// encodes says whether values of a type write their own JSON, and by which method.
func encodes(t reflect.Type) (method string, ok bool) {
	switch {
	case t.Implements(jsonMarshaler):
		return "MarshalJSON", true
	case t.Implements(textMarshaler):
		return "MarshalText", true
	}
	return "", false
}

// decodes says whether a type reads its own JSON.
func decodes(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(jsonUnmarshaler) || p.Implements(textUnmarshaler)
}
