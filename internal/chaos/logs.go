package chaos

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/internal/verdict"
)

// LogLine is a line of a node's log, as far as anybody here reads it.
type LogLine struct {
	Time  time.Time `json:"time"`
	Msg   string    `json:"msg"`
	Rows  int       `json:"rows"`
	Since time.Time `json:"since"`
}

// ReadLog reads what is whole of a log: the last line of a killed process may
// not be.
func ReadLog(text []byte) (lines []LogLine) {
	for line := range bytes.Lines(text) {
		var l LogLine
		if json.Unmarshal(line, &l) == nil {
			lines = append(lines, l)
		}
	}
	return lines
}

const noAnswer = "a call was not answered in time"

// Tell logs that a call was not answered, unless it was.
func Tell(log *slog.Logger, since time.Time, err error) {
	if unanswered(err) {
		log.Warn(noAnswer, "since", since, "error", err)
	}
}

// unanswered says that some of a call may be stored.
func unanswered(err error) bool {
	partial, ok := errors.AsType[*broker.PublishError](err)
	if !ok {
		return err != nil && broker.ClassOf(err) == broker.Unknown
	}
	for _, err := range partial.Failed {
		if broker.ClassOf(err) == broker.Unknown {
			return true
		}
	}
	return false
}

// Heed adds to the evidence what a process has logged, whose clock was ahead by some time.
func Heed(e *verdict.Evidence, pid int, log []byte, ahead time.Duration) {
	for _, l := range ReadLog(log) {
		at, since := l.Time.Add(-ahead), l.Since.Add(-ahead)
		switch {
		case strings.HasPrefix(l.Msg, "rows were not written back"):
			e.Stale += l.Rows
		case strings.HasPrefix(l.Msg, "rows were taken over"):
			e.TakenOver += l.Rows
		case l.Msg == noAnswer:
			e.Incidents = append(e.Incidents, verdict.Incident{Kind: "unanswered call", PID: pid, From: since, Until: at})
		case strings.HasPrefix(l.Msg, "the result of a call can't be recorded"):
			e.Incidents = append(e.Incidents, verdict.Incident{Kind: "settle given up", PID: pid, From: at, Until: at})
		case strings.HasPrefix(l.Msg, "leases had run out"):
			// It was too slow to renew, and notices when it has tried again.
			e.Incidents = append(e.Incidents, verdict.Incident{Kind: "late renewal", PID: pid, From: at.Add(-10 * time.Second), Until: at})
		}
	}
}
