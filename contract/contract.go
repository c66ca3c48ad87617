// Package contract describes what a context says to others and to its own past: its events
// and commands, and the forms of its documents; and it tells what breaks when one such
// description takes the place of another.
//
// Package contracttest keeps the description of a context under version control.
package contract

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/waybill-go/waybill/domain"
)

// Contract is a context's.
type Contract struct {
	Context string `json:"context"`
	// Messages are those that it writes or reads as its own, by name and version:
	// "Ordering.OrderPlaced.v1".
	Messages map[string]Message `json:"messages"`
	// States are the forms in which it reads documents: "library::book.v1" of an
	// aggregate, "library.lending.v1" of a process. The value says whether it writes it.
	States map[string]bool `json:"states,omitempty"`
	// Processes are what processes that run rest on, by name: "library.lending".
	Processes map[string]Process `json:"processes,omitempty"`
	// Aliases are names under which it also reads events, without a version, with the
	// name that these have now.
	Aliases map[string]string `json:"aliases,omitempty"`
}

// Message is one version of an event or a command.
type Message struct {
	Kind   string `json:"kind"` // "event" or "command"
	Stream string `json:"stream"`
	// Shared says that others get the event, or may send the command.
	Shared bool `json:"shared"`
	// Written says that it is the version that the context writes, or wants to be sent.
	Written bool `json:"written"`
	// Data is a shared message's data as JSON Schema 2020-12. A tag `doc:"…"` describes a
	// field there. What a type with a MarshalJSON of its own writes isn't known.
	Data map[string]any `json:"data,omitempty"`
}

// Process is what is kept for a process under names that its build has to know.
type Process struct {
	// CorrelatedBy is the field by which messages find theirs; "": each says it itself.
	CorrelatedBy string `json:"correlated_by,omitempty"`
	// Timers may wait, and Refusals are of commands that may wait.
	Timers   []string `json:"timers,omitempty"`
	Refusals []string `json:"refusals,omitempty"`
}

// Of describes a context: every version that it writes or reads. Print it as JSON:
//
//	err := json.NewEncoder(os.Stdout).Encode(contract.Of(library.Domain))
func Of(d *domain.Domain) *Contract {
	c := &Contract{Context: d.Name(), Messages: map[string]Message{}, States: map[string]bool{}, Processes: map[string]Process{}, Aliases: map[string]string{}}
	for _, e := range d.Events() {
		if e.Foreign {
			continue
		}
		for _, v := range e.Reads() {
			m := Message{Kind: "event", Stream: e.Category, Shared: e.Published, Written: v == e.Written}
			if m.Shared {
				m.Data = schemaOf(e.TypeOf(v))
			}
			c.Messages[e.WireNameOf(v)] = m
		}
		for _, alias := range e.Aliases() {
			c.Aliases[alias] = e.Name
		}
	}
	for _, t := range d.Commands() {
		if t.Foreign {
			continue
		}
		m := Message{Kind: "command", Stream: t.Category(), Shared: t.FromOthers, Written: true}
		if m.Shared {
			m.Data = schemaOf(t.GoType())
		}
		c.Messages[t.WireName()] = m
	}
	states := func(key string, f *domain.Forms) {
		for _, v := range f.Reads() {
			c.States[fmt.Sprintf("%s.v%d", key, v)] = v == f.Written
		}
	}
	for _, a := range d.Aggregates() {
		if !a.State.TypeOf(a.State.Version).Implements(reflect.TypeFor[domain.Sourced]()) {
			states(a.Category, &a.State.Forms)
		}
	}
	for _, p := range d.Processes() {
		states(p.Context+"."+p.Name, &p.State.Forms)
		c.Processes[p.Context+"."+p.Name] = processOf(p)
	}
	return c
}

func processOf(t *domain.ProcessType) Process {
	p := Process{CorrelatedBy: t.CorrelatedBy(), Timers: slices.Sorted(slices.Values(t.Timers()))}
	for _, h := range t.Heard() {
		if h.Refused != nil {
			p.Refusals = append(p.Refusals, h.Refused.WireName())
		}
	}
	slices.Sort(p.Refusals)
	return p
}
