package whole

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

// Alarm has timers, and a log of what units and handlers have done to it: as it is written
// only at the version that it was loaded with, the log has the order of their commits.
type Alarm struct {
	domain.Root
	Log []step
}

// step is a line of that log: a timer was set, stopped or rang, a command was sent or done.
type step struct {
	What, Name, Token string
	Unit              string    // that has done it; "": a handler
	At, Now           time.Time // when a timer is due; and of the step
}

// Ring is what a timer does. Each that is set has a token of its own.
type Ring struct {
	Alarm string `json:"alarm"`
	Name  string `json:"name"`
	Token string `json:"token"`
}

// Ask is sent through the outbox.
type Ask struct {
	Alarm string `json:"alarm"`
	Token string `json:"token"`
}

const (
	commandTopic = "bank.commands"
	commandGroup = "bank.commands"
	alarms       = 2
	// changes is how many different changes of an alarm there are.
	changes = 5 * 3 * 6 * alarms
)

// change is what a unit does to an alarm.
type change struct {
	what, alarm, name string
	token, unit       string
	in                time.Duration
	once              string // a key
	pays              bool   // for a trip
}

var delays = []time.Duration{-time.Second, 5 * time.Millisecond, 300 * time.Millisecond, 1100 * time.Millisecond, 4 * time.Second, 12 * time.Second}

// changeOf is the n-th change, by a unit.
func changeOf(n int, id string) *change {
	c := &change{what: "set", name: string("abc"[n/5%3]), in: delays[n/15%6], alarm: fmt.Sprint("alarm-", n/90%alarms), token: id, unit: id}
	switch n % 5 {
	case 3:
		c.what = "stop"
	case 4:
		if c.what = "sent"; c.name == "c" {
			c.once = fmt.Sprint("key-", n/15%2, "-of-", c.alarm)
			c.token = c.once
		}
	}
	return c
}

// addAlarms has a database begin with them.
func addAlarms(ctx context.Context, p uow.Provider) error {
	units, err := uow.New(uow.Config{Domain: bank, Providers: []uow.Provider{p}})
	if err != nil {
		return err
	}
	repo := repository.New[*Alarm](units)
	for n := range alarms {
		if err := repo.Save(ctx, &Alarm{Root: domain.RootWithID(fmt.Sprint("alarm-", n))}); err != nil {
			return err
		}
	}
	return nil
}

// apply has a unit change an alarm.
func (p *process) apply(ctx context.Context, c *change) error {
	if c.what == "begin" || c.what == "pay" {
		return p.travel(ctx, c)
	}
	a, err := p.alarms.Get(ctx, c.alarm)
	if err != nil {
		return err
	}
	switch c.what {
	case "set":
		err = a.set(ctx, step{Name: c.name, Token: c.token, Unit: c.unit, At: time.Now().Add(c.in)})
	case "stop":
		a.log(step{What: "stop", Name: c.name, Unit: c.unit})
		if c.name == "c" {
			err = command.Unschedule(ctx, c.alarm+"-c")
		} else {
			domain.StopTimer(a, c.name)
		}
	case "sent":
		a.log(step{What: "sent", Token: c.token, Unit: c.unit})
		err = command.Send(ctx, Ask{c.alarm, c.token}, command.Once(c.once))
	}
	if err != nil {
		return err
	}
	return p.alarms.Save(ctx, a)
}

func (a *Alarm) log(s step) {
	s.Now = time.Now()
	a.Log = append(slices.Clone(a.Log), s)
}

// set sets one of its timers: of its own, or one that the unit schedules.
func (a *Alarm) set(ctx context.Context, s step) error {
	s.What = "set"
	a.log(s)
	ring := Ring{a.ID(), s.Name, s.Token}
	if s.Name == "c" {
		return command.Schedule(ctx, a.ID()+"-c", s.At, ring)
	}
	domain.SetTimer(a, s.Name, s.At, ring)
	return nil
}

// handlers are those of rings and of what is asked.
func (p *process) handlers() (*command.Handlers, error) {
	plan := p.w.plan
	return command.New(command.Config{
		Units:    p.units,
		Handlers: append(p.travelHandlers(), command.On(p.ring), command.On(p.asked)),
		Queue: subscription.Stream{
			Lanes: plan.lanes, Batch: plan.batch, MaxAttempts: maxAttempts, Backoff: 50 * time.Millisecond, OnParked: plan.policy, Timeout: 10 * time.Second,
		},
	})
}

var errNo = errors.New("whole: the command is refused")

// number is which unit has made a token.
func number(token string) (n int) {
	_, _ = fmt.Sscanf(token, "op%d", &n)
	return n
}

// refused says whether a command with this token is.
func refused(token string) bool { return number(token)%6 == 5 }

// ring is what the timers' commands do: some set the timer anew, or stop another one.
func (p *process) ring(ctx context.Context, c Ring) error {
	a, err := p.begin(ctx, c.Alarm, c.Token)
	if err != nil {
		return err
	}
	a.log(step{What: "ring", Name: c.Name, Token: c.Token})
	if n := number(c.Token); n%4 == 0 && strings.Count(c.Token, "+") < 2 {
		err = a.set(ctx, step{Name: c.Name, Token: c.Token + "+", At: time.Now().Add(delays[n/4%4])})
	} else if n%4 == 1 && c.Name == "a" {
		a.log(step{What: "stop", Name: "b"})
		domain.StopTimer(a, "b")
	}
	if err != nil {
		return err
	}
	return p.alarms.Save(ctx, a)
}

func (p *process) asked(ctx context.Context, c Ask) error {
	a, err := p.begin(ctx, c.Alarm, c.Token)
	if err != nil {
		return err
	}
	a.log(step{What: "done", Token: c.Token})
	return p.alarms.Save(ctx, a)
}

// begin is how the handlers of commands do.
func (p *process) begin(ctx context.Context, alarm, token string) (*Alarm, error) {
	if err := p.w.ask(ctx, p, &request{kind: "handle", what: fmt.Sprint(alarm, " ", token), do: func() {}}); err != nil {
		return nil, err
	}
	if err := p.mood(token, !p.w.poisonsEvents() && token == fmt.Sprint("op", 2*p.w.plan.poisoned)); err != nil {
		return nil, err
	}
	if refused(token) {
		return nil, command.Refuse(errNo)
	}
	return p.alarms.Get(ctx, alarm)
}

// poisonsEvents says whether poison is among the events, or else among the commands.
func (w *world) poisonsEvents() bool { return !w.plan.timers || w.plan.seed%2 == 0 }
