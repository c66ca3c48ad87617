package uow

import (
	"context"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/outbox"
)

// Provider is one database: a connection pool with a dialect. uow/postgres and
// uow/sqlite have the two that exist; uow/uowtest is the suite they pass.
// Whoever opened a provider closes it. It is safe for concurrent use.
//
// For authors of providers.
type Provider interface {
	// Name is unique within an engine, and shown to operators.
	Name() string
	// DB is for transactions and statements outside units of work. On SQLite it
	// is the one writer: its transactions are immediate.
	DB() *bun.DB
	// Reader is for reads outside a transaction. It never waits for the writer.
	Reader() *bun.DB
	// Session is a transaction that has not begun. It takes no connection before
	// its first statement.
	Session() Session
	// Retryable says whether a transaction that failed with err can succeed when
	// all of it is run again: a serialization failure, a deadlock, a busy file.
	Retryable(err error) bool
	// Signal tells other processes that rows of these partitions were committed,
	// soon, together with others. It never waits and never fails: what isn't heard is
	// found by a poll.
	Signal(pokes []outbox.Poke)
	// Watch calls hear with what other processes signal, and with nil when any rows
	// may have been committed: first of all, once it can hear. It returns an error
	// when it can't hear, or not any more, or ctx is done.
	Watch(ctx context.Context, hear func(pokes []outbox.Poke)) error
	Close() error
}

// Session is one transaction. It is used by one goroutine, and ends with Commit
// or Rollback.
//
// For authors of providers.
type Session interface {
	// DB begins the transaction if need be and returns it.
	DB(ctx context.Context) (bun.IDB, error)
	// Send runs statements in their order, in as few round trips as the database
	// allows. The first whose outcome is not the demanded one ends it with its
	// Else. After an error only Rollback is of use.
	Send(ctx context.Context, statements []Statement) error
	// Commit sends the last statements and commits: on PostgreSQL, if nothing
	// was sent before, the whole transaction in one round trip. An answer that
	// never came is a [*CommitUnknownError]; after any other error nothing of the
	// transaction has happened.
	Commit(ctx context.Context, statements []Statement) error
	// Rollback gives up the transaction and its connection. After Commit, and
	// before the first statement, it does nothing.
	Rollback(ctx context.Context) error
	// Began says whether the transaction has begun, so that reads must see it.
	Began() bool
	// Held says, after its end, for how long the session kept all other
	// transactions of its process waiting; 0 on a database that has many.
	Held() time.Duration
}

// Statement is an INSERT, UPDATE or DELETE without RETURNING that a unit sends
// when it chooses, with the outcome that it must have; or, with any number of
// rows, a SELECT for the sake of its effect. Because the outcome is a number and
// not a callback, a provider can send a whole unit and its COMMIT without waiting
// for answers in between.
//
// For authors of repositories.
type Statement struct {
	// Query is any bun query, or bun.SafeQuery. One that also has
	// Prepared() (query string, values []any, err error) is sent to PostgreSQL as a
	// prepared statement, where all of its unit are.
	Query schema.QueryAppender
	Rows  int64 // How many rows it must affect; -1: any number.
	Else  error // The unit's error if it affects another number. Required if Rows is not -1.
	// Late statements are sent behind those of all aggregates of the flush: what one of
	// them frees, another can take.
	Late bool
}

// Examined is an error, as the Else of a [Statement], that finds out more once its unit
// has been rolled back: it then changes what it says. Do runs its function again if
// Examine says so.
//
// For authors of repositories.
type Examined interface {
	error
	Examine(ctx context.Context) (again bool)
}
