// Package contract describes what a context says to others and to its own past: its events
// and commands, and the forms of its documents; and it tells what breaks when one such
// description takes the place of another.
//
// Package contracttest keeps the description of a context under version control.
package contract

import (
	"fmt"
	"reflect"

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

// Of describes a context: every version that it writes or reads. Print it as JSON:
//
//	err := json.NewEncoder(os.Stdout).Encode(contract.Of(library.Domain))
func Of(d *domain.Domain) *Contract {
	c := &Contract{Context: d.Name(), Messages: map[string]Message{}, States: map[string]bool{}, Aliases: map[string]string{}}
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
	}
	return c
}
