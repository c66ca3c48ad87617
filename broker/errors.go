package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Class says what a failed attempt means for the next one.
type Class int

const (
	// Transient: the broker answered and refused; trying again may help.
	Transient Class = iota
	// Unavailable: it is proven that nothing was handed over. Costs no attempt.
	Unavailable
	// Unknown: the message may or may not have been stored.
	Unknown
	// Permanent: trying again cannot help (too large, not authorised, not
	// serialisable).
	Permanent
)

func (c Class) String() string {
	switch c {
	case Transient:
		return "transient"
	case Unavailable:
		return "unavailable"
	case Unknown:
		return "unknown"
	case Permanent:
		return "permanent"
	}
	return fmt.Sprintf("Class(%d)", int(c))
}

// Error is an error with a class. Adapters return it; [ClassOf] reads it.
type Error struct {
	Of  Class
	Err error
}

// Classify gives err a class. It returns nil for nil.
func Classify(c Class, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Of: c, Err: err}
}

func (e *Error) Error() string { return e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

// Class is what [ClassOf] finds.
func (e *Error) Class() Class { return e.Of }

// ClassOf finds the class of an error by its behaviour: that of the first error
// in the chain with a method Class() Class. Without one, an error of a context
// is Unknown, because the call may still have arrived, and every other is
// Transient.
func ClassOf(err error) Class {
	var classed interface{ Class() Class }
	switch {
	case errors.As(err, &classed):
		return classed.Class()
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return Unknown
	}
	return Transient
}

// PublishError is a call of which some messages were not stored, or are not
// known to be. It has no class of its own: each failure has one.
type PublishError struct {
	Failed map[int]error // By index into the call's messages. Not empty.
}

func (e *PublishError) Error() string {
	if len(e.Failed) == 0 {
		return "broker: messages not stored, without saying which"
	}
	first := slices.Min(slices.Collect(maps.Keys(e.Failed)))
	return fmt.Sprintf("broker: %d messages not stored, the first because: %v", len(e.Failed), e.Failed[first])
}
