// Package outboxdb is the outbox in PostgreSQL and SQLite: its tables, and one
// method per step that the relay, units of work and operators take.
//
// A step's SQL is a file in sql/postgres and one in sql/sqlite. PostgreSQL gets a
// step as one message of prepared statements, which is a transaction, and needs no
// session: so it works behind a pooler, too. Where none can be prepared it is a plain
// transaction. On SQLite it is one that holds the writer from its beginning.
//
// All steps lock in one order: partitions, members, tokens, queue rows by seq.
package outboxdb
