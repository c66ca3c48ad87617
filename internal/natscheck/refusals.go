package natscheck

import (
	"context"
	"errors"
	"sync"

	"github.com/nats-io/nats.go"
)

// refusals hear what a server refuses. It says so on the connection, and never answers the
// request, which would be waited for to no end.
type refusals struct {
	mu     sync.Mutex
	cancel context.CancelCauseFunc // of what is being asked; nil: nothing
}

func listen(nc *nats.Conn) *refusals {
	r := &refusals{}
	nc.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.cancel != nil && errors.Is(err, nats.ErrPermissionViolation) {
			r.cancel(err)
		}
	})
	return r
}

// during asks, and ends with the server's words if it refuses.
func (r *refusals) during(ctx context.Context, ask func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r.set(cancel)
	defer r.set(nil)
	err := ask(ctx)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func (r *refusals) set(cancel context.CancelCauseFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cancel = cancel
}
