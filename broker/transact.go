package broker

import (
	"context"
	"errors"
)

// Transactional is a [Broker] that can store the messages of a call in one transaction,
// together with a mark that says which call it was. Who publishes from a table then finds
// out, whatever has happened, what is stored: with that, consumers that read what is
// committed get each message once.
type Transactional interface {
	// ExactlyOnce says whether who publishes from a table is to use transactions.
	ExactlyOnce() bool
	// Transact opens a transactional id. It fences who has it open, and ends what that one
	// left open: what isn't committed by then never will be. The mark is that of the last
	// transaction of the id that was committed, its zero value if there was none.
	Transact(ctx context.Context, id string) (Transactor, Mark, error)
}

// TransactionalPrefix begins the transactional ids of outboxes, behind the prefix of their
// broker, if it has one.
const TransactionalPrefix = "waybill."

// Transactor publishes under a transactional id, one call at a time.
type Transactor interface {
	// Publish stores all of messages and the mark, or nothing. After an error it is of no
	// more use: the id has to be opened again. If the error is [ErrUndecided], the mark
	// that is then found says what has become of it; after any other nothing is stored. A
	// [*PublishError] names what is to blame; what was only taken back with it fails as
	// [ErrTakenBack].
	Publish(ctx context.Context, mark Mark, messages []Message) error
	// Close frees what it has. What it left open is for who opens the id next.
	Close()
}

// Mark is what a transaction leaves behind. Of an id, who publishes sees to it that N grows.
type Mark struct {
	N    int64  // Above 0.
	Note string // At most 4,000 bytes.
}

// ErrUndecided says that a transaction was to be committed, and that it isn't known
// whether it was.
var ErrUndecided = Classify(Unknown, errors.New("the commit of the transaction wasn't answered"))

// ErrTakenBack is the error of a message that the broker took, and that was taken back
// because its transaction had another one that failed. It is the message's fault in no way.
var ErrTakenBack = Scoped(Unavailable, ScopeRow, errors.New("taken back: another message of its transaction was not stored"))
