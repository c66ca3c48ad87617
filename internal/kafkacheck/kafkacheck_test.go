package kafkacheck_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/doctor"
	"github.com/waybill-go/waybill/internal/kafkacheck"
)

// Each right is printed once, fit for a shell, and no other.
func TestRightsAreWhatIsNeeded(t *testing.T) {
	n := kafkacheck.Needs{
		Prefix: "acme.", Contexts: []string{"ordering", "ordering"}, Topics: []string{"orders for us"},
		Reads: []string{"shipping.shipment"}, Groups: []string{"billing"}, ExactlyOnce: true,
	}
	var commands []string
	for _, g := range n.Grants() {
		commands = append(commands, g.Command("User:waybill", "kafka:9092"))
	}
	const begin = "kafka-acls --bootstrap-server kafka:9092 --add --allow-principal User:waybill "
	require.Equal(t, []string{
		begin + "--operation Write --operation Describe --operation Create --operation DescribeConfigs --topic acme.ordering. --resource-pattern-type prefixed",
		begin + "--operation Write --operation Describe --operation Create --operation DescribeConfigs --topic 'acme.orders for us'",
		begin + "--operation Read --operation Describe --operation DescribeConfigs --topic acme.shipping.shipment",
		begin + "--operation Read --operation Describe --group acme.billing",
		begin + "--operation Write --operation Describe --transactional-id acme.waybill. --resource-pattern-type prefixed",
		begin + "--operation Read --operation Describe --group acme.waybill. --resource-pattern-type prefixed",
		begin + "--operation Read --operation Describe --operation Create --topic acme.waybill.marks",
	}, commands)
	require.Contains(t, kafkacheck.Grant{Name: "it's"}.Command("u", "s"), `'it'\''s'`)
}

// What is wrong with a topic is said with what helps; a good one is good.
func TestTopicsAreJudged(t *testing.T) {
	topic := func(replicas, inSync, least int) kafkacheck.Topic {
		return kafkacheck.Topic{
			Name: "t", MinInSync: least, Settings: map[string]string{"cleanup.policy": "delete"},
			Partitions: []kafkacheck.Partition{{ID: 0, Leader: true, Replicas: replicas, InSync: replicas}, {ID: 1, Leader: true, Replicas: replicas, InSync: inSync}},
		}
	}
	leaderless, compacted, hidden := topic(3, 3, 2), topic(3, 3, 2), topic(3, 3, 0)
	leaderless.Partitions[1].Leader = false
	compacted.Settings = map[string]string{"cleanup.policy": "compact,delete"}
	hidden.Settings = nil
	set := func(key, value string) kafkacheck.Topic {
		made := topic(3, 3, 2)
		made.MaxMessage, made.Settings[key] = 1000, value
		return made
	}
	kept := set("retention.ms", "1000")
	kept.Settings["cleanup.policy"] = "compact"
	for what, c := range map[string]struct {
		topic    kafkacheck.Topic
		severity doctor.Severity
		words    string
	}{
		"as it should be":            {topic(3, 3, 2), doctor.OK, "2 partitions, 3 replicas, min.insync.replicas 2"},
		"one replica away":           {topic(3, 2, 2), doctor.OK, ""},
		"too few in sync":            {topic(3, 1, 2), doctor.Critical, "partitions 1 have fewer replicas in sync"},
		"no leader":                  {leaderless, doctor.Critical, "partitions 1 have no leader"},
		"one replica":                {topic(1, 1, 1), doctor.Warning, "it has one replica"},
		"all have to be in sync":     {topic(3, 3, 3), doctor.Warning, "when one broker restarts, nothing is published"},
		"the leader alone is enough": {topic(3, 3, 1), doctor.Warning, "1 of 3 replicas"},
		"more than there are":        {topic(2, 2, 3), doctor.Critical, "no message can ever be stored"},
		"compacted":                  {compacted, doctor.Critical, "cleanup.policy is compact,delete"},
		"settings that are hidden":   {hidden, doctor.Warning, "DescribeConfigs"},
		"takes less than is sent":    {set("max.message.bytes", "999"), doctor.Warning, "max.message.bytes is 999, and a message may have 1000"},
		"takes what is sent":         {set("max.message.bytes", "1000"), doctor.OK, ""},
		"keeps for an hour":          {set("retention.ms", "3600000"), doctor.Warning, "retention.ms is 3600000: Kafka removes what is older than 1h0m0s"},
		"keeps for a long weekend":   {set("retention.ms", "259200000"), doctor.OK, ""},
		"keeps for ever":             {set("retention.ms", "-1"), doctor.OK, ""},
		"keeps for ages":             {set("retention.ms", "9223372036854775807"), doctor.OK, ""},
		"keeps so many bytes":        {set("retention.bytes", "4096"), doctor.Warning, "retention.bytes is 4096"},
		"has no end of bytes":        {set("retention.bytes", "-1"), doctor.OK, ""},
		"compacts, and removes none": {kept, doctor.Critical, "cleanup.policy is compact"},
	} {
		t.Run(what, func(t *testing.T) {
			found := c.topic.Judge()
			require.Len(t, found, 1)
			require.Equal(t, c.severity, found[0].Severity)
			require.Contains(t, found[0].What+found[0].Remedy, c.words)
			require.Equal(t, c.severity == doctor.OK, found[0].Remedy == "")
		})
	}
}
