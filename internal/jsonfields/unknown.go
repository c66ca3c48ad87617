package jsonfields

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
)

// Unknown lists what a document has and a type has no field for, as in
// "Lines[2].Colour". What reads its own JSON is left out.
func Unknown(t reflect.Type, doc []byte) []string {
	var found []string
	unknown(t, doc, "", &found)
	return found
}

func unknown(t reflect.Type, doc []byte, at string, found *[]string) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if decodes(t) {
		return
	}
	switch t.Kind() {
	case reflect.Struct:
		l := layoutOf(t, nil)
		if at != "" {
			at += "."
		}
		object := objectOf(doc)
		for _, key := range slices.Sorted(maps.Keys(object)) {
			if f, ok := l.named(key); ok {
				unknown(f.typ, object[key], at+key, found)
			} else {
				*found = append(*found, at+key)
			}
		}
	case reflect.Map:
		object := objectOf(doc)
		for _, key := range slices.Sorted(maps.Keys(object)) {
			unknown(t.Elem(), object[key], fmt.Sprintf("%s[%q]", at, key), found)
		}
	case reflect.Slice, reflect.Array:
		var list []json.RawMessage
		_ = json.Unmarshal(doc, &list) // what it is instead, decoding it says
		for i, element := range list {
			unknown(t.Elem(), element, fmt.Sprintf("%s[%d]", at, i), found)
		}
	}
}

func objectOf(doc []byte) (object map[string]json.RawMessage) {
	_ = json.Unmarshal(doc, &object) // what it is instead, decoding it says
	return object
}

// Split takes the keys that t has no field for out of a document. Both parts are
// objects; rest is nil if there are none.
func Split(t reflect.Type, doc []byte) (known, rest []byte, err error) {
	object := objectOf(doc)
	l := layoutOf(t, nil)
	others := map[string]json.RawMessage{}
	for key, value := range object {
		if _, ok := l.named(key); !ok {
			others[key] = value
			delete(object, key)
		}
	}
	if len(others) == 0 {
		return doc, nil, nil
	}
	if known, err = json.Marshal(object); err != nil {
		return nil, nil, err
	}
	rest, err = json.Marshal(others)
	return known, rest, err
}

// Join puts the members of rest behind those of an object.
func Join(doc, rest []byte) []byte {
	switch {
	case len(rest) == 0:
		return doc
	case string(doc) == "{}":
		return rest
	}
	joined := append(make([]byte, 0, len(doc)+len(rest)), doc[:len(doc)-1]...)
	return append(append(joined, ','), rest[1:]...)
}

// Known lists the keys of an object, such as the rest of a [Split], that t has a field
// for.
func Known(t reflect.Type, rest []byte) (keys []string) {
	if len(rest) == 0 {
		return nil
	}
	l := layoutOf(t, nil)
	for _, key := range slices.Sorted(maps.Keys(objectOf(rest))) {
		if _, ok := l.named(key); ok {
			keys = append(keys, key)
		}
	}
	return keys
}
