package uow

import (
	"context"
	"reflect"
	"runtime"
)

// call runs the function that was given to Do, in a frame of its own: see Nested.
//
//go:noinline
func (u *Unit) call(ctx context.Context, fn func(context.Context) error) error {
	u.running = true
	defer func() { u.running = false }()
	return fn(context.WithValue(ctx, unitKey{}, u))
}

var callName = runtime.FuncForPC(reflect.ValueOf((*Unit).call).Pointer()).Name()

// Nested says whether u was begun within the function of another unit, which its
// context knows nothing of: the function is further down on this goroutine's stack. A
// goroutine that such a function has started is on its own.
//
// It is for providers whose transactions wait for each other, and takes some
// microseconds: ask it where one has to wait anyway.
func (u *Unit) Nested() bool {
	calls := 0
	if u.running {
		calls = -1 // its own
	}
	pcs := make([]uintptr, 128)
	for skip := 1; ; skip += len(pcs) {
		n := runtime.Callers(skip, pcs)
		for frames, more := runtime.CallersFrames(pcs[:n]), n > 0; more; {
			var frame runtime.Frame
			if frame, more = frames.Next(); frame.Function == callName {
				calls++
			}
		}
		if n < len(pcs) {
			return calls > 0
		}
	}
}

// SameContext says whether u and other were given the same context, or one was made of
// the other's by adding values.
func (u *Unit) SameContext(other *Unit) bool {
	a, b := u.opts.outer, other.opts.outer
	if a.Done() != nil {
		return a.Done() == b.Done()
	}
	return reflect.TypeOf(a).Comparable() && a == b
}

// Owned is implemented by sessions that want to know whose they are.
//
// For authors of providers.
type Owned interface{ OwnedBy(u *Unit) }
