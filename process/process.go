// Package process runs the processes that a domain declares with domain.Process. An
// engine does it for every context that it is given; this package holds what can be
// tuned, and looked at.
//
// A process hears each message in one transaction: the inbox row, the process's state,
// the commands that it sends and the timers that it sets. Messages of one process are
// handled one after the other, whichever stream they come by.
package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/processmsg"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

const (
	defaultRetention = 30 * 24 * time.Hour
	defaultPatience  = 10 * time.Minute
)

// Config tunes one process.
type Config struct {
	// Name is the one in domain.Process.
	Name string
	// Retention is how long an ended process is known: what comes too late for it is
	// ignored, and an event that would begin it, too. Defaults to 30 days.
	Retention time.Duration
	// Patience is how long a message may wait for its process to begin before people are
	// told. It goes on waiting then. Defaults to 10 min.
	Patience time.Duration
	// Queue tunes its subscriptions, one for each stream that it hears events from. Their
	// Name, Category, Handlers, Units, Broker, Provider, Batch and Instances are given.
	Queue subscription.Stream
	// Brokers are where streams come from, by category. Defaults to the context's own broker.
	Brokers map[string]string
}

// Processes are those of one context. It is safe for concurrent use.
type Processes struct {
	units *uow.Manager
	all   []*process
}

// process is one that is declared.
type process struct {
	Config
	counters
	typ       *domain.ProcessType
	name      string // "library.lending"
	units     *uow.Manager
	instances *subscription.Instances
	log       *slog.Logger
}

// New checks what tunes the processes that the domain of units declares, and returns all
// mistakes together. A process needs no Config. An engine calls it.
func New(units *uow.Manager, tuned []Config, log *slog.Logger) (*Processes, error) {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf("process: "+format, args...)) }
	if units == nil {
		return nil, errors.New("process: the units of work are nil: make them with uow.New first, and look at its error")
	}
	d, log := units.Domain(), cmp.Or(log, slog.Default())
	all := &Processes{units: units}
	for _, t := range d.Processes() {
		p := &process{typ: t, name: d.Name() + "." + t.Name, units: units, log: log.With("process", d.Name()+"."+t.Name)}
		p.Name = t.Name
		p.instances = subscription.NewInstances(p.name, t.CorrelatedBy(), p.instanceOf)
		all.all = append(all.all, p)
	}
	if len(all.all) > 0 && units.OutboxDisabled() {
		fail("context %s declares processes, and has no outbox for what they send (uow.Config.NoOutbox)", d.Name())
	}
	seen := map[string]bool{}
	for i, c := range tuned {
		p := all.named(c.Name)
		switch {
		case p == nil:
			fail("Processes[%d]: context %s declares no process %q: correct the Name, or take it out", i, d.Name(), c.Name)
			continue
		case seen[c.Name]:
			fail("Processes[%d]: process %q is tuned twice: put both together", i, c.Name)
			continue
		}
		seen[c.Name] = true
		for _, err := range c.check(p.typ) {
			fail("Processes[%d]: process %q: %w", i, c.Name, err)
		}
		p.Config = c
	}
	for _, p := range all.all {
		p.Retention = cmp.Or(p.Retention, defaultRetention)
		p.Patience = cmp.Or(p.Patience, defaultPatience)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	for _, p := range all.all {
		var topics []string
		for _, s := range p.streams() {
			topics = append(topics, s.Topic())
		}
		p.instances.From(topics...)
	}
	return all, nil
}

func (all *Processes) named(name string) *process {
	for _, p := range all.all {
		if p.typ.Name == name {
			return p
		}
	}
	return nil
}

func (c Config) check(t *domain.ProcessType) (errs []error) {
	if c.Retention < 0 {
		errs = append(errs, fmt.Errorf("its Retention is %v: above 0, or 0 for %v", c.Retention, defaultRetention))
	}
	if c.Patience < 0 {
		errs = append(errs, fmt.Errorf("its Patience is %v: above 0, or 0 for %v", c.Patience, defaultPatience))
	}
	if q := c.Queue; q.Name != "" || q.Category != "" || q.Handlers != nil || q.Units != nil || q.Broker != "" || q.Provider != "" || q.Batch != 0 || q.Instances != nil {
		errs = append(errs, errors.New("its Queue tunes subscriptions whose Name, Category, Handlers, Units, Broker, Provider, Batch and Instances are given: leave these out"))
	}
	for _, category := range slices.Sorted(maps.Keys(c.Brokers)) {
		if !slices.ContainsFunc(t.Heard(), func(h *domain.HeardType) bool { return h.Event != nil && h.Event.Category == category }) {
			errs = append(errs, fmt.Errorf("its Brokers names the stream %q, from which it hears nothing: correct it, or take it out", category))
		}
	}
	return errs
}

