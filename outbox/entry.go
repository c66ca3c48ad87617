package outbox

import "time"

// Entry is a row as operators see it, without its payload.
type Entry struct {
	Row
	Seq           int64      `json:"seq"`
	Status        Status     `json:"status"`
	Attempts      int        `json:"attempts"`
	MaxAttempts   int        `json:"max_attempts"`
	AvailableAt   time.Time  `json:"available_at"`
	LastAttemptAt *time.Time `json:"last_attempt_at"`
	LastError     string     `json:"last_error"`
	FailureClass  string     `json:"failure_class"`
	LockedBy      string     `json:"locked_by"`
	LockedUntil   *time.Time `json:"locked_until"`
	Fence         int64      `json:"fence"`
	ClaimID       int64      `json:"claim_id"`
	Losses        int        `json:"losses"`
	Held          bool       `json:"held"`
	CreatedAt     time.Time  `json:"created_at"`
	PublishedAt   *time.Time `json:"published_at"`
	ExpiresAt     *time.Time `json:"expires_at"`
}
