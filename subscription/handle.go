package subscription

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/apart"
	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/internal/handling"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

// outcome is how an attempt at a message ended.
type outcome int

const (
	// Settled: the message can be acknowledged.
	handled outcome = iota
	duplicate
	setAside  // in dead_letters
	postponed // there, too, until its time has come
	dropped   // the handler wants no effect of it
	ignored   // not for this subscription

	// Not settled.
	failed  // its key waits
	delayed // its key waits, and it isn't the message's fault
	aborted // by a shutdown, or because the broker has it back
	repeat  // it is tried again at once
)

func (o outcome) String() string {
	return [...]string{"handled", "duplicate", "set aside", "postponed", "dropped", "ignored", "failed", "delayed", "aborted", "repeated"}[o]
}

// suspect is after how many crashes a message is handled alone: one of those that
// were handled when the process died killed it.
const suspect = 2

// fullWait is how long the messages of a held key wait that has no room.
const fullWait = 5 * time.Second

// unfitWait is how long a message waits whose handler found a database that takes no writes.
const unfitWait = time.Second

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

// work is a message that a handler can be called with.
type work struct {
	*message
	handler Handler
	event   any
}

// attempt works on m once, and says how long its key waits. ctx is done when the
// runner stops hard or the broker took the message back; what an attempt ends with
// then is nobody's failure.
func (r *Runner) attempt(ctx context.Context, p pass, m *message) (result outcome, wait time.Duration) {
	defer r.valve.done(p)
	if m.first.IsZero() {
		m.first = time.Now()
	}
	if m.tries > 0 {
		r.retries.Add(1)
	}
	for {
		traced, span := r.attempting(ctx, m)
		result, wait, err := r.attemptOnce(traced, p, m)
		span.end(result, err)
		m.why = err
		if result != repeat {
			return result, wait
		}
	}
}

// attemptOnce also returns why an attempt was not handled, if it is over.
func (r *Runner) attemptOnce(ctx context.Context, p pass, m *message) (outcome, time.Duration, error) {
	outages := r.databaseOutage.changes.Load()
	result, err := r.try(ctx, m)
	if err == nil {
		if result == handled && r.valve.succeeded() {
			r.log.Info("messages are handled again: the breaker closes")
		}
		return result, 0, nil
	}
	// The inbox knows more than the error does: another consumer may have been
	// faster and be the reason of the failure, or a commit whose answer was lost
	// may have happened; or the key was held meanwhile, or is free.
	asking := r.lookUp(ctx, m)
	_, unknown := errors.AsType[*uow.CommitUnknownError](err)
	later, isLater := errors.AsType[*laterError](err)
	switch {
	case asking != nil:
		r.takeBack(ctx, m)
		return aborted, 0, err
	case m.done && unknown:
		return handled, 0, nil
	case m.done:
		r.takeBack(ctx, m)
		return duplicate, 0, nil
	case ctx.Err() != nil:
		r.takeBack(ctx, m)
		return aborted, 0, err
	case errors.Is(err, ErrArrived) && m.parked != nil:
		r.takeBack(ctx, m)
		return delayed, replayPoll, nil // Another letter goes first.
	case errors.Is(err, errSettled), errors.Is(err, ErrArrived), errors.Is(err, errFree), errors.Is(err, errFull) && m.behind < r.stream.HoldLimit:
		r.takeBack(ctx, m)
		return repeat, 0, nil
	case errors.Is(err, errFull), errors.Is(err, errNoRoom):
		r.note(err)
		return delayed, fullWait, err
	case r.databaseOutage.changes.Load() != outages: // the failure is the database's
		r.takeBack(ctx, m)
		return delayed, 0, err
	case dberr.Unfit(err): // it answers, and takes no writes: its disk is full, or it is a standby
		r.databaseUnfit(err)
		r.takeBack(ctx, m)
		return delayed, unfitWait, err
	case isLater:
		r.note(err)
		r.takeBack(ctx, m)
		return delayed, max(later.after, time.Millisecond), err // one that goes on at once takes the place of others
	}
	result, wait := r.failed(ctx, p, m, err)
	return result, wait, err
}

// attemptAll handles messages together: all, or none. Those for which there is no
// handler are left out.
func (r *Runner) attemptAll(ctx context.Context, messages []*message) (ignoring map[*message]bool, err error) {
	var all []work
	for _, m := range messages {
		w, _, err := r.prepare(m)
		switch {
		case err != nil:
			return nil, err
		case w.handler.handle == nil:
			if ignoring == nil {
				ignoring = map[*message]bool{}
			}
			ignoring[m] = true
		default:
			all = append(all, w)
		}
	}
	if len(all) > 0 {
		defer r.enter(false)()
		traced, span := r.attemptingAll(ctx, all)
		if err = r.handle(traced, all...); err == nil {
			span.end(handled, nil)
		} else {
			span.end(repeat, err)
		}
	}
	if err == nil && len(all) > 0 {
		r.valve.succeeded()
	}
	return ignoring, err
}

