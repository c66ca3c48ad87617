package whole

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/domain"
	managers "github.com/waybill-go/waybill/process"
	"github.com/waybill-go/waybill/subscription"
)

// Trip begins a journey, and has a log of what the journey's commands did.
type Trip struct {
	domain.Root
	Log []string
}

// Bill is paid, in another stream than that of the trip.
type Bill struct {
	domain.Root
	Paid bool
}

type (
	// Begun and Paid are what a journey hears.
	Begun struct {
		Trip string `json:"trip"`
	}
	Paid struct {
		Trip string `json:"trip"`
	}
	// Book, Ship and Cancel are what it sends: Cancel compensates for Book.
	Book struct {
		Trip  string `json:"trip"`
		Token string `json:"token"`
	}
	Ship struct {
		Trip  string `json:"trip"`
		Token string `json:"token"`
	}
	Cancel struct {
		Trip  string `json:"trip"`
		Token string `json:"token"`
	}
)

// Journey is a process: it books, and ships what is paid in time, and cancels what isn't or
// could not be booked. It has a log of what it heard.
type Journey struct {
	domain.ProcessRoot
	Log []step
}

// hear notes a message, or fails: it knows nothing but the time to have that depend on.
func (j *Journey) hear(what string, at time.Time) error {
	if j.Now().UnixMicro()%7 == 0 {
		return errFails
	}
	j.Log = append(j.Log, step{What: what, At: at, Now: j.Now()})
	return nil
}

// Begun begins it.
func (j *Journey) Begun(Begun) error {
	at := j.Now().Add(delays[2+number(strings.TrimPrefix(j.ID(), "trip-"))%4])
	if err := j.hear("begun", at); err != nil {
		return err
	}
	j.SetTimer("late", at)
	j.Send(Book{j.ID(), j.ID() + "/book"})
	return nil
}

// Paid ends it well.
func (j *Journey) Paid(Paid) error {
	j.Send(Ship{j.ID(), j.ID() + "/ship"})
	j.End()
	return j.hear("paid", time.Time{})
}

// Late ends it, as nobody has paid.
func (j *Journey) Late() error { return j.cancel("late") }

// Refused ends it, as the booking was refused.
func (j *Journey) Refused(domain.Refusal[Book]) error { return j.cancel("refused") }

func (j *Journey) cancel(why string) error {
	j.Send(Cancel{j.ID(), j.ID() + "/cancel"})
	j.End()
	return j.hear(why, time.Time{})
}

// journeys are the parts of the bank's domain that journeys need.
func journeys() []domain.Element {
	return []domain.Element{
		domain.Aggregate[*Trip]("trip", domain.Event[Begun]()),
		domain.Aggregate[*Bill]("bill", domain.Event[Paid]()),
		domain.Command[Book](domain.KeyedBy("trip")),
		domain.Command[Ship](domain.KeyedBy("trip")),
		domain.Command[Cancel](domain.KeyedBy("trip")),
		domain.Process[*Journey](
			"journey", domain.CorrelatedBy("trip"), domain.Starts((*Journey).Begun), domain.Hears((*Journey).Paid),
			domain.Hears((*Journey).Refused), domain.OnTimer("late", (*Journey).Late),
		),
	}
}

// journeyTopics are where a journey hears from: trips, bills, and the processes' own stream.
var journeyTopics = []string{"bank.trip", "bank.bill", "bank.processes"}

const journeyName = "bank.journey"

// journeyOf is what a unit does to a journey: it begins one, and may pay at once, or it pays for
// one that another unit has begun.
func (w *world) journeyOf(n int, id string) *change {
	c := &change{what: "begin", alarm: "trip-" + id, pays: n/2%3 == 0}
	if n%2 == 0 {
		return c
	}
	for i := range w.ops {
		if o := w.ops[fmt.Sprint("op", (n/2+len(i))%len(w.ops)+1)]; o != nil && o.change != nil && o.change.what == "begin" && o.fate == done {
			return &change{what: "pay", alarm: o.change.alarm, pays: true}
		}
	}
	return c
}

// travel has a unit do so.
func (p *process) travel(ctx context.Context, c *change) error {
	if c.what == "begin" {
		t := &Trip{Root: domain.RootWithID(c.alarm)}
		t.Raise(Begun{c.alarm})
		if err := p.tours.Save(ctx, t); err != nil {
			return err
		}
	}
	if !c.pays {
		return nil
	}
	b := &Bill{Root: domain.RootWithID(c.alarm), Paid: true}
	b.Raise(Paid{c.alarm})
	return p.bills.Save(ctx, b)
}

// travelHandlers are of the journeys' commands.
func (p *process) travelHandlers() []command.Handler {
	return []command.Handler{
		command.On(func(ctx context.Context, c Book) error { return p.carry(ctx, c.Trip, "book") }),
		command.On(func(ctx context.Context, c Ship) error { return p.carry(ctx, c.Trip, "ship") }),
		command.On(func(ctx context.Context, c Cancel) error { return p.carry(ctx, c.Trip, "cancel") }),
	}
}

// noBooking says whether a trip's booking is refused.
func noBooking(trip string) bool { return number(strings.TrimPrefix(trip, "trip-"))%4 == 3 }

func (p *process) carry(ctx context.Context, trip, what string) error {
	if err := p.w.ask(ctx, p, &request{kind: "handle", what: trip + " " + what, do: func() {}}); err != nil {
		return err
	}
	if err := p.mood(trip+" "+what, !p.w.poisonsEvents() && trip == fmt.Sprint("trip-op", p.w.plan.poisoned) && what == "book"); err != nil {
		return err
	}
	if what == "book" && noBooking(trip) {
		return command.Refuse(errNo)
	}
	t, err := p.tours.Get(ctx, trip)
	if err != nil {
		return err
	}
	t.Log = append(append([]string(nil), t.Log...), what)
	return p.tours.Save(ctx, t)
}

// journeyRunners are the subscriptions of the journeys.
func (p *process) journeyRunners(quiet *slog.Logger) (all []*subscription.Runner, err error) {
	queue := subscription.Stream{Lanes: p.w.plan.lanes, MaxAttempts: maxAttempts, Backoff: 50 * time.Millisecond, Timeout: 10 * time.Second}
	processes, err := managers.New(p.units, []managers.Config{{Name: "journey", Queue: queue}}, quiet)
	if err != nil {
		return nil, err
	}
	for _, s := range processes.Streams() {
		r, err := subscription.NewRunner(subscription.RunnerConfig{Stream: s, Broker: bus{p.w, p}, Logger: quiet})
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}
