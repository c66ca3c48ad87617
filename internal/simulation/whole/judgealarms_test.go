package whole

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/waybill-go/waybill/subscription"
)

// waitingTimers counts those that should come to their end by themselves: not those whose letter was
// given up, which an operator stops.
const waitingTimers = "SELECT count(*) FROM timers AS t WHERE NOT EXISTS (SELECT 1 FROM dead_letters AS d WHERE d.message_id = t.id AND d.status = 'discarded')"

// rings is what the judge knows of the messages of commands.
type rings struct {
	given map[string]bool // by token: its message was given up
	loose bool            // what is parked is skipped
	ids   map[string]int  // by token: how many messages it has
}

// judgeAlarms: a timer that was set rings once, not before its time, unless it was stopped or
// moved before; what was sent is done once, and in order.
func (w *world) judgeAlarms() {
	if !w.plan.timers {
		return
	}
	r := w.commandsOf()
	units := map[string]int{}
	known := map[string]bool{}
	for _, row := range w.read("SELECT id, state FROM documents WHERE version > 0 AND category = 'bank::alarm'") {
		var a struct{ Log []step }
		if err := json.Unmarshal(text(row[1]), &a); err != nil {
			panic(err)
		}
		for _, s := range a.Log {
			known[s.Token] = true
			units[s.Unit]++
		}
		w.judgeTimers(row[0].(string), a.Log, r)
		w.judgeSent(row[0].(string), a.Log, r)
	}
	for token := range r.ids {
		if !known[token] && !strings.HasPrefix(token, "trip-") {
			w.wrong("ghost: the command of %s is in the broker, and nobody has sent it", token)
		}
	}
	for id, o := range w.ops {
		switch n := units[id]; {
		case o.change.what == "begin" || o.change.what == "pay":
		case n > 1 || len(o.accounts) > 0 && (n > 0) != o.there:
			w.wrong("torn: unit %s has changed %s %d times, and its accounts: %v", id, o.change.alarm, n, o.there)
		case n == 0 && o.fate == done:
			w.wrong("lost: unit %s was committed, and nothing is left of it", id)
		case n > 0 && (o.fate == undone || o.rolls):
			w.wrong("ghost: unit %s was not committed, and has changed %s", id, o.change.alarm)
		}
	}
}

// commandsOf looks through what the broker has.
func (w *world) commandsOf() *rings {
	r := &rings{given: map[string]bool{}, ids: map[string]int{}, loose: w.plan.policy == subscription.Skip}
	gone := map[string]bool{}
	for _, row := range w.read("SELECT message_id FROM dead_letters WHERE status = 'discarded'") {
		gone[row[0].(string)] = true
	}
	seen := map[string]bool{}
	for part := range parts {
		for _, s := range w.commands.log[part] {
			var envelope struct{ Data Ring }
			if err := json.Unmarshal(s.Body, &envelope); err != nil {
				panic(err)
			}
			token := envelope.Data.Token
			if seen[s.ID] {
				if w.plan.exact {
					w.wrong("double: the command of %s reached the broker twice, in transactions", token)
				}
				continue
			}
			seen[s.ID] = true
			r.ids[token]++
			r.given[token] = r.given[token] || gone[s.ID]
		}
	}
	return r
}

// judgeTimers goes through what happened to an alarm's timers.
func (w *world) judgeTimers(alarm string, log []step, r *rings) {
	set := map[string]step{} // by name: what waits
	rang := map[string]bool{}
	for _, s := range log {
		switch s.What {
		case "set":
			set[s.Name] = s
		case "stop":
			delete(set, s.Name)
		case "ring":
			due, waits := set[s.Name]
			switch {
			case rang[s.Token]:
				w.wrong("twice: %s of %s rang twice", s.Token, alarm)
			case !waits || due.Token != s.Token:
				w.wrong("stopped: %s of %s rang as %s, which was stopped or moved before", s.Name, alarm, s.Token)
			case s.Now.Before(due.At):
				w.wrong("early: %s of %s rang %v before its time", s.Token, alarm, due.At.Sub(s.Now))
			case refused(s.Token) || r.given[s.Token]:
				w.wrong("ghost: %s of %s was refused or given up, and rang", s.Token, alarm)
			}
			rang[s.Token] = true
			w.rang++
			delete(set, s.Name)
		}
	}
	for name, s := range set {
		if !refused(s.Token) && !r.given[s.Token] {
			w.wrong("lost: %s of %s was set as %s, and has not rung", name, alarm, s.Token)
		}
	}
}

// judgeSent looks at the commands that were sent.
func (w *world) judgeSent(alarm string, log []step, r *rings) {
	var sent, done []string
	for _, s := range log {
		switch s.What {
		case "sent":
			if !slices.Contains(sent, s.Token) {
				sent = append(sent, s.Token)
			}
		case "done":
			if slices.Contains(done, s.Token) {
				w.wrong("twice: %s of %s was done twice", s.Token, alarm)
			}
			if !slices.Contains(sent, s.Token) || refused(s.Token) {
				w.wrong("ghost: %s of %s was not sent, or is refused, and was done", s.Token, alarm)
			}
			done = append(done, s.Token)
			w.asked++
		}
	}
	var want []string
	for _, token := range sent {
		there := slices.Contains(done, token)
		switch {
		case there && number(token) > 0 && r.given[token]:
			w.wrong("ghost: %s of %s was given up, and was done", token, alarm)
		case !there && !refused(token) && !r.given[token]:
			w.wrong("lost: %s was sent to %s, and is not done", token, alarm)
		case there:
			want = append(want, token)
		}
	}
	// Of several with one key another one may be done, if the first is parked or given up.
	ordered := func(all []string) string {
		return fmt.Sprint(slices.DeleteFunc(slices.Clone(all), func(token string) bool { return number(token) == 0 }))
	}
	if ordered(want) != ordered(done) && !r.loose {
		w.wrong("disorder: %s has done %v, and they were sent as %v", alarm, done, want)
	}
}
