package subscription

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

// Stream describes a stream subscription: which messages, in whose name, to
// which handlers. The engine runs it.
type Stream struct {
	// Name is the consumer group and the key of the inbox: under another name,
	// every message is new. Required.
	Name string
	// Category is the stream that is read, as in "ordering::order". Required.
	Category string
	// Handlers are at most one per event type. At least one.
	Handlers []Handler
	// Units is the context that handles. Required.
	Units *uow.Manager
	// Broker is where the stream is read from, as the engine knows it. Defaults
	// to "default".
	Broker string
	// Provider is the database of inbox and effect. Defaults to the first of Units.
	Provider string
	// Inbound says where messages are, in what form, what is believed of them, and how
	// large they may be.
	Inbound Inbound
	// Instances are what the messages belong to, in place of their key. For package
	// process; nil: there are none.
	Instances *Instances
	// Sole says that nobody else handles what comes. A message for which there is no
	// handler is then no other's: it is parked, for a build that has one. For package
	// command.
	Sole bool

	// Lanes is how many messages are handled at a time, each of another key.
	// Defaults to 16.
	Lanes int
	// Batch is how many messages a lane commits together, at most. Where one of
	// them fails, each is handled by itself. Defaults to 1.
	Batch int
	// Timeout is how long a handler may take for a message. Then its ctx is done,
	// and the attempt has failed. Defaults to 1 min. A transaction of handlers on
	// PostgreSQL that is idle for 30 s longer is ended by the server, unless that has
	// an idle_in_transaction_session_timeout of its own.
	Timeout time.Duration

	// MaxAttempts is how often a message is tried before it is parked. Defaults to 8.
	MaxAttempts int
	// Backoff is the wait before a message's second attempt. It doubles up to
	// 30 s, and varies by a quarter. Defaults to 100 ms.
	Backoff time.Duration
	// OnParked says what becomes of the key of a parked message. Defaults to Hold.
	OnParked Policy
	// HoldLimit is how many messages of a held key are put behind the parked one;
	// further ones stay unacknowledged, and when there are many of these the
	// subscription takes no more. Defaults to 10,000.
	HoldLimit int
	// WaitLimit is how many messages of the subscription are in dead_letters and wait for
	// their time, or for others of their key; further ones stay unacknowledged, and
	// when there are many of these the subscription takes no more, and says so.
	// Defaults to 1,000,000.
	WaitLimit int

	// InboxRetention is how long the inbox knows a message, counted while the
	// subscription was consuming; longer, if its sender says that it may send it
	// again. At least RedeliveryHorizon. Defaults to 30 days; -1 keeps for ever.
	InboxRetention time.Duration
	// RedeliveryHorizon is how long after its first delivery a message may come
	// again: for how long the broker keeps messages, and the sender's outbox tries.
	// Defaults to 7 days.
	RedeliveryHorizon time.Duration

	prefix string // What the broker puts before Topic.
}

// Policy says what becomes of the messages of a key behind a parked one.
type Policy int

const (
	// Hold: they are put behind it, and follow it in order when it is replayed or
	// discarded.
	Hold Policy = iota
	// Skip: they are handled. A replay of the parked one comes after them.
	Skip
)

func (p Policy) String() string {
	switch p {
	case Hold:
		return "hold"
	case Skip:
		return "skip"
	}
	return fmt.Sprintf("Policy(%d)", int(p))
}

// WithDefaults returns s with a value in every optional field.
func (s Stream) WithDefaults() Stream {
	s.Broker = cmp.Or(s.Broker, "default")
	if s.Provider == "" && s.Units != nil {
		s.Provider = s.Units.Providers()[0].Name()
	}
	s.Lanes = cmp.Or(s.Lanes, 16)
	s.Batch = cmp.Or(s.Batch, 1)
	s.Timeout = cmp.Or(s.Timeout, time.Minute)
	s.MaxAttempts = cmp.Or(s.MaxAttempts, 8)
	s.Backoff = cmp.Or(s.Backoff, 100*time.Millisecond)
	s.HoldLimit = cmp.Or(s.HoldLimit, 10_000)
	s.WaitLimit = cmp.Or(s.WaitLimit, 1_000_000)
	s.InboxRetention = cmp.Or(s.InboxRetention, 30*24*time.Hour)
	s.RedeliveryHorizon = cmp.Or(s.RedeliveryHorizon, 7*24*time.Hour)
	s.Inbound = s.Inbound.withDefaults(s)
	return s
}

// Topic is where the stream's messages are.
func (s Stream) Topic() string { return cmp.Or(s.Inbound.Topic, outbox.DefaultTopic(s.Category)) }

// kept is the topic of a dead letter: without the broker's prefix, as the streams of a
// process are named after theirs.
func (s Stream) kept(received string) string {
	if received == s.prefix+s.Topic() {
		return s.Topic()
	}
	return received
}

