package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill/broker/kafka"
	"github.com/waybill-go/waybill/internal/doctor"
	"github.com/waybill-go/waybill/internal/kafkacheck"
)

// kafkaFile is a configuration with a Kafka of one's own and a partner's.
func kafkaFile(t *testing.T, address string) string {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "waybill.yaml")
	require.NoError(t, os.WriteFile(file, []byte(`domain: ordering
providers: {default: {dialect: sqlite, path: `+filepath.Join(dir, "a.db")+`}}
brokers:
  default: {kind: kafka, addresses: ["`+address+`"], topic_prefix: acme.}
  partner: {kind: kafka, addresses: ["kafka.partner.invalid:9092"]}
  unused: {kind: nats, url: "nats://nats:4222"}
outbox:
  external_brokers: [{broker: partner, topics: {"ordering::order": orders}}]
`), 0o600))
	require.Zero(t, waybill(t, "--config", file, "migrate").code)
	return file
}

// B3: what a configuration needs of Kafka is printed as commands, for each of its
// brokers, and nothing else.
func TestDoctor_B3_PrintsTheRightsThatKafkaHasToGive(t *testing.T) {
	file := kafkaFile(t, "127.0.0.1:1")
	p := openFor(t, filepath.Join(filepath.Dir(file), "a.db"))
	_, err := p.DB().ExecContext(t.Context(), "INSERT INTO subscription_runs (subscription, run) VALUES ('billing', '0198f3c2-7d8e-7b9a-8c6d-5e4f3a2b1c0d')")
	require.NoError(t, err)

	r := waybill(t, "--config", file, "--json", "doctor", "--kafka", "--user", "User:shop", "--publishes", "shipping", "--reads", "shipping::shipment")
	var report struct {
		Brokers map[string]kafkaReport `json:"brokers"`
	}
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &report), r.stderr)
	const begin = "kafka-acls --bootstrap-server 127.0.0.1:1 --add --allow-principal User:shop "
	const writes = "--operation Write --operation Describe --operation Create --operation DescribeConfigs --topic "
	require.Equal(t, []string{
		begin + writes + "acme.ordering. --resource-pattern-type prefixed",
		begin + writes + "acme.shipping. --resource-pattern-type prefixed",
		begin + "--operation Read --operation Describe --operation DescribeConfigs --topic acme.shipping.shipment",
		begin + "--operation Read --operation Describe --group acme.billing",
	}, report.Brokers["default"].Commands)
	const partner = "kafka-acls --bootstrap-server kafka.partner.invalid:9092 --add --allow-principal User:shop "
	require.Equal(t, []string{
		partner + writes + "ordering. --resource-pattern-type prefixed",
		partner + writes + "orders",
	}, report.Brokers["partner"].Commands)
	require.Len(t, report.Brokers, 2)

	r = waybill(t, "--config", file, "doctor", "--kafka")
	require.Contains(t, r.stdout, "Broker default needs these rights:\n  # streams of ordering\n  kafka-acls ")
	require.Contains(t, r.stdout, "name categories with --reads")
}

func TestDoctor_KafkaNeedsABrokerThatIsKafka(t *testing.T) {
	r := waybill(t, "--dsn", filepath.Join(t.TempDir(), "a.db"), "doctor", "--kafka")
	require.Equal(t, exitUsage, r.code)
	require.Contains(t, r.stderr, "no broker of the configuration file is of kind kafka")
}

// A Kafka that answers is asked for its topics; one that doesn't is critical, and the
// rights are printed all the same.
func TestDoctor_LooksAtTheTopicsOfKafka(t *testing.T) {
	address := os.Getenv("WAYBILL_KAFKA")
	require.NotEmpty(t, address, `WAYBILL_KAFKA is not set: run scripts/test, or eval "$(scripts/services up)"`)
	client, err := kafka.Config{Addresses: []string{address}}.Client()
	require.NoError(t, err)
	defer client.Close()
	admin, topic := kadm.NewClient(client), "doctor."+uuid.NewString()
	created, err := admin.CreateTopics(t.Context(), 2, 1, map[string]*string{"cleanup.policy": new("compact,delete"), "retention.ms": new("60000"), "max.message.bytes": new("5000")}, topic)
	require.NoError(t, err)
	require.NoError(t, created.Error())
	defer func() {
		_, err := admin.DeleteTopics(context.Background(), topic)
		require.NoError(t, err)
	}()

	client.ForceMetadataRefresh()
	found := kafkacheck.Look(t.Context(), client, kafkacheck.Needs{Prefix: "doctor.", Topics: []string{strings.TrimPrefix(topic, "doctor."), "absent"}, MaxMessage: 6000})
	var all []string
	for _, f := range found {
		all = append(all, fmt.Sprintf("%s %s: %s", f.Severity, f.Where, f.What))
	}
	text := strings.Join(all, "\n")
	require.Contains(t, text, "shows 1 topic of those that are needed")
	require.Contains(t, text, "warning doctor.absent: it isn't there")
	require.Contains(t, text, "warning "+topic+": it has one replica")
	require.Contains(t, text, "critical "+topic+": cleanup.policy is compact,delete")
	require.Contains(t, text, "warning "+topic+": max.message.bytes is 5000")
	require.Contains(t, text, "warning "+topic+": retention.ms is 60000")

	// Who reads a topic is not concerned with what it takes.
	found = kafkacheck.Look(t.Context(), client, kafkacheck.Needs{Prefix: "doctor.", Reads: []string{strings.TrimPrefix(topic, "doctor.")}, MaxMessage: 6000})
	require.NotContains(t, fmt.Sprint(found), "max.message.bytes")

	r := waybill(t, "--config", kafkaFile(t, address), "doctor", "--kafka")
	require.Contains(t, r.stdout, "ok        connection: it answers")
	require.Contains(t, r.stdout, "critical  connection: it doesn't answer", "the partner's")
	require.Contains(t, r.stdout, "--bootstrap-server kafka.partner.invalid:9092")
	require.Equal(t, exitFailed, r.code)
}

