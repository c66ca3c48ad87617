package engine

import (
	"fmt"
	"slices"

	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/processmsg"
	"github.com/waybill-go/waybill/process"
	"github.com/waybill-go/waybill/projection"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

// Context is a bounded context and all that it runs.
type Context struct {
	// Units are the context's units of work. Those of Commands if it is left out. Their
	// Config.Enrich completes the origin of what every unit raises: of requests, commands
	// and subscriptions alike.
	Units *uow.Manager
	// Commands are required if the domain declares commands of its own. The engine runs
	// the subscription of those that come as messages.
	Commands *command.Handlers
	// Subscriptions are the streams that it consumes. They belong to Units if they name
	// none.
	Subscriptions []subscription.Stream
	// Projections are the tables for reading that it makes of its history. They belong to
	// Units.
	Projections []projection.Projection
	// Processes tunes processes that the domain declares. The engine runs them all.
	Processes []process.Config
}

// contexts makes units and subscriptions of what stands in Contexts.
func (w *wiring) contexts() {
	w.cfg.Units, w.cfg.Subscriptions = slices.Clone(w.cfg.Units), slices.Clone(w.cfg.Subscriptions)
	handled, here := map[*uow.Manager]bool{}, map[*uow.Manager]bool{}
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
		here[c.Units] = true
		w.processesOf(c)
		w.projectionsOf(c)
		if c.Commands != nil {
			handled[c.Units] = true
			w.commands(c.Commands)
		}
	}
	for _, m := range w.cfg.Units {
		if m != nil && m.Domain().HandlesCommands() && !handled[m] {
			w.fail("context %s declares commands, and nothing handles them: add engine.Context{Units: …, Commands: …} to Contexts, with what command.New returned", m.Domain().Name())
		}
		if m != nil && len(m.Domain().Processes()) > 0 && !here[m] {
			w.fail("context %s declares processes, and nothing runs them: add engine.Context{Units: …} to Contexts", m.Domain().Name())
		}
	}
}

func (w *wiring) commands(h *command.Handlers) {
	w.handlers = append(w.handlers, h)
	if s, ok := h.Stream(); ok && !h.Units().OutboxDisabled() {
		w.cfg.Subscriptions = append(w.cfg.Subscriptions, s)
	}
}

func (w *wiring) processesOf(c Context) {
	if len(c.Units.Domain().Processes())+len(c.Processes) == 0 {
		return
	}
	all, err := process.New(c.Units, c.Processes, w.log)
	if err != nil {
		w.errs = append(w.errs, fmt.Errorf("context %s: %w", c.Units.Domain().Name(), err))
		return
	}
	w.processes = append(w.processes, all)
	w.cfg.Subscriptions = append(w.cfg.Subscriptions, all.Streams()...)
}

// ownCategories are the streams of a context's own, besides those of its aggregates.
func ownCategories(d *domain.Domain) (categories []string) {
	if d.HandlesCommands() {
		categories = append(categories, domain.CommandCategory(d.Name()))
	}
	if slices.ContainsFunc(d.Processes(), (*domain.ProcessType).Posted) {
		categories = append(categories, processmsg.Category(d.Name()))
	}
	return categories
}

// commandCategories are the streams of a context's commands and processes, and of the
// commands that it sends to others.
func commandCategories(d *domain.Domain) []string {
	categories := ownCategories(d)
	for _, t := range d.Commands() {
		if c := t.Category(); !slices.Contains(categories, c) {
			categories = append(categories, c)
		}
	}
	return categories
}
