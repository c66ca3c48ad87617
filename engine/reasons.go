package engine

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/internal/senders"
	"github.com/waybill-go/waybill/outbox"
)

// reasons are what is wrong with what was seen. It knows no clock.
func (s sight) reasons() []reason {
	if s.status == "starting" || s.status == "draining" || s.status == "stopped" {
		return []reason{s.phase()}
	}
	return slices.Concat(s.databases(), s.clocksOff(), s.published(), s.silence(), s.consumed(), s.mixed(), s.derived(), s.parked())
}

// databases are the reasons that providers have.
func (s sight) databases() (all []reason) {
	for name, m := range s.moved {
		all = append(all, reason{
			Code: "database_moved", State: stuck, Provider: name,
			what:   "nothing is published from it: it is not the database that its outbox was written in (" + m.Present.Moved(m.Recorded) + ")",
			remedy: "`waybill doctor` says what that means. If it is a copy for other purposes, run it with brokers of its own. If it takes the other's place, `waybill database accept` lets its engines publish.",
		})
	}
	for name, p := range s.parts.Providers {
		if s.moved[name] != nil {
			continue // that is the reason
		}
		switch {
		case p.slow > 0:
			all = append(all, reason{
				Code: "database_slow", State: degraded, Provider: name,
				what:   fmt.Sprintf("it took %v to answer two short questions, and whatever is written, published and handled there waits as long at each step", p.slow.Round(100*time.Millisecond)),
				remedy: "Look at its load, at its disks, and at the network between. Where handlers take long, it may be the wait for one of max_conns connections.",
			})
		case p.usedUp:
			all = append(all, reason{
				Code: "connections_used_up", State: stuck, Provider: name,
				what:   "no connection to it is free" + because(p.Error) + "; nothing is written or handled there by this process",
				remedy: "pg_stat_activity shows what they do: idle in transaction are handlers that wait for something else. Raise max_conns, of which units of work have seven eighths, above the lanes of all subscriptions whose handlers take long, lower their Stream.Lanes, or let such a handler call others before its first statement. A restart frees them.",
			})
		case p.held != "" && answers(s.parts.Providers, name):
			all = append(all, reason{
				Code: "writer_held", State: stuck, Provider: name,
				what:   "its one writer isn't free (" + p.held + "); nothing is written, published or handled there",
				remedy: "Nothing is wrong with the file. Whatever that transaction waits for, wait for it outside of it: let a handler call others before its first statement. It continues by itself when the transaction ends; a restart ends it.",
			})
		case p.OK == nil || !*p.OK:
			all = append(all, reason{
				Code: "database_down", State: stuck, Provider: name,
				what:   "it doesn't answer properly" + because(p.Error) + "; nothing is written, published or handled there",
				remedy: "`waybill outbox stats` shows what is wrong with it; work resumes by itself.",
			})
		}
	}
	return all
}

// clocksOff are the reasons of clocks that are wrong.
func (s sight) clocksOff() (all []reason) {
	for name, ahead := range s.clocks {
		if ahead != 0 && !s.down(name) {
			all = append(all, reason{
				Code: "clock_off", State: degraded, Provider: name,
				what:   "the clock of this process is " + apart(ahead) + ": " + harm(ahead),
				remedy: clockRemedy,
			})
		}
	}
	return all
}

// down is whether what a provider's database said counts no more.
func (s sight) down(provider string) bool {
	return s.moved[provider] != nil || !answers(s.parts.Providers, provider)
}

// published are the reasons that outboxes and their lanes have.
func (s sight) published() (all []reason) {
	for provider, o := range s.outboxes {
		down := s.down(provider)
		held := s.parts.Providers[provider].held != "" // that is why it doesn't answer them
		if held {
			o.timers.trouble = nil
		}
		var own []reason
		if !down {
			own = o.reasons()
		}
		for target, l := range o.lanes {
			if down {
				l.stats = nil // what it said before
			}
			if l.status != nil && l.status.Database != nil && !down && !held {
				r := withheld(*l.status.Database)
				r.Target = target
				own = append(own, r)
			}
			for _, r := range l.reasons(target, s.parts.Brokers[target].Error) {
				r.Target = target
				own = append(own, r)
			}
		}
		for _, r := range own {
			r.Provider = provider
			all = append(all, r)
		}
	}
	return all
}

