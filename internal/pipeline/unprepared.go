package pipeline

import "context"

// PlainConn is a [Conn] that sends a pipeline also where nothing can be prepared:
// behind a pooler that gives each transaction to another connection.
type PlainConn interface {
	// Plain is as Pipeline, but for statements that are parsed and planned each time.
	// It is one message and one transaction as well.
	Plain(ctx context.Context, statements ...Statement) error
}
