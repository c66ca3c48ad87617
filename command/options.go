package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/waybill-go/waybill/internal/dbtext"
)

// Option adjusts one command.
type Option interface{ applyToCommand(*options) }

type options struct {
	key      string
	version  int64
	deadline time.Time
}

type option func(*options)

func (f option) applyToCommand(o *options) { f(o) }

func gather(all []Option) (options, error) {
	var o options
	for i, option := range all {
		if option == nil {
			return o, fmt.Errorf("command: option %d is nil: take it out", i+1)
		}
		option.applyToCommand(&o)
	}
	if err := o.checkKey(); err != nil {
		return o, err
	}
	if o.version < 0 {
		return o, fmt.Errorf("command: IfVersion(%d): versions start at 1", o.version)
	}
	return o, nil
}

func (o options) checkKey() error {
	if problem := dbtext.KeyProblem(o.key); problem != "" {
		return fmt.Errorf("command: the idempotency key %.60q %s", o.key, problem)
	}
	return nil
}

func (o options) expired(now time.Time) bool { return !o.deadline.IsZero() && now.After(o.deadline) }

// Once gives a command an idempotency key, within its tenant and type: of all that have
// it one takes effect, and the others get its result, whoever runs them. The key is
// stored in the unit's transaction, so a handler that failed has used up nothing. A key
// that comes with another command is a [*KeyReusedError]. "" is no key. It has at most
// 1024 bytes, and is known for Config.KeyRetention.
//
// Do with a key begins its own unit: inside another one it is an error.
func Once(key string) Option { return option(func(o *options) { o.key = key }) }

// IfVersion demands a version of the aggregate that [Update] loads; another one is a
// [*repository.PreconditionError]. 0 demands nothing.
func IfVersion(version int64) Option { return option(func(o *options) { o.version = version }) }

// VersionFrom is what [IfVersion] demands of the command that ctx is for, for a handler
// made by [On] to give to repository.At; 0 is nothing.
func VersionFrom(ctx context.Context) int64 {
	if w, ok := ctx.Value(workKey{}).(*work); ok {
		return w.version
	}
	return 0
}

// Before gives a command a deadline: later it is not handled any more, but an
// [*ExpiredError], and counted. It travels with the message, and holds for the commands
// that its handler sends.
func Before(t time.Time) Option { return option(func(o *options) { o.deadline = t }) }

// Refuse says that the domain declines a command, because of err: nothing of what the
// handler has saved remains, and a command that came as a message is done with instead
// of being tried again. Do returns it as it is. Refuse(nil) is nil.
func Refuse(err error) error {
	if err == nil {
		return nil
	}
	return &refusal{err}
}

type refusal struct{ err error }

func (e *refusal) Error() string { return e.err.Error() }
func (e *refusal) Unwrap() error { return e.err }

// Refused says whether an error came from [Refuse].
func Refused(err error) bool {
	_, ok := errors.AsType[*refusal](err)
	return ok
}

// KeyReusedError is an idempotency key that was used for another command.
type KeyReusedError struct{ Key, Type string }

func (e *KeyReusedError) Error() string {
	return fmt.Sprintf("command: the idempotency key %.100q was used for another %s: take a new key for a new request", e.Key, e.Type)
}

// ExpiredError is a command whose deadline is over.
type ExpiredError struct {
	Type     string
	Deadline time.Time
}

func (e *ExpiredError) Error() string {
	return fmt.Sprintf("command: %s was to be done before %s", e.Type, e.Deadline.UTC().Format(time.RFC3339))
}
