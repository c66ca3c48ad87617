package domain

// PendingEvent is an event that was raised and is not stored yet.
type PendingEvent struct {
	ID    string // The message id that the event has at every broker.
	Event any    // As it was given to Raise.
}

// PendingEvents are the events that a has raised and no commit has stored, in
// the order in which they were raised. Look before the save: what a commit has
// stored is pending no more.
//
// It is for programs that tell others which messages to expect, or log them.
func PendingEvents(a AggregateRoot) []PendingEvent {
	raised := a.root().state.Raised
	pending := make([]PendingEvent, len(raised))
	for i, r := range raised {
		pending[i] = PendingEvent{ID: r.ID, Event: r.Event}
	}
	return pending
}
