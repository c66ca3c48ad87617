package engine

import (
	"net/http"
	"time"

	"github.com/waybill-go/waybill/command"
)

// commandsReport is the answer of /api/commands.
type commandsReport struct {
	Commands []commandReport `json:"commands"`
}

// commandReport is how commands of one type ended in this process since it began. What
// isn't known is null.
type commandReport struct {
	Context      string         `json:"context"`
	Command      string         `json:"command"`
	Type         string         `json:"type"`         // of its messages
	Subscription *string        `json:"subscription"` // that handles what comes as messages; null: nothing does
	Done         int64          `json:"done"`
	Refused      int64          `json:"refused"`
	Failed       int64          `json:"failed"`
	Expired      int64          `json:"expired"`
	Stopped      int64          `json:"stopped"`
	Lately       *latencyReport `json:"seconds_lately"`
	Ever         *latencyReport `json:"seconds_ever"`
	LastError    *string        `json:"last_error"`
	LastFailedAt *time.Time     `json:"last_failed_at"`
}

func (e *Engine) commands(r *http.Request) (any, error) {
	if err := paramsOf(r).check(); err != nil {
		return nil, err
	}
	report := e.commandsState()
	if !visitorOf(r).content() {
		for i, c := range report.Commands {
			report.Commands[i].LastError = hide(c.LastError)
		}
	}
	return report, nil
}

func (e *Engine) commandsState() commandsReport {
	report := commandsReport{[]commandReport{}}
	for _, h := range e.handlers {
		var queue *string
		if s, ok := h.Stream(); ok && !h.Units().OutboxDisabled() {
			queue = &s.Name
		}
		for _, n := range h.Counts() {
			c := commandReport{
				Context: h.Units().Domain().Name(), Command: n.Command, Type: n.Type, Subscription: queue,
				Done: n.Done, Refused: n.Refused, Failed: n.Failed, Expired: n.Expired, Stopped: n.Stopped,
				Lately: quantiles(n.Lately), Ever: quantiles(n.Ever),
			}
			if f := n.LastFailure; f != nil {
				at := f.At.UTC()
				c.LastError, c.LastFailedAt = &f.Error, &at
			}
			report.Commands = append(report.Commands, c)
		}
	}
	return report
}

func quantiles(q *command.Quantiles) *latencyReport {
	if q == nil {
		return nil
	}
	return &latencyReport{q.P50.Seconds(), q.P99.Seconds()}
}
