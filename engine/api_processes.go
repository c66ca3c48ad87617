package engine

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/waybill-go/waybill/internal/processdb"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/process"
)

// processReport is a process in a list.
type processReport struct {
	Provider string `json:"provider"`
	processdb.Process
}

// processesReport is the answer of /api/processes.
type processesReport struct {
	Processes []processReport                       `json:"processes"`
	Next      map[string]string                     `json:"next"`   // the after of the next page, by provider, where there is one
	Counts    map[string]map[string]processdb.Stats `json:"counts"` // of all, whatever is asked for, by provider and kind; null: not known
}

func (e *Engine) listProcesses(r *http.Request) (any, error) {
	p := paramsOf(r)
	provider := p.text("provider")
	filter := processdb.Filter{
		Process: p.text("process"), From: p.time("from"), Until: p.time("until"), Idle: p.yes("idle"),
		After: p.text("after"), Limit: int(p.number("limit", 1, maxPage, pageSize)),
	}
	if id := p.text("id"); id != "" {
		filter.IDs = []string{id}
	}
	if status, ok := p.one("status", oneOf(processdb.Statuses())); ok {
		if filter.Status = status; !slices.Contains(processdb.Statuses(), status) {
			p.fail("status is %q: it takes %s", status, oneOf(processdb.Statuses()))
		}
	}
	if err := processdb.CheckAfter(filter.After); err != nil {
		p.fail("after is %q: it takes what next of the page before has", filter.After)
	}
	if err := p.check(); err != nil {
		return nil, err
	}
	if err := p.onlyContent(r, "id", "after"); err != nil { // The end of a page is an id.
		return nil, err
	}
	of, err := e.chosen(provider, (*database).hasOutbox)
	if err != nil {
		return nil, err
	}
	if filter.After != "" && len(of) > 1 {
		return nil, badRequest("after is a place in one database: name it with provider")
	}
	pages, errs := fromEach(of, func(d *database) (processesPage, error) { return e.findProcesses(r.Context(), d, filter) })
	if len(errs) > 0 {
		return nil, first(errs)
	}
	report := processesReport{[]processReport{}, map[string]string{}, map[string]map[string]processdb.Stats{}}
	content := visitorOf(r).content()
	for _, d := range of {
		name := d.provider.Name()
		report.Counts[name] = pages[name].counts
		for _, found := range pages[name].Processes {
			shown := processReport{name, found}
			if !content {
				shown = shown.withoutContent()
			}
			report.Processes = append(report.Processes, shown)
		}
		if next := pages[name].Next; next != "" {
			if report.Next[name] = next; !content {
				report.Next[name] = notShown
			}
		}
	}
	return report, nil
}

// processesPage is what a database has.
type processesPage struct {
	processdb.Page

	counts map[string]processdb.Stats // by kind; nil: not known in time
}

func (e *Engine) findProcesses(ctx context.Context, d *database, filter processdb.Filter) (page processesPage, err error) {
	err = d.inProcesses(ctx, func(ctx context.Context, s *processdb.Store) error {
		if page.Page, err = s.Find(ctx, filter); errors.Is(err, context.DeadlineExceeded) {
			return &problem{http.StatusServiceUnavailable, fmt.Sprintf("provider %q has no answer within %v; a search among all processes goes through all of them:"+
				" name a process and status=running", d.provider.Name(), queryTimeout)}
		}
		return err
	})
	if f, known := d.running.recent(ctx); known && f.err == nil {
		page.counts = e.withDeclared(d, f.value)
	}
	return page, err
}

// inProcesses calls do with the processes of a database, if their tables are those of
// this build.
func (d *database) inProcesses(ctx context.Context, do func(context.Context, *processdb.Store) error) error {
	return d.inTurn(ctx, func(ctx context.Context) error {
		if err := d.instances.Check(ctx); err != nil {
			return err
		}
		return do(ctx, d.instances)
	})
}

// processDetails is the answer of /api/processes/{process}/{id}. State is null for one
// that is awaited, and where StateHidden says why.
type processDetails struct {
	processReport
	StateVersion int             `json:"state_version"`
	State        any             `json:"state"`
	StateHidden  *string         `json:"state_hidden"`
	Heard        []process.Heard `json:"heard"`
	Timers       []outbox.Timer  `json:"timers"`
	Letters      []letterReport  `json:"dead_letters"`
	LettersTotal int64           `json:"dead_letters_total"`
}

// showProcess is for operators: whether there is one of an id would tell others what they
// don't see.
func (e *Engine) showProcess(r *http.Request) (any, error) {
	name, id := r.PathValue("process"), r.PathValue("id")
	p := paramsOf(r)
	provider := p.text("provider")
	for _, part := range []struct{ what, text string }{{"process", name}, {"id", id}} {
		if err := checkText(part.text); err != nil {
			p.fail("%s %v", part.what, err)
		}
	}
	if err := p.check(); err != nil {
		return nil, err
	}
	of, err := e.chosen(provider, (*database).hasOutbox)
	if err != nil {
		return nil, err
	}
	all, errs := fromEach(of, func(d *database) (found *processdb.Details, err error) {
		err = d.inProcesses(r.Context(), func(ctx context.Context, s *processdb.Store) error {
			if found, err = s.Show(ctx, name, id); errors.Is(err, processdb.ErrNone) {
				return nil
			}
			return err
		})
		return found, err
	})
	for _, d := range of {
		if found := all[d.provider.Name()]; found != nil {
			return e.processDetails(r, d.provider.Name(), found), nil
		}
	}
	if len(errs) > 0 {
		return nil, first(errs)
	}
	return nil, notFound("there is no process %s %q: it hasn't begun, or ended so long ago that it was forgotten", name, id)
}

func (e *Engine) processDetails(r *http.Request, provider string, found *processdb.Details) processDetails {
	details := processDetails{
		processReport: processReport{provider, found.Process}, StateVersion: found.StateVersion, Heard: found.Heard,
		Timers: append([]outbox.Timer{}, found.Timers...), Letters: []letterReport{}, LettersTotal: found.LettersTotal,
	}
	var hidden string
	details.State, hidden = e.payload(r, found.State)
	details.StateHidden = orNull(hidden)
	for _, l := range found.Letters {
		details.Letters = append(details.Letters, letterReport{provider, l})
	}
	return details
}
