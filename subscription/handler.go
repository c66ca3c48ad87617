package subscription

import (
	"context"
	"reflect"
	"time"

	"github.com/waybill-go/waybill/domain"
)

// Handler is one event type's handler. Make it with [On].
type Handler struct {
	event   reflect.Type
	resolve func(*domain.Domain) (*domain.EventType, error)
	handle  func(ctx context.Context, event any, data []byte) error
}

// On calls handle for events of type E: in a unit of work that also holds the
// message's inbox row, so what handle saves through repositories or [uow.DB]
// happens once. domain.MetadataFrom(ctx) is the message's metadata; events that
// handle raises have the message as their cause.
//
// After an error or a panic nothing of what handle saved remains, and the message
// is tried again, up to Stream.MaxAttempts, while later messages of its key wait;
// then it is parked in the table dead_letters. An error that wraps one of [Park],
// [Drop] or [RetryAfter] says otherwise. Whatever handle does outside the
// database can happen more than once.
//
// handle is called concurrently for different keys, and should end soon after ctx
// is done: Stream.Timeout is over, the process stops, or the broker has given the
// message to another.
func On[E any](handle func(ctx context.Context, event E) error) Handler {
	h := Handler{event: reflect.TypeFor[E](), resolve: domain.EventTypeFor[E]}
	if handle != nil {
		h.handle = func(ctx context.Context, event any, _ []byte) error { return handle(ctx, event.(E)) }
	}
	return h
}

// OnType is [On] for a type that only the running program knows.
func OnType(event reflect.Type, handle func(ctx context.Context, event any) error) Handler {
	return onType(event, func(ctx context.Context, event any, _ []byte) error { return handle(ctx, event) })
}

// OnData is [On] for an event's JSON as it has come, in whatever version. One that the
// domain can't decode is parked all the same.
func OnData(t *domain.EventType, handle func(ctx context.Context, data []byte) error) Handler {
	return onType(t.GoType(), func(ctx context.Context, _ any, data []byte) error { return handle(ctx, data) })
}

func onType(event reflect.Type, handle func(ctx context.Context, event any, data []byte) error) Handler {
	return Handler{event: event, resolve: func(d *domain.Domain) (*domain.EventType, error) {
		return d.EventTypeOf(reflect.Zero(event).Interface())
	}, handle: handle}
}

// Park marks err as hopeless: the message is parked without another attempt.
// Park(nil) is nil.
func Park(err error) error {
	if err == nil {
		return nil
	}
	return &parkError{err}
}

type parkError struct{ err error }

func (e *parkError) Error() string { return e.err.Error() }
func (e *parkError) Unwrap() error { return e.err }

// Drop says that the message needs no effect, because of err: nothing of what the
// handler has saved remains, and the message is done with. It is counted, and err
// is logged. Drop(nil) is nil.
func Drop(err error) error {
	if err == nil {
		return nil
	}
	return &dropError{err: err}
}

// DropWith is [Drop] with an effect of its own: effect is called in the unit of work
// that notes that the message is done with. If it fails, so has the attempt.
func DropWith(err error, effect func(ctx context.Context) error) error {
	if err == nil {
		return nil
	}
	return &dropError{err, effect}
}

type dropError struct {
	err    error
	effect func(ctx context.Context) error
}

func (e *dropError) Error() string { return e.err.Error() }
func (e *dropError) Unwrap() error { return e.err }

// RetryAfter says that the message can't be handled yet, because of err: it is
// tried again after d, and later messages of its key wait. It costs the message
// no attempt, so there is no end to it but the handler's. RetryAfter(nil, d) is
// nil.
func RetryAfter(err error, d time.Duration) error {
	if err == nil {
		return nil
	}
	return &laterError{err, d}
}

type laterError struct {
	err   error
	after time.Duration
}

func (e *laterError) Error() string { return e.err.Error() }
func (e *laterError) Unwrap() error { return e.err }

// Replayed says whether the handler with this ctx has a message that was parked
// before. Later messages of its key may have been handled meanwhile, if
// Stream.OnParked was Skip.
func Replayed(ctx context.Context) bool { return ctx.Value(replayedKey{}) != nil }

type replayedKey struct{}
