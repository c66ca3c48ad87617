package outbox

import "slices"

// Status is where a row is in its life.
type Status string

// The statuses of a row.
const (
	Pending    Status = "pending"    // waits to be published
	Processing Status = "processing" // a member has claimed it
	Published  Status = "published"  // the broker has acknowledged it
	Failed     Status = "failed"     // waits to be tried again
	Abandoned  Status = "abandoned"  // is not tried again unless an operator says so
)

// Statuses are all of them, in the order of a row's life.
func Statuses() []Status { return []Status{Pending, Processing, Published, Failed, Abandoned} }

// next are the edges of a row's life. The database refuses all others too.
//
//	pending → processing → published
//	                     → failed → pending (due, within the claim; or an operator)
//	                     → abandoned → pending (an operator)
//	                     → pending (handed back, or taken over)
//
// An operator may abandon a pending or a failed row.
var next = map[Status][]Status{
	Pending:    {Processing, Abandoned},
	Processing: {Published, Failed, Abandoned, Pending},
	Failed:     {Pending, Abandoned},
	Abandoned:  {Pending},
	Published:  {},
}

// CanBecome says whether a row may go from s to t.
func (s Status) CanBecome(t Status) bool { return slices.Contains(next[s], t) }

// Finished says whether a row is never published again by itself.
func (s Status) Finished() bool { return s == Published || s == Abandoned }
