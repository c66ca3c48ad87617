package domain

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill/internal/jsonfields"
	"github.com/waybill-go/waybill/internal/processmsg"
	"github.com/waybill-go/waybill/internal/rootstate"
)

// ProcessState is implemented by a pointer to a struct that embeds [ProcessRoot], and
// by nothing else.
type ProcessState interface {
	ID() string
	process() *ProcessRoot
}

// ProcessRoot gives a struct the identity of a process and the means to act: embed it
// by value. A process hears events, remembers in its exported fields, sends commands
// and sets timers. It reads nothing and calls nobody, so its functions can be tested as
// they are, see domaintest.GivenProcess. What it does takes effect in one transaction
// with its state and the message that it heard.
type ProcessRoot struct {
	_     noCopy
	state rootstate.Process
}

func (p *ProcessRoot) process() *ProcessRoot { return p }

// ID is what all messages of the process have in common.
func (p *ProcessRoot) ID() string { return p.state.ID }

// Now is the time at which the message is handled, UTC.
func (p *ProcessRoot) Now() time.Time { return p.state.Now }

// Send sends a command, own or foreign, once the process's transaction has committed.
func (p *ProcessRoot) Send(command any) { p.state.Sent = append(p.state.Sent, command) }

// SetTimer has the function of [OnTimer] called at a time. A process has one timer of a
// name: to set it again moves it. It holds what [SetTimer] says: a timer that a commit
// has stopped or moved does not ring any more.
func (p *ProcessRoot) SetTimer(name string, at time.Time) {
	p.state.Timers = append(p.state.Timers, rootstate.ProcessTimer{Name: name, At: at})
}

// StopTimer stops a timer. One that isn't set is no error.
func (p *ProcessRoot) StopTimer(name string) {
	p.state.Timers = append(p.state.Timers, rootstate.ProcessTimer{Name: name, Stop: true})
}

// End ends the process and stops its timers. Its state stays for
// process.Config.Retention, so that late messages are known and ignored.
func (p *ProcessRoot) End() { p.state.Ended = true }

// ProcessType describes a declared process. It must not be changed.
type ProcessType struct {
	Name    string // "lending"
	Context string // "library"

	// State is how its documents are read and written.
	State StateType

	goType reflect.Type
	field  string // by which events are correlated
	heard  []*HeardType
	timers map[string]func(p any) error
}

// HeardType is an event that a process hears, or a refusal of a command.
type HeardType struct {
	// Event is the event's type; nil for a refusal.
	Event *EventType
	// Refused is the command whose refusal is heard; nil for an event.
	Refused *CommandType
	// Starts is an event that begins the process. Optional is one that is ignored while
	// there is no process.
	Starts, Optional bool

	goType  reflect.Type
	by      func(event any) string
	byType  reflect.Type
	command reflect.Type
	refused func(c any, reason string) any
	handle  func(p, message any) error
}

// GoType is the event's.
func (h *HeardType) GoType() reflect.Type { return h.goType }

// Instance is the identity of the process that an event concerns.
func (h *HeardType) Instance(event any) string { return h.by(event) }

// Call lets a process hear an event.
func (h *HeardType) Call(p ProcessState, event any) error { return h.handle(p, event) }

// CallRefused lets a process hear that a command, as it was sent, was refused.
func (h *HeardType) CallRefused(p ProcessState, data []byte, reason string) error {
	c := reflect.New(h.command)
	if err := json.Unmarshal(data, c.Interface()); err != nil {
		return fmt.Errorf("domain: the refused command can't be decoded as %s: %w", h.command, err)
	}
	return h.handle(p, h.refused(c.Elem().Interface(), reason))
}

// CorrelatedBy is the JSON field by which its events are correlated; "": each says it itself.
func (t *ProcessType) CorrelatedBy() string { return t.field }

// GoType is the pointer type of the process's state.
func (t *ProcessType) GoType() reflect.Type { return t.goType }

// Heard is what the process hears, in the order of its declaration.
func (t *ProcessType) Heard() []*HeardType { return t.heard }

// Refusal is how the process hears that a command was refused; nil: it doesn't.
func (t *ProcessType) Refusal(c *CommandType) *HeardType {
	for _, h := range t.heard {
		if h.Refused == c {
			return h
		}
	}
	return nil
}

