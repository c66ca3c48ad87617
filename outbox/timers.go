package outbox

import "time"

// Timer is a message that waits for its time, as operators see it.
type Timer struct {
	ID            string     `json:"id"` // of the message
	Owner         string     `json:"owner"`
	Name          string     `json:"name"`
	Type          string     `json:"type"`
	Status        string     `json:"status"` // one of TimerStatuses
	AvailableAt   time.Time  `json:"available_at"`
	SetAt         time.Time  `json:"set_at"`
	SentAt        *time.Time `json:"sent_at"`
	TenantID      string     `json:"tenant_id"`
	CorrelationID string     `json:"correlation_id"`
	Error         string     `json:"error"` // why the message of a broken one can't be sent
}

const (
	// TimerWaiting is the status of a timer that is not in the outbox yet.
	TimerWaiting = "waiting"
	// TimerSent is that of one whose message is in the outbox, or on its way: it is not
	// handled yet.
	TimerSent = "sent"
	// TimerBroken is that of one whose message can't be sent: it is not what was stored, or the
	// database refuses it. It waits for an operator, and others don't wait for it.
	TimerBroken = "broken"
)

// TimerStatuses are all that there are.
func TimerStatuses() []string { return []string{TimerWaiting, TimerSent, TimerBroken} }

// TimerDetails is a timer with its message.
type TimerDetails struct {
	Timer

	Message Row    `json:"message"`
	Payload []byte `json:"payload"`
}

// TimerFilter chooses timers. An empty field does not restrict.
type TimerFilter struct {
	IDs         []string  `json:"ids,omitempty"`
	Owner       string    `json:"owner,omitempty"`
	Name        string    `json:"name,omitempty"`
	Type        string    `json:"type,omitempty"`
	Status      string    `json:"status,omitempty"`
	Tenant      string    `json:"tenant,omitempty"`
	Correlation string    `json:"correlation,omitempty"`
	From        time.Time `json:"from,omitzero"`  // of AvailableAt
	Until       time.Time `json:"until,omitzero"` // not included
	After       string    `json:"-"`              // The page before says it.
	Limit       int       `json:"-"`              // Defaults to 100.
}

// Empty says whether f chooses every timer.
func (f TimerFilter) Empty() bool {
	return len(f.IDs) == 0 && f.Owner+f.Name+f.Type+f.Status+f.Tenant+f.Correlation == "" && f.From.IsZero() && f.Until.IsZero()
}

// TimerPage is a page of timers, by when they are due.
type TimerPage struct {
	Timers []Timer `json:"timers"`
	Next   string  `json:"next"` // the After of the next page; "": there is none
}

// TimerChange is what an operator does to timers: they become due at At, or at once
// with Now, or are stopped with neither.
type TimerChange struct {
	At     time.Time
	Now    bool   // By the database's clock.
	Actor  string // For the record.
	DryRun bool
	// Before leaves those that were not set before it, by the database's clock. Zero: no bound.
	Before time.Time
}

// TimersChanged is what a change came to.
type TimersChanged struct {
	Changed int64 `json:"changed"`
	// Left were sent already, and are not to be moved any more. A stop takes them, too.
	Left   int64 `json:"left"`
	Action int64 `json:"action"` // in outbox_actions; 0: nothing was changed
}