// Streams are the subscriptions of the processes: one per process and stream, with a
// consumer group and an inbox of its own. An engine runs them.
func (all *Processes) Streams() (streams []subscription.Stream) {
	for _, p := range all.all {
		streams = append(streams, p.streams()...)
	}
	return streams
}

func (p *process) streams() (streams []subscription.Stream) {
	byCategory := map[string][]subscription.Handler{}
	for _, h := range p.typ.Heard() {
		if h.Event == nil {
			continue
		}
		byCategory[h.Event.Category] = append(byCategory[h.Event.Category], subscription.OnType(h.GoType(), func(ctx context.Context, event any) error {
			return p.hear(ctx, message{id: h.Instance(event), starts: h.Starts, optional: h.Optional, call: func(s domain.ProcessState) error { return h.Call(s, event) }})
		}))
	}
	if p.typ.Posted() {
		byCategory[processmsg.Category(p.typ.Context)] = []subscription.Handler{subscription.On(p.due), subscription.On(p.refused)}
	}
	for _, category := range slices.Sorted(maps.Keys(byCategory)) {
		s := p.Queue
		s.Name, s.Category = p.name+"."+outbox.DefaultTopic(category), category
		s.Handlers, s.Units, s.Instances = byCategory[category], p.units, p.instances
		s.Broker = cmp.Or(p.Brokers[category], p.units.Broker())
		streams = append(streams, s)
	}
	return streams
}

// instanceOf says whose message this is.
func (p *process) instanceOf(event any) (id string, ok bool) {
	switch e := event.(type) {
	case processmsg.TimerDue:
		return e.ID, e.Process == p.typ.Name
	case processmsg.Refused:
		return e.ID, e.Process == p.typ.Name
	}
	h, err := p.typ.HeardBy(event)
	if err != nil {
		return "", false
	}
	return h.Instance(event), true
}

// counters are of one process, since the program began.
type counters struct {
	started, heard, ended, early, ignored, stopped, refused atomic.Int64
}

// Count is what the processes of one type did in this program.
type Count struct {
	Process string // "lending"
	// Started began, Ended ended, and Heard is how many messages they heard. Refused is how
	// many of these were refusals.
	Started, Ended, Heard, Refused int64
	// Early is how many messages came before their process had begun, and were set aside.
	Early int64
	// Ignored came after the end, or were domain.Optional and met no process.
	Ignored int64
	// Stopped are timers that were stopped or moved while their message was on its way.
	Stopped int64
}

// Counts returns the counts of all processes, by name.
func (all *Processes) Counts() []Count {
	counts := make([]Count, len(all.all))
	for i, p := range all.all {
		counts[i] = Count{
			Process: p.typ.Name, Started: p.started.Load(), Ended: p.counters.ended.Load(), Heard: p.heard.Load(), Refused: p.counters.refused.Load(),
			Early: p.early.Load(), Ignored: p.ignored.Load(), Stopped: p.stopped.Load(),
		}
	}
	return counts
}

// Units are the context's units of work.
func (all *Processes) Units() *uow.Manager { return all.units }

// Names are those of the processes, as in "library.lending": under them stand their rows
// and dead letters.
func (all *Processes) Names() []string {
	names := make([]string, len(all.all))
	for i, p := range all.all {
		names[i] = p.name
	}
	return names
}

// NotStartedError is why a message waits for a process that has not begun: it may have
// overtaken the event that begins it, and is handled right after that.
type NotStartedError struct {
	Process, ID, Type string
	Starts            []string // The events that begin the process.
}

func (e *NotStartedError) Error() string {
	return fmt.Sprintf("process: there is no %s %q for %s, as none of %q has come that begins it; if the event may concern others, declare it domain.Optional()",
		e.Process, e.ID, e.Type, e.Starts)
}