// OnTimer is the function of a timer; nil if there is none.
func (t *ProcessType) OnTimer(name string) func(p any) error { return t.timers[name] }

// Timers are the names of the process's timers.
func (t *ProcessType) Timers() []string { return slices.Sorted(maps.Keys(t.timers)) }

// hearsOf says whether the process has a function for a message of its own, as
// processmsg.UnheardError names it.
func (t *ProcessType) hearsOf(name string) bool {
	of := t.Context + "." + t.Name
	for timer := range t.timers {
		if name == (&processmsg.UnheardError{Process: of, Timer: timer}).Needs() {
			return true
		}
	}
	return slices.ContainsFunc(t.heard, func(h *HeardType) bool {
		return h.Refused != nil && name == (&processmsg.UnheardError{Process: of, Command: h.Refused.Name}).Needs()
	})
}

// Posted says whether the process gets messages of its own: of timers and refusals.
func (t *ProcessType) Posted() bool {
	return len(t.timers) > 0 || slices.ContainsFunc(t.heard, func(h *HeardType) bool { return h.Refused != nil })
}

// New returns an empty process, to be filled with its state.
func (t *ProcessType) New(id string, now time.Time) ProcessState {
	p := reflect.New(t.goType.Elem()).Interface().(ProcessState)
	p.process().state = rootstate.Process{ID: id, Now: now.UTC()}
	return p
}

// HeardBy is how the process hears a message, of an event or a [Refusal].
func (t *ProcessType) HeardBy(message any) (*HeardType, error) {
	for _, h := range t.heard {
		if h.goType == reflect.TypeOf(message) {
			return h, nil
		}
	}
	return nil, fmt.Errorf("process %q doesn't hear %T: declare domain.Hears for it", t.Name, message)
}

// ProcessOption is a part of a process's declaration.
type ProcessOption interface {
	addToProcess(*builder, *ProcessType)
}

type processOption func(*builder, *ProcessType)

func (f processOption) addToProcess(b *builder, t *ProcessType) { f(b, t) }

// Process declares a process manager. P is the pointer type: Process[*Lending]("lending", …).
// The name is of 1 to 64 lower-case letters, digits, '-' and '_'; its subscriptions are
// named after it.
//
//	domain.Process[*Lending]("lending",
//		domain.CorrelatedBy("loan_id"),
//		domain.Starts((*Lending).Placed),
//		domain.Hears((*Lending).Paid),
//		domain.OnTimer("pay-by", (*Lending).Unpaid),
//	)
func Process[P ProcessState](name string, options ...ProcessOption) Element {
	return elementFunc(func(b *builder) {
		t := &ProcessType{Name: name, Context: b.name, goType: reflect.TypeFor[P](), timers: map[string]func(any) error{}}
		t.State = newState(name, b.name+"."+name, t.goType)
		for i, o := range options {
			if o == nil {
				b.errorf("process %q: option %d is nil: take it out", name, i+1)
				continue
			}
			o.addToProcess(b, t)
		}
		b.checkState(fmt.Sprintf("process %q", name), &t.State)
		b.addProcess(t)
	})
}

func (b *builder) addProcess(t *ProcessType) {
	if !isName(t.Name) {
		b.errorf("process %.100q (%s): its name must be 1 to %d lower-case letters, digits, '-' and '_', a letter first, as in %q", t.Name, t.goType, maxName, "lending")
	}
	if t.Name == commands {
		b.errorf("process %q: %s.%s is the subscription of the context's commands: give the process another name", t.Name, b.name, commands)
	}
	switch {
	case t.goType.Kind() != reflect.Pointer || t.goType.Elem().Kind() != reflect.Struct:
		b.errorf("process %q: %s is not a pointer to a struct: declare domain.Process[*…]", t.Name, t.goType)
		return
	case !embeds(t.goType.Elem(), reflect.TypeFor[ProcessRoot]()):
		b.errorf("process %q: %s must embed domain.ProcessRoot itself, by value", t.Name, t.goType.Elem())
	}
	for _, problem := range jsonfields.Lost(t.goType, reflect.TypeFor[ProcessRoot](), "") {
		b.errorf("process %q: %s", t.Name, problem)
	}
	for _, other := range b.processes {
		if other.Name == t.Name {
			b.errorf("process %q is both %s and %s: give one of them another name", t.Name, other.goType, t.goType)
		}
	}
	if other, dup := b.processes[t.goType]; dup {
		b.errorf("process %q: %s is already declared as %q: take one of them out", t.Name, t.goType, other.Name)
		return
	}
	b.processes[t.goType] = t
}

