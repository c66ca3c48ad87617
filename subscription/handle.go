package subscription

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/uow"
)

// outcome is how an attempt at a message ended.
type outcome int

const (
	// Settled: the message can be acknowledged.
	handled outcome = iota
	duplicate
	setAside // in dead_letters
	ignored  // not for this subscription

	// Not settled.
	failed
	undone // by the database's outage, which costs the message nothing
	aborted
)

// PanicError is a panic of a handler, or of an upcaster.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("subscription: a handler panicked: %v\n%s", e.Value, e.Stack)
}

// Unwrap returns the value of the panic if that is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// attempt works on m once. ctx is done when the runner stops hard or the broker
// took the message back; what an attempt ends with then is nobody's failure.
func (r *Runner) attempt(ctx context.Context, m *message) (outcome, error) {
	if m.first.IsZero() {
		m.first = time.Now()
	}
	if m.failures > 0 {
		r.retries.Add(1)
	}
	outages := r.databaseOutage.changes.Load()
	result, err := r.try(ctx, m)
	switch {
	case err == nil:
		return result, nil
	case errors.Is(err, errDuplicate):
		return duplicate, nil
	}
	// The inbox knows more than the error does: another consumer may have been
	// faster and be the reason of the failure, or a commit whose answer was lost
	// may have happened. And if there was an outage meanwhile, the failure is the
	// database's.
	has, asking := r.lookUp(ctx, []string{m.id})
	switch {
	case asking != nil:
		return aborted, asking
	case has[m.id]:
		if _, unknown := errors.AsType[*uow.CommitUnknownError](err); unknown {
			return handled, nil
		}
		return duplicate, nil
	case r.databaseOutage.changes.Load() != outages:
		return undone, nil
	}
	return failed, err
}

// failed notes a failure of m and says how long to wait. The log gets the first
// one, and then ever fewer.
func (r *Runner) failed(m *message, err error) time.Duration {
	m.failures++
	r.note(err)
	wait := delay(r.stream.Backoff, max(maxBackoff, r.stream.Backoff), m.failures)
	if n := m.failures; n == 1 || n >= 4 && n&(n-1) == 0 {
		r.log.Warn("message failed; it is tried again, and its key waits", "id", m.id, "type", m.meta.Type, "key", m.key, "failures", n, "next", wait.Round(time.Millisecond), "error", err)
	}
	return wait
}

// count notes how a message with so many deliveries was settled.
func (r *Runner) count(result outcome, deliveries int64) {
	switch result {
	case handled:
		r.handled.Add(1)
	case setAside:
		r.parked.Add(1)
	case ignored:
		r.ignored.Add(1)
	case duplicate:
		r.duplicates.Add(1)
	}
	r.duplicates.Add(deliveries - 1)
}

// try hands m to its handler, or sets it aside.
func (r *Runner) try(ctx context.Context, m *message) (outcome, error) {
	if m.bad != nil {
		return r.park(ctx, m, undecodable, m.bad, 0)
	}
	known := r.stream.Units.Domain()
	if !known.Knows(m.meta.Type) {
		return ignored, nil
	}
	t, err := known.EventNamed(m.meta.Type)
	if err != nil {
		return failed, err
	}
	handler, ok := r.handlers[t]
	if !ok {
		return ignored, nil
	}
	var event any
	err = protect(func() (err error) {
		event, err = known.Decode(m.meta.Type, m.data)
		return err
	})
	if _, ok := errors.AsType[*PanicError](err); ok {
		return failed, err
	}
	if err != nil {
		why := undecodable
		if _, ok := errors.AsType[*domain.UnknownEventError](err); ok && version(m.meta.Type) > t.Version {
			why = newerVersion
		}
		return r.park(ctx, m, why, err, 0)
	}
	err = protect(func() error {
		return r.stream.Units.Do(domain.WithMetadata(ctx, m.meta), func(ctx context.Context) error {
			if err := r.claim(ctx, m); err != nil {
				return err
			}
			return handler.handle(ctx, event)
		})
	})
	_, hopeless := errors.AsType[*parkError](err)
	switch {
	case err == nil:
		return handled, nil
	case !hopeless, ctx.Err() != nil:
		return failed, err
	}
	return r.park(ctx, m, parked, err, m.failures+1)
}

// version is the version in an event's name, 0 if there is none.
func version(wireName string) int {
	n, _ := strconv.Atoi(wireName[strings.LastIndex(wireName, ".v")+len(".v"):])
	return n
}

// claim puts m's inbox row before all else in the unit of work of ctx.
func (r *Runner) claim(ctx context.Context, m *message) error {
	u, err := uow.From(ctx)
	if err != nil {
		return err
	}
	return u.Guard(r.provider.Name(), inboxRow(r.stream.Name, m.id))
}

// park sets m aside and claims it, both or neither.
func (r *Runner) park(ctx context.Context, m *message, why reason, cause error, attempts int) (outcome, error) {
	err := r.stream.Units.Do(ctx, func(ctx context.Context) error {
		if err := r.claim(ctx, m); err != nil {
			return err
		}
		row, err := deadLetterRow(r.provider.DB().Dialect(), r.stream.Name, m, why, cause, attempts)
		if err != nil {
			return err
		}
		u, err := uow.From(ctx)
		if err != nil {
			return err
		}
		return u.Guard(r.provider.Name(), row)
	})
	if err != nil {
		return failed, fmt.Errorf("subscription: park the message: %w; it is parked because: %w", err, cause)
	}
	r.log.Warn("message parked in dead_letters", "id", m.id, "type", m.meta.Type, "key", m.key, "reason", string(why), "error", cause)
	return setAside, nil
}

// lookUp is inboxHas, but waits while the database can't say. It gives up only
// when ctx is done.
func (r *Runner) lookUp(ctx context.Context, ids []string) (map[string]bool, error) {
	for tries := 1; ; tries++ {
		has, err := inboxHas(ctx, r.provider.Reader(), r.stream.Name, ids)
		if err == nil {
			r.databaseUp()
			return has, nil
		}
		if ctx.Err() != nil {
			return nil, err
		}
		r.databaseDown(err)
		if !sleep(ctx, delay(firstReconnect, lastReconnect, tries)) {
			return nil, err
		}
	}
}

// protect turns a panic of f into an error.
func protect(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return f()
}

// sleep says whether it slept its time, and ctx is not done.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
