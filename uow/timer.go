package uow

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/rootstate"
	"github.com/waybill-go/waybill/internal/timerdb"
	"github.com/waybill-go/waybill/outbox"
)

// timer is what a unit does to one.
type timer struct {
	owner, name string // Name "": all of the owner's.
	at          time.Time
	event       *outbox.Event // nil: it is stopped
}

// timers notes what an aggregate has set and stopped since it was saved before.
func (u *Unit) timers(ctx context.Context, p *part, e *entry, removed bool) error {
	owner := e.typ.Category + "-" + e.root.ID
	for _, t := range e.root.Timers[e.timersTaken:] {
		if err := u.timer(ctx, p, owner, t, CommandOptions{}); err != nil {
			return fmt.Errorf("uow: timer %q of %s %s: %w", t.Name, e.typ.Name, e.root.ID, err)
		}
		e.timersTaken++
	}
	if removed && !u.m.cfg.NoOutbox && u.m.cfg.Domain.HandlesCommands() {
		p.timers = append(p.timers, timer{owner: owner})
	}
	return nil
}

func (u *Unit) timer(ctx context.Context, p *part, owner string, t rootstate.Timer, o CommandOptions) error {
	switch {
	case t.Name == "":
		return errors.New("it has no name: give it one, by which it can be stopped")
	case t.Stop:
		p.timers = append(p.timers, timer{owner: owner, name: t.Name})
		return nil
	case t.Command == nil:
		return errors.New("its command is nil: give it one of the context's commands, or stop it by StopTimer or Unschedule")
	case t.At.IsZero():
		return errors.New("it has no time: say when it is due")
	}
	e, err := u.command(ctx, t.ID, t.Command, o)
	if err != nil {
		return err
	}
	if e.Category != domain.CommandCategory(u.m.cfg.Domain.Name()) {
		return fmt.Errorf("%s is for another context, and a timer is for the context's own commands: let the handler of one send it", e.Type)
	}
	return u.setTimer(ctx, p, owner, t.Name, t.At, e)
}

func (u *Unit) setTimer(ctx context.Context, p *part, owner, name string, at time.Time, e outbox.Event) error {
	if _, err := u.outbox(ctx, p); err != nil {
		return err
	}
	e.Command.Timer, e.Time = true, at.UTC() // An inbox takes what is much older than it remembers for a message that comes again.
	p.timers = append(p.timers, timer{owner: owner, name: name, at: at, event: &e})
	return nil
}

// SetTimer has a message sent at a time, unless the timer is stopped or set anew before
// it is handled. On the default provider.
//
// For package process.
func (u *Unit) SetTimer(ctx context.Context, owner, name string, at time.Time, m Message) error {
	p, err := u.standard()
	if err != nil {
		return err
	}
	data, err := json.Marshal(m.Data)
	if err == nil {
		err = u.setTimer(ctx, p, owner, name, at, u.message(ctx, uuid.Must(uuid.NewV7()).String(), m, data, &domain.CommandMetadata{}))
	}
	if err != nil {
		return u.doom(fmt.Errorf("uow: timer %q of %s: %w", name, owner, err))
	}
	return nil
}

// StopTimer stops a timer, or all of an owner's if name is empty.
//
// For package process.
func (u *Unit) StopTimer(owner, name string) error {
	p, err := u.standard()
	if err != nil {
		return err
	}
	p.timers = append(p.timers, timer{owner: owner, name: name})
	return nil
}

// timerStatements are the last word on each timer, in the order of their names, so that
// two units don't lock each other out.
func (u *Unit) timerStatements(p *part, partitions int) ([]Statement, error) {
	last := map[[2]string]int{}
	for i, t := range p.timers {
		last[[2]string{t.owner, t.name}] = i
	}
	var chosen []timer
	for i, t := range p.timers {
		removed, ok := last[[2]string{t.owner, ""}]
		if last[[2]string{t.owner, t.name}] == i && (!ok || i >= removed) {
			chosen = append(chosen, t)
		}
	}
	slices.SortFunc(chosen, func(a, b timer) int {
		return cmp.Or(strings.Compare(a.owner, b.owner), strings.Compare(a.name, b.name))
	})
	var all []Statement
	for _, t := range chosen {
		switch {
		case t.name == "":
			all = append(all, Statement{Query: timerdb.StopAll(t.owner), Rows: -1})
		case t.event == nil:
			all = append(all, Statement{Query: timerdb.Stop(t.owner, t.name), Rows: -1})
		default:
			rows, err := u.m.writer.Rows([]outbox.Event{*t.event}, partitions)
			if err != nil {
				return nil, err
			}
			all = append(all, Statement{Query: timerdb.Set(timerdb.Timer{Owner: t.owner, Name: t.name, At: t.at, Row: rows[0]}), Rows: -1})
			if p.due.IsZero() || t.at.Before(p.due) {
				p.due = t.at
			}
		}
	}
	return all, nil
}

// TimerHandled adds the statement that deletes the row of the timer whose message the unit
// handles. It is sent behind the state, and before other timers.
//
// For packages command and process.
func (u *Unit) TimerHandled(s Statement) error {
	if err := u.usable(); err != nil {
		return err
	}
	p, err := u.part("")
	if err != nil {
		return err
	}
	p.handled = append(p.handled, s)
	return nil
}

// Schedule has a command of this context handled at a time. Name is the timer's: to
// schedule it again moves it. On the default provider.
//
// For package command.
func (u *Unit) Schedule(ctx context.Context, name string, at time.Time, command any, o CommandOptions) error {
	return u.schedule(ctx, rootstate.Timer{ID: uuid.Must(uuid.NewV7()).String(), Name: name, At: at, Command: command}, o)
}

// Unschedule stops a timer that Schedule has set.
//
// For package command.
func (u *Unit) Unschedule(ctx context.Context, name string) error {
	return u.schedule(ctx, rootstate.Timer{Name: name, Stop: true}, CommandOptions{})
}

func (u *Unit) schedule(ctx context.Context, t rootstate.Timer, o CommandOptions) error {
	if err := u.usable(); err != nil {
		return err
	}
	p, err := u.part("")
	if err == nil {
		err = u.timer(ctx, p, domain.CommandCategory(u.m.cfg.Domain.Name()), t, o)
	}
	if err != nil {
		return u.doom(fmt.Errorf("uow: timer %q: %w", t.Name, err))
	}
	return nil
}

// OnTimer calls wake after every commit that set a timer, with the earliest time, until
// cancel is called. wake must not block. The engine wakes its promoters so.
func (m *Manager) OnTimer(wake func(provider string, at time.Time)) (cancel func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	id := m.nextID
	m.nextID++
	m.onTimer[id] = wake
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.onTimer, id)
	}
}

func (m *Manager) timerSet(p Provider, at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, wake := range m.onTimer {
		wake(p.Name(), at)
	}
}
