package engine

import (
	"context"
	"errors"
	"net/http"
	"slices"

	"github.com/waybill-go/waybill/subscription"
)

var (
	letterStatuses = []subscription.DeadLetterStatus{
		subscription.DeadLetterParked, subscription.DeadLetterHeld, subscription.DeadLetterWaiting, subscription.DeadLetterEarly,
		subscription.DeadLetterReplay, subscription.DeadLetterReplayed, subscription.DeadLetterDiscarded,
	}
	letterReasons = []string{"undecodable", "too_large", "refused", "newer_version", "parked", "failed", "crashed", "held", "waiting", "early"}
)

// letterReport is a dead letter in a list.
type letterReport struct {
	Provider string `json:"provider"`
	subscription.DeadLetter
}

// lettersReport is the answer of /api/dead-letters.
type lettersReport struct {
	Letters []letterReport   `json:"dead_letters"`
	Total   map[string]int64 `json:"total"` // that the filter chooses, by provider
	Next    map[string]int64 `json:"next"`  // the after of the next page, by provider, where there is one
}

func (e *Engine) letters(r *http.Request) (any, error) {
	p := paramsOf(r)
	provider := p.text("provider")
	filter := subscription.DeadLetterFilter{
		Subscription: p.text("subscription"), MessageID: p.text("message"), Key: p.text("key"), Type: p.text("type"),
		ErrorType: p.text("error_type"), Error: p.text("error"), Statuses: choices(p, "status", letterStatuses),
		From: p.time("from"), Until: p.time("until"),
	}
	if reason, ok := p.one("reason", oneOf(letterReasons)); ok {
		if filter.Reason = reason; !slices.Contains(letterReasons, reason) {
			p.fail("reason is %q: it takes %s", reason, oneOf(letterReasons))
		}
	}
	after, limit := p.page()
	if err := p.check(); err != nil {
		return nil, err
	}
	if err := p.onlyContent(r, "key", "error"); err != nil {
		return nil, err
	}
	of, err := e.chosen(provider, anyDatabase)
	if err == nil {
		err = onePlace(after, of)
	}
	if err != nil {
		return nil, err
	}
	lists, errs := fromEach(of, func(d *database) (list subscription.DeadLetterList, err error) {
		err = d.inInbox(r.Context(), func(ctx context.Context, s *subscription.DeadLetters) error {
			list, err = s.List(ctx, filter, subscription.DeadLetterPage{After: after, Limit: limit})
			return err
		})
		return list, err
	})
	if len(errs) > 0 {
		return nil, first(errs)
	}
	report := lettersReport{[]letterReport{}, map[string]int64{}, map[string]int64{}}
	for _, d := range of {
		name := d.provider.Name()
		list := lists[name]
		for _, l := range list.Letters {
			shown := letterReport{name, l}
			if !visitorOf(r).content() {
				shown = shown.withoutContent()
			}
			report.Letters = append(report.Letters, shown)
		}
		if report.Total[name] = list.Total; list.Next > 0 {
			report.Next[name] = list.Next
		}
	}
	return report, nil
}

// letterDetails is the answer of /api/dead-letters/{id}. Payload and headers are
// null where PayloadHidden says why.
type letterDetails struct {
	letterReport
	Stack         string            `json:"stack"`
	Before        int64             `json:"before"`
	Behind        int64             `json:"behind"`
	Head          string            `json:"head"`
	Headers       map[string]string `json:"headers"`
	Payload       any               `json:"payload"`
	PayloadHidden *string           `json:"payload_hidden"`
}

func (e *Engine) letter(r *http.Request) (any, error) {
	id := r.PathValue("id")
	if err := paramsOf(r).check(); err != nil {
		return nil, err
	}
	if !isUUID(id) {
		return nil, badRequest("%q is not the id of a dead letter, which is a UUID", id)
	}
	found, errs := fromEach(e.databases, func(d *database) (l *subscription.DeadLetterDetails, err error) {
		err = d.inInbox(r.Context(), func(ctx context.Context, s *subscription.DeadLetters) error {
			l, err = s.Show(ctx, id)
			if errors.Is(err, subscription.ErrNoDeadLetter) {
				return nil
			}
			return err
		})
		return l, err
	})
	for name, l := range found {
		if l == nil {
			continue
		}
		details := letterDetails{
			letterReport: letterReport{name, l.DeadLetter}, Stack: l.Stack, Before: l.Before, Behind: l.Behind, Head: l.Head,
		}
		var hidden string
		if details.Payload, hidden = e.payload(r, l.Body); hidden != "" {
			details.PayloadHidden = &hidden
		}
		if e.hidden(r) == "" {
			details.Headers = e.redaction.headers(l.Headers)
		}
		if !visitorOf(r).content() {
			details.letterReport, details.Stack = details.letterReport.withoutContent(), *hide(&details.Stack)
		}
		return details, nil
	}
	if len(errs) > 0 {
		return nil, first(errs)
	}
	return nil, notFound("there is no dead letter %s", id)
}

func (e *Engine) replay(r *http.Request) (any, error) {
	return e.changeLetters(r, nil, func(ctx context.Context, s *subscription.DeadLetters, f subscription.DeadLetterFilter, asked letterChange) (subscription.DeadLetterResult, error) {
		return s.Replay(ctx, f, subscription.ReplayOptions{
			Actor: visitorOf(r).actor(asked.Actor), Rate: asked.Rate, Limit: int(asked.Limit), UpTo: asked.UpTo, DryRun: asked.DryRun,
		})
	})
}

func (e *Engine) discard(r *http.Request) (any, error) {
	return e.changeLetters(r, []string{"rate", "limit"}, func(ctx context.Context, s *subscription.DeadLetters, f subscription.DeadLetterFilter, asked letterChange) (subscription.DeadLetterResult, error) {
		return s.Discard(ctx, f, subscription.DiscardOptions{Actor: visitorOf(r).actor(asked.Actor), UpTo: asked.UpTo, DryRun: asked.DryRun})
	})
}

func (e *Engine) changeLetters(r *http.Request, notHere []string,
	do func(context.Context, *subscription.DeadLetters, subscription.DeadLetterFilter, letterChange) (subscription.DeadLetterResult, error),
) (result subscription.DeadLetterResult, err error) {
	var asked letterChange
	if err := decode(r, &asked, notHere...); err != nil {
		return result, err
	}
	if err := checkActor(r, asked.Actor, asked.DryRun); err != nil {
		return result, err
	}
	f := asked.Filter
	f.From, f.Until = bounded(f.From), bounded(f.Until)
	switch {
	case f.Subscription == "":
		return result, badRequest("filter.subscription is missing: say whose dead letters")
	case f.Reason != "" && !slices.Contains(letterReasons, f.Reason):
		return result, badRequest("filter.reason is %q: it takes %s", f.Reason, oneOf(letterReasons))
	}
	for _, s := range f.Statuses {
		if !slices.Contains(letterStatuses, s) {
			return result, badRequest("filter.statuses has %q: it takes %s", s, oneOf(letterStatuses))
		}
	}
	for _, id := range f.IDs {
		if !isUUID(id) {
			return result, badRequest("filter.ids has %q, which is not a UUID", id)
		}
	}
	if err := checkLimit(asked.Limit); err != nil {
		return result, err
	}
	d, err := e.only(asked.Provider, anyDatabase)
	if err != nil {
		return result, err
	}
	err = d.inInbox(r.Context(), func(ctx context.Context, s *subscription.DeadLetters) error {
		result, err = do(ctx, s, f, asked)
		return e.interrupted(err, result.Marked, asked.DryRun)
	})
	return result, err
}
