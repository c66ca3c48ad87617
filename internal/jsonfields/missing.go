package jsonfields

import (
	"encoding/json"
	"reflect"
	"strings"
)

// Missing names a field of t that a document of it always has, and doc has not: it was
// written when the type had other fields. "": there is none. Of a list, or the values of
// a map, one is looked at, as a document is written as a whole. Fields of type beside, what
// may be left out, and what writes its own JSON don't count.
func Missing(t, beside reflect.Type, doc []byte) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if _, own := encodes(t); own || string(doc) == "null" {
		return ""
	}
	if _, own := encodes(reflect.PointerTo(t)); own {
		return ""
	}
	switch t.Kind() {
	case reflect.Struct:
		return missingOf(t, beside, doc)
	case reflect.Map:
		for _, value := range objectOf(doc) {
			return Missing(t.Elem(), beside, value)
		}
	case reflect.Slice, reflect.Array:
		if !holdsFields(t.Elem()) {
			return ""
		}
		var list []json.RawMessage
		_ = json.Unmarshal(doc, &list) // what it is instead, decoding it says
		if len(list) > 0 {
			return Missing(t.Elem(), beside, list[0])
		}
	}
	return ""
}

func missingOf(t, beside reflect.Type, doc []byte) string {
	object := objectOf(doc)
	for _, f := range layoutOf(t, beside).fields {
		value, there := object[f.name]
		if !there && !f.maybe {
			return f.name
		}
		if !there || !holdsFields(f.typ) {
			continue
		}
		if name := Missing(f.typ, beside, value); name != "" {
			return strings.Join([]string{f.name, name}, ".")
		}
	}
	return ""
}

// holdsFields says whether there may be a struct in values of t.
func holdsFields(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Struct:
		return true
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Array:
		return t.Name() != "" || holdsFields(t.Elem()) // A named type may be of itself.
	default:
		return false
	}
}
