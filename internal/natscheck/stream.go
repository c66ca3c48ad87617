package natscheck

import (
	"fmt"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybill-go/waybill/internal/doctor"
)

// Judge says what is wrong with a stream, or that nothing is.
func Judge(s *jetstream.StreamInfo) []doctor.Finding {
	j := &judgement{where: s.Config.Name}
	j.takes(s)
	j.keeps(s)
	j.servers(s)
	if len(j.all) == 0 {
		age := "for ever"
		if s.Config.MaxAge > 0 {
			age = fmt.Sprintf("for %v", s.Config.MaxAge)
		}
		j.add(doctor.OK, fmt.Sprintf("%d replicas, on disk, messages are kept %s", max(s.Config.Replicas, 1), age), "")
	}
	return j.all
}

type judgement struct {
	where string
	all   []doctor.Finding
}

func (j *judgement) add(s doctor.Severity, what, remedy string) {
	j.all = append(j.all, doctor.Finding{Check: "stream", Severity: s, Where: j.where, What: what, Remedy: remedy})
}

// takes finds what keeps messages from being stored.
func (j *judgement) takes(s *jetstream.StreamInfo) {
	c := s.Config
	if c.Sealed {
		j.add(doctor.Critical, "it is sealed: it takes no message any more", "make another stream for its subjects, after those of this one are taken out")
	}
	if c.NoAck {
		j.add(doctor.Critical, "it acknowledges nothing (no_ack): no message ever counts as published", "set no_ack to false: nats stream edit")
	}
	for _, limit := range []struct {
		name      string
		have, max int64
	}{{"max_bytes", int64(s.State.Bytes), c.MaxBytes}, {"max_msgs", int64(s.State.Msgs), c.MaxMsgs}} {
		switch {
		case limit.max <= 0:
		case c.Discard == jetstream.DiscardOld:
			j.add(doctor.Warning, fmt.Sprintf("%s is %d, and discard is old: at the limit it removes messages that nobody has read", limit.name, limit.max), "set discard to new, so that rows wait instead, or take the limit out and set max_age")
		case float64(limit.have) >= almost*float64(limit.max):
			j.add(doctor.Critical, fmt.Sprintf("%d of %s %d are used: when it is full nothing is published there, and rows wait", limit.have, limit.name, limit.max), "raise the limit, or set a max_age that subscriptions keep up with")
		}
	}
}

// keeps finds what removes messages before somebody has them.
func (j *judgement) keeps(s *jetstream.StreamInfo) {
	c := s.Config
	if c.Storage == jetstream.MemoryStorage {
		j.add(doctor.Critical, "it is in memory: a restart of the server takes messages with it that count as published", "make it again with storage file, after its messages have been read")
	}
	if c.Retention != jetstream.LimitsPolicy {
		j.add(doctor.Critical, fmt.Sprintf("retention is %s: a message that nobody has subscribed to yet, or that one group has handled, is removed", strings.ToLower(c.Retention.String())), "make it again with retention limits, after its messages have been read")
	}
	if c.MaxMsgsPerSubject > 0 {
		j.add(doctor.Critical, fmt.Sprintf("max_msgs_per_subject is %d: it keeps so many messages of a topic alone", c.MaxMsgsPerSubject), "take the limit out: nats stream edit")
	}
}

// servers finds what a loss of servers has done, or would do.
func (j *judgement) servers(s *jetstream.StreamInfo) {
	replicas := max(s.Config.Replicas, 1)
	if s.Cluster != nil && replicas > 1 {
		if s.Cluster.Leader == "" {
			j.add(doctor.Critical, "it has no leader: nothing is published there, and nothing read", "bring the servers back that have its replicas")
			return
		}
		var away []string
		for _, p := range s.Cluster.Replicas {
			if p.Offline || !p.Current {
				away = append(away, p.Name)
			}
		}
		if len(away) > 0 {
			j.add(doctor.Warning, fmt.Sprintf("its replicas on %s are away, or behind", strings.Join(away, ", ")), "bring these servers back: with fewer than half of the replicas nothing is published")
		}
	}
	if replicas == 1 {
		j.add(doctor.Warning, "it has one replica: a server that is lost takes messages with it that count as published", "set replicas to 3, in a cluster of three servers or more: nats stream edit; and replicas in the configuration, for streams to come")
	}
}
