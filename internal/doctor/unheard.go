package doctor

import (
	"fmt"
	"strings"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/processmsg"
	"github.com/waybill-go/waybill/outbox"
)

// Addressed is a topic of a broker whose messages are for one context alone.
type Addressed struct{ context, what, handlers string }

// AddressedBy says whose a topic's messages are, if they are commands, or what processes are
// told. The topic is without the broker's prefix.
func AddressedBy(topic string) (a Addressed, ok bool) {
	c, _, _ := strings.Cut(topic, ".")
	switch topic {
	case outbox.DefaultTopic(domain.CommandCategory(c)):
		return Addressed{c, "these commands", "the handlers of its commands"}, true
	case outbox.DefaultTopic(processmsg.Category(c)):
		return Addressed{c, "these timers and refusals of processes", "its processes"}, true
	}
	return a, false
}

// Unheard is that messages wait for a context of which no group reads them: senders can't
// know it. idle are the groups that have read such messages before; system is whose topics
// they are.
func (a Addressed) Unheard(topic, system string, waiting int64, idle []string) Finding {
	what := fmt.Sprintf("it has messages for context %s (%d), and no group has read it, or none may be seen: nobody handles %s", a.context, waiting, a.what)
	if len(idle) > 0 {
		what = fmt.Sprintf("messages for context %s wait (%d), and no member runs of %s, which has read it: nobody handles %s", a.context, waiting, strings.Join(idle, ", "), a.what)
	}
	return Finding{
		Check: "commands", Severity: Warning, Where: topic, What: what,
		Remedy: "start an engine of " + a.context + " with " + a.handlers + " at this broker, before " + system + " removes them; or correct the context in the sender's domain.ForeignCommand",
	}
}
