package command

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/absent"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

// Handler is the one handler of a command. Make it with [On], [Returns], [Create] or
// [Update].
type Handler struct {
	typ     reflect.Type
	resolve func(*domain.Domain) (*domain.CommandType, error)
	call    func(ctx context.Context, command any) (any, error)
	// stream is the same for a subscription.
	stream  func(handle func(ctx context.Context, command any) error) subscription.Handler
	missing string // What was given as nil.
	byKey   bool   // It loads what the key names.
	returns bool
	retries int
	timeout time.Duration
}

// HandlerOption adjusts a handler.
type HandlerOption interface{ applyToHandler(*Handler) }

type handlerOption func(*Handler)

func (f handlerOption) applyToHandler(h *Handler) { f(h) }

// Retries is how often the unit runs again after conflicts; see [uow.Retries]. Defaults
// to uow.Config.MaxRetries. It is for Do; what comes as a message is tried as its
// subscription says.
func Retries(n int) HandlerOption { return handlerOption(func(h *Handler) { h.retries = n }) }

// Timeout is how long the handler may take, each time that it runs. Then its ctx is
// done. Defaults to 1 min.
func Timeout(d time.Duration) HandlerOption { return handlerOption(func(h *Handler) { h.timeout = d }) }

// On calls handle for commands of type C, in a unit of work that also holds the
// command's idempotency key or, if it came as a message, its inbox row.
// domain.MetadataFrom(ctx) is the command's metadata.
//
// For a command that came as a message, [subscription.Park], [subscription.Drop] and
// [subscription.RetryAfter] mean what they mean there.
func On[C any](handle func(ctx context.Context, c C) error, options ...HandlerOption) Handler {
	h := handlerFor[C](options)
	if handle == nil {
		h.missing = "function is nil"
		return h
	}
	h.call = func(ctx context.Context, c any) (any, error) { return nil, handle(ctx, c.(C)) }
	return h
}

// Returns is [On] with a result, for [Call]. It is stored as JSON with the idempotency
// key, for those who ask again.
func Returns[C, R any](handle func(ctx context.Context, c C) (R, error), options ...HandlerOption) Handler {
	h := handlerFor[C](options)
	h.returns = true
	if handle == nil {
		h.missing = "function is nil"
		return h
	}
	h.call = func(ctx context.Context, c any) (any, error) { return handle(ctx, c.(C)) }
	return h
}

// Creator and Updater are what [Create] and [Update] need of a repository.
type (
	Creator[A domain.AggregateRoot] interface {
		Save(ctx context.Context, a A) error
	}
	Updater[A domain.AggregateRoot] interface {
		Update(ctx context.Context, id string, change func(A) error, opts ...uow.Option) error
	}
)

// Create saves the aggregate that a constructor makes of the command.
func Create[A domain.AggregateRoot, C any](repo Creator[A], construct func(C) (A, error), options ...HandlerOption) Handler {
	if absent.Is(repo) || construct == nil {
		h := handlerFor[C](options)
		h.missing = "repository or its constructor is nil"
		return h
	}
	return On(func(ctx context.Context, c C) error {
		a, err := construct(c)
		if err != nil {
			return err
		}
		return repo.Save(ctx, a)
	}, options...)
}

// Update loads the aggregate that the command's key names, lets act change it and saves
// it. It knows [IfVersion].
func Update[A domain.AggregateRoot, C any](repo Updater[A], act func(A, C) error, options ...HandlerOption) Handler {
	if absent.Is(repo) || act == nil {
		h := handlerFor[C](options)
		h.missing = "repository or its function is nil"
		return h
	}
	h := On(func(ctx context.Context, c C) error {
		w, _ := ctx.Value(workKey{}).(*work)
		return repo.Update(ctx, w.key, repository.At(w.version, func(a A) error { return act(a, c) }))
	}, options...)
	h.byKey = true
	return h
}

func handlerFor[C any](options []HandlerOption) Handler {
	h := Handler{
		typ: reflect.TypeFor[C](), resolve: domain.CommandTypeFor[C], timeout: defaultTimeout,
		stream: func(handle func(context.Context, any) error) subscription.Handler {
			return subscription.On(func(ctx context.Context, c C) error { return handle(ctx, c) })
		},
	}
	for i, o := range options {
		if o == nil {
			h.missing = fmt.Sprintf("option %d is nil: take it out", i+1)
			continue
		}
		o.applyToHandler(&h)
	}
	if h.timeout == 0 {
		h.timeout = defaultTimeout
	}
	return h
}
