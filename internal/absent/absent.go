// Package absent finds what isn't there although an interface has it.
package absent

import "reflect"

// Is says whether v is nil, or an interface that holds a pointer which is.
func Is(v any) bool {
	if v == nil {
		return true
	}
	r := reflect.ValueOf(v)
	return r.Kind() == reflect.Pointer && r.IsNil()
}
