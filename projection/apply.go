package projection

import (
	"context"
	"errors"
	"time"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/apart"
	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/internal/handling"
	"github.com/waybill-go/waybill/uow"
)

// apply commits what a page has, in one batch if all goes well.
func (w *worker) apply(ctx context.Context, p page) error {
	for {
		n, upTo, atHead := len(p.events), p.upTo, p.atHead
		if n > 0 && w.single > 0 {
			n = 1
		}
		switch {
		case n < len(p.events):
			upTo, atHead = p.at[n-1], false
		case p.fault != nil && n == 0:
			return p.fault
		case p.fault != nil:
			upTo, atHead = p.at[n-1], false
		}
		if n == 0 && upTo == w.shard.position && atHead == w.shard.atHead {
			return nil
		}
		good, err := w.commit(ctx, p.events[:n], upTo, atHead)
		if err != nil {
			return w.blame(ctx, p, n, good, err)
		}
		w.single = max(w.single-n, 0)
		p.events, p.at = p.events[n:], p.at[n:]
		if len(p.events) == 0 && p.fault == nil {
			return nil
		}
	}
}

// blame finds out which event an error belongs to. Those before it are committed.
func (w *worker) blame(ctx context.Context, p page, n, good int, err error) error {
	failed, isEvents := errors.AsType[*eventError](err)
	switch {
	case ctx.Err() != nil: // It is to end, or the lease is another's.
		return err
	case dberr.Unfit(err): // No event's fault, which an operator might go past.
		return err
	case isEvents && good > 0:
		// The others once more, without it, as what it has written goes with theirs. What they
		// have changed in rows that are remembered is forgotten.
		w.recent = recent{}
		if _, err := w.commit(ctx, p.events[:good], p.at[good-1], false); err != nil {
			return err
		}
		fallthrough
	case isEvents:
		return w.fault(p, good, failed.err)
	case errors.Is(err, errFenced), errors.Is(err, errMoved), n == 0, dberr.Away(err), w.r.provider.Retryable(err):
		return err
	}
	if _, unknown := errors.AsType[*uow.CommitUnknownError](err); unknown {
		return err
	}
	if n == 1 {
		return w.fault(p, 0, err)
	}
	w.single = n // One of them writes what the database refuses.
	return err
}

func (w *worker) fault(p page, i int, err error) *HandlerError {
	return &HandlerError{Projection: w.program.Name, Position: p.at[i], Type: p.events[i].meta.Type, ID: p.events[i].meta.ID, Err: err}
}

// eventError is what the handler of an event has returned.
type eventError struct{ err error }

func (e *eventError) Error() string { return e.err.Error() }
func (e *eventError) Unwrap() error { return e.err }

// commit handles events and commits what they write with the position. After an
// [eventError] nothing is committed, and good is the index of that event.
func (w *worker) commit(ctx context.Context, events []decoded, upTo int64, atHead bool) (good int, err error) {
	ctx, cancel := context.WithTimeout(handling.Context(ctx, stepTime), stepTime)
	defer cancel()
	next := w.now()
	from := next.position
	next.position, next.atHead, next.events = upTo, atHead, int64(len(events))
	b := &batch{
		program: w.program, build: w.lease.build, db: w.r.provider.DB(), reader: w.r.provider.Reader(), session: w.r.provider.Session(), events: events, recent: &w.recent,
		statements: []uow.Statement{w.lease.advance(w.r.provider, w.r.wait.lease, from, next)},
	}
	defer func() {
		rollback, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = b.session.Rollback(rollback) // nothing, after a commit
		if errors.Is(err, errFenced) {
			switch _, look := w.lease.position(rollback, w.r.provider, from); {
			case look == nil:
				err = errMoved
			case errors.Is(look, errUndone):
				err = look
			}
		}
	}()
	err = apart.Call(func() error {
		for b.at = range events {
			if err := b.handle(ctx, events[b.at]); err != nil || b.broken != nil {
				return err
			}
		}
		return nil
	})
	if b.broken != nil { // whatever the handler made of it
		return 0, b.broken
	}
	if err != nil {
		if ctx.Err() != nil {
			err = errors.Join(err, context.Cause(ctx))
		}
		return b.at, &eventError{err}
	}
	if err := b.collect(); err != nil {
		return 0, err
	}
	if err := b.session.Commit(ctx, b.statements); err != nil {
		return 0, err
	}
	w.recent.keep(b)
	w.advanced(len(events), upTo, atHead)
	return 0, nil
}

// advanced notes how far it has come.
func (w *worker) advanced(events int, upTo int64, atHead bool) {
	w.mu.Lock()
	first, again := w.shard.atHead != atHead, w.shard.Tries > 0
	w.told = false
	w.shard.position, w.shard.atHead, w.shard.Failure = upTo, atHead, Failure{}
	w.rate.add(events)
	w.mu.Unlock()
	if again {
		w.log.Info("projection continues", "position", upTo)
	}
	if first && atHead {
		poke(w.r.changed)
	}
}

// newer says that a newer build has written the event.
func (e *HandlerError) newer() bool {
	unknown, ok := errors.AsType[*domain.UnknownEventError](e.Err)
	return ok && unknown.Newer()
}

// failed notes an error, waits, and finds out where it stands: the answer to a commit may
// have been lost.
func (w *worker) failed(ctx context.Context, err error) error {
	wait := 100 * time.Millisecond
	w.mu.Lock()
	w.shard.heldBy = nil // It doesn't know any more.
	w.mu.Unlock()
	if e, ok := errors.AsType[*HandlerError](err); ok {
		w.mu.Lock()
		w.shard.Tries++
		wait = min(w.r.wait.retry<<min(w.shard.Tries-1, 20), longestRetry)
		w.mu.Unlock()
		if !w.told {
			w.told = true
			w.log.Error("projection has stopped: an event can't be handled; it is retried until it can, or an operator skips it (waybill projections skip)",
				"position", e.Position, "event", e.Type, "id", e.ID, "error", e.Err)
		}
		if err := w.lease.fail(ctx, w.r.provider, w.r.wait.lease, wait, w.shard.position, e); err != nil {
			w.r.outage.Note(ctx, feedWrites, err)
		}
		if e.newer() {
			w.r.rest(place{w.lease.projection, w.lease.build, w.lease.shard}, w.shard.position, wait)
			return errNewer
		}
	} else if w.single == 0 {
		wait = w.r.wait.retry
	}
	w.pause(ctx, wait)
	for ctx.Err() == nil {
		position, err := w.lease.position(ctx, w.r.provider, w.now().position)
		if errors.Is(err, errFenced) {
			return err
		}
		w.r.outage.Note(ctx, feedWrites, err)
		if err == nil {
			w.mu.Lock()
			w.shard.position = position
			w.mu.Unlock()
			return nil
		}
		select {
		case <-w.stop:
			return nil
		default:
			w.pause(ctx, w.r.wait.retry)
		}
	}
	return context.Cause(ctx)
}