// CorrelatedBy names the JSON field, a string, that all events of a process have in
// common: its value is the identity of the process. An event that has it elsewhere is
// heard with [By].
func CorrelatedBy(field string) ProcessOption {
	return processOption(func(b *builder, t *ProcessType) {
		if field == "" {
			b.errorf("process %q: domain.CorrelatedBy has no field: name the one that its events have in common, as in %q", t.Name, "loan_id")
		}
		t.field = field
	})
}

// HearOption adjusts how a process hears an event.
type HearOption interface{ applyToHeard(*HeardType) }

type hearOption func(*HeardType)

func (f hearOption) applyToHeard(h *HeardType) { f(h) }

// By correlates an event that has the process's identity elsewhere.
func By[E any](id func(E) string) HearOption {
	return hearOption(func(h *HeardType) {
		h.byType = reflect.TypeFor[E]()
		h.by = func(event any) string { return id(event.(E)) }
	})
}

// Optional ignores an event for which there is no process. Otherwise it waits, as it may
// have overtaken the event that starts the process: see process.Config.Patience.
func Optional() HearOption { return hearOption(func(h *HeardType) { h.Optional = true }) }

// Starts begins a process with an event. A process that has begun already hears it like
// any other; one that has ended doesn't.
func Starts[P ProcessState, E any](handle func(P, E) error, options ...HearOption) ProcessOption {
	return hears(true, handle, options)
}

// Hears hands an event, own or foreign, or a [Refusal] to the process.
//
// An error of its function is tried again, up to the subscription's MaxAttempts, while
// later messages of the same process wait; then the message is parked, and they go on
// waiting until it is replayed or discarded. Other processes are not held up.
func Hears[P ProcessState, E any](handle func(P, E) error, options ...HearOption) ProcessOption {
	return hears(false, handle, options)
}

func hears[P ProcessState, E any](starts bool, handle func(P, E) error, options []HearOption) ProcessOption {
	return processOption(func(b *builder, t *ProcessType) {
		g := reflect.TypeFor[E]()
		switch {
		case handle == nil:
			b.errorf("process %q: the function for %v is nil", t.Name, g)
			return
		case reflect.TypeFor[P]() != t.goType:
			b.errorf("process %q: the function for %v is one of %v: let it be one of %v", t.Name, g, reflect.TypeFor[P](), t.goType)
			return
		}
		h := &HeardType{Starts: starts, goType: g, handle: func(p, m any) error { return handle(p.(P), m.(E)) }}
		if r, ok := any(*new(E)).(refusal); ok {
			h.command, h.refused = r.command(), r.of
		}
		for _, o := range options {
			if o == nil {
				b.errorf("process %q: an option of %v is nil: take it out", t.Name, g)
				continue
			}
			o.applyToHeard(h)
		}
		t.heard = append(t.heard, h)
	})
}

// OnTimer is what happens when a timer of the process is due.
func OnTimer[P ProcessState](name string, handle func(P) error) ProcessOption {
	return processOption(func(b *builder, t *ProcessType) {
		switch _, dup := t.timers[name]; {
		case name == "":
			b.errorf("process %q: a timer has no name: give it one", t.Name)
		case handle == nil:
			b.errorf("process %q: the function of timer %q is nil", t.Name, name)
		case reflect.TypeFor[P]() != t.goType:
			b.errorf("process %q: the function of timer %q is one of %v: let it be one of %v", t.Name, name, reflect.TypeFor[P](), t.goType)
		case dup:
			b.errorf("process %q: timer %q has two functions: take one out", t.Name, name)
		default:
			t.timers[name] = func(p any) error { return handle(p.(P)) }
		}
	})
}

