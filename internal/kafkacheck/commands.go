package kafkacheck

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/doctor"
	"github.com/waybill-go/waybill/internal/processmsg"
	"github.com/waybill-go/waybill/outbox"
)

// addressed is a topic whose messages are for one context alone.
type addressed struct{ context, what, handlers string }

// addressedBy says whose a topic's messages are, if they are commands, or what processes are told.
func addressedBy(name string) (a addressed, ok bool) {
	c, _, _ := strings.Cut(name, ".")
	switch name {
	case outbox.DefaultTopic(domain.CommandCategory(c)):
		return addressed{c, "these commands", "the handlers of its commands"}, true
	case outbox.DefaultTopic(processmsg.Category(c)):
		return addressed{c, "these timers and refusals of processes", "its processes"}, true
	}
	return a, false
}

// unheard are the contexts that are sent commands, or what processes are told, and that read
// it no more, or never did: senders can't know that nobody handles them. Where Kafka doesn't
// answer a question, nothing is said.
func unheard(ctx context.Context, admin *kadm.Client, known kadm.TopicDetails, prefix string) (all []doctor.Finding) {
	mine := map[string]addressed{} // by topic
	for _, topic := range known.Names() {
		name, ours := strings.CutPrefix(topic, prefix)
		if a, ok := addressedBy(name); ours && ok {
			mine[topic] = a
		}
	}
	if len(mine) == 0 {
		return nil
	}
	topics := slices.Sorted(maps.Keys(mine))
	groups, err := admin.ListGroups(ctx)
	if err != nil {
		return nil
	}
	names := slices.DeleteFunc(groups.Groups(), func(name string) bool { return !strings.HasPrefix(name, prefix) })
	lags, err := kadm.DescribedGroupLags{}, error(nil)
	if len(names) > 0 { // of none would be of all
		lags, err = admin.Lag(ctx, names...)
	}
	first, wrong := admin.ListStartOffsets(ctx, topics...)
	last, also := admin.ListEndOffsets(ctx, topics...)
	if err != nil || wrong != nil || also != nil {
		return nil
	}
	for _, topic := range topics {
		a := mine[topic]
		waiting, idle, read := waitingIn(topic, lags, first, last)
		if waiting == 0 {
			continue
		}
		what := fmt.Sprintf("it has messages for context %s (%d), and no group has read it, or none may be seen: nobody handles %s", a.context, waiting, a.what)
		if read {
			what = fmt.Sprintf("messages for context %s wait (%d), and no member runs of %s, which has read it: nobody handles %s", a.context, waiting, strings.Join(idle, ", "), a.what)
		}
		all = append(all, doctor.Finding{
			Check: "commands", Severity: doctor.Warning, Where: topic, What: what,
			Remedy: "start an engine of " + a.context + " with " + a.handlers + " at this broker, before Kafka removes them; or correct the context in the sender's domain.ForeignCommand",
		})
	}
	return all
}

// waitingIn is how much of a topic waits for the group that is least behind, if none of those
// that have read it, idle, has a member; read is false if there are none.
func waitingIn(topic string, lags kadm.DescribedGroupLags, first, last kadm.ListedOffsets) (waiting int64, idle []string, read bool) {
	waiting = behind(topic, nil, first, last)
	for _, name := range slices.Sorted(maps.Keys(lags)) {
		l := lags[name]
		if l.Lag[topic] == nil {
			continue
		}
		if len(l.Members) > 0 || l.Error() != nil {
			return 0, nil, true
		}
		idle = append(idle, name)
		waiting = min(waiting, behind(topic, l.Lag, first, last))
	}
	return waiting, idle, len(idle) > 0
}

// behind is how many messages of a topic a group hasn't read: all of a partition of which it
// has committed nothing.
func behind(topic string, lag kadm.GroupLag, first, last kadm.ListedOffsets) (n int64) {
	last.Each(func(o kadm.ListedOffset) {
		begin, ok := first.Lookup(topic, o.Partition)
		if !ok || o.Topic != topic || o.Err != nil || begin.Err != nil {
			return
		}
		if l, ok := lag.Lookup(topic, o.Partition); ok && l.Err == nil {
			n += l.Lag
			return
		}
		n += o.Offset - begin.Offset
	})
	return n
}
