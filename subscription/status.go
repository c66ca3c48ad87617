package subscription

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/outbox"
)

// Status is what this process knows of its subscription.
type Status struct {
	Running    bool   // It has joined its group, and its broker and database answer.
	LastError  string // The last thing that went wrong, also when it is over.
	Handled    int64  // Messages that took effect, since the start.
	Duplicates int64  // Deliveries of messages that had taken effect before.
	Ignored    int64  // Messages without a handler.
	Dropped    int64  // Messages whose handler wanted no effect.
	Parked     int64  // Messages put into dead_letters, those behind a parked one among them.
	Replayed   int64  // Dead letters that took effect.
	Retries    int64  // Attempts that were not a message's first in this process.
	InFlight   int64  // Deliveries received and not yet settled.
	Waiting    int64  // Of these, those whose key waits: for another attempt, or for room in dead_letters.
	Postponed  int64  // Messages put into dead_letters because too many wait; they continue by themselves.
	Left       int64  // Handlers that went on when it had stopped, although their context was done.
	Paused     bool   // By Pause.

	// Joined: it is in its group. Since is when that became so, or ceased; zero: before
	// the start.
	Joined bool
	Since  time.Time
	// Partitions is how many parts of the topic this process has to itself; 0 also where
	// the broker doesn't divide it.
	Partitions int
	// Refusal is what keeps it from joining, or from getting all that comes; nil: nothing
	// does. [broker.ClassOf] says whether that passes by itself.
	Refusal error
	// Missed are the messages that the broker removed before they were consumed, since
	// the start; MissedAt is when the last of them were noticed.
	Missed   int64
	MissedAt time.Time

	Open bool // The breaker is: one message after the other failed, and they are tried one at a time.

	// Overdue are handlers that go on although their Timeout is over; since OverdueSince the
	// first of them.
	Overdue      int64
	OverdueSince time.Time

	// Stalled says why what waits can't be put into dead_letters, where that is so much
	// that it keeps other messages from being taken; since StalledSince. "": it isn't.
	Stalled      string
	StalledSince time.Time

	// Database is what the database doesn't let it do, over and over; nil: it lets it
	// do everything.
	Database *outbox.Trouble

	// BeyondHorizon are the messages, of those handled, that were sent before anything
	// that the inbox still knows: if one was handled before, it is not known any more.
	BeyondHorizon int64
}

// Status returns the state of the subscription.
func (r *Runner) Status() Status {
	s := Status{
		Running:    r.consuming(),
		Handled:    r.handled.Load(),
		Duplicates: r.duplicates.Load(),
		Ignored:    r.ignored.Load(),
		Parked:     r.parked.Load(),
		Retries:    r.retries.Load(),
		InFlight:   r.inFlight.Load(),
		Dropped:    r.dropped.Load(),
		Replayed:   r.replayed.Load(),
		Postponed:  r.postponed.Load(),
		Left:       r.left.Load(),

		BeyondHorizon: r.evictor.passed.Load(),
		Database:      r.aside.Worst(),
	}
	if t := r.refused.Load(); t != nil && dberr.Shows(*t) {
		s.Database = t
	}
	state, missedAt := r.standing.now()
	s.Joined, s.Since, s.Partitions, s.Refusal = state.Joined, state.Since, state.Partitions, state.LastError
	s.Missed, s.MissedAt = state.Missed, missedAt
	s.Paused, _ = r.valve.paused()
	s.Open = r.valve.tripped()
	s.Overdue, s.OverdueSince = r.calls.overdue()
	if session := r.session.Load(); session != nil {
		s.Waiting, s.Stalled, s.StalledSince = session.waits()
	}
	if text := r.lastError.Load(); text != nil {
		s.LastError = *text
	}
	if s.Refusal != nil {
		s.LastError = dberr.Clip(s.Refusal.Error())
	}
	return s
}

// Lag is how far a subscription is behind, as far as this process knows.
type Lag struct {
	// Messages are those that this process's share of the group has still to
	// settle, or, where the broker doesn't divide a topic, all members together; -1
	// if the broker can't say.
	Messages int64
	// Age is how long ago the oldest of those that this process holds was
	// published; 0 if it holds none.
	Age time.Duration
}

// Lag asks the broker. It fails while the runner isn't in its group.
func (r *Runner) Lag(ctx context.Context) (l Lag, err error) {
	s := r.session.Load()
	if s == nil {
		return l, fmt.Errorf("subscription %q: its lag is not known while it isn't in its group", r.stream.Name)
	}
	if state, _ := r.standing.now(); !state.Joined {
		return l, fmt.Errorf("subscription %q: its lag is not known: %w", r.stream.Name, cmp.Or(state.LastError, errNotJoined))
	}
	l.Messages = -1
	if c, ok := s.consumer.(broker.Lagging); ok {
		if l.Messages, err = c.Lag(ctx); err != nil {
			return l, fmt.Errorf("subscription %q: %w", r.stream.Name, err)
		}
	}
	if oldest := s.oldest(); !oldest.IsZero() {
		l.Age = max(time.Since(oldest), 0)
	}
	return l, nil
}
