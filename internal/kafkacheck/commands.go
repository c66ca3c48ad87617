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
	"github.com/waybill-go/waybill/outbox"
)

// unheard are the contexts to which commands were sent that no group has ever read: their senders
// can't know that nobody handles them. Where Kafka doesn't answer a question, nothing is said.
func unheard(ctx context.Context, admin *kadm.Client, known kadm.TopicDetails, prefix string) (all []doctor.Finding) {
	contexts := map[string]string{} // by topic
	for _, topic := range known.Names() {
		name, ours := strings.CutPrefix(topic, prefix)
		if c, _, _ := strings.Cut(name, "."); ours && name == outbox.DefaultTopic(domain.CommandCategory(c)) {
			contexts[topic] = c
		}
	}
	if len(contexts) == 0 {
		return nil
	}
	topics := slices.Sorted(maps.Keys(contexts))
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
		sent := int64(0)
		last.Each(func(o kadm.ListedOffset) {
			if begin, ok := first.Lookup(topic, o.Partition); ok && o.Topic == topic && o.Err == nil && begin.Err == nil {
				sent += o.Offset - begin.Offset
			}
		})
		read := slices.ContainsFunc(slices.Collect(maps.Values(lags)), func(l kadm.DescribedGroupLag) bool { return l.Lag[topic] != nil })
		if sent > 0 && !read {
			all = append(all, doctor.Finding{
				Check: "commands", Severity: doctor.Warning, Where: topic,
				What:   fmt.Sprintf("it has messages for context %s (%d), and no group has read it, or none may be seen: nobody handles these commands", contexts[topic], sent),
				Remedy: "start an engine of " + contexts[topic] + " with the handlers of its commands at this broker, before Kafka removes them; or correct the context in the sender's domain.ForeignCommand",
			})
		}
	}
	return all
}