// silence are the reasons of brokers that no lane has found silent: theirs say it.
func (s sight) silence() (all []reason) {
	said := map[string]bool{}
	for _, o := range s.outboxes {
		for target, l := range o.lanes {
			said[target] = said[target] || l.status != nil && l.status.Breaker != "closed"
		}
	}
	for name, b := range s.parts.Brokers {
		if (b.OK == nil || !*b.OK) && !said[name] {
			all = append(all, reason{
				Code: "broker_down", State: degraded, Broker: name,
				what:   "it doesn't answer, or its topics can't be made" + because(b.Error),
				remedy: "Rows and messages wait, and continue by themselves. Check that it runs, its address and its permissions.",
			})
		}
	}
	return all
}

// consumed are the reasons that subscriptions have.
func (s sight) consumed() (all []reason) {
	for name, c := range s.subscriptions {
		if !answers(s.parts.Providers, c.provider) {
			continue // that is the reason
		}
		reasons := c.reasons()
		if t := c.status.Database; t != nil && s.parts.Providers[c.provider].held == "" {
			if !c.status.Running && !t.Aside {
				reasons = nil // that is why
			}
			reasons = append(reasons, withheld(*t))
		}
		if r := c.missed(); r != nil {
			reasons = append(reasons, *r)
		}
		for _, r := range reasons {
			r.Provider, r.Subscription = c.provider, name
			all = append(all, r)
		}
	}
	return all
}

// derived are the reasons that processes and projections have.
func (s sight) derived() (all []reason) {
	for provider := range s.parts.Providers {
		if r := s.idleProcesses(provider); r != nil {
			all = append(all, *r)
		}
		if r := s.unheardProcesses(provider); r != nil {
			all = append(all, *r)
		}
	}
	for provider, p := range s.projections {
		if !answers(s.parts.Providers, provider) {
			continue // that is the reason
		}
		for _, r := range p.reasons() {
			r.Provider = provider
			all = append(all, r)
		}
	}
	return all
}

// mixed are the reasons of subscriptions whose topics another service publishes to as well.
func (s sight) mixed() (all []reason) {
	for provider, heard := range s.heard {
		if s.unnamed || s.down(provider) {
			continue
		}
		for name := range heard.Mixed(s.own) {
			all = append(all, reason{
				Code: "senders_mixed", State: degraded, Provider: provider, Subscription: name,
				what:   "its topic has events of our own and of another database's outbox: if the service there has this subscription, too, each handles a part of the events, and the other one never sees it",
				remedy: "`waybill doctor` says when the last came. What helps: " + senders.Advice + ".",
			})
		}
	}
	return all
}

// parked are the reasons that dead letters have.
func (s sight) parked() (all []reason) {
	for at, e := range s.early {
		all = append(all, reason{
			Code: "dead_letters_early", State: degraded, Provider: at.provider, Subscription: at.name,
			what:   number(e.Count, "message") + " of it arrived before the message that starts their process, which is overdue" + because(&e.Error),
			remedy: "They are handled when it arrives: `waybill dead-letters list {only} --status early` shows what is missing. Those that start the process themselves, since a later build, `waybill dead-letters replay {only} --reason early` has heard. `waybill dead-letters discard {only} --status early` discards them; if such messages can arrive for processes that never start, declare them domain.Optional().",
		})
	}
	for at, n := range s.newer {
		needs, which := n.Needs, ""
		if n.More > 0 {
			needs += ", or " + number(n.More, "other name")
			which = "`waybill dead-letters list {only} --reason newer_version` shows which needs what. "
		}
		all = append(all, reason{
			Code: "dead_letters_newer", State: degraded, Provider: at.provider, Subscription: at.name, lasting: settling,
			what:   number(n.Count, "dead letter") + " of it wait for a build that knows " + needs + ", with what is held behind them",
			remedy: which + "Deploy such a build: it handles them by itself, and others leave them alone, even if they are replayed. If there is to be none, `waybill dead-letters discard {only} --reason newer_version` discards them.",
		})
	}
	for at, n := range s.letters {
		if n -= s.early[at].Count + s.newer[at].Count; n > 0 {
			all = append(all, reason{
				Code: "dead_letters", State: degraded, Provider: at.provider, Subscription: at.name,
				what:   number(n, "dead letter") + " of it, and the messages behind them, wait for an operator",
				remedy: "`waybill dead-letters list {only}` says why; then `waybill dead-letters replay {only}` or `waybill dead-letters discard {only}`.",
			})
		}
	}
	return all
}

