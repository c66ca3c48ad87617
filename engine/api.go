package engine

import (
	"context"
	"net/http"
	"sync"

	"github.com/waybill-go/waybill/outbox"
)

// outboxReport is the answer of /api/outbox: by provider and target broker.
type outboxReport struct {
	Providers map[string]map[string]laneReport `json:"providers"`
}

// laneReport is one target broker of one provider. What can't be computed is
// null, and Error says why.
type laneReport struct {
	Counts               map[outbox.Status]int64 `json:"counts"`
	RetryRate            *float64                `json:"retry_rate"`
	OldestPendingSeconds *float64                `json:"oldest_pending_seconds"`
	InFlight             *int                    `json:"in_flight"`
	Breaker              *string                 `json:"breaker"`
	PublishedPerSecond   *float64                `json:"published_per_second"`
	LatencySeconds       *latencyReport          `json:"latency_seconds"`
	LastError            *string                 `json:"last_error"`
	LeaseOwners          []string                `json:"lease_owners"`
	Members              []outbox.Member         `json:"members"`
	Doing                *string                 `json:"doing"`
	Error                string                  `json:"error,omitempty"`

	outage bool // LastError is what a broker said that doesn't answer, or the database, and about no row
}

// latencyReport is that of the last minute.
type latencyReport struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

// noAnswer is why something is not known.
const noAnswer = "the database doesn't answer in time"

func (e *Engine) outbox(r *http.Request) (any, error) {
	if err := paramsOf(r).check(); err != nil {
		return nil, err
	}
	report := e.outboxState(r.Context(), fresh)
	if !visitorOf(r).content() {
		report = report.withoutContent()
	}
	return report, nil
}

func (e *Engine) outboxState(ctx context.Context, as age) outboxReport {
	report := outboxReport{Providers: map[string]map[string]laneReport{}}
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, d := range e.databases {
		all.Go(func() {
			lanes := d.lanesReport(ctx, as)
			mu.Lock()
			defer mu.Unlock()
			report.Providers[d.provider.Name()] = lanes
		})
	}
	all.Wait()
	return report
}

// lanesReport puts together what the database has and what this process knows.
// A target that has rows and no lane is shown, too: nobody publishes them here.
func (d *database) lanesReport(ctx context.Context, as age) map[string]laneReport {
	lanes := map[string]laneReport{}
	if !d.hasOutbox() {
		return lanes // no outbox
	}
	result, known := d.stats.ask(ctx, as)
	problem := ""
	switch {
	case !known:
		problem = noAnswer
	case result.err != nil:
		problem = result.err.Error()
	}
	for target := range result.value {
		lanes[target] = laneReport{}
	}
	for _, l := range d.lanes {
		lanes[l.Target] = laneReport{}
	}
	status := d.status()
	for target := range lanes {
		lane := laneReport{Error: problem}
		if problem == "" {
			lane.database(result.value[target])
		}
		if s, ok := status[target]; ok {
			lane.process(s)
		}
		lanes[target] = lane
	}
	return lanes
}

// database fills in what the database has.
func (r *laneReport) database(s outbox.Stats) {
	r.Counts = s.Counts
	rate := s.RetryRate()
	r.RetryRate = &rate
	if s.OldestPending != nil {
		seconds := s.OldestPending.Seconds()
		r.OldestPendingSeconds = &seconds
	}
	r.LastError = s.LastError
	r.LeaseOwners = append([]string{}, s.LeaseOwners...)
	r.Members = append([]outbox.Member{}, s.Members...)
}

func (r *laneReport) process(s outbox.LaneStatus) {
	r.InFlight, r.Breaker, r.PublishedPerSecond = &s.InFlight, &s.Breaker, &s.PublishedPerSecond
	r.Doing = &s.Doing
	r.LatencySeconds = quantiles(s.Latency)
	if s.LastError != "" {
		r.LastError, r.outage = &s.LastError, s.Breaker != "closed" || s.Database != nil
	}
}
