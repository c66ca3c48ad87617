package outbox

import (
	"reflect"
	"strings"
	"time"
	"unicode/utf8"
)

// Filter chooses rows. An empty field does not restrict; all that are set must
// hold.
type Filter struct {
	Seqs          []int64 `json:"seqs,omitempty"`
	MessageID     string  `json:"message_id,omitempty"`
	Target        string  `json:"target,omitempty"`
	Type          string  `json:"type,omitempty"`
	Stream        string  `json:"stream,omitempty"`
	Category      string  `json:"category,omitempty"`
	PartitionKey  string  `json:"partition_key,omitempty"`
	CorrelationID string  `json:"correlation_id,omitempty"`
	CausationID   string  `json:"causation_id,omitempty"`
	FailureClass  string  `json:"failure_class,omitempty"`
	// Error is a part of the last error's text.
	Error    string   `json:"error,omitempty"`
	Statuses []Status `json:"statuses,omitempty"`
	// Held chooses abandoned rows behind which their key waits.
	Held bool `json:"held,omitempty"`
	// Stale chooses rows that a lease holds that has run out.
	Stale bool `json:"stale,omitempty"`
	// RetryReady chooses failed rows that are due.
	RetryReady bool `json:"retry_ready,omitempty"`
	// From and Until bound the time at which a row was stored; Until is the first
	// that is too late.
	From  time.Time `json:"from,omitzero"`
	Until time.Time `json:"until,omitzero"`
	// After is the Seq of the last row of the page before.
	After int64 `json:"after,omitempty"`
	// Limit is the size of a page. Defaults to 100.
	Limit int `json:"limit,omitempty"`
}

// Empty says whether f chooses every row.
func (f Filter) Empty() bool {
	f.After, f.Limit = 0, 0
	return len(f.Seqs)+len(f.Statuses) == 0 && reflect.DeepEqual(f, Filter{Seqs: f.Seqs, Statuses: f.Statuses})
}

// Storable says whether both databases take a text.
func Storable(text string) bool { return utf8.ValidString(text) && !strings.ContainsRune(text, 0) }
