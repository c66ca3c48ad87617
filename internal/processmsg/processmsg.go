// Package processmsg is what processes are told besides events: that a timer is due,
// and that a command which they sent was refused. All processes of a context share one
// stream for these messages.
package processmsg

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// Stream is the last part of the stream's category: "library::processes".
const Stream = "processes"

// Category is the stream of a context's processes.
func Category(context string) string { return context + "::" + Stream }

// The names of the messages. No context's name begins with a small letter, as events
// write it.
const (
	TimerDueName = "waybill.ProcessTimerDue"
	RefusedName  = "waybill.ProcessCommandRefused"
	Version      = 1
)

// WireName is the name in a message.
func WireName(name string) string { return name + ".v" + strconv.Itoa(Version) }

// TimerDue is a timer of a process.
type TimerDue struct {
	Process string `json:"process"`
	ID      string `json:"id"`
	Timer   string `json:"timer"`
}

// Refused is a command that was refused, or expired.
type Refused struct {
	Process string          `json:"process"`
	ID      string          `json:"id"`
	Command string          `json:"command"` // its wire name
	Data    json.RawMessage `json:"data"`
	Reason  string          `json:"reason"`
}

// Key is by which messages of a process are ordered at the broker, and the owner of its
// timers.
func Key(process, id string) string { return process + "-" + id }

// Address is where a process hears of refusals: "library/lending/l1".
func Address(context, process, id string) string { return context + "/" + process + "/" + id }

// ParseAddress is the reverse. Neither a context's nor a process's name has a '/'.
func ParseAddress(address string) (context, process, id string, ok bool) {
	context, rest, _ := strings.Cut(address, "/")
	process, id, ok = strings.Cut(rest, "/")
	return context, process, id, ok && context != "" && process != "" && id != ""
}

// UnheardError is a message of a process that this build of it has no function for.
type UnheardError struct {
	Process string // "library.lending"
	Timer   string // that is due; "": a refusal
	Command string // that was refused, without its version
}

func (e *UnheardError) Error() string {
	what := fmt.Sprintf("the refusal of %s: deploy a build with domain.Hears for its domain.Refusal", e.Command)
	after := "discard the message"
	if e.Timer != "" {
		what = fmt.Sprintf("timer %q: deploy a build with domain.OnTimer(%q, …)", e.Timer, e.Timer)
		after += " and stop the timer"
	}
	return fmt.Sprintf("process: this build of %s has no function for %s, which then handles it by itself, or %s", e.Process, what, after)
}

// Needs names what a build has to have, for domain.Domain.Readable. No name in a message
// has a space.
func (e *UnheardError) Needs() string {
	if e.Timer != "" {
		return "timer " + e.Timer + " of " + e.Process
	}
	return "refusal of " + e.Command + " by " + e.Process
}

// IsNeed says whether a name is one of [UnheardError.Needs].
func IsNeed(name string) bool { return strings.Contains(name, " ") }