// failed counts an attempt that failed, and parks m after its last.
func (r *Runner) failed(ctx context.Context, p pass, m *message, cause error) (outcome, time.Duration) {
	r.note(cause)
	// A dead letter is read anew for each attempt.
	opened, free := r.valve.failed(p, m.tries == 0 && (m.parked == nil || m.attempts <= 1))
	if opened {
		r.log.Warn("every message fails: they are tried one at a time until one succeeds, and the rest waits", "error", cause)
	}
	m.tries++
	attempts, err := r.home(m).fail(ctx, m, free, cause)
	if err != nil {
		r.note(err)
		return delayed, r.backoff(m.tries)
	}
	m.attempts = attempts
	if attempts >= r.stream.MaxAttempts && !free {
		if result, err := r.park(ctx, m, exhausted, cause); err == nil {
			return result, 0
		} else if ctx.Err() == nil {
			r.note(err)
		}
	}
	wait := r.backoff(m.tries)
	if m.parked != nil {
		wait = r.backoff(max(m.tries, m.attempts))
	}
	if n := m.tries; n == 1 || n >= 4 && n&(n-1) == 0 {
		r.log.Warn("message failed; it is tried again, and its key waits", "id", m.id, "type", m.meta.Type, "key", m.key, "attempts", attempts, "next", wait.Round(time.Millisecond), "error", cause)
	}
	return failed, wait
}

func (r *Runner) backoff(n int) time.Duration {
	return delay(r.stream.Backoff, max(maxBackoff, r.stream.Backoff), n)
}

// count notes how a message with so many deliveries was settled.
func (r *Runner) count(result outcome, deliveries int64) {
	switch result {
	case handled:
		r.handled.Add(1)
	case setAside:
		r.parked.Add(1)
	case postponed:
		r.postponed.Add(1)
	case dropped:
		r.dropped.Add(1)
	case ignored:
		r.ignored.Add(1)
	case duplicate:
		r.duplicates.Add(1)
	}
	r.duplicates.Add(deliveries - 1)
}

// try hands m to its handler, or sets it aside.
func (r *Runner) try(ctx context.Context, m *message) (outcome, error) {
	w, why, err := r.prepare(m)
	switch {
	case err == nil && w.handler.handle == nil:
		return ignored, nil
	case m.behind > 0:
		return r.append(ctx, m)
	case err != nil && why != "":
		return r.park(ctx, m, why, err)
	case err != nil:
		return failed, err
	case m.parked != nil && m.crashes >= suspect:
		return r.park(ctx, m, crashed, fmt.Errorf("%d attempts at it ended with the process while it was replayed", m.crashes))
	case m.attempts >= r.stream.MaxAttempts:
		// Whoever tried it last died before it could park it.
		why, err := exhausted, errors.New(cmp.Or(m.said, "it had its attempts"))
		if m.crashes > 0 {
			why, err = crashed, fmt.Errorf("%d of its %d attempts ended with the process", m.crashes, m.attempts)
		}
		return r.park(ctx, m, why, err)
	}
	// The attempt begins when its turn has come: of several suspects that wait for
	// it, the one that kills the process is to be the only one that had begun.
	defer r.enter(m.crashes >= suspect || m.parked != nil && m.crashes > 0)()
	if m.counted || m.parked != nil || r.presence.careful() {
		if err := r.home(m).begin(ctx, m); err != nil {
			return failed, err
		}
	}
	err = r.handle(ctx, w)
	_, hopeless := errors.AsType[*parkError](err)
	needless, isNeedless := errors.AsType[*dropError](err)
	tooEarly, isEarly := errors.AsType[*earlyError](err)
	switch {
	case err == nil:
		return handled, nil
	case ctx.Err() != nil:
		return failed, err
	case needOf(err) != "": // Another attempt of this build wouldn't mend it.
		return r.park(ctx, m, newerVersion, err)
	case hopeless:
		m.attempts = max(m.attempts, 1)
		return r.park(ctx, m, parked, err)
	case isNeedless:
		return r.drop(ctx, m, err, needless.effect)
	case isEarly:
		return r.early(ctx, m, tooEarly)
	}
	return failed, err
}

// prepare finds m's handler, none if it is not for this subscription. An error
// with a reason is one that another attempt doesn't mend.
func (r *Runner) prepare(m *message) (w work, why reason, err error) {
	known := r.stream.Units.Domain()
	if m.stray {
		return w, "", nil
	}
	if r.needless(m) {
		if m.bad == nil {
			r.tellOfUnknown(m.meta.Type)
		}
		return w, "", nil
	}
	if m.bad != nil {
		return w, m.fault, m.bad
	}
	t, err := known.EventNamed(m.meta.Type)
	if err != nil && !r.stream.Sole {
		return w, "", err
	}
	handler, ok := r.handlers[t]
	switch {
	case !ok && r.stream.Sole:
		return w, newerVersion, &unhandledError{m.meta.Type}
	case !ok:
		return w, "", nil
	}
	var event any
	err = protect(func() (err error) {
		event, err = known.Decode(m.meta.Type, m.data)
		return err
	})
	if _, ok := errors.AsType[*PanicError](err); ok {
		return w, "", err
	}
	if err != nil {
		why := undecodable
		if needOf(err) != "" {
			why = newerVersion
		}
		return w, why, err
	}
	if t.Foreign && outbox.IsPrivate(m.Headers) {
		r.tellOfPrivate(m.meta.Type)
	}
	return work{m, handler, event}, "", nil
}

