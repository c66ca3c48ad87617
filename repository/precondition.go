package repository

import (
	"fmt"
	"reflect"

	"github.com/waybill-go/waybill/domain"
)

// PreconditionError is an aggregate that has another version than was demanded.
type PreconditionError struct {
	Type, ID   string
	Have, Want int64
}

func (e *PreconditionError) Error() string {
	return fmt.Sprintf("repository: %s %q has version %d and not %d: load it again", e.Type, e.ID, e.Have, e.Want)
}

// At lets change act on one version only, for [Repository.Update]; any other is a
// [*PreconditionError]. 0 demands nothing.
func At[A domain.AggregateRoot](version int64, change func(A) error) func(A) error {
	if version == 0 {
		return change
	}
	return func(a A) error {
		if a.Version() != version {
			return &PreconditionError{Type: reflect.TypeFor[A]().Elem().Name(), ID: a.ID(), Have: a.Version(), Want: version}
		}
		return change(a)
	}
}