// reasons are those of a database's outbox, whoever publishes its rows.
func (o outboxSight) reasons() (all []reason) {
	if o.err != "" {
		all = append(all, reason{
			Code: "not_counted", State: degraded, lasting: settling,
			what:   "its outbox can't be counted: " + o.err,
			remedy: "`waybill outbox stats` waits longer for the numbers.",
		})
	}
	all = append(all, o.timers.reasons()...)
	if o.misfit != nil {
		r := withheld(outbox.Trouble{What: "save events of context " + o.misfit.Context, Error: o.misfit.Error(), Code: dberr.CodeOf(o.misfit)})
		r.quiet = true
		all = append(all, r)
	}
	for _, w := range o.locks {
		if w.Table == "" {
			all = append(all, reason{
				Code: "rows_locked", State: degraded,
				what:   fmt.Sprintf("%s for rows that other transactions have, one of which has been open for %v: that of %s", sessions(w.Sessions), brief(w.Longest), w.By),
				remedy: "Handlers and commits wait for it. If its process hangs, end that, or its session: " + w.Remedy + ". PostgreSQL's idle_in_transaction_session_timeout ends such sessions by itself.",
			})
			continue
		}
		all = append(all, reason{
			Code: "table_locked", State: stuck,
			what:   fmt.Sprintf("%s for the lock of table %s, the first for %v, which %s has", sessions(w.Sessions), w.Table, brief(w.Longest), w.By),
			remedy: "Commits, publishing or handlers may be among them. They continue by themselves when it ends: " + w.Remedy + ".",
		})
	}
	for context, waits := range o.unkept {
		all = append(all, reason{
			Code: "history_waits", State: degraded, lasting: settling,
			what:   "the history of context " + context + " has not begun, and its events are not kept; it waits for " + waits,
			remedy: "It begins by itself. pg_stat_activity shows which transaction has been writing for long: end it if it never commits.",
		})
	}
	return all
}

// reasons are those of a database's timers.
func (t timersSight) reasons() (all []reason) {
	if t.trouble != nil {
		all = append(all, withheld(*t.trouble))
	}
	if t.late > oldWarning {
		all = append(all, reason{
			Code: limit("timers_late", t.late > oldCritical), State: degraded,
			what:   fmt.Sprintf("a waiting timer was due %v ago; its message goes to broker %q", brief(t.late), t.of),
			remedy: "`waybill timers list --status waiting` says which. Any engine of the database sends them: check that one runs. It pauses while 50,000 messages of timers to one broker are unpublished; `waybill outbox stats` shows whether they are being published.",
		})
	}
	if t.broken > 0 {
		are := "are"
		if t.broken == 1 {
			are = "is"
		}
		all = append(all, reason{
			Code: "timers_broken", State: degraded,
			what:   number(t.broken, "timer") + " can't be sent and " + are + " set aside",
			remedy: "`waybill timers list --status broken` shows which, `waybill timers show` why. `waybill timers fire --status broken` tries them again, `waybill timers stop --status broken` discards them.",
		})
	}
	return all
}

// withheld is something that a database that answers doesn't let somebody do.
func withheld(t outbox.Trouble) reason {
	r := reason{
		Code: "database_refuses", State: stuck,
		what:   t.Subject() + because(&t.Error),
		remedy: dberr.Remedy(t.Code),
	}
	if t.Aside {
		r.State = degraded
		r.what += "; everything else continues"
	}
	return r
}

// phase is why an engine that doesn't run doesn't.
func (s sight) phase() reason {
	r := reason{Code: "not_running", State: degraded}
	switch s.status {
	case "starting":
		r.what, r.remedy = "it starts", "It waits for databases and brokers, for ten seconds each at most."
	case "draining":
		r.what, r.remedy = "it stops", "It finishes work in progress."
	default:
		r.what, r.remedy = "it has stopped", "An engine runs once: start another."
	}
	return r
}

func answers(parts map[string]component, name string) bool {
	p := parts[name]
	return p.OK != nil && *p.OK
}

// because is an error in brackets, without its stack.
func because(text *string) string {
	if text == nil || *text == "" {
		return ""
	}
	line, _, _ := strings.Cut(*text, "\n")
	return " (" + line + ")"
}

func number(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// limit is the code of what is over its lower, or its upper limit.
func limit(code string, upper bool) string {
	if upper {
		return code + "_critical"
	}
	return code
}

func sessions(n int) string {
	if n == 1 {
		return "1 session waits"
	}
	return fmt.Sprintf("%d sessions wait", n)
}

func wait(rows int64) string {
	if rows == 1 {
		return "1 row waits"
	}
	return fmt.Sprintf("%d rows wait", rows)
}

// brief is a time for people.
func brief(d time.Duration) time.Duration { return d.Round(time.Second) }