// received is the topic that a dead letter came by.
func (s Stream) received(kept string) string {
	if kept == s.Topic() {
		return s.prefix + kept
	}
	return kept
}

// check returns the stream's handlers by event, and everything that is wrong
// with the stream.
func (s Stream) check() (map[*domain.EventType]Handler, error) {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if s.Name == "" {
		fail("Name is missing: it is the consumer group, and the key of the inbox")
	}
	if s.Category == "" {
		fail("Category is missing: name the stream to read, as in \"ordering::order\"")
	}
	s.checkBounds(fail)
	if err := s.Inbound.check(); err != nil {
		fail("%w", err)
	}
	if len(s.Handlers) == 0 {
		fail("Handlers is empty: add subscription.On(func(ctx context.Context, e YourEvent) error {…})")
	}
	if s.Units == nil {
		fail("Units is missing: name the context that handles, as uow.New made it")
	} else if _, err := s.Units.Provider(s.Provider); err != nil {
		fail("Provider: %w", err)
	}
	handlers := s.byEvent(fail)
	return handlers, errors.Join(errs...)
}

// checkBounds finds what is wrong with the stream's numbers and times.
func (s Stream) checkBounds(fail func(string, ...any)) {
	if s.Lanes < 1 {
		fail("Lanes is %d: at least 1, or 0 for 16", s.Lanes)
	}
	if s.Batch < 1 || s.Batch > maxBatch {
		fail("Batch is %d: from 1 to %d, or 0 for 1", s.Batch, maxBatch)
	}
	if s.Timeout < 0 {
		fail("Timeout is %v: above 0, or 0 for 1m", s.Timeout)
	}
	if s.MaxAttempts < 1 {
		fail("MaxAttempts is %d: at least 1, or 0 for 8", s.MaxAttempts)
	}
	if s.Backoff < 0 {
		fail("Backoff is %v: above 0, or 0 for 100ms", s.Backoff)
	}
	if s.OnParked != Hold && s.OnParked != Skip {
		fail("OnParked is %v: Hold or Skip", s.OnParked)
	}
	if s.HoldLimit < 1 {
		fail("HoldLimit is %d: at least 1, or 0 for 10,000", s.HoldLimit)
	}
	if s.WaitLimit < 1 {
		fail("WaitLimit is %d: at least 1, or 0 for 1,000,000", s.WaitLimit)
	}
	if s.RedeliveryHorizon < 0 {
		fail("RedeliveryHorizon is %v: above 0, or 0 for 168h", s.RedeliveryHorizon)
	}
	if s.InboxRetention != -1 && s.InboxRetention < s.RedeliveryHorizon {
		fail("InboxRetention is %v, but a message may come again for %v (RedeliveryHorizon) and would then take effect twice: keep it at least as long, or -1 for ever", s.InboxRetention, s.RedeliveryHorizon)
	}
	if s.Instances != nil && s.Batch != 1 {
		fail("Batch is %d: 1, as one transaction is to hold one of the stream's instances", s.Batch)
	}
}

// byEvent are the handlers, and finds what is wrong with them.
func (s Stream) byEvent(fail func(string, ...any)) map[*domain.EventType]Handler {
	handlers := map[*domain.EventType]Handler{}
	seen := map[reflect.Type]bool{}
	for i, h := range s.Handlers {
		switch {
		case h.event == nil:
			fail("Handlers[%d] is empty: make it with subscription.On", i)
			continue
		case h.handle == nil:
			fail("Handlers[%d]: the function for %v is nil", i, h.event)
		case seen[h.event]:
			fail("Handlers[%d]: %v has a handler already; do both things in one, or make a second stream of another Name", i, h.event)
		}
		seen[h.event] = true
		if s.Units == nil {
			continue
		}
		t, err := h.resolve(s.Units.Domain())
		if err != nil {
			fail("Handlers[%d]: %w", i, err)
			continue
		}
		if s.Category != "" && !t.ComesBy(s.Category) {
			fail("Handlers[%d]: %w", i, s.stray(t, h))
		}
		handlers[t] = h
	}
	return handlers
}

// stray says why an event doesn't come by the stream. Its handler would never be
// called, and nobody would notice.
func (s Stream) stray(t *domain.EventType, h Handler) error {
	switch {
	case !t.Foreign:
		return fmt.Errorf("%v is an event of %s and never comes by %s; move its handler to a stream of that Category", h.event, t.Category, s.Category)
	case t.Category != "":
		return fmt.Errorf("%v (%s) comes from %q, as its domain.From says, and Category is %q: correct one of them, or move the handler to a stream of that Category", h.event, t.WireName(), t.Category, s.Category)
	}
	return fmt.Errorf("%v is the event %s, and Category is %q, which is no stream of the context that this name begins with: correct the one that is wrong; or, if the event does come there, say so where it is declared: domain.Foreign[%v](%q, domain.From(%q))",
		h.event, t.WireName(), s.Category, h.event, t.WireName(), s.Category)
}
