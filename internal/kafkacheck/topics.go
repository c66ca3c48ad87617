package kafkacheck

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/waybill-go/waybill/internal/doctor"
)

// Topic is what Kafka says of a topic.
type Topic struct {
	Name       string
	Partitions []Partition
	// Settings are those of the topic, with the cluster's where it has none of its own;
	// nil: they may not be read.
	Settings  map[string]string
	MinInSync int // Of Settings; 0: not known.
	// MaxMessage is how many bytes a message may have that is published there; 0: not
	// known, or others publish.
	MaxMessage int
}

// longWeekend is how long a subscription may be down before somebody sees to it.
const longWeekend = 3 * 24 * time.Hour

// Partition is one of a topic's.
type Partition struct {
	ID               int32
	Leader           bool // It has one.
	Replicas, InSync int
}

// Judge says what is wrong with a topic, and that nothing is.
func (t Topic) Judge() []doctor.Finding {
	var all []doctor.Finding
	add := func(s doctor.Severity, what, remedy string) {
		all = append(all, doctor.Finding{Check: "topic", Severity: s, Where: t.Name, What: what, Remedy: remedy})
	}
	least, leaderless, short := t.count()
	switch {
	case len(leaderless) > 0:
		add(doctor.Critical, fmt.Sprintf("partitions %s have no leader: nothing is published there, and nothing read", list(leaderless)), "bring the brokers back that have their replicas")
	case len(short) > 0:
		add(doctor.Critical, fmt.Sprintf("partitions %s have fewer replicas in sync than min.insync.replicas, which is %d: Kafka takes no message", list(short), t.MinInSync), "bring the brokers back that have their replicas; rows wait until then")
	}
	switch {
	case t.MinInSync > 0 && least > 0 && t.MinInSync > least:
		add(doctor.Critical, fmt.Sprintf("min.insync.replicas is %d and there are %d replicas: no message can ever be stored", t.MinInSync, least), fmt.Sprintf("set min.insync.replicas to %d, or add replicas", max(least-1, 1)))
	case least == 1:
		add(doctor.Warning, "it has one replica: a broker that is lost takes messages with it that count as published", "add replicas, three are usual, with kafka-reassign-partitions; and set min.insync.replicas to 2")
	case t.MinInSync == least && least > 1:
		add(doctor.Warning, fmt.Sprintf("min.insync.replicas is %d, as many as there are replicas: when one broker restarts, nothing is published", t.MinInSync), fmt.Sprintf("set min.insync.replicas to %d", least-1))
	case t.MinInSync == 1:
		add(doctor.Warning, fmt.Sprintf("min.insync.replicas is 1 of %d replicas: what only the leader has counts as published, and is lost with it", least), "set min.insync.replicas to 2")
	}
	if strings.Contains(t.Settings["cleanup.policy"], "compact") {
		add(doctor.Critical, "cleanup.policy is "+t.Settings["cleanup.policy"]+": Kafka removes events that are older than others of their key", "set cleanup.policy to delete")
	}
	t.limits(add)
	if t.Settings == nil {
		add(doctor.Warning, "its settings may not be read, so that min.insync.replicas, retention and max.message.bytes are not looked at", "give the right DescribeConfigs on the topic")
	}
	if len(all) == 0 {
		add(doctor.OK, fmt.Sprintf("%d partitions, %d replicas, min.insync.replicas %d", len(t.Partitions), least, t.MinInSync), "")
	}
	return all
}

// limits finds what a topic doesn't take, and what it removes unread.
func (t Topic) limits(add func(s doctor.Severity, what, remedy string)) {
	if takes := t.number("max.message.bytes"); takes > 0 && takes < int64(t.MaxMessage) {
		add(doctor.Warning, fmt.Sprintf("max.message.bytes is %d, and a message may have %d with its headers: one that is larger when compressed is abandoned", takes, t.MaxMessage),
			fmt.Sprintf("set max.message.bytes to %d at least, or lower outbox.max_message_bytes", t.MaxMessage))
	}
	if !strings.Contains(t.Settings["cleanup.policy"], "delete") {
		return
	}
	if kept := t.number("retention.ms"); kept > 0 && kept < longWeekend.Milliseconds() {
		add(doctor.Warning, fmt.Sprintf("retention.ms is %d: Kafka removes what is older than %v, also what a subscription that was down hasn't read", kept, time.Duration(kept)*time.Millisecond),
			"raise retention.ms above the longest time that a subscription may be down; seven days are Kafka's default")
	}
	if kept := t.number("retention.bytes"); kept > 0 {
		add(doctor.Warning, fmt.Sprintf("retention.bytes is %d: Kafka removes what is more than that in a partition, also what no subscription has read", kept),
			"set retention.bytes to -1, and retention.ms to what the disks have room for")
	}
}

// number is one of the settings; 0: it isn't known.
func (t Topic) number(setting string) int64 {
	n, _ := strconv.ParseInt(t.Settings[setting], 10, 64)
	return n
}

// count finds the smallest number of replicas, and the partitions that don't work.
func (t Topic) count() (least int, leaderless, short []int32) {
	for i, p := range t.Partitions {
		if i == 0 || p.Replicas < least {
			least = p.Replicas
		}
		switch {
		case !p.Leader:
			leaderless = append(leaderless, p.ID)
		case p.InSync < t.MinInSync && t.MinInSync <= p.Replicas:
			short = append(short, p.ID)
		}
	}
	return least, leaderless, short
}

func list(ids []int32) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(ids), " ", ", "), "[]")
}
