package engine

import (
	"net/http"
	"slices"
	"strings"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/subscription"
)

// What messages carry, and what is made of it: keys, ids of streams and
// correlations, texts of errors. Types, counts, times and ids of messages are not.
const (
	notShown     = "[hidden]"
	notShownText = "[hidden; a token of role operate shows it, and so does the waybill command]"
)

// onlyContent refuses conditions on what one doesn't see: whether something is
// found would tell what it is.
func (p *params) onlyContent(r *http.Request, names ...string) error {
	if visitorOf(r).content() {
		return nil
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !p.values.Has(name) })
	if len(names) == 0 {
		return nil
	}
	return &problem{http.StatusForbidden, "a search by " + strings.Join(names, ", ") + " takes a token of role operate, as what it would find is not shown without; the waybill command searches, too"}
}

func hide(text *string) *string {
	if text == nil || *text == "" {
		return text
	}
	instead := notShownText
	return &instead
}

// withoutContent keeps what was said of a broker that doesn't answer: that is
// about no row.
func (r rowReport) withoutContent() rowReport {
	r.Stream, r.Key = notShown, notShown
	if r.FailureClass == nil || *r.FailureClass != broker.Unavailable.String() {
		r.LastError = hide(r.LastError)
	}
	if r.CorrelationID != nil {
		instead := notShown
		r.CorrelationID = &instead
	}
	return r
}

func (m *messageReport) withoutContent() *messageReport {
	m.Stream, m.Key = notShown, notShown
	if m.CorrelationID != nil {
		instead := notShown
		m.CorrelationID = &instead
	}
	for i := range m.Rows {
		m.Rows[i] = m.Rows[i].withoutContent()
	}
	for i := range m.DeadLetters {
		m.DeadLetters[i].Error = *hide(&m.DeadLetters[i].Error)
	}
	for i := range m.Related {
		m.Related[i].Stream = notShown
	}
	return m
}

func (p processReport) withoutContent() processReport {
	p.ID = notShown
	return p
}

func (l letterReport) withoutContent() letterReport {
	l.Key, l.Error = notShown, *hide(&l.Error)
	return l
}

// withoutContent keeps what an open breaker's broker said, or a database that refuses
// all: that is about no row.
func (r outboxReport) withoutContent() outboxReport {
	shown := outboxReport{Providers: map[string]map[string]laneReport{}}
	for provider, lanes := range r.Providers {
		shown.Providers[provider] = map[string]laneReport{}
		for target, lane := range lanes {
			if !lane.outage {
				lane.LastError = hide(lane.LastError)
			}
			shown.Providers[provider][target] = lane
		}
	}
	return shown
}

// withoutContent keeps what broker or database said to a subscription that they
// keep from running.
func (r subscriptionsReport) withoutContent() subscriptionsReport {
	shown := subscriptionsReport{map[string]subscriptionReport{}}
	for name, s := range r.Subscriptions {
		if s.Running {
			s.LastError = hide(s.LastError)
		}
		shown.Subscriptions[name] = s
	}
	return shown
}

// withoutContent is what was seen for those who don't see content, with the same
// reasons in it.
func (s sight) withoutContent() sight {
	outboxes := map[string]outboxSight{}
	for provider, o := range s.outboxes {
		lanes := map[string]laneSight{}
		for target, l := range o.lanes {
			lanes[target] = l.withoutContent()
		}
		o.lanes = lanes
		outboxes[provider] = o
	}
	s.outboxes = outboxes
	parts, subscriptions := map[string]component{}, map[string]subscriptionSight{}
	for name, part := range s.parts.Subscriptions {
		if c, ok := s.subscriptions[name]; !ok || c.status.Running {
			part.Error = hide(part.Error)
		}
		parts[name] = part
	}
	for name, c := range s.subscriptions {
		c.status = hideHandlers(c.status)
		subscriptions[name] = c
	}
	s.parts.Subscriptions, s.subscriptions = parts, subscriptions
	projections := map[string]projectionsSight{}
	for provider, p := range s.projections {
		projections[provider] = p.withoutContent()
	}
	s.projections = projections
	early := map[lane]subscription.EarlyLetters{}
	for at, e := range s.early {
		e.Error = *hide(&e.Error)
		early[at] = e
	}
	s.early = early
	return s
}

func (l laneSight) withoutContent() laneSight {
	if l.stats != nil {
		stats := *l.stats
		stats.LastError = hide(stats.LastError)
		l.stats = &stats
	}
	if l.status != nil {
		status := hideRows(*l.status)
		l.status = &status
	}
	return l
}

func hideRows(s outbox.LaneStatus) outbox.LaneStatus {
	if s.Breaker == "closed" && s.Database == nil {
		s.LastError = *hide(&s.LastError)
	}
	return s
}

func hideHandlers(s subscription.Status) subscription.Status {
	if s.Running {
		s.LastError = *hide(&s.LastError)
	}
	return s
}

// withoutContent has the reasons in the words that all may read.
func (d diagnosis) withoutContent() diagnosis {
	d.Summary = d.plainSummary
	d.Reasons = slices.Clone(d.Reasons)
	for i := range d.Reasons {
		d.Reasons[i].Text = d.Reasons[i].plain
	}
	return d
}

func (s state) withoutContent() state {
	s.Health, s.Outbox, s.Subscriptions = s.Health.withoutContent(), s.Outbox.withoutContent(), s.Subscriptions.withoutContent()
	return s
}
