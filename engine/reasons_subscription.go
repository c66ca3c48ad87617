package engine

import (
	"fmt"
	"time"

	"github.com/waybill-go/waybill/broker"
)

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

func handlersGo(n int64) string {
	if n == 1 {
		return "1 handler goes"
	}
	return fmt.Sprintf("%d handlers go", n)
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
	case c.status.Overdue > 0:
		return []reason{{
			Code: "subscription_overdue", State: degraded,
			what:   fmt.Sprintf("%s on although Stream.Timeout is over, since %s: the lane, the key and any connection of each wait for it", handlersGo(c.status.Overdue), c.status.OverdueSince.UTC().Format(time.RFC3339)),
			remedy: "The log names each message (\"a handler goes on\"). Have the handler end when its context is done; a restart frees the lanes, and the messages come again.",
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
