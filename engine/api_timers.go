package engine

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/waybill-go/waybill/internal/timerdb"
	"github.com/waybill-go/waybill/outbox"
)

var timerStatuses = []string{outbox.TimerWaiting, outbox.TimerSent}

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
}

// withoutContent leaves out whose it is.
func (t timerReport) withoutContent() timerReport {
	instead := notShown
	t.Owner = instead
	for _, id := range []**string{&t.TenantID, &t.CorrelationID} {
		if *id != nil {
			*id = &instead
		}
	}
	return t
}

// timersReport is the answer of /api/timers.
type timersReport struct {
	Timers []timerReport     `json:"timers"`
	Next   map[string]string `json:"next"` // the after of the next page, by provider, where there is one
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
	pages, errs := fromEach(of, func(d *database) (page outbox.TimerPage, err error) {
		err = d.inTurn(r.Context(), func(ctx context.Context) error {
			if err := timerdb.Migrations().Check(ctx, d.provider.Reader()); err != nil {
				return err
			}
			page, err = d.timers.Find(ctx, filter)
			return err
		})
		return page, err
	})
	if len(errs) > 0 {
		return nil, first(errs)
	}
	return reportTimers(of, pages, visitorOf(r).content()), nil
}

func reportTimers(of []*database, pages map[string]outbox.TimerPage, content bool) timersReport {
	report := timersReport{[]timerReport{}, map[string]string{}}
	for _, d := range of {
		name := d.provider.Name()
		for _, t := range pages[name].Timers {
			shown := timerReport{
				Provider: name, ID: t.ID, Owner: t.Owner, Name: t.Name, Type: t.Type, Status: t.Status, AvailableAt: t.AvailableAt,
				SetAt: t.SetAt, SentAt: t.SentAt, TenantID: orNull(t.TenantID), CorrelationID: orNull(t.CorrelationID),
			}
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
