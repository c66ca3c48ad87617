package contract

import (
	"encoding"
	"encoding/json"
	"reflect"
	"slices"
	"time"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/jsonfields"
)

const dialect = "https://json-schema.org/draft/2020-12/schema"

// schemaOf is the JSON Schema of what encoding/json writes of a struct type.
func schemaOf(t reflect.Type) map[string]any {
	s := &schemas{names: map[reflect.Type]string{}, defs: map[string]any{}}
	root := s.object(t)
	root["$schema"] = dialect
	if len(s.defs) > 0 {
		root["$defs"] = s.defs
	}
	return root
}

// schemas are those of types that contain themselves.
type schemas struct {
	inside []reflect.Type
	names  map[reflect.Type]string
	defs   map[string]any
}

func (s *schemas) of(t reflect.Type) map[string]any {
	if t.Kind() == reflect.Pointer {
		return s.of(t.Elem())
	}
	switch {
	case t == reflect.TypeFor[time.Time]():
		return map[string]any{"type": "string", "format": "date-time"}
	case t == reflect.TypeFor[json.Number]():
		return map[string]any{"type": "number"}
	case is[json.Marshaler](t):
		return map[string]any{} // which is anything
	case is[encoding.TextMarshaler](t):
		return map[string]any{"type": "string"}
	}
	switch t.Kind() {
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return map[string]any{"type": "integer"}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return map[string]any{"type": "integer", "minimum": 0}
	case reflect.Float32, reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Slice, reflect.Array:
		if t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8 && !is[json.Marshaler](t.Elem()) {
			return map[string]any{"type": "string", "contentEncoding": "base64"}
		}
		return map[string]any{"type": "array", "items": s.orNull(t.Elem(), false)}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": s.orNull(t.Elem(), false)}
	case reflect.Struct:
		return s.nested(t)
	}
	return map[string]any{}
}

// is says whether a type writes its own JSON, by a method of values or of pointers.
func is[I any](t reflect.Type) bool {
	return t.Implements(reflect.TypeFor[I]()) || reflect.PointerTo(t).Implements(reflect.TypeFor[I]())
}

// nested is a struct within another one. One that is within itself is written once.
func (s *schemas) nested(t reflect.Type) map[string]any {
	if slices.Contains(s.inside, t) {
		s.names[t] = t.Name()
	}
	if name, ok := s.names[t]; ok {
		if _, done := s.defs[name]; !done {
			s.defs[name] = nil
			inside := s.inside
			s.inside = nil
			s.defs[name] = s.object(t)
			s.inside = inside
		}
		return map[string]any{"$ref": "#/$defs/" + name}
	}
	return s.object(t)
}

func (s *schemas) object(t reflect.Type) map[string]any {
	s.inside = append(s.inside, t)
	defer func() { s.inside = s.inside[:max(len(s.inside)-1, 0)] }()
	properties, required := map[string]any{}, []string{}
	for _, f := range jsonfields.Fields(t, reflect.TypeFor[domain.Root]()) {
		p := s.orNull(f.Type, f.Optional)
		if f.Quoted {
			p = map[string]any{"type": "string"}
		}
		if doc := f.Tag.Get("doc"); doc != "" {
			p["description"] = doc
		}
		properties[f.Name] = p
		if !f.Optional {
			required = append(required, f.Name)
		}
	}
	slices.Sort(required)
	return map[string]any{"type": "object", "properties": properties, "required": required}
}

// orNull is the schema of a type of which there may be none: a pointer, a slice, a map.
func (s *schemas) orNull(t reflect.Type, leftOut bool) map[string]any {
	schema := s.of(t)
	nil_ := slices.Contains([]reflect.Kind{reflect.Pointer, reflect.Slice, reflect.Map}, t.Kind())
	if !nil_ || leftOut {
		return schema
	}
	if of, ok := schema["type"].(string); ok {
		schema["type"] = []string{of, "null"}
		return schema
	}
	if len(schema) == 0 {
		return schema
	}
	return map[string]any{"anyOf": []any{schema, map[string]any{"type": "null"}}}
}
