package engine

import (
	"context"
	"net/http"
	"sync"
	"time"
)

// subscriptionsReport is the answer of /api/subscriptions, by name.
type subscriptionsReport struct {
	Subscriptions map[string]subscriptionReport `json:"subscriptions"`
}

// subscriptionReport is a subscription as this process knows it. What can't be
// known is null.
type subscriptionReport struct {
	Provider    string   `json:"provider"`
	Running     bool     `json:"running"`
	Joined      bool     `json:"joined"`
	Since       *string  `json:"since"`
	Partitions  int      `json:"partitions"`
	Refusal     *string  `json:"refusal"`
	Missed      int64    `json:"missed"`
	Paused      bool     `json:"paused"`
	Open        bool     `json:"open"`
	InFlight    int64    `json:"in_flight"`
	Handled     int64    `json:"handled"`
	Duplicates  int64    `json:"duplicates"`
	Parked      int64    `json:"parked"`
	Retries     int64    `json:"retries"`
	LagMessages *int64   `json:"lag_messages"`
	LagSeconds  *float64 `json:"lag_seconds"`
	LastError   *string  `json:"last_error"`
	DeadLetters *int64   `json:"dead_letters"`
	LettersOf   string   `json:"dead_letters_of"`
	Waiting     *int64   `json:"waiting"`
	Postponed   int64    `json:"postponed"`
	Stalled     *string  `json:"stalled"`
}

func (e *Engine) subscriptions(r *http.Request) (any, error) {
	if err := paramsOf(r).check(); err != nil {
		return nil, err
	}
	report := e.subscriptionsState(r.Context(), fresh)
	if !visitorOf(r).content() {
		report = report.withoutContent()
	}
	return report, nil
}

func (e *Engine) subscriptionsState(ctx context.Context, as age) subscriptionsReport {
	report := subscriptionsReport{map[string]subscriptionReport{}}
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, s := range e.streams {
		all.Go(func() {
			state := e.subscriptionState(ctx, s, as)
			mu.Lock()
			defer mu.Unlock()
			report.Subscriptions[s.name] = state
		})
	}
	all.Wait()
	return report
}

func (e *Engine) subscriptionState(ctx context.Context, s stream, as age) subscriptionReport {
	status := s.runner.Status()
	report := subscriptionReport{
		Provider: s.provider, Running: status.Running, Paused: status.Paused, Open: status.Open, InFlight: status.InFlight,
		Handled: status.Handled, Duplicates: status.Duplicates, Parked: status.Parked, Retries: status.Retries,
		Postponed: status.Postponed, Joined: status.Joined, Partitions: status.Partitions, Missed: status.Missed,
		LettersOf: s.letters,
	}
	if !status.Since.IsZero() {
		since := status.Since.UTC().Format(time.RFC3339)
		report.Since = &since
	}
	if status.Refusal != nil {
		text := status.Refusal.Error()
		report.Refusal = &text
	}
	if status.Stalled != "" {
		report.Stalled = &status.Stalled
	}
	if status.LastError != "" {
		report.LastError = &status.LastError
	}
	if lag, known := s.lag.ask(ctx, as); known && lag.err == nil {
		seconds := lag.value.Age.Seconds()
		report.LagSeconds = &seconds
		if lag.value.Messages >= 0 { // the broker can say
			report.LagMessages = &lag.value.Messages
		}
	}
	for _, d := range e.databases {
		if d.provider.Name() != s.provider {
			continue
		}
		if open, known := d.dead.ask(ctx, as); known && open.err == nil {
			n, waiting := open.value.open[s.letters], open.value.waiting[s.letters]+status.Waiting
			report.DeadLetters, report.Waiting = &n, &waiting
		}
	}
	return report
}
