package outbox

import (
	"errors"
	"time"
)

// ErrNoMessage is the error for an id that no row of the outbox has.
var ErrNoMessage = errors.New("outbox: there is no row of this message")

// Message is all that the outbox has of an event.
type Message struct {
	MessageID string
	Rows      []MessageRow // one per target that still has it, in the order of seq
	Now       time.Time    // by the clock of the database, which the rows' times are of
}

// MessageRow is a row with its payload, and what it waits for.
type MessageRow struct {
	Entry
	Payload []byte
	// Stale says that a lease holds it that has run out.
	Stale bool
	// Before is how many rows of its key are to be published before it, and Head
	// the first of these; nil: none.
	Before int64
	Head   *Entry
	// Owner is the member that holds its partition now, and OwnedUntil the end of that
	// lease; "": nobody does. It is looked for only if the row is not finished.
	Owner      string
	OwnedUntil time.Time
}
