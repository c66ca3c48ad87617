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
	// Permanent: trying again cannot help, because of what the message itself is
	// (too large, not serialisable, a header that can't be). What somebody can put
	// right elsewhere, such as a missing topic or permission, is not. Where there is
	// no message, such as of EnsureTopics, it says that settings or rights must change.
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

// Scope says how much fails together with a message. Only a failure of scope row
// costs the message an attempt: the others would have met any other message, too.
type Scope int

const (
	// ScopeUnknown: the adapter can't tell. Who publishes goes by what else was
	// answered.
	ScopeUnknown Scope = iota
	// ScopeRow: this message, whatever happens to others. Together with Unavailable
	// it costs nothing all the same: the message wasn't handed over, as one before it
	// in its key failed.
	ScopeRow
	// ScopeTopic: what goes to its topic, such as without a leader, replicas or
	// permission, or if the topic doesn't exist.
	ScopeTopic
	// ScopeBroker: everything, such as without a connection or with wrong
	// credentials.
	ScopeBroker
)

func (s Scope) String() string {
	switch s {
	case ScopeUnknown:
		return "unknown"
	case ScopeRow:
		return "row"
	case ScopeTopic:
		return "topic"
	case ScopeBroker:
		return "broker"
	}
	return fmt.Sprintf("Scope(%d)", int(s))
}

// Error is an error with a class and a scope. Adapters return it; [ClassOf] and
// [ScopeOf] read it.
type Error struct {
	Of  Class
	In  Scope
	Err error
}

// Classify gives err a class. The scope is the one that err has, if any. It
// returns nil for nil.
func Classify(c Class, err error) error { return Scoped(c, ScopeOf(err), err) }

// Scoped gives err a class and a scope. It returns nil for nil.
func Scoped(c Class, s Scope, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Of: c, In: s, Err: err}
}

func (e *Error) Error() string { return e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

// Class is what [ClassOf] finds.
func (e *Error) Class() Class { return e.Of }

// Scope is what [ScopeOf] finds.
func (e *Error) Scope() Scope { return e.In }

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

// ScopeOf finds the scope of an error by its behaviour: that of the first error
// in the chain with a method Scope() Scope. Without one it is ScopeUnknown.
func ScopeOf(err error) Scope {
	var scoped interface{ Scope() Scope }
	if errors.As(err, &scoped) {
		return scoped.Scope()
	}
	return ScopeUnknown
}

// PublishError is a call of which some messages were not stored, or are not
// known to be. It has no class and no scope of its own: each failure has
// them.
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
