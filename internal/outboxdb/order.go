package outboxdb

import (
	"slices"
	"strconv"

	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/outbox"
)

// LockKeys is the statement for PostgreSQL that takes, until the end of the
// transaction, the locks of those events that have a key of their own; nil if
// none has. The transaction sends it after its state and before [Insert].
//
// seq is drawn by the insert. What one aggregate's events need, that whoever
// draws first commits first, the lock on the aggregate's row gives them. Events
// of several aggregates have no row in common. It has to be a statement of its
// own: the insert would draw before it waits. The locks are taken in the order of
// their numbers, so that two transactions don't wait for each other.
//
// PostgreSQL has one set of locks for a whole database. Those of a schema are its own,
// as its table of settings is in their hash.
func LockKeys(events []outbox.Event) schema.QueryAppender {
	var locks []int64
	for i := range events {
		if key := events[i].Key; key != "" {
			locks = append(locks, outbox.KeyOf("", "", "waybill key", key))
		}
	}
	if len(locks) == 0 {
		return nil
	}
	slices.Sort(locks)
	b := []byte{'{'}
	for i, l := range slices.Compact(locks) {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, l, 10)
	}
	return lockKeys(append(b, '}'))
}

// lockKeys is an array of bigint.
type lockKeys string

const (
	lockAll  = "SELECT pg_advisory_xact_lock(id) FROM (SELECT hashint8extended(key, 'outbox_settings'::regclass::oid::bigint) AS id FROM unnest("
	lockEach = "::bigint[]) AS key ORDER BY id) AS locks"
)

// AppendQuery implements [schema.QueryAppender].
func (keys lockKeys) AppendQuery(_ schema.QueryGen, b []byte) ([]byte, error) {
	return append(append(append(b, lockAll+"'"...), keys...), "'"+lockEach...), nil
}

// Prepared returns the statement for PostgreSQL to prepare, and its value.
func (keys lockKeys) Prepared() (query string, values []any, err error) {
	return lockAll + "$1" + lockEach, []any{string(keys)}, nil
}
