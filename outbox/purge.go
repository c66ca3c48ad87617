package outbox

import "time"

// Purged is how many rows a purge removed, by what they were.
type Purged struct {
	Published int `json:"published"`
	Abandoned int `json:"abandoned"`
}

// CleanUp says which finished rows an operator wants removed.
type CleanUp struct {
	// Actor is who asks, for the record. Required unless DryRun.
	Actor string
	// OlderThan chooses rows that were finished so long ago, whenever they expire.
	// 0: those that have expired.
	OlderThan time.Duration
	// Statuses are Published, Abandoned or both. Empty: both.
	Statuses []Status
	// DryRun counts, and removes nothing.
	DryRun bool
	// Progress is called after each transaction with what was removed so far, or
	// counted. May be nil.
	Progress func(Purged)
}

// CleanedUp is how many rows were removed, or would be without a dry run.
type CleanedUp struct {
	Purged
	Action int64 // id of the record; 0: nothing was removed
}
