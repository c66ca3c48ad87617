package uowtest

import "github.com/waybill-go/waybill/internal/suitetest"

// What several contracts have in common.
const (
	halfDone  = "a unit is stored in part: a state without its events, or events without their state."
	falseYes  = "a unit counts as committed that isn't: its events and its state are lost."
	stuck     = "connections run out, and then everything waits."
	oneTx     = "keep all statements of a session in one transaction, and roll it back after any error."
	byOutcome = "compare what the database says of affected rows with Statement.Rows, statement by statement."
)

var contracts = map[string]suitetest.Contract{
	"Commit":                      suitetest.Of("What a session sends is stored together by its Commit, whichever way it reached the database.", halfDone, oneTx),
	"CommitOfNothing":             suitetest.Of("A session to which nothing was sent commits without an error.", "a unit that changes nothing fails.", "answer without a transaction if none has begun."),
	"Order":                       suitetest.Of("Statements take effect in the order in which they were sent.", "the row that orders an aggregate's writers comes behind its outbox rows, and events change their order.", "send them in their order on one connection."),
	"DemandedRows":                suitetest.Of("A statement that affects another number of rows than it demands fails with its Else, and nothing is stored.", "of two who save one version of an aggregate both succeed, and one's change is lost.", byOutcome),
	"DemandWithoutElse":           suitetest.Of("A statement that demands a number of rows and names no error is refused.", "a conflict passes for success.", "refuse it before anything is sent."),
	"FirstMissIsReported":         suitetest.Of("Of several statements the first one that misses its demand says what the error is.", "a duplicate is reported as a conflict, and is tried again for ever.", byOutcome),
	"FailedStatement":             suitetest.Of("A statement that fails is an error of the database itself, nothing is stored, and Retryable says no.", falseYes, oneTx),
	"MissingTable":                suitetest.Of("A statement to a table that isn't there fails, and nothing is stored.", halfDone, oneTx),
	"StatementsMayEndInComments":  suitetest.Of("A statement may end in a comment.", "the rest of a unit that is sent in one text is commented out.", "send statements apart, or end each with a line break."),
	"NULIsRefused":                suitetest.Of("A text with a NUL byte is an error.", "a text is cut off silently.", "return the database's error, or check the text where the database stores half of it."),
	"Rollback":                    suitetest.Of("After Rollback nothing of the session is stored, and its connection is returned.", halfDone+" Or "+stuck, "roll back also where the context is done."),
	"EndedSession":                suitetest.Of("A session that has ended does nothing more.", "what is sent late takes effect outside of its unit.", "return an error for everything but Rollback."),
	"ReadsSeeTheTransaction":      suitetest.Of("What is read through a session's DB sees what the session has sent, and nobody else does before Commit.", "a handler decides by a state that it has changed itself.", "hand out the transaction that statements go to."),
	"DB":                          suitetest.Of("DB begins the transaction once, and Began says so.", "reads and writes of a unit are of different moments.", "return the same transaction each time."),
	"DBOutlivesItsContext":        suitetest.Of("The transaction lives on when the context of the call that began it is done.", "a query with a deadline of its own rolls back the whole unit.", "begin the transaction without that context's end."),
	"SwallowedErrorLosesNothing":  suitetest.Of("A transaction of which a statement failed isn't reported committed, even if the application swallowed the error.", falseYes, "find out whether COMMIT has committed: PostgreSQL answers ROLLBACK to it."),
	"ARowIsOfAQueryThatSucceeds":  suitetest.Of("A query that returns a row and fails afterwards, as at its commit, fails for who reads that row only.", falseYes, "read on before the first row is handed out: bun's Scan into variables doesn't."),
	"CancelledBefore":             suitetest.Of("With a context that is done nothing is sent, and the error isn't that the outcome is unknown.", "a unit that never began has to be looked into.", "look at the context before the first byte."),
	"CancelledWithin":             suitetest.Of("A context that ends within a session ends it, and nothing is stored.", stuck, oneTx),
	"GuardRowHasOneWinner":        suitetest.Of("Of several sessions that insert one key with its demand, one commits.", "a message has its effect twice.", "leave the decision to the database's unique key, and "+byOutcome),
	"ConcurrentIncrements":        suitetest.Of("Concurrent sessions lose no change, and Retryable says of each error whether to run again.", "counters and versions are overwritten, or units fail that would have succeeded.", "name serialization failures, deadlocks and busy files in Retryable, and nothing else."),
	"WaitingCommitCanBeCancelled": suitetest.Of("A commit that waits for a lock ends with its context, and doesn't happen afterwards.", "a request that was given up takes effect later.", "cancel the statement on the server, and wait for its answer."),
	"SignalsAreHeard":             suitetest.Of("Who watches hears at once that anything may have happened, and then of what others signal.", "messages wait for the next poll.", "call hear with nil first, and pass on what Signal sends to other processes."),
}
