package outbox

import (
	"encoding/json"
	"time"
)

// Verb is what an operator does to rows.
type Verb string

// The verbs of operators.
const (
	VerbRetry   Verb = "retry"
	VerbAbandon Verb = "abandon"
	VerbSkip    Verb = "skip"
)

// Change says what an operator wants done to rows, see engine.OutboxStore.
type Change struct {
	Verb Verb
	// Actor is who asks, for the record. Required unless DryRun.
	Actor string
	// Rate is how many rows become due per second, in the order of seq; 0: all at
	// once. For VerbRetry only.
	Rate float64
	// Limit is how many rows are changed, the first of them. 0: all.
	Limit int
	// UpTo is the greatest Seq that is changed: with that of a dry run, what comes
	// meanwhile stays as it is. 0: no bound.
	UpTo int64
	// DryRun changes nothing.
	DryRun bool
	// Retention says how long abandoned rows stay. Not for VerbRetry.
	Retention Retention
	// Progress is called after each transaction with what was done so far. May be
	// nil.
	Progress func(ChangeResult)
}

// ChangeResult says what becomes of the rows that a filter chooses, or would
// without a dry run.
type ChangeResult struct {
	Changed int64 `json:"changed"`
	// OutOfOrder are those of Changed that are published after what has followed
	// them in their keys: retried ones that were abandoned and not held.
	OutOfOrder int64 `json:"out_of_order"`
	// Refused are rows that were left as they are, by their status. Published ones
	// are counted only if the filter names seqs or a message.
	Refused map[Status]int64 `json:"refused"`
	// Missing are seqs of the filter that there are no rows of.
	Missing []int64 `json:"missing"`
	// UpTo is the greatest Seq that was looked at.
	UpTo int64 `json:"up_to"`
	// Action is the id of the record; 0: nothing was changed.
	Action int64 `json:"action"`
}

// Action is what an operator did.
type Action struct {
	ID     int64           `json:"id"`
	At     time.Time       `json:"at"`
	Actor  string          `json:"actor"`
	Action string          `json:"action"` // a [Verb], or "purge"
	Filter json.RawMessage `json:"filter"` // with the rate and the bounds that were given
	Rows   int64           `json:"rows"`
}
