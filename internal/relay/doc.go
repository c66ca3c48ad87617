// Package relay is the machine that brings a schema's outbox to its brokers: it
// reads the queue forward, remembers by key what can't go on, claims, calls the
// broker and settles. It knows no SQL: what it needs of a database is a [Store].
//
// The rules are those of docs/protocol.md; names in brackets, like [NOHORIZON],
// are the switches of model/*.pml that leave a rule out.
package relay
