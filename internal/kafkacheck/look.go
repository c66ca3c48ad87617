package kafkacheck

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill/internal/doctor"
)

// patience is how long a cluster may take for all that it is asked.
const patience = 15 * time.Second

// Look says what is wrong with the topics that n needs, as client sees them.
func Look(ctx context.Context, client *kgo.Client, n Needs) []doctor.Finding {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no answer within %v", patience))
	defer cancel()
	admin := kadm.NewClient(client)
	if err := client.Ping(ctx); err != nil {
		return []doctor.Finding{unreached(ctx, err)}
	}
	known, err := admin.ListTopics(ctx)
	if err != nil {
		return []doctor.Finding{unreached(ctx, err)}
	}
	var names []string
	for name, t := range known {
		if n.has(name) && t.Err == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	all := append([]doctor.Finding{{Check: "connection", Severity: doctor.OK, What: fmt.Sprintf("it answers, and shows %s of those that are needed", topics(len(names)))}}, n.missing(known)...)
	settings := settingsOf(ctx, admin, names)
	for _, name := range names {
		t := topicOf(known[name], settings[name])
		if n.publishes(name) {
			t.MaxMessage = n.MaxMessage
		}
		all = append(all, t.Judge()...)
	}
	return append(all, unheard(ctx, admin, known, n.Prefix)...)
}

func topics(n int) string {
	if n == 1 {
		return "1 topic"
	}
	return fmt.Sprintf("%d topics", n)
}

// unreached says why nothing was heard, or nothing but a refusal.
func unreached(ctx context.Context, err error) doctor.Finding {
	f := doctor.Finding{Check: "connection", Severity: doctor.Critical}
	_, distrusted := errors.AsType[*tls.CertificateVerificationError](err)
	alert, refused := errors.AsType[*net.OpError](err)
	switch {
	case errors.Is(err, kerr.SaslAuthenticationFailed), errors.Is(err, kerr.UnsupportedSaslMechanism), errors.Is(err, kerr.IllegalSaslState):
		f.What, f.Remedy = "it refuses the login", "correct user, password or mechanism under sasl in the configuration, or leave sasl out where the port has no logins"
	case distrusted:
		f.What, f.Remedy = "it isn't trusted", "correct the files under tls in the configuration, or the name that the server's certificate is for with tls.server_name"
	case refused && alert.Op == "remote error":
		f.What, f.Remedy = "it refuses our certificate", "correct the files tls.cert and tls.key in the configuration"
	default:
		f.What, f.Remedy = "it doesn't answer", "see that it runs, and correct addresses, tls or sasl in the configuration"
		if ctx.Err() != nil {
			err = errors.Join(context.Cause(ctx), err)
		}
	}
	f.What += ": " + err.Error()
	f.Remedy += "; the rights above can be given all the same"
	return f
}

// has says whether a topic is one of those that n needs.
func (n Needs) has(topic string) bool {
	name, ours := strings.CutPrefix(topic, n.Prefix)
	return ours && slices.Contains(n.Reads, name) || n.publishes(topic)
}

// publishes says whether n's contexts send to a topic.
func (n Needs) publishes(topic string) bool {
	name, ours := strings.CutPrefix(topic, n.Prefix)
	return ours && (slices.Contains(n.Topics, name) ||
		slices.ContainsFunc(n.Contexts, func(c string) bool { return strings.HasPrefix(name, c+".") }))
}

// missing are the topics that n names, and the contexts, of which client sees nothing.
func (n Needs) missing(known kadm.TopicDetails) (all []doctor.Finding) {
	for _, c := range sorted(n.Contexts) {
		if !slices.ContainsFunc(known.Names(), func(name string) bool { return strings.HasPrefix(name, n.Prefix+c+".") }) {
			all = append(all, doctor.Finding{
				Check: "topics", Severity: doctor.Warning, Where: n.Prefix + c + ".", What: "no topic of " + c + " is there, or none may be seen",
				Remedy: "give the rights above; with Create among them the engine makes the topics when it starts",
			})
		}
	}
	for _, name := range sorted(append(slices.Clone(n.Topics), n.Reads...)) {
		if !known.Has(n.Prefix + name) {
			all = append(all, doctor.Finding{
				Check: "topic", Severity: doctor.Warning, Where: n.Prefix + name, What: "it isn't there, or may not be seen",
				Remedy: "make it, or give the right Describe; with the right Create the engine makes it when it starts",
			})
		}
	}
	return all
}

// settingsOf are by topic; of one whose settings may not be read there are none.
func settingsOf(ctx context.Context, admin *kadm.Client, topics []string) map[string]map[string]string {
	all := map[string]map[string]string{}
	if len(topics) == 0 {
		return all
	}
	found, err := admin.DescribeTopicConfigs(ctx, topics...)
	if err != nil {
		return all
	}
	for _, r := range found {
		if r.Err != nil {
			continue
		}
		all[r.Name] = map[string]string{}
		for _, c := range r.Configs {
			all[r.Name][c.Key] = c.MaybeValue()
		}
	}
	return all
}

func topicOf(d kadm.TopicDetail, settings map[string]string) Topic {
	t := Topic{Name: d.Topic, Settings: settings}
	t.MinInSync, _ = strconv.Atoi(settings["min.insync.replicas"])
	for _, p := range d.Partitions.Sorted() {
		t.Partitions = append(t.Partitions, Partition{ID: p.Partition, Leader: p.Leader >= 0, Replicas: len(p.Replicas), InSync: len(p.ISR)})
	}
	return t
}
