// Package command lets a context do what it is asked to: at once, within a unit of
// work, or later, by a message that is never lost.
//
//	lib, err := command.New(command.Config{
//		Units: units,
//		Handlers: []command.Handler{
//			command.Create(loans, Place),
//			command.Update(loans, (*Loan).Confirm),
//			command.On(closeLoan),
//		},
//	})
//	…
//	err = lib.Do(ctx, PlaceLoan{…}, command.Once(key)) // now
//	err = command.Send(ctx, ConfirmLoan{…})            // with the commit of the unit in ctx
package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"time"

	"github.com/google/uuid"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/testclock"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

const (
	defaultKeyRetention = 7 * 24 * time.Hour
	defaultTimeout      = time.Minute
)

// Config is what a context does when asked.
type Config struct {
	// Units are the context's units of work. Required.
	Units *uow.Manager
	// Handlers are one for each command that the domain declares as its own. One that
	// is missing, or there twice, is an error of New.
	Handlers []Handler
	// KeyRetention is how long idempotency keys are known, see [Once]. Defaults to 7 days.
	KeyRetention time.Duration
	// Queue tunes the subscription that handles what comes as messages. Its Name is
	// "<context>.commands", its Category "<context>::commands"; these, Handlers, Units,
	// Broker and Provider are not for you to set.
	Queue subscription.Stream
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// Handlers are a context's handlers. It is safe for concurrent use.
type Handlers struct {
	cfg    Config
	log    *slog.Logger
	byType map[reflect.Type]*bound
	clock  *testclock.Clock // nil: it is no test
}

// bound is a handler and the command that it is for.
type bound struct {
	Handler
	*domain.CommandType
	counters
}

// New checks cfg and returns all its mistakes together.
func New(cfg Config) (*Handlers, error) {
	cfg.KeyRetention = cmp.Or(cfg.KeyRetention, defaultKeyRetention)
	h := &Handlers{cfg: cfg, log: cmp.Or(cfg.Logger, slog.Default()), byType: map[reflect.Type]*bound{}}
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf("command: "+format, args...)) }
	if cfg.Units == nil {
		fail("Config.Units is missing: name the context, as uow.New made it")
	}
	if cfg.KeyRetention < 0 {
		fail("Config.KeyRetention is %v: above 0, or 0 for %v", cfg.KeyRetention, defaultKeyRetention)
	}
	if q := cfg.Queue; q.Name != "" || q.Category != "" || q.Handlers != nil || q.Units != nil || q.Broker != "" || q.Provider != "" {
		fail("Config.Queue tunes a subscription whose Name, Category, Handlers, Units, Broker and Provider are given: leave these out")
	}
	for i, handler := range cfg.Handlers {
		if err := h.add(handler); err != nil {
			fail("Handlers[%d]: %w", i, err)
		}
	}
	if cfg.Units != nil {
		h.clock = testclock.Of(cfg.Units.Providers()[0])
		for _, t := range cfg.Units.Domain().Commands() {
			if !t.Foreign && !h.handles(t) {
				fail("%s has no handler: add command.On, command.Create or command.Update for it, or take its declaration out", t.WireName())
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return h, nil
}

// Must is New for a constructor that has no error to return; it panics instead.
func Must(cfg Config) *Handlers {
	h, err := New(cfg)
	if err != nil {
		panic(err)
	}
	return h
}

func (h *Handlers) handles(t *domain.CommandType) bool {
	for _, b := range h.byType {
		if b.CommandType == t {
			return true
		}
	}
	return false
}

func (h *Handlers) add(handler Handler) error {
	switch {
	case handler.typ == nil:
		return errors.New("it is empty: make it with command.On, Returns, Create or Update")
	case handler.missing != "":
		return fmt.Errorf("%v: its %s", handler.typ, handler.missing)
	case handler.retries < -1:
		return fmt.Errorf("%v: Retries is %d: above 0, 0 for those of uow.Config, or -1 for never", handler.typ, handler.retries)
	case handler.timeout < 0:
		return fmt.Errorf("%v: Timeout is %v: above 0, or 0 for %v", handler.typ, handler.timeout, defaultTimeout)
	}
	if _, dup := h.byType[handler.typ]; dup {
		return fmt.Errorf("%v has a handler already: take one out", handler.typ)
	}
	if h.cfg.Units == nil {
		return nil
	}
	t, err := handler.resolve(h.cfg.Units.Domain())
	switch {
	case err != nil:
		return err
	case t.Foreign:
		return fmt.Errorf("%v is a command for context %s, which handles it: take the handler out", handler.typ, t.Context)
	case handler.byKey && !t.Keyed:
		return fmt.Errorf("%v is KeyedBy(\"\"), and command.Update loads the aggregate that the key names: declare it with the field that has its identity", handler.typ)
	}
	h.byType[handler.typ] = &bound{Handler: handler, CommandType: t}
	return nil
}

// Units are the context's units of work.
func (h *Handlers) Units() *uow.Manager { return h.cfg.Units }

// Do handles a command now, in a unit of work of its own or in the one that ctx
// carries. Events that it raises have the command as their cause. After nil the effect
// is committed, or part of the outer unit. After a [*uow.CommitUnknownError] ask again
// with the same [Once] key.
func (h *Handlers) Do(ctx context.Context, command any, options ...Option) error {
	_, err := h.do(ctx, command, options)
	return err
}

// Call is Do with the result of a handler made by [Returns].
func Call[R any](ctx context.Context, h *Handlers, command any, options ...Option) (R, error) {
	var none R
	r, err := h.do(ctx, command, options)
	if err != nil {
		return none, err
	}
	return as[R](r)
}

// Answer is Do with the result as JSON, for those who don't know its type; nil if the
// handler returns nothing.
func (h *Handlers) Answer(ctx context.Context, command any, options ...Option) (json.RawMessage, error) {
	r, err := h.do(ctx, command, options)
	switch {
	case err != nil:
		return nil, err
	case r.stored != nil:
		return r.stored, nil
	case r.known, !h.byType[reflect.TypeOf(command)].returns:
		return nil, nil
	}
	return json.Marshal(r.value)
}

func (h *Handlers) do(ctx context.Context, command any, options []Option) (result, error) {
	b, ok := h.byType[reflect.TypeOf(command)]
	if !ok {
		return result{}, h.unhandled(command)
	}
	o, err := gather(options)
	if err != nil {
		return result{}, err
	}
	if _, err := uow.From(ctx); o.key != "" && !errors.Is(err, uow.ErrNone) {
		return result{}, fmt.Errorf("command: %s has an idempotency key and is done inside a unit of work, whose rollback would undo what its answer promised: call Do outside of it, or leave command.Once out", b.WireName())
	}
	ctx = h.clock.Context(ctx)
	now := domain.Now(ctx)
	if o.expired(now) && o.key == "" { // With a key it may have been done in time.
		b.expired.Add(1)
		return result{}, &ExpiredError{Type: b.WireName(), Deadline: o.deadline}
	}
	w, err := h.prepare(b, command, o)
	if err != nil {
		return result{}, err
	}
	id := uuid.Must(uuid.NewV7()).String()
	ctx = domain.WithMetadata(ctx, domain.Metadata{
		Origin: domain.OriginFrom(ctx), ID: id, Type: b.WireName(), Time: now,
		Stream: b.Category() + "-" + cmp.Or(w.key, id), Category: b.Category(), Context: b.Context,
		AggregateID: cmp.Or(w.key, id), Priority: domain.PriorityFrom(ctx),
		Command: &domain.CommandMetadata{Deadline: o.deadline, Key: o.key},
	})
	var r result
	err = h.cfg.Units.Do(ctx, func(ctx context.Context) error {
		r, err = h.once(ctx, w)
		return err
	}, uow.Retries(b.retries))
	w.count(err)
	return r, err
}

// unhandled says what is wrong with a command that nobody here handles.
func (h *Handlers) unhandled(command any) error {
	t, err := h.cfg.Units.Domain().CommandTypeOf(command)
	if err != nil {
		return err
	}
	return fmt.Errorf("command: %s is for context %s, which handles it: send it there with command.Send", t.WireName(), t.Context)
}

// Send puts a command, own or foreign, into the outbox of the unit of work in ctx: it
// is handled after the commit, tried until it is done or parked, and in the order of
// its key. A command that its sender must have done before a time has [Before]; one
// that is sent while another is handled inherits that one's, if it is earlier. Outside
// a unit it fails with [uow.ErrNone].
func Send(ctx context.Context, command any, options ...Option) error {
	u, err := uow.From(ctx)
	if err != nil {
		return err
	}
	o, err := gather(options)
	if err != nil {
		return err
	}
	if o.version != 0 {
		return errVersion
	}
	return u.Send(ctx, command, uow.CommandOptions{Deadline: o.deadline, Key: o.key})
}

// Schedule is [Send] at a time, of a command of this context. name is the timer's, for
// [Unschedule]: to schedule it again moves it. Aggregates use [domain.SetTimer], which
// says what holds.
func Schedule(ctx context.Context, name string, at time.Time, command any, options ...Option) error {
	u, err := uow.From(ctx)
	if err != nil {
		return err
	}
	o, err := gather(options)
	if err != nil {
		return err
	}
	if o.version != 0 {
		return errVersion
	}
	return u.Schedule(ctx, name, at, command, uow.CommandOptions{Deadline: o.deadline, Key: o.key})
}

// Unschedule stops a timer that [Schedule] has set; see [domain.StopTimer].
func Unschedule(ctx context.Context, name string) error {
	u, err := uow.From(ctx)
	if err != nil {
		return err
	}
	return u.Unschedule(ctx, name)
}

var errVersion = errors.New("command: IfVersion is of no use to Send and Schedule: by the time that the command is handled the aggregate has another version; leave it out")
