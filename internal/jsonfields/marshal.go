package jsonfields

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"unicode/utf8"
)

// Marshal is [json.Marshal], but for text that isn't UTF-8: it is refused, where
// encoding/json would write U+FFFD in place of what it can't hold.
func Marshal(v any) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	if !utf8.Valid(data) {
		return nil, errors.New("its JSON is not UTF-8")
	}
	// Written so is what encoding/json has replaced. A text of its own may look like it.
	if bytes.Contains(data, []byte(`\ufffd`)) {
		if at, bad := notUTF8(reflect.ValueOf(v), ""); bad {
			return nil, fmt.Errorf("%s is not UTF-8, which a text has to be in JSON: convert it, or make it a []byte", at)
		}
	}
	return data, nil
}

// notUTF8 finds a text that isn't UTF-8 in a value that can be encoded, such as
// "Lines[2].Colour". What writes its own JSON is left out.
func notUTF8(v reflect.Value, at string) (where string, bad bool) {
	if !v.IsValid() {
		return "", false
	}
	if _, own := encodes(v.Type()); own {
		return "", false
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		return notUTF8(v.Elem(), at)
	case reflect.String:
		return cmp.Or(at, "it"), !utf8.ValidString(v.String())
	case reflect.Struct:
		for f, value := range v.Fields() {
			if f.Tag.Get("json") == "-" || !f.IsExported() && !f.Anonymous {
				continue
			}
			if where, bad = notUTF8(value, strings.TrimPrefix(at+"."+f.Name, ".")); bad {
				return where, true
			}
		}
	case reflect.Map:
		for i := v.MapRange(); i.Next(); {
			within := fmt.Sprintf("%s[%q]", at, i.Key())
			if k := i.Key(); k.Kind() == reflect.String && !utf8.ValidString(k.String()) { // whatever methods it has
				return "the key of " + within, true
			}
			if where, bad = notUTF8(i.Value(), within); bad {
				return where, true
			}
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if where, bad = notUTF8(v.Index(i), fmt.Sprintf("%s[%d]", at, i)); bad {
				return where, true
			}
		}
	}
	return "", false
}
