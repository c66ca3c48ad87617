// Package timerdb keeps timers in PostgreSQL and SQLite: messages that wait for their
// time. A unit of work sets and stops them behind the state of what owns them, a
// promoter puts those that are due into the outbox, and whoever handles one deletes its
// row, which must still be there: so a timer that was stopped, or set anew, has no
// effect any more, wherever its message is. model/timers.pml is about the locks.
//
// All lock in one order: the owner's row, then the timer's. Who has no owner's row,
// promoters and operators, waits for no timer's.
package timerdb
