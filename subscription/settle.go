package subscription

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/trace"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/tracing"
)

// errFull is what an attempt ends with at a message whose key is held and has no
// room for more.
var errFull = errors.New("subscription: the key is held, and as many of its messages are set aside as may be (Stream.HoldLimit): replay or discard what is parked")

// errNoRoom is what it ends with where the table has no room.
var errNoRoom = errors.New("subscription: as many messages wait in dead_letters as may (Stream.WaitLimit): see why they wait, and replay or discard what is parked")

// home is where m is.
func (r *Runner) home(m *message) home {
	if m.parked != nil {
		return r.letters
	}
	return r.incoming
}

func (r *Runner) takeBack(ctx context.Context, m *message) {
	if r.over.Load() {
		return // the database may be closed
	}
	if err := r.home(m).takeBack(ctx, m); err != nil {
		r.note(err) // it counts as one that nobody saw the end of
	}
}

// park sets m aside and claims it, both or neither.
func (r *Runner) park(ctx context.Context, m *message, why reason, cause error) (outcome, error) {
	statements, err := r.home(m).park(m, why, cause)
	if err == nil {
		err = r.do(ctx, statements...)
	}
	if err != nil {
		return failed, fmt.Errorf("subscription: park the message: %w; it is parked because: %w", err, cause)
	}
	cause = brief(cause)
	tracing.Fail(trace.SpanFromContext(ctx), cause)
	r.log.Warn("message parked in dead_letters", "id", m.id, "type", m.meta.Type, "key", m.key, "reason", string(why), "attempts", m.attempts, "key_held", r.stream.OnParked == Hold, "error", cause)
	return setAside, nil
}

func (r *Runner) drop(ctx context.Context, m *message, cause error, effect func(context.Context) error) (outcome, error) {
	err := protect(func() error {
		return r.stream.Units.Do(domain.WithMetadata(ctx, m.meta), func(ctx context.Context) error {
			if err := r.guard(ctx, r.home(m).drop(m)...); err != nil || effect == nil {
				return err
			}
			return effect(ctx)
		})
	})
	if err != nil {
		return failed, fmt.Errorf("subscription: drop the message: %w; it is dropped because: %w", err, cause)
	}
	trace.SpanFromContext(ctx).RecordError(cause)
	said, why := "message dropped by its handler", "error"
	if by, ok := errors.AsType[interface {
		error
		DroppedAs() string // as a command's handler has words of its own
	}](cause); ok {
		said, why = by.DroppedAs(), "reason"
	}
	r.log.Info(said, "id", m.id, "type", m.meta.Type, "key", m.key, why, cause) //nolint:sloglint // it is one of few
	return dropped, nil
}

// append puts m behind the parked message of its key.
func (r *Runner) append(ctx context.Context, m *message) (outcome, error) {
	if m.behind >= r.stream.HoldLimit {
		return failed, errFull
	}
	if _, err := r.room.left(ctx); err != nil {
		return failed, err
	}
	row, err := appendRow(r.provider.DB().Dialect(), r.stream, m)
	if err == nil {
		err = r.do(ctx, r.incoming.settle(m, row)...)
	}
	if err != nil {
		return failed, fmt.Errorf("subscription: put the message behind those of its key: %w", err)
	}
	r.room.add(1)
	return setAside, nil
}

// lookUp reads m's record again.
func (r *Runner) lookUp(ctx context.Context, m *message) error {
	records, err := r.look(ctx, r.home(m), []*message{m})
	if err == nil {
		m.record = records[m]
		m.counted = m.counted || m.attempts > 0
	}
	return err
}

// look waits while the database can't say. It gives up only when ctx is done.
func (r *Runner) look(ctx context.Context, h home, messages []*message) (map[*message]record, error) {
	for tries := 1; ; tries++ {
		records, err := h.look(ctx, messages)
		if err == nil {
			r.databaseUp()
			return records, nil
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
