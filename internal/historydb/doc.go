// Package historydb keeps events in PostgreSQL and SQLite, in one order.
//
// There are two tables: history, into which units of work insert the events of their
// aggregates, and events, which has those of event-sourced ones anyway. Rows of both
// draw their positions from one sequence, behind the row of their aggregate, which they
// have locked by then; so one aggregate's positions are in the order of its versions.
//
// On PostgreSQL a position is drawn before it can be seen, and a lower one may be seen
// later. A reader goes no further than the [Horizon]. model/history.pml is about that.
package historydb
