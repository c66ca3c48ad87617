package contracttest

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill/domain"
)

// sampleOf makes data of a version: with something in every field, if that can be read
// back, and otherwise with nothing.
func sampleOf(f *domain.Forms, version int) (json.RawMessage, error) {
	t := f.TypeOf(version)
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	full := reflect.New(t)
	fill(full.Elem(), "text", nil)
	if data, err := json.Marshal(full.Interface()); err == nil {
		if read, err := f.Recast(data, version, version); err == nil && equal(read, data) {
			return data, nil
		}
	}
	data, err := json.Marshal(reflect.New(t).Interface())
	if err == nil {
		_, err = f.Recast(data, version, version)
	}
	return data, err
}

var someday = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// fill puts something into all that can be set. What is within itself stays empty.
func fill(v reflect.Value, name string, inside []reflect.Type) {
	if v.Type() == reflect.TypeFor[time.Time]() {
		v.Set(reflect.ValueOf(someday))
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(7)
	case reflect.Float32, reflect.Float64:
		v.SetFloat(1.5)
	case reflect.String:
		v.SetString(name)
	case reflect.Pointer:
		if !slices.Contains(inside, v.Type().Elem()) {
			v.Set(reflect.New(v.Type().Elem()))
			fill(v.Elem(), name, inside)
		}
	case reflect.Slice:
		if v.Type() == reflect.TypeFor[json.RawMessage]() {
			v.SetBytes([]byte(`{"any":"thing"}`))
		} else if !slices.Contains(inside, v.Type().Elem()) {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			fill(v.Index(0), name, inside)
		}
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i), name, inside)
		}
	case reflect.Map:
		if slices.Contains(inside, v.Type().Elem()) {
			return
		}
		key, element := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, "key", inside)
		fill(element, name, inside)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, element)
	case reflect.Struct:
		inside = append(slices.Clip(inside), v.Type())
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if tag := f.Tag.Get("json"); v.Field(i).CanSet() && f.Type != reflect.TypeFor[domain.Root]() && tag != "-" {
				called, _, _ := strings.Cut(tag, ",")
				if called == "" {
					called = strings.ToLower(f.Name)
				}
				fill(v.Field(i), called, inside)
			}
		}
	}
}
