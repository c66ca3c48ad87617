package engine

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/waybill-go/waybill/internal/timerdb"
	"github.com/waybill-go/waybill/outbox"
)

var timerStatuses = outbox.TimerStatuses()

// timerReport is a timer in a list. What it doesn't have is null.
type timerReport struct {
	Provider      string     `json:"provider"`
	ID            string     `json:"id"`
	Owner         string     `json:"owner"`
	Name          string     `json:"name"`
	Type          string     `json:"type"`
	Status        string     `json:"status"`
	AvailableAt   time.Time  `json:"available_at"`
	SetAt         time.Time  `json:"set_at"`
	SentAt        *time.Time `json:"sent_at"`
	TenantID      *string    `json:"tenant_id"`
	CorrelationID *string    `json:"correlation_id"`
	DueInSeconds  *float64   `json:"due_in_seconds"` // below 0 it is late; null: it doesn't wait
	Error         *string    `json:"error"`          // why the message of a broken one can't be sent
}

func newTimerReport(provider string, t outbox.Timer) timerReport {
	report := timerReport{
		Provider: provider, ID: t.ID, Owner: t.Owner, Name: t.Name, Type: t.Type, Status: t.Status, AvailableAt: t.AvailableAt,
		SetAt: t.SetAt, SentAt: t.SentAt, TenantID: orNull(t.TenantID), CorrelationID: orNull(t.CorrelationID), Error: orNull(t.Error),
	}
	if t.Status == outbox.TimerWaiting {
		in := secondsUntil(t.AvailableAt)
		report.DueInSeconds = &in
	}
	return report
}

// secondsUntil is of any time: a duration ends at 292 years, and timers may be set for the year 9998.
func secondsUntil(at time.Time) float64 {
	now := time.Now()
	return float64(at.Unix()-now.Unix()) + float64(at.Nanosecond()-now.Nanosecond())/1e9
}

// timersCount is what a database has of timers.
type timersCount struct {
	Waiting     int64   `json:"waiting"`
	Due         int64   `json:"due"`
	Sent        int64   `json:"sent"`
	Broken      int64   `json:"broken"`
	LateSeconds float64 `json:"late_seconds"`
}

// withoutContent leaves out whose it is, and what its error may show of its message.
func (t timerReport) withoutContent() timerReport {
	instead := notShown
	t.Owner = instead
	for _, id := range []**string{&t.TenantID, &t.CorrelationID, &t.Error} {
		if *id != nil {
			*id = &instead
		}
	}
	return t
}

// timersReport is the answer of /api/timers.
type timersReport struct {
	Timers []timerReport           `json:"timers"`
	Next   map[string]string       `json:"next"`   // the after of the next page, by provider, where there is one
	Counts map[string]*timersCount `json:"counts"` // of all, whatever is asked for, by provider; null: not known
}

func (e *Engine) timers(r *http.Request) (any, error) {
	p := paramsOf(r)
	provider := p.text("provider")
	filter := outbox.TimerFilter{
		Owner: p.text("owner"), Name: p.text("name"), Type: p.text("type"), Tenant: p.text("tenant"), Correlation: p.text("correlation"),
		From: p.time("from"), Until: p.time("until"), After: p.text("after"), Limit: int(p.number("limit", 1, maxPage, pageSize)),
	}
	if id := p.id("id"); id != "" {
		filter.IDs = []string{id}
	}
	if status, ok := p.one("status", oneOf(timerStatuses)); ok {
		if filter.Status = status; !slices.Contains(timerStatuses, status) {
			p.fail("status is %q: it takes %s", status, oneOf(timerStatuses))
		}
	}
	if err := timerdb.CheckAfter(filter.After); err != nil {
		p.fail("after is %q: it takes what next of the page before has", filter.After)
	}
	if err := p.check(); err != nil {
		return nil, err
	}
	if err := p.onlyContent(r, "owner", "tenant", "correlation"); err != nil {
		return nil, err
	}
	of, err := e.chosen(provider, (*database).hasOutbox)
	if err != nil {
		return nil, err
	}
	if filter.After != "" && len(of) > 1 {
		return nil, badRequest("after is a place in one database: name it with provider")
	}
	pages, errs := fromEach(of, func(d *database) (timersPage, error) { return d.findTimers(r.Context(), filter) })
	if len(errs) > 0 {
		return nil, first(errs)
	}
	return reportTimers(of, pages, visitorOf(r).content()), nil
}

// timersPage is what a database has.
type timersPage struct {
	outbox.TimerPage

	counts *timersCount // nil: not known in time
}

func (d *database) findTimers(ctx context.Context, filter outbox.TimerFilter) (page timersPage, err error) {
	err = d.inTurn(ctx, func(ctx context.Context) error {
		if err := timerdb.Migrations().Check(ctx, d.provider.Reader()); err != nil {
			return err
		}
		page.TimerPage, err = d.timers.Find(ctx, filter)
		return err
	})
	if f, known := d.late.recent(ctx); known && f.err == nil {
		page.counts = &timersCount{f.value.Waiting, f.value.Due, f.value.Sent, f.value.Broken, f.value.Late.Seconds()}
	}
	return page, err
}

func reportTimers(of []*database, pages map[string]timersPage, content bool) timersReport {
	report := timersReport{[]timerReport{}, map[string]string{}, map[string]*timersCount{}}
	for _, d := range of {
		name := d.provider.Name()
		report.Counts[name] = pages[name].counts
		for _, t := range pages[name].Timers {
			shown := newTimerReport(name, t)
			if !content {
				shown = shown.withoutContent()
			}
			report.Timers = append(report.Timers, shown)
		}
		if next := pages[name].Next; next != "" {
			report.Next[name] = next
		}
	}
	return report
}
