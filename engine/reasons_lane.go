package engine

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/outbox"
)

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
				remedy: "A topic is missing, has no leader or no room, or denies writing. Those that are missing an engine makes when it starts: where the broker has lost them, restart one.",
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
	return slices.Concat(all, l.unmoved(open), l.owners(target, open), l.rows())
}

// oldest is for how long the oldest row has been waiting.
func (l laneSight) oldest() time.Duration {
	if l.stats.OldestPending == nil {
		return 0
	}
	return *l.stats.OldestPending
}

// unmoved are the reasons of rows that nobody publishes although somebody should.
func (l laneSight) unmoved(open bool) (all []reason) {
	count, oldest := l.stats.Counts, l.oldest()
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
	return all
}

// owners are the reasons of processes that publish, or should.
func (l laneSight) owners(target string, open bool) (all []reason) {
	count := l.stats.Counts
	waiting := count[outbox.Pending] + count[outbox.Failed]
	if l.status != nil && l.status.Silent != nil && waiting+count[outbox.Processing] > 0 {
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
	if said := outbox.ExactlyOnceDiffers(l.stats.Members); said != "" {
		all = append(all, reason{
			Code: "exactly_once_differs", State: degraded,
			what:   "some of its processes publish in transactions, and others don't: " + said + "; what the latter publish can come more than once, also to readers of what is committed",
			remedy: "Give this broker the same exactly_once in the configuration files of all these processes, and restart those that are wrong. Where a deploy changes it on purpose, this ends with it.",
		})
	}
	if waiting > 0 && len(l.stats.LeaseOwners) == 0 {
		remedy := "Start an engine with this broker, and check that it can write to the database."
		if l.status != nil {
			remedy = "This engine has that broker and took no partition: its log says why."
		}
		remedy = "`waybill partitions {only}` shows who did. " + remedy
		if outboxdb.Nameless(target) {
			remedy = "`waybill doctor` says how they get the number that their broker has now."
		}
		all = append(all, reason{
			Code: "no_owner", State: stuck, lasting: settling, quiet: true,
			what: wait(waiting) + ", and no process publishes them", remedy: remedy,
		})
	}
	return all
}

// rows are the reasons of rows that wait for long, are many, or were given up.
func (l laneSight) rows() (all []reason) {
	count := l.stats.Counts
	if oldest := l.oldest(); oldest > oldWarning {
		all = append(all, reason{
			Code: limit("rows_late", oldest > oldCritical), State: degraded,
			what:   fmt.Sprintf("the oldest row has been waiting for %v", brief(oldest)),
			remedy: "`waybill outbox list {only}` shows which, `waybill outbox show` what one is waiting for, and `waybill outbox stats` who publishes and what the broker said.",
		})
	}
	if stored := count[outbox.Pending] + count[outbox.Processing]; stored > storedWarning {
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
