package uow

import (
	"cmp"
	"context"
	"encoding/json"
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
	Reply    string    // Where a refusal of it is heard.
}

// Send puts a command, own or foreign, into the outbox: with the events of the unit, in
// the order in which they were raised and sent. On the default provider.
//
// For package command.
func (u *Unit) Send(ctx context.Context, command any, o CommandOptions) error {
	p, err := u.standard()
	if err != nil {
		return err
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

// standard is the part of the default provider.
func (u *Unit) standard() (*part, error) {
	if err := u.usable(); err != nil {
		return nil, err
	}
	p, err := u.part("")
	if err != nil {
		return nil, u.doom(err)
	}
	return p, nil
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
	meta := domain.CommandMetadata{Deadline: o.Deadline, Key: o.Key, Reply: o.Reply}
	if outer, ok := domain.MetadataFrom(ctx); ok && outer.Command != nil && !outer.Command.Deadline.IsZero() {
		if d := outer.Command.Deadline; meta.Deadline.IsZero() || d.Before(meta.Deadline) {
			meta.Deadline = d
		}
	}
	return u.message(ctx, id, Message{Type: t.WireName(), Category: t.Category(), Key: key}, data, &meta), nil
}

// Message is one that no aggregate raises, to a stream of this context or another one.
type Message struct {
	Type     string // Its wire name.
	Category string
	Key      string
	Data     any // Becomes a JSON object.
}

// Post puts a message into the outbox. On the default provider.
//
// For packages command and process.
func (u *Unit) Post(ctx context.Context, m Message) error {
	p, err := u.standard()
	if err != nil {
		return err
	}
	data, err := json.Marshal(m.Data)
	if err != nil {
		return u.doom(fmt.Errorf("uow: %s can't be encoded: %w", m.Type, err))
	}
	if _, err := u.outbox(ctx, p); err != nil {
		return u.doom(err)
	}
	p.messages = append(p.messages, u.message(ctx, uuid.Must(uuid.NewV7()).String(), m, data, &domain.CommandMetadata{}))
	return nil
}

func (u *Unit) message(ctx context.Context, id string, m Message, data json.RawMessage, meta *domain.CommandMetadata) outbox.Event {
	identity := cmp.Or(m.Key, id)
	return outbox.Event{
		Metadata: domain.Metadata{
			Origin:      u.origin(ctx),
			ID:          id,
			Type:        m.Type,
			Time:        u.m.clock.Now().UTC(),
			Stream:      m.Category + "-" + identity,
			Category:    m.Category,
			Context:     u.m.cfg.Domain.Name(),
			AggregateID: identity,
			Priority:    domain.PriorityFrom(ctx),
			Command:     meta,
		},
		Key:  m.Key,
		Data: data,
	}
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
