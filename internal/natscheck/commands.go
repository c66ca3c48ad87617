package natscheck

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/doctor"
	"github.com/waybill-go/waybill/internal/processmsg"
	"github.com/waybill-go/waybill/outbox"
)

// unheard are the contexts that are sent commands, or what processes are told, and that read
// it no more, or never did: senders can't know that nobody handles them.
func (n Needs) unheard(ctx context.Context, js jetstream.JetStream) (all []doctor.Finding, err error) {
	for _, category := range []string{domain.CommandCategory("*"), processmsg.Category("*")} {
		subjects := n.Prefix + outbox.DefaultTopic(category)
		names := js.StreamNames(ctx, jetstream.WithStreamListSubject(subjects))
		var streams []string
		for name := range names.Name() {
			streams = append(streams, name)
		}
		if names.Err() != nil {
			return all, names.Err()
		}
		for _, name := range sorted(streams) {
			found, err := n.unheardIn(ctx, js, name, subjects)
			if err != nil {
				return all, err
			}
			all = append(all, found...)
		}
	}
	return all, nil
}

func (n Needs) unheardIn(ctx context.Context, js jetstream.JetStream, name, subjects string) (all []doctor.Finding, err error) {
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return nil, err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(subjects))
	if err != nil {
		return nil, err
	}
	consumers, err := consumersOf(ctx, stream)
	if err != nil {
		return nil, err
	}
	for _, subject := range slices.Sorted(maps.Keys(info.State.Subjects)) {
		a, ok := doctor.AddressedBy(strings.TrimPrefix(subject, n.Prefix))
		if !ok {
			continue
		}
		if waiting, idle := waitingIn(subject, info.State.Subjects[subject], consumers); waiting > 0 {
			all = append(all, a.Unheard(subject, "NATS", int64(waiting), idle))
		}
	}
	return all, nil
}

func consumersOf(ctx context.Context, stream jetstream.Stream) (all []*jetstream.ConsumerInfo, err error) {
	list := stream.ListConsumers(ctx)
	for c := range list.Info() {
		all = append(all, c)
	}
	return all, list.Err()
}

// paused are the groups that get nothing, as somebody has paused them.
func paused(ctx context.Context, js jetstream.JetStream, name string) (all []doctor.Finding, err error) {
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return nil, err
	}
	consumers, err := consumersOf(ctx, stream)
	if err != nil {
		return nil, err
	}
	for _, c := range consumers {
		if c.Paused {
			all = append(all, doctor.Finding{
				Check: "consumer", Severity: doctor.Warning, Where: c.Name + " of stream " + name,
				What:   "somebody has paused it, for another " + c.PauseRemaining.Round(time.Second).String() + ": it gets no message",
				Remedy: "nats consumer resume " + name + " " + c.Name,
			})
		}
	}
	return all, nil
}

// waitingIn is how much of a subject waits for the group that is least behind, if none of
// those that have read it, idle, has a member.
func waitingIn(subject string, stored uint64, consumers []*jetstream.ConsumerInfo) (waiting uint64, idle []string) {
	waiting = stored
	for _, c := range consumers {
		if !reads(c.Config, subject) {
			continue
		}
		if active(c) {
			return 0, nil
		}
		idle = append(idle, c.Name)
		waiting = min(waiting, c.NumPending+uint64(c.NumAckPending))
	}
	return waiting, idle
}

// active says whether a consumer has a member.
func active(c *jetstream.ConsumerInfo) bool {
	return c.NumWaiting > 0 || c.PushBound ||
		slices.ContainsFunc(c.PriorityGroups, func(g jetstream.PriorityGroupState) bool { return g.PinnedClientID != "" })
}

// reads says whether a consumer gets the messages of a subject.
func reads(c jetstream.ConsumerConfig, subject string) bool {
	filters := c.FilterSubjects
	if c.FilterSubject != "" {
		filters = append(slices.Clone(filters), c.FilterSubject)
	}
	return len(filters) == 0 || slices.ContainsFunc(filters, func(f string) bool { return matches(f, subject) })
}

// matches says whether a subject is one of those that a filter with * and > names.
func matches(filter, subject string) bool {
	words, wanted := strings.Split(subject, "."), strings.Split(filter, ".")
	for i, w := range wanted {
		switch {
		case w == ">":
			return i < len(words)
		case i >= len(words), w != "*" && w != words[i]:
			return false
		}
	}
	return len(words) == len(wanted)
}