// Refusal is what a process hears when a command that it has sent was refused with
// command.Refuse. Without a function for it the refusal is counted and logged where it
// was refused.
type Refusal[C any] struct {
	Command C
	Reason  string
}

type refusal interface {
	command() reflect.Type
	of(command any, reason string) any
}

func (Refusal[C]) command() reflect.Type { return reflect.TypeFor[C]() }

func (Refusal[C]) of(command any, reason string) any { return Refusal[C]{command.(C), reason} }

// checkProcesses finds what only the whole declaration shows, and gives the context the
// messages of processes.
func (b *builder) checkProcesses() {
	b.post(processmsg.TimerDueName, reflect.TypeFor[processmsg.TimerDue]())
	b.post(processmsg.RefusedName, reflect.TypeFor[processmsg.Refused]()) // others' processes hear of it, too
	for _, t := range b.Processes() {
		seen, starts := map[reflect.Type]bool{}, false
		for _, h := range t.heard {
			if seen[h.goType] {
				b.errorf("process %q hears %v twice: take one out", t.Name, h.goType)
			}
			seen[h.goType] = true
			starts = starts || h.Starts
			b.checkHeard(t, h)
		}
		if !starts {
			b.errorf("process %q never starts: declare the event that begins it with domain.Starts", t.Name)
		}
	}
	if len(b.processes) == 0 {
		return
	}
	for _, a := range b.aggregates {
		if a.Name == processmsg.Stream {
			b.errorf("aggregate %q: %s is the stream of the context's processes: give the aggregate another name", a.Name, a.Category)
		}
	}
}

func (b *builder) post(name string, g reflect.Type) {
	t := &EventType{Name: name, Forms: newForms(g), Category: processmsg.Category(b.name), posted: true}
	t.Version, t.Written = processmsg.Version, processmsg.Version
	b.posted[g], b.names[name] = t, t
}

func (b *builder) checkHeard(t *ProcessType, h *HeardType) {
	if h.command != nil {
		if h.Starts || h.Optional || h.by != nil {
			b.errorf("process %q: a refusal of %v starts nothing and says itself whose it is: hear it with domain.Hears alone", t.Name, h.command)
		}
		if c, ok := b.commands[h.command]; ok {
			h.Refused = c
		} else {
			b.errorf("process %q hears refusals of %v, which is no declared command: declare domain.Command[%v] or domain.ForeignCommand", t.Name, h.command, h.command)
		}
		return
	}
	event, ok := b.events[h.goType]
	switch {
	case !ok:
		b.errorf("process %q hears %v, which is no declared event: add domain.Event[%v]() to the aggregate that raises it, or domain.Foreign[%v](…) if another context does", t.Name, h.goType, h.goType, h.goType)
		return
	case event.Category == "":
		b.errorf("process %q hears %s, but its stream is not declared: add domain.From(…) to its domain.Foreign, as in domain.From(%q)", t.Name, event.Name, "billing::charge")
	}
	h.Event = event
	switch {
	case h.by != nil && h.byType != h.goType:
		b.errorf("process %q: the domain.By of %v takes %v: let it take %v", t.Name, h.goType, h.byType, h.goType)
	case h.by != nil:
	case t.field == "":
		b.errorf("process %q: %v can't be correlated: add domain.CorrelatedBy(…) to the process, with the JSON field that says whose it is, or domain.By to the event", t.Name, h.goType)
	default:
		by, err := stringField(h.goType, t.field)
		if err != nil {
			b.errorf("process %q: %v can't be correlated: %w; give it domain.By", t.Name, h.goType, err)
		}
		h.by = by
	}
}

// Processes are the declared processes, by name.
func (d *Domain) Processes() []*ProcessType {
	return slices.SortedFunc(maps.Values(d.processes), func(a, b *ProcessType) int { return strings.Compare(a.Name, b.Name) })
}

// ProcessTypeFor describes P, or reports an [*UndeclaredError].
func ProcessTypeFor[P ProcessState](d *Domain) (*ProcessType, error) {
	t, ok := d.processes[reflect.TypeFor[P]()]
	if !ok {
		name := typeName(reflect.TypeFor[P]())
		return nil, &UndeclaredError{Domain: d.name, Type: name, Remedy: "domain.Process[" + name + "](…)"}
	}
	return t, nil
}
