package engine

import (
	"slices"

	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

// Context is a bounded context and all that it runs.
type Context struct {
	// Units are the context's units of work. Those of Commands if it is left out.
	Units *uow.Manager
	// Commands are required if the domain declares commands of its own. The engine runs
	// the subscription of those that come as messages.
	Commands *command.Handlers
	// Subscriptions are the streams that it consumes. They belong to Units if they name
	// none.
	Subscriptions []subscription.Stream
}

// contexts makes units and subscriptions of what stands in Contexts.
func (w *wiring) contexts() {
	w.cfg.Units, w.cfg.Subscriptions = slices.Clone(w.cfg.Units), slices.Clone(w.cfg.Subscriptions)
	handled := map[*uow.Manager]bool{}
	var seen []*uow.Manager
	for i, c := range w.cfg.Contexts {
		if c.Units == nil && c.Commands != nil {
			c.Units = c.Commands.Units()
		}
		switch {
		case c.Units == nil:
			w.fail("Contexts[%d] has no Units: add what uow.New returned", i)
			continue
		case slices.Contains(seen, c.Units):
			w.fail("Contexts[%d]: the units of context %s stand in another of Contexts, too: put both together", i, c.Units.Domain().Name())
			continue
		case c.Commands != nil && c.Commands.Units() != c.Units:
			w.fail("Contexts[%d]: Commands belong to units of context %s, and Units are others: give both the same", i, c.Commands.Units().Domain().Name())
			continue
		}
		seen = append(seen, c.Units)
		if !slices.Contains(w.cfg.Units, c.Units) { // A configuration file's are there.
			w.cfg.Units = append(w.cfg.Units, c.Units)
		}
		for _, s := range c.Subscriptions {
			if s.Units == nil {
				s.Units = c.Units
			}
			w.cfg.Subscriptions = append(w.cfg.Subscriptions, s)
		}
		if c.Commands != nil {
			handled[c.Units] = true
			w.commands(c.Commands)
		}
	}
	for _, m := range w.cfg.Units {
		if m != nil && m.Domain().HandlesCommands() && !handled[m] {
			w.fail("context %s declares commands, and nothing handles them: add engine.Context{Units: …, Commands: …} to Contexts, with what command.New returned", m.Domain().Name())
		}
	}
}

func (w *wiring) commands(h *command.Handlers) {
	w.handlers = append(w.handlers, h)
	if s, ok := h.Stream(); ok && !h.Units().OutboxDisabled() {
		w.cfg.Subscriptions = append(w.cfg.Subscriptions, s)
	}
}

// commandCategories are the streams of a context's commands, and of those that it sends
// to others.
func commandCategories(d *domain.Domain) (categories []string) {
	for _, t := range d.Commands() {
		if c := t.Category(); !slices.Contains(categories, c) {
			categories = append(categories, c)
		}
	}
	return categories
}