// needless says whether m is of a type that nobody here reads, as far as it says so.
func (r *Runner) needless(m *message) bool {
	if r.stream.Sole {
		return false
	}
	if m.bad == nil {
		return !r.stream.Units.Domain().Knows(m.meta.Type)
	}
	said := m.data != nil || m.fault == tooLarge
	return said && m.meta.Type != "" && !r.handles(m.meta.Type)
}

// handles says whether there is a handler for a type, in whatever version.
func (r *Runner) handles(wireName string) bool {
	t, err := r.stream.Units.Domain().EventNamed(wireName)
	return err == nil && r.handlers[t].handle != nil
}

// enter waits until handlers may be called, or one alone.
func (r *Runner) enter(alone bool) (leave func()) {
	if alone {
		r.alone.Lock()
		return r.alone.Unlock
	}
	r.alone.RLock()
	return r.alone.RUnlock
}

// handle calls the handlers of messages, in a unit of work that claims them first:
// all of them take effect, or none.
func (r *Runner) handle(ctx context.Context, all ...work) error {
	// The metadata is that of the first for whoever asks outside of handlers. If there is
	// but one, its handler has this context.
	ctx = handling.Context(domain.WithMetadata(ctx, all[0].meta), time.Duration(len(all))*r.stream.Timeout)
	do := func(unit context.Context) error {
		if err := r.guard(unit, r.home(all[0].message).claim(messagesOf(all))...); err != nil {
			return err
		}
		if len(all) == 1 {
			return r.call(unit, all[0])
		}
		for _, w := range all {
			if err := r.callAmong(unit, w); err != nil {
				return err
			}
		}
		return nil
	}
	err := apart.Call(func() error {
		return protect(func() error { return r.stream.Units.Do(ctx, do) })
	})
	if errors.Is(err, apart.ErrEnded) {
		return fmt.Errorf("subscription: a handler failed: %w", err)
	}
	return err
}

func messagesOf(all []work) []*message {
	messages := make([]*message, len(all))
	for i, w := range all {
		messages[i] = w.message
	}
	return messages
}

// callAmong calls a handler of one message of several.
func (r *Runner) callAmong(unit context.Context, w work) (err error) {
	traced, span := r.attempting(unit, w.message)
	result := failed
	defer func() { span.end(result, err) }()
	if err = r.call(r.stream.Units.Enrich(domain.WithMetadata(traced, w.meta)), w); err == nil {
		result = handled
	}
	return err
}

// call calls a handler, for as long as it may take, in a context that has the message's
// metadata.
func (r *Runner) call(unit context.Context, w work) error {
	limit := fmt.Errorf("subscription: the handler took longer than %v (Stream.Timeout)", r.stream.Timeout)
	ctx, cancel := context.WithTimeoutCause(unit, r.stream.Timeout, limit)
	defer cancel()
	r.calls.begin(w.message, r.stream.Timeout)
	defer r.calls.end(w.message)
	defer time.AfterFunc(r.stream.Timeout+deafTime, func() {
		if unit.Err() == nil { // otherwise the end of the session tells
			r.log.Warn("a handler goes on although its time is over: its lane, its key and any connection that it has wait for it; have it end when its context is done",
				"id", w.id, "type", w.meta.Type, "key", w.key, "timeout", r.stream.Timeout)
		}
	}).Stop()
	if w.parked != nil {
		ctx = context.WithValue(ctx, replayedKey{}, w.parked.id)
	}
	err := dberr.Readable(w.handler.handle(ctx, w.event, w.data))
	if unit.Err() == nil && errors.Is(context.Cause(ctx), limit) {
		return errors.Join(limit, err)
	}
	return err
}

// guard puts statements before all else in the unit of work of ctx.
func (r *Runner) guard(ctx context.Context, statements ...uow.Statement) error {
	u, err := uow.From(ctx)
	if err != nil {
		return err
	}
	for _, s := range statements {
		if err := u.Guard(r.provider.Name(), s); err != nil {
			return err
		}
	}
	return nil
}

// do is a unit of work that only settles a message.
func (r *Runner) do(ctx context.Context, statements ...uow.Statement) error {
	return r.stream.Units.Do(ctx, func(ctx context.Context) error { return r.guard(ctx, statements...) })
}

// protect turns a panic of f into an error, and an error that panics into one that doesn't.
func protect(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return dberr.Readable(f())
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
