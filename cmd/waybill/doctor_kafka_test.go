package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
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
  partner: {kind: kafka, addresses: ["kafka.partner:9092"]}
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
	const partner = "kafka-acls --bootstrap-server kafka.partner:9092 --add --allow-principal User:shop "
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
