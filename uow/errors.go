package uow

import (
	"errors"
	"fmt"
)

var (
	// ErrNone is the absence of a unit of work in a context.
	ErrNone = errors.New("uow: no unit of work in this context; call it inside Do, with the context that Do hands to its function")
	// ErrDone is the use of a unit after its end.
	ErrDone = errors.New("uow: the unit of work has ended; its context is of use only inside the function given to Do")
	// ErrOtherManager is a Do of one manager inside a unit of another. On SQLite
	// it would wait for itself, on PostgreSQL it would be a second transaction.
	ErrOtherManager = errors.New("uow: a unit of work of another manager is in progress in this context; let a subscription carry the effect to the other context")
	// ErrOuterContext is a unit that was begun inside the function of another one, with
	// the context from outside it, and would wait for it for ever. SQLite has one writer.
	ErrOuterContext = errors.New("uow: a unit of work was begun inside the function of another, with the context from outside it, and would wait for that one: use the context that Do hands to its function")

	// errNoFunction is a Do with nothing to do.
	errNoFunction = errors.New("uow: Do was given nil instead of a function: give it one that loads, changes and saves, with the context that it gets")
	// errUnfinished dooms a unit of which a part ended by a panic.
	errUnfinished = errors.New("uow: a part of the unit did not return")
)

// ConflictError is an aggregate that someone else saved since it was loaded, or
// created before.
type ConflictError struct {
	Type, ID string
	Expected int64 // The version it was loaded with; 0: it was new.
}

func (e *ConflictError) Error() string {
	if e.Expected == 0 {
		return fmt.Sprintf("uow: %s %s exists already", e.Type, e.ID)
	}
	return fmt.Sprintf("uow: %s %s is no longer at version %d: it was changed meanwhile", e.Type, e.ID, e.Expected)
}

// CommitUnknownError is a COMMIT whose answer never came. The unit may or may
// not have happened; Do does not run it again. Ask Resolve.
type CommitUnknownError struct {
	Err  error
	lost *lost
}

func (e *CommitUnknownError) Error() string {
	return "uow: the answer to COMMIT did not come, so the unit may or may not have happened: " + e.Err.Error()
}

func (e *CommitUnknownError) Unwrap() error { return e.Err }

// UnsavedError is an aggregate that raised an event in a unit, or set or stopped a
// timer, and was not saved afterwards. The unit does not commit: that would be lost
// without a trace.
type UnsavedError struct {
	Type, ID string
	Event    string
	Timer    string // Its name. "": it is an event.
}

func (e *UnsavedError) Error() string {
	if e.Timer != "" {
		return fmt.Sprintf("uow: %s %s set or stopped its timer %q and was not saved afterwards; save it, or don't change it", e.Type, e.ID, e.Timer)
	}
	return fmt.Sprintf("uow: %s %s raised %s and was not saved afterwards; save it, or don't change it", e.Type, e.ID, e.Event)
}

// DoomedError is a unit that was to commit although a part of it had failed.
type DoomedError struct{ Err error }

func (e *DoomedError) Error() string {
	return "uow: nothing was committed, because a part of the unit failed: " + e.Err.Error()
}

func (e *DoomedError) Unwrap() error { return e.Err }

// ProvidersError is a unit that touched a second database.
type ProvidersError struct{ First, Second string }

func (e *ProvidersError) Error() string {
	return fmt.Sprintf("uow: a unit on provider %q touched provider %q too; two databases don't commit as one: split the unit, or accept that by uow.AcrossProviders()", e.First, e.Second)
}

// PartialCommitError is a unit across providers of which only some committed.
type PartialCommitError struct {
	Committed []string
	Failed    string
	Err       error
}

func (e *PartialCommitError) Error() string {
	return fmt.Sprintf("uow: providers %q have committed and %q has not: %v", e.Committed, e.Failed, e.Err)
}

func (e *PartialCommitError) Unwrap() error { return e.Err }

// InvalidError is an aggregate whose Validate refused it, or whose identity can't be
// stored. Nothing of its unit is saved.
type InvalidError struct {
	Type, ID string
	Err      error
}

func (e *InvalidError) Error() string {
	return fmt.Sprintf("uow: %s %.100s is invalid and was not saved: %v", e.Type, e.ID, e.Err)
}

func (e *InvalidError) Unwrap() error { return e.Err }

// RerunError is an aggregate from outside the function given to Do that the
// function changed twice, because a conflict made it run again.
type RerunError struct{ Type, ID string }

func (e *RerunError) Error() string {
	return fmt.Sprintf("uow: %s %s was changed again when its unit was run again; load what the unit changes inside the function given to Do", e.Type, e.ID)
}

// PastError is an aggregate that was loaded as of an earlier time or version, and can't be
// saved.
type PastError struct {
	Type, ID string
	Version  int64
}

func (e *PastError) Error() string {
	return fmt.Sprintf("uow: %s %q was loaded as of version %d, for reading: Get it to change it", e.Type, e.ID, e.Version)
}
