// Package pipeline is how several prepared statements reach PostgreSQL in one round
// trip.
package pipeline

import (
	"context"
	"errors"
	"strconv"
)

// Statement is a query whose text is always the same. To parse and plan it costs
// PostgreSQL more than to run it: that is done once for a connection.
type Statement struct {
	Query string // with $1, $2 … for its values
	// Values are a string, which has the value as text, a []byte, which is a bytea,
	// or nil.
	Values []any
	// Row gets each row of the result, in PostgreSQL's binary form and only until it
	// returns. Nil: there is none of interest.
	Row func(columns [][]byte) error
}

// Conn is a driver's connection that takes pipelines.
type Conn interface {
	// Pipeline sends statements in one round trip and awaits their end. Then, if it is
	// not nil, says with what was read by then which follow in another. Several
	// statements are one transaction, READ COMMITTED, in which each has a snapshot of
	// its own. If it fails, they may have happened all the same; but if the error is
	// [ErrUnprepared], none of them has.
	Pipeline(ctx context.Context, then func() []Statement, statements ...Statement) error
}

// Keeper is a driver (sql.DB.Driver) with a connection beside the pools, for what has a
// deadline and must not wait until units of work give one back: to renew leases. All
// providers of a server share it, so a use is bounded to seconds.
type Keeper interface {
	// Keep sends statements in one round trip and awaits their end. They are one
	// transaction, READ COMMITTED, in the provider's schema. If it fails, they may have
	// happened all the same. Where the connection is taken, they run on the pool's.
	Keep(ctx context.Context, statements ...Statement) error
}

// ErrUnprepared is the error where statements can't be prepared, as behind some
// poolers.
var ErrUnprepared = errors.New("postgres: no statements can be prepared")

// Numbers is an array of integers.
func Numbers(numbers []int64) string {
	const digits = 12 // Of most of them, with a comma.
	b := append(make([]byte, 0, 2+digits*len(numbers)), '{')
	for i, n := range numbers {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, n, 10)
	}
	return string(append(b, '}'))
}

// Texts is an array of texts.
func Texts(texts []string) string {
	b := []byte{'{'}
	for i, s := range texts {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '"')
		for j := range len(s) {
			if s[j] == '"' || s[j] == '\\' {
				b = append(b, '\\')
			}
			b = append(b, s[j])
		}
		b = append(b, '"')
	}
	return string(append(b, '}'))
}
