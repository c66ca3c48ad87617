package engine

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/outbox"
)

// reasons are what is wrong with what was seen. It knows no clock.
func (s sight) reasons() []reason {
	if s.status == "starting" || s.status == "draining" || s.status == "stopped" {
		return []reason{s.phase()}
	}
	var all []reason
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
		if p.OK == nil || !*p.OK {
			all = append(all, reason{
				Code: "database_down", State: stuck, Provider: name,
				what:   "it doesn't answer properly" + because(p.Error) + "; nothing is written, published or handled there",
				remedy: "`waybill outbox stats` shows what is wrong with it; work resumes by itself.",
			})
		}
	}
	silent := map[string]bool{} // brokers that a lane has found silent
	for provider, o := range s.outboxes {
		down := s.moved[provider] != nil || !answers(s.parts.Providers, provider)
		if o.err != "" && !down {
			all = append(all, reason{
				Code: "not_counted", State: degraded, Provider: provider, lasting: settling,
				what:   "its outbox can't be counted: " + o.err,
				remedy: "`waybill outbox stats` waits longer for the numbers.",
			})
		}
		if !down {
			for _, r := range o.timers.reasons() {
				r.Provider = provider
				all = append(all, r)
			}
			if o.misfit != nil {
				r := withheld(outbox.Trouble{What: "save events of context " + o.misfit.Context, Error: o.misfit.Error(), Code: dberr.CodeOf(o.misfit)})
				r.Provider, r.quiet = provider, true
				all = append(all, r)
			}
			for context, waits := range o.unkept {
				all = append(all, reason{
					Code: "history_waits", State: degraded, Provider: provider, lasting: settling,
					what:   "the history of context " + context + " has not begun, and its events are not kept; it waits for " + waits,
					remedy: "It begins by itself. pg_stat_activity shows which transaction has been writing for long: end it if it never commits.",
				})
			}
		}
		for target, l := range o.lanes {
			if down {
				l.stats = nil // what it said before
			}
			silent[target] = silent[target] || l.status != nil && l.status.Breaker != "closed"
			if l.status != nil && l.status.Database != nil && !down {
				r := withheld(*l.status.Database)
				r.Provider, r.Target = provider, target
				all = append(all, r)
			}
			for _, r := range l.reasons(target, s.parts.Brokers[target].Error) {
				r.Provider, r.Target = provider, target
				all = append(all, r)
			}
		}
	}
	for name, b := range s.parts.Brokers {
		if (b.OK == nil || !*b.OK) && !silent[name] {
			all = append(all, reason{
				Code: "broker_down", State: degraded, Broker: name,
				what:   "it doesn't answer, or its topics can't be made" + because(b.Error),
				remedy: "Rows and messages wait, and continue by themselves. Check that it runs, its address and its permissions.",
			})
		}
	}
	for name, c := range s.subscriptions {
		if !answers(s.parts.Providers, c.provider) {
			continue // that is the reason
		}
		reasons := c.reasons()
		if t := c.status.Database; t != nil {
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
	for provider := range s.parts.Providers {
		if r := s.idleProcesses(provider); r != nil {
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
	for at, e := range s.early {
		all = append(all, reason{
			Code: "dead_letters_early", State: degraded, Provider: at.provider, Subscription: at.name,
			what:   number(e.Count, "message") + " of it arrived before the message that starts their process, which is overdue" + because(&e.Error),
			remedy: "They are handled when it arrives: `waybill dead-letters list {only} --status early` shows what is missing. Those that start the process themselves, since a later build, `waybill dead-letters replay {only} --reason early` has heard. `waybill dead-letters discard {only} --status early` discards them; if such messages can arrive for processes that never start, declare them domain.Optional().",
		})
	}
	for at, n := range s.newer {
		all = append(all, reason{
			Code: "dead_letters_newer", State: degraded, Provider: at.provider, Subscription: at.name, lasting: settling,
			what:   number(n.Count, "dead letter") + " of it wait for a build that knows " + n.Needs + ", with what is held behind them",
			remedy: "Deploy such a build: it handles them by itself, and others leave them alone, even if they are replayed. If there is to be none, `waybill dead-letters discard {only} --reason newer_version` discards them.",
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
		all = append(all, reason{
			Code: "timers_broken", State: degraded,
			what:   number(t.broken, "timer") + " can't be sent and " + map[bool]string{true: "is", false: "are"}[t.broken == 1] + " set aside",
			remedy: "`waybill timers list --status broken` shows which, `waybill timers show` why. `waybill timers fire --status broken` tries them again, `waybill timers stop --status broken` discards them.",
		})
	}
	return all
}

// idleProcesses is that processes of a database run which nothing will end; nil: none.
func (s sight) idleProcesses(provider string) *reason {
	var names []string
	total := int64(0)
	for at, n := range s.idle {
		if at.provider == provider && n > 0 {
			names = append(names, at.name)
			total += n
		}
	}
	if total == 0 {
		return nil
	}
	slices.Sort(names)
	have := "have"
	if total == 1 {
		have = "has"
	}
	return &reason{
		Code: "processes_idle", State: degraded, Provider: provider,
		what:   fmt.Sprintf("%d of its processes (%s) %s heard nothing for 30 days or longer, and have no timer", total, strings.Join(names, ", "), have),
		remedy: "`waybill processes list --idle` shows which. Give the process a timer for messages that may never come; `waybill processes end --idle` ends these.",
	}
}

// withheld is something that a database that answers doesn't let somebody do.
func withheld(t outbox.Trouble) reason {
	r := reason{
		Code: "database_refuses", State: stuck,
		what:   "the database refuses to let it " + t.What + because(&t.Error),
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

// reasons are those of one target broker.
func (l laneSight) reasons(target string, brokerError *string) []reason {
	var all []reason
	open := false
	if s := l.status; s != nil {
		if open = s.Breaker != "closed"; open {
			text := brokerError
			if s.LastError != "" {
				text = &s.LastError
			}
			all = append(all, reason{
				Code: "breaker_open", State: degraded, Broker: target,
				what:   "broker " + target + " accepts nothing" + because(text) + "; rows wait and use up no attempts",
				remedy: "They are published when it recovers. Check that it runs, its address, its login and its permissions.",
			})
		}
		if len(s.OpenTopics) > 0 {
			all = append(all, reason{
				Code: "topics_down", State: degraded, Broker: target,
				what:   fmt.Sprintf("topics %q accept nothing, although their broker answers%s", s.OpenTopics, because(&s.TopicError)),
				remedy: "A topic is missing, has no leader, or denies writing. Those that are missing an engine makes when it starts: where the broker has lost them, restart one.",
			})
		}
	}
	if l.status != nil && l.status.Doing != "" && !open {
		all = append(all, reason{
			Code: "slow_on_purpose", State: degraded, lasting: settling,
			what:   l.status.Doing,
			remedy: "It speeds up again by itself once none of these rows turns out to be the cause. The log says what triggered it.",
		})
	}
	if l.crash != nil && *l.crash < recentCrash {
		all = append(all, reason{
			Code: "worker_crashed", State: degraded,
			what:   fmt.Sprintf("a part of the lane crashed (%d times since the start) and was restarted%s", l.status.Crashes, because(&l.status.LastCrash)),
			remedy: "The log has the stack trace. A row that crashes its publisher five times is abandoned.",
		})
	}
	if l.stats == nil {
		return all
	}
	return append(all, l.rows(open)...)
}

// rows are the reasons that the table has.
func (l laneSight) rows(open bool) (all []reason) {
	count := l.stats.Counts
	waiting := count[outbox.Pending] + count[outbox.Failed]
	stored := count[outbox.Pending] + count[outbox.Processing]
	oldest := time.Duration(0)
	if l.stats.OldestPending != nil {
		oldest = *l.stats.OldestPending
	}
	// What waits behind a held row is not expected to move.
	if movable := count[outbox.Pending] + count[outbox.Processing] - l.held.Behind; movable > 0 && !open && len(l.stats.LeaseOwners) > 0 &&
		oldest >= stillAfter && l.still >= stillAfter {
		what := fmt.Sprintf("nothing has been published for %v although %s, the oldest for %v", brief(l.still), wait(movable), brief(oldest))
		if n := count[outbox.Failed]; n > 0 {
			what += ", " + number(n, "row") + " failed" + because(l.stats.LastError)
		}
		all = append(all, reason{
			Code: "not_moving", State: stuck, quiet: true, what: what,
			remedy: fmt.Sprintf("`waybill partitions {only}` shows who holds the partitions (%s), `waybill outbox list {only}` what is waiting; if such a process is dead or hangs, kill it, and others take over when its lease expires.",
				strings.Join(l.stats.LeaseOwners, ", ")),
		})
	}
	if l.stats.Bodiless {
		all = append(all, reason{
			Code: "not_moving", State: stuck, quiet: true,
			what:   "the oldest row that waits has no body in outbox_messages that this role can see: it isn't published, and what is behind it goes without it",
			remedy: "`waybill doctor` says whether row security hides it or somebody has removed it. Switch row security off for Waybill's tables, or restore what was removed; then restart the engines, which have passed such rows.",
		})
	}
	if l.status != nil && l.status.Silent != nil && stored+count[outbox.Failed] > 0 {
		all = append(all, reason{
			Code: "owner_silent", State: degraded,
			what:   fmt.Sprintf("%s held by %v; their rows wait until then", number(int64(l.status.Silent.Partitions), "partition"), l.status.Silent),
			remedy: "They are published when the lease expires. `waybill partitions {only}` shows which; if that process hangs, kill it: others on its host then continue at once.",
		})
	}
	if r := sick(l.stats.Members); r != nil && !open {
		all = append(all, *r)
	}
	if said := outbox.BrokersDiffer(l.stats.Members); said != "" {
		all = append(all, reason{
			Code: "brokers_differ", State: degraded,
			what:   "its processes publish to different brokers: " + said + "; what a partition's owner publishes isn't seen elsewhere",
			remedy: "Give this broker the same address and topic_prefix in the configuration files of all these processes, and restart those that are wrong. Where a deploy changes it on purpose, this ends with it.",
		})
	}
	if waiting > 0 && len(l.stats.LeaseOwners) == 0 {
		remedy := "Start an engine with this broker, and check that it can write to the database."
		if l.status != nil {
			remedy = "This engine has that broker and took no partition: its log says why."
		}
		all = append(all, reason{
			Code: "no_owner", State: stuck, lasting: settling, quiet: true,
			what:   wait(waiting) + ", and no process publishes them",
			remedy: "`waybill partitions {only}` shows who did. " + remedy,
		})
	}
	if oldest > oldWarning {
		all = append(all, reason{
			Code: limit("rows_late", oldest > oldCritical), State: degraded,
			what:   fmt.Sprintf("the oldest row has been waiting for %v", brief(oldest)),
			remedy: "`waybill outbox list {only}` shows which, `waybill outbox show` what one is waiting for, and `waybill outbox stats` who publishes and what the broker said.",
		})
	}
	if stored > storedWarning {
		all = append(all, reason{
			Code: limit("rows_many", stored > storedCritical), State: degraded,
			what:   fmt.Sprintf("%d rows are stored", stored),
			remedy: "Publishing is slower than writing, or has stopped. Run `waybill outbox stats` twice to see which.",
		})
	}
	if n := count[outbox.Failed]; n > 0 {
		all = append(all, reason{
			Code: "rows_failed", State: degraded,
			what:   number(n, "row") + " failed" + because(l.stats.LastError) + " and will be retried",
			remedy: "`waybill outbox list {only} --status failed` shows which; `waybill outbox retry {only} --status failed` retries them now, `waybill outbox abandon {only} --status failed` gives up on them.",
		})
	}
	if n := count[outbox.Abandoned]; n > 0 {
		all = append(all, reason{
			Code: "rows_abandoned", State: degraded,
			what:   number(n, "row") + " abandoned" + because(l.stats.LastError) + " and won't be delivered",
			remedy: "`waybill outbox list {only} --status abandoned` shows which; once the cause is fixed, `waybill outbox retry {only} --status abandoned` puts them back.",
		})
	}
	if n := l.held.Keys; n > 0 {
		all = append(all, reason{
			Code: "keys_held", State: degraded,
			what:   fmt.Sprintf("%s held by an abandoned row, with %s behind", number(n, "key"), number(l.held.Behind, "row")),
			remedy: "`waybill outbox list {only} --held` shows which; `waybill outbox retry {only} --held` publishes them after all, `waybill outbox skip {only} --held` continues without them.",
		})
	}
	return all
}

// sick is who doesn't reach the broker that others reach, or that nobody does.
func sick(members []outbox.Member) *reason {
	var names, words []string
	for _, m := range members {
		if m.Healthy {
			continue
		}
		names = append(names, m.Name)
		if m.Trouble != "" && !slices.Contains(words, m.Trouble) {
			words = append(words, m.Trouble)
		}
	}
	if len(names) == 0 {
		return nil
	}
	said := strings.Join(words, "; ")
	what, remedy := "it can no longer reach the broker", "It tries again with one partition"
	if len(names) > 1 {
		what, remedy = "they can no longer reach the broker", "They try again with one partition each"
	}
	of := fmt.Sprintf("%d of %d processes (%s): %s%s", len(names), len(members), strings.Join(names, ", "), what, because(&said))
	if len(names) < len(members) {
		of += "; others have their partitions"
	}
	return &reason{
		Code: "members_sick", State: degraded, what: of,
		remedy: remedy + " now and then. Check the network, the address and the permissions of the broker on that host.",
	}
}

// limit is the code of what is over its lower, or its upper limit.
func limit(code string, upper bool) string {
	if upper {
		return code + "_critical"
	}
	return code
}

func wait(rows int64) string {
	if rows == 1 {
		return "1 row waits"
	}
	return fmt.Sprintf("%d rows wait", rows)
}

// brief is a time for people.
func brief(d time.Duration) time.Duration { return d.Round(time.Second) }

// cutOff is that the broker gives a subscription nothing, or not all.
func (c subscriptionSight) cutOff() reason {
	said := "it still tries to join"
	if c.status.Refusal != nil {
		said = c.status.Refusal.Error()
	}
	what := "its broker gives it nothing" + because(&said) + ": it is not in its group since "
	if c.status.Joined {
		what = "its broker does not give it every message" + because(&said) + ", and it is in its group since "
	}
	what += c.status.Since.UTC().Format(time.RFC3339)
	if broker.ClassOf(c.status.Refusal) == broker.Permanent {
		return reason{
			Code: "subscription_refused", State: stuck, what: what,
			remedy: "It keeps asking, and continues once allowed: give its user permission to read the topic and join the group, or correct its login. Messages wait at the broker for as long as the broker keeps them.",
		}
	}
	return reason{
		Code: "subscription_cut_off", State: degraded, lasting: cutOffFor, what: what,
		remedy: "Check that the broker runs, its address, and the network. Messages wait there, and it continues by itself.",
	}
}

// missed is that messages will never be handled, for as long as that is news.
func (c subscriptionSight) missed() *reason {
	if c.sinceMissed == nil || *c.sinceMissed >= recentLoss {
		return nil
	}
	return &reason{
		Code: "subscription_missed", State: degraded,
		what: fmt.Sprintf("the broker removed %s before it had them, the last noticed at %s: they are never handled here",
			number(c.status.Missed, "message"), c.status.MissedAt.UTC().Format(time.RFC3339)),
		remedy: "Have the broker keep messages for longer than a subscription may be behind (retention.ms and retention.bytes of the topic on Kafka, max_age of the stream on NATS), and ask the sender to publish again what is needed: `waybill history republish`, where it keeps a history.",
	}
}

// reasons are those of one subscription.
func (c subscriptionSight) reasons() []reason {
	failure := &c.status.LastError
	waits := c.lag != nil && c.lag.Messages > c.status.Waiting // what waits for its time isn't expected to move
	switch {
	case c.status.Refusal != nil, !c.status.Joined && !c.status.Since.IsZero():
		return []reason{c.cutOff()}
	case !c.status.Running:
		return []reason{{
			Code: "subscription_down", State: degraded, lasting: settling,
			what:   "it doesn't run in this process" + because(failure),
			remedy: "Its broker doesn't answer, or refuses it. Messages wait there, and it continues by itself.",
		}}
	case c.status.Paused:
		return []reason{{
			Code: "subscription_paused", State: degraded,
			what: "it was paused in this process", remedy: "Engine.Resume resumes it.",
		}}
	case c.status.Open:
		return []reason{{
			Code: "subscription_failing", State: degraded,
			what:   "every message fails" + because(failure) + "; they are tried one at a time",
			remedy: "Check what its handlers depend on. It continues when one succeeds.",
		}}
	case c.status.Stalled != "":
		return []reason{{
			Code: "subscription_waiting", State: stuck,
			what:   fmt.Sprintf("%s have been waiting for their keys since %s, and no others can be taken (%s)", number(c.status.Waiting, "message"), c.status.StalledSince.UTC().Format(time.RFC3339), c.status.Stalled),
			remedy: "`waybill dead-letters summary` shows what fills the table, and `waybill dead-letters list {only}` why; check what the handlers wait for.",
		}}
	case waits && c.still >= stillAfter:
		return []reason{{
			Code: "subscription_still", State: stuck, quiet: true,
			what:   fmt.Sprintf("it has handled nothing for %v although %s wait%s", brief(c.still), number(c.lag.Messages, "message"), because(failure)),
			remedy: "A handler doesn't return, or a message is retried again and again: see the log. `waybill dead-letters list {only}` shows what was given up.",
		}}
	case c.lag != nil && c.lag.Age > farBehind:
		return []reason{{
			Code: "subscription_behind", State: degraded,
			what:   fmt.Sprintf("the oldest message it holds is %v old, %s wait for another attempt%s", brief(c.lag.Age), number(c.status.Waiting, "message"), because(failure)),
			remedy: "Its handlers are slower than the incoming messages, or one is retried again and again: give it more lanes or processes, or fix its handlers.",
		}}
	}
	return nil
}