// addressees are topics under a prefix of the test's own, and unheard is what the doctor says
// of those whose messages nobody handles.
func addressees(t *testing.T, partitions int32, names ...string) (client *kgo.Client, prefix string, topics []string, unheard func() []doctor.Finding) {
	t.Helper()
	address := os.Getenv("WAYBILL_KAFKA")
	require.NotEmpty(t, address, `WAYBILL_KAFKA is not set: run scripts/test, or eval "$(scripts/services up)"`)
	client, err := kafka.Config{Addresses: []string{address}}.Client()
	require.NoError(t, err)
	t.Cleanup(client.Close)
	prefix = "doctor-" + uuid.NewString() + "."
	for _, name := range names {
		topics = append(topics, prefix+name)
	}
	admin := kadm.NewClient(client)
	created, err := admin.CreateTopics(t.Context(), partitions, 1, nil, topics...)
	require.NoError(t, err)
	require.NoError(t, created.Error())
	t.Cleanup(func() {
		_, err := admin.DeleteTopics(context.Background(), topics...)
		require.NoError(t, err)
	})
	return client, prefix, topics, func() []doctor.Finding {
		client.ForceMetadataRefresh()
		all := kafkacheck.Look(t.Context(), client, kafkacheck.Needs{Prefix: prefix})
		return slices.DeleteFunc(all, func(f doctor.Finding) bool { return f.Check != "commands" })
	}
}

// readToTheEnd has a group without members have read all of a topic.
func readToTheEnd(t *testing.T, client *kgo.Client, group string, topics ...string) {
	t.Helper()
	admin := kadm.NewClient(client)
	end, err := admin.ListEndOffsets(t.Context(), topics...)
	require.NoError(t, err)
	require.NoError(t, admin.CommitAllOffsets(t.Context(), group, end.Offsets()))
}

// Commands that were sent to a context which no engine handles are named, until a group reads them.
func TestDoctor_NamesCommandsThatNobodyHandles(t *testing.T) {
	client, prefix, topics, unheard := addressees(t, 2, "ghost.commands", "idle.commands", "ghost.order")
	for _, topic := range []string{topics[0], topics[0], topics[2]} {
		require.NoError(t, client.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte("{}")}).FirstErr())
	}
	found := unheard()
	require.Len(t, found, 1, "%+v", found)
	require.Equal(t, doctor.Warning, found[0].Severity)
	require.Equal(t, topics[0], found[0].Where)
	require.Contains(t, found[0].What, "messages for context ghost (2), and no group has read it")
	require.Contains(t, found[0].Remedy, "start an engine of ghost")
	readToTheEnd(t, client, prefix+"mine", topics[0])
	require.Empty(t, unheard(), "a group has read all")
}

// So are those that wait for a group which has read such messages and runs no more, as where
// the last handler was taken out; and what processes are told.
func TestDoctor_NamesCommandsWhoseGroupRunsNoMore(t *testing.T) {
	client, prefix, topics, unheard := addressees(t, 1, "gone.commands", "gone.processes")
	produce := func() {
		for _, topic := range topics {
			require.NoError(t, client.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte("{}")}).FirstErr())
		}
	}
	produce()
	readToTheEnd(t, client, prefix+"gone.commands", topics...)
	require.Empty(t, unheard(), "nothing waits")
	produce()
	found := unheard()
	require.Len(t, found, 2, "%+v", found)
	require.Equal(t, "messages for context gone wait (1), and no member runs of "+prefix+"gone.commands, which has read it: nobody handles these commands", found[0].What)
	require.Contains(t, found[0].Remedy, "start an engine of gone with the handlers of its commands")
	require.Equal(t, topics[1], found[1].Where)
	require.Contains(t, found[1].What, "nobody handles these timers and refusals of processes")

	member, err := kgo.NewClient(kgo.SeedBrokers(os.Getenv("WAYBILL_KAFKA")), kgo.ConsumerGroup(prefix+"gone.commands"), kgo.ConsumeTopics(topics...), kgo.DisableAutoCommit())
	require.NoError(t, err)
	defer member.Close()
	require.NoError(t, member.PollRecords(t.Context(), 1).Err())
	require.Empty(t, unheard(), "a member may be about to handle it")
}
