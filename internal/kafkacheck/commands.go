package kafkacheck

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/waybill-go/waybill/internal/doctor"
)

// unheard are the contexts that are sent commands, or what processes are told, and that read
// it no more, or never did: senders can't know that nobody handles them. Where Kafka doesn't
// answer a question, nothing is said.
func unheard(ctx context.Context, admin *kadm.Client, known kadm.TopicDetails, prefix string) (all []doctor.Finding) {
	mine := map[string]doctor.Addressed{} // by topic
	for _, topic := range known.Names() {
		name, ours := strings.CutPrefix(topic, prefix)
		if a, ok := doctor.AddressedBy(name); ours && ok {
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
		if waiting, idle := waitingIn(topic, lags, first, last); waiting > 0 {
			all = append(all, mine[topic].Unheard(topic, "Kafka", waiting, idle))
		}
	}
	return all
}

// waitingIn is how much of a topic waits for the group that is least behind, if none of those
// that have read it, idle, has a member.
func waitingIn(topic string, lags kadm.DescribedGroupLags, first, last kadm.ListedOffsets) (waiting int64, idle []string) {
	waiting = behind(topic, nil, first, last)
	for _, name := range slices.Sorted(maps.Keys(lags)) {
		l := lags[name]
		if l.Lag[topic] == nil {
			continue
		}
		if len(l.Members) > 0 || l.Error() != nil {
			return 0, nil
		}
		idle = append(idle, name)
		waiting = min(waiting, behind(topic, l.Lag, first, last))
	}
	return waiting, idle
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
