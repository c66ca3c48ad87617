package subscription

import (
	"cmp"
	"context"
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

	// Lanes is how many messages are handled at a time, each of another key.
	// Defaults to 16.
	Lanes int
	// Backoff is the wait before a message's second attempt. It doubles up to
	// 30 s, and varies by a quarter. Defaults to 100 ms.
	Backoff time.Duration
}

// WithDefaults returns s with a value in every optional field.
func (s Stream) WithDefaults() Stream {
	s.Broker = cmp.Or(s.Broker, "default")
	if s.Provider == "" && s.Units != nil {
		s.Provider = s.Units.Providers()[0].Name()
	}
	s.Lanes = cmp.Or(s.Lanes, 16)
	s.Backoff = cmp.Or(s.Backoff, 100*time.Millisecond)
	return s
}

// Topic is where the stream's messages are.
func (s Stream) Topic() string { return outbox.DefaultTopic(s.Category) }

// Handler is one event type's handler. Make it with [On].
type Handler struct {
	event   reflect.Type
	resolve func(*domain.Domain) (*domain.EventType, error)
	handle  func(ctx context.Context, event any) error
}

// On calls handle for events of type E: in a unit of work that also holds the
// message's inbox row, so what handle saves through repositories or [uow.DB]
// happens once. domain.MetadataFrom(ctx) is the message's metadata; events that
// handle raises have the message as their cause.
//
// handle runs again after a failure, a panic or a conflict, so what it does
// outside the database can happen more than once. An error that wraps [Park]
// parks the message; after any other it is tried again until it succeeds, while
// later messages of its key wait. handle is called concurrently for different
// keys, and should end soon after ctx is done.
func On[E any](handle func(ctx context.Context, event E) error) Handler {
	h := Handler{event: reflect.TypeFor[E](), resolve: domain.EventTypeFor[E]}
	if handle != nil {
		h.handle = func(ctx context.Context, event any) error { return handle(ctx, event.(E)) }
	}
	return h
}

// Park marks err as hopeless: the message goes to the table dead_letters without
// another attempt, with nothing of what its handler has saved, and its key goes
// on. Park(nil) is nil.
func Park(err error) error {
	if err == nil {
		return nil
	}
	return &parkError{err}
}

type parkError struct{ err error }

func (e *parkError) Error() string { return e.err.Error() }

func (e *parkError) Unwrap() error { return e.err }

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
	if s.Lanes < 1 {
		fail("Lanes is %d: at least 1, or 0 for 16", s.Lanes)
	}
	if s.Backoff < 0 {
		fail("Backoff is %v: above 0, or 0 for 100ms", s.Backoff)
	}
	if len(s.Handlers) == 0 {
		fail("Handlers is empty: add subscription.On(func(ctx context.Context, e YourEvent) error {…})")
	}
	if s.Units == nil {
		fail("Units is missing: name the context that handles, as uow.New made it")
	} else if _, err := s.Units.Provider(s.Provider); err != nil {
		fail("Provider: %w", err)
	}
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
		if !t.Foreign && s.Category != "" && t.Category != s.Category {
			fail("Handlers[%d]: %v is an event of %s and never comes by %s; move its handler to a stream of that Category", i, h.event, t.Category, s.Category)
		}
		handlers[t] = h
	}
	return handlers, errors.Join(errs...)
}
