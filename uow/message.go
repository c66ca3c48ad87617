package uow

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/dbtext"
	"github.com/waybill-go/waybill/internal/tracing"
	"github.com/waybill-go/waybill/outbox"
)

// CommandOptions are what the sender of a command says besides.
type CommandOptions struct {
	Deadline time.Time // Zero: none but that of the command that is being handled.
	Key      string    // The idempotency key.
}

// Send puts a command, own or foreign, into the outbox: with the events of the unit, in
// the order in which they were raised and sent. On the default provider.
//
// For package command.
func (u *Unit) Send(ctx context.Context, command any, o CommandOptions) error {
	if err := u.usable(); err != nil {
		return err
	}
	p, err := u.part("")
	if err != nil {
		return u.doom(err)
	}
	e, err := u.command(ctx, uuid.Must(uuid.NewV7()).String(), command, o)
	if err != nil {
		return u.doom(err)
	}
	if _, err := u.outbox(ctx, p); err != nil {
		return u.doom(err)
	}
	p.messages = append(p.messages, e)
	return nil
}

// command gives a command its bytes and everything that is known about it.
func (u *Unit) command(ctx context.Context, id string, command any, o CommandOptions) (outbox.Event, error) {
	t, data, err := u.m.cfg.Domain.EncodeCommand(command)
	if err != nil {
		return outbox.Event{}, fmt.Errorf("uow: %w", err)
	}
	if u.m.cfg.NoOutbox {
		return outbox.Event{}, fmt.Errorf("uow: %s can't be sent: context %s has no outbox (uow.Config.NoOutbox)", t.WireName(), u.m.cfg.Domain.Name())
	}
	key := t.Key(command)
	if problem := dbtext.KeyProblem(key); problem != "" {
		return outbox.Event{}, fmt.Errorf("uow: the key %.60q of command %s %s", key, t.WireName(), problem)
	}
	identity := cmp.Or(key, id)
	meta := domain.CommandMetadata{Deadline: o.Deadline, Key: o.Key}
	if outer, ok := domain.MetadataFrom(ctx); ok && outer.Command != nil && !outer.Command.Deadline.IsZero() {
		if d := outer.Command.Deadline; meta.Deadline.IsZero() || d.Before(meta.Deadline) {
			meta.Deadline = d
		}
	}
	return outbox.Event{
		Metadata: domain.Metadata{
			Origin:      u.origin(ctx),
			ID:          id,
			Type:        t.WireName(),
			Time:        time.Now().UTC(),
			Stream:      t.Category() + "-" + identity,
			Category:    t.Category(),
			Context:     u.m.cfg.Domain.Name(),
			AggregateID: identity,
			Priority:    domain.PriorityFrom(ctx),
			Command:     &meta,
		},
		Key:  key,
		Data: data,
	}, nil
}

// origin is that of ctx, made whole.
func (u *Unit) origin(ctx context.Context) domain.Origin {
	origin := domain.OriginFrom(ctx)
	if origin.CorrelationID == "" {
		if u.correlation == "" {
			u.correlation = uuid.Must(uuid.NewV7()).String()
		}
		origin.CorrelationID = u.correlation
	}
	// A span says more than what came with the request that it serves.
	origin.Traceparent = cmp.Or(tracing.Traceparent(ctx), origin.Traceparent)
	return origin
}
