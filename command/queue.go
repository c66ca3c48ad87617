package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/processmsg"
	"github.com/waybill-go/waybill/internal/timerdb"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

// Stream is the subscription that handles the commands which come as messages; ok is
// false if the context has none of its own. An engine runs it.
func (h *Handlers) Stream() (s subscription.Stream, ok bool) {
	if len(h.byType) == 0 {
		return s, false
	}
	name := h.cfg.Units.Domain().Name()
	s = h.cfg.Queue
	s.Name, s.Category = name+".commands", domain.CommandCategory(name)
	s.Units, s.Broker, s.Sole = h.cfg.Units, h.cfg.Units.Broker(), true
	for _, b := range h.byType {
		s.Handlers = append(s.Handlers, b.stream(func(ctx context.Context, command any) error {
			return h.receive(ctx, b, command)
		}))
	}
	return s, true
}

// receive handles a command that came as a message, in the unit that has its inbox row.
func (h *Handlers) receive(ctx context.Context, b *bound, command any) error {
	meta, _ := domain.MetadataFrom(ctx)
	switch sender := meta.Context; {
	case meta.Command == nil:
		return subscription.Park(fmt.Errorf("command: the message says that %s is an event: its sender has to send a command", meta.Type))
	case sender != b.Context && !b.FromOthers:
		return subscription.Park(fmt.Errorf("command: %s came from context %.100q, and others may not send it: declare it with domain.FromOthers(), or discard the message", meta.Type, sender))
	}
	o := options{deadline: meta.Command.Deadline, key: meta.Command.Key}
	const late = "command came too late"
	if o.expired(domain.Now(ctx)) && o.key == "" { // With a key it may have been done in time.
		b.expired.Add(1)
		return h.drop(dropped{&ExpiredError{Type: meta.Type, Deadline: o.deadline}, late}, meta, command)
	}
	if err := o.checkKey(); err != nil { // the sender's own check is no promise
		return subscription.Park(err)
	}
	w, err := h.prepare(b, command, o)
	if err != nil {
		return subscription.Park(err)
	}
	if meta.Command.Timer {
		if err := b.waits(ctx, meta.ID); err != nil {
			return err
		}
		if err := over(ctx, meta.ID); err != nil {
			return err
		}
	}
	_, err = h.once(ctx, w)
	w.count(err)
	if w.late {
		return h.drop(dropped{err, late}, meta, command)
	}
	if _, reused := errors.AsType[*KeyReusedError](err); reused {
		return subscription.Park(err)
	}
	if Refused(err) {
		return h.drop(dropped{err, "command refused"}, meta, command)
	}
	return err
}

// drop ends a message without effect, and its timer with it. The process that has sent
// the command hears why, if it wants to.
func (h *Handlers) drop(why error, meta domain.Metadata, command any) error {
	to, process, id, replies := processmsg.ParseAddress(meta.Command.Reply)
	replies = replies && to == meta.Context // Nobody sends others what they didn't ask for.
	if !meta.Command.Timer && !replies {
		return subscription.Drop(why)
	}
	return subscription.DropWith(why, func(ctx context.Context) error {
		u, err := uow.From(ctx)
		if err == nil && meta.Command.Timer {
			err = u.Exec("", uow.Statement{Query: timerdb.Handled(meta.ID), Rows: -1}) // It may have been stopped meanwhile.
		}
		if err != nil || !replies {
			return err
		}
		_, data, err := h.cfg.Units.Domain().EncodeCommand(command)
		if err != nil {
			return err
		}
		return u.Post(ctx, uow.Message{
			Type: processmsg.WireName(processmsg.RefusedName), Category: processmsg.Category(to), Key: processmsg.Key(process, id),
			Data: processmsg.Refused{Process: process, ID: id, Command: meta.Type, Data: data, Reason: why.Error()},
		})
	})
}

// dropped is why a message ends without effect, in the words of commands, which the log has.
type dropped struct {
	error
	as string
}

func (e dropped) Unwrap() error     { return e.error }
func (e dropped) DroppedAs() string { return e.as }

// errStopped is a timer that has been stopped, or moved, since its message was sent.
var errStopped = errors.New("command: its timer was stopped or moved")

// waits looks whether the timer of a message is still there.
func (b *bound) waits(ctx context.Context, id string) error {
	db, err := uow.DB(ctx)
	if err != nil {
		return err
	}
	there, err := timerdb.Waits(ctx, db, id)
	if err == nil && !there {
		b.stopped.Add(1)
		return subscription.Drop(dropped{errStopped, "timer has no effect"})
	}
	return err
}

// over has a timer's row deleted, behind the state of what its handler changes: all
// transactions lock an aggregate, then its timers. It is said before the handler runs,
// which may set the timer anew. If somebody has stopped it since it
// was looked for, nothing commits, and the next look ends the message.
func over(ctx context.Context, id string) error {
	u, err := uow.From(ctx)
	if err != nil {
		return err
	}
	return u.TimerHandled(uow.Statement{Query: timerdb.Handled(id), Rows: 1, Else: subscription.RetryAfter(errStopped, time.Millisecond)})
}
