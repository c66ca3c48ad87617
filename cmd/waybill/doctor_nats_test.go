package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker/nats/embedded"
)

// natsFile is a configuration whose brokers have these settings.
func natsFile(t *testing.T, own, partner string) string {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "waybill.yaml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `domain: ordering
providers: {default: {dialect: sqlite, path: %q}}
brokers:
  default: {kind: nats, topic_prefix: acme., %s}
  partner: {kind: nats, %s}
outbox:
  max_message_bytes: 1000000000
  external_brokers: [{broker: partner, topics: {"ordering::order": orders}}]
`, filepath.Join(dir, "a.db"), own, partner), 0o600))
	require.Zero(t, waybill(t, "--config", file, "migrate").code)
	return file
}

// A NATS that answers is asked for the streams that the configuration needs; of one that
// doesn't, and of one in the service, it is said.
func TestDoctor_LooksAtTheStreamsOfNATS(t *testing.T) {
	b, err := embedded.Open(t.Context(), embedded.Config{Dir: t.TempDir(), Listen: "127.0.0.1:0"})
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Close(context.Background())) }()
	require.NoError(t, b.EnsureTopics(t.Context(), "acme.ordering.order", "ordering.order"))
	server := fmt.Sprintf("url: %q, nkey: %q", b.URL(), b.KeyFile())

	file := natsFile(t, server, "embedded: ./data")
	r := waybill(t, "--config", file, "doctor", "--nats", "--reads", "shipping::shipment")
	require.Equal(t, exitFailed, r.code)
	for _, line := range []string{
		"Broker default\n  critical  max_payload: the server takes messages of ",
		"a message may have 1000004096 with its headers",
		"warning   stream, acme.shipping.shipment: no stream has this subject.\n            Remedy: make one",
		"warning   stream, acme_ordering_order: it has one replica",
		"ok        connection: it answers; of the streams that are needed it shows 1.",
		"Broker partner\n  warning   connection: the server runs inside the service (embedded)",
	} {
		require.Contains(t, r.stdout, line)
	}
	require.NotContains(t, r.stdout, "name categories with --reads")

	r = waybill(t, "--config", natsFile(t, `url: "nats://me:hidden@127.0.0.1:1"`, `url: "nats://me:hidden@127.0.0.1:1"`), "--json", "doctor", "--nats")
	require.Equal(t, exitFailed, r.code)
	require.Equal(t, 2, strings.Count(r.stdout, `"what": "it doesn't answer: nats: no connection: `), r.stdout)
	require.NotContains(t, r.stdout+r.stderr, "hidden")

	r = waybill(t, "--config", natsFile(t, strings.Split(server, ",")[0], "embedded: ./data"), "doctor", "--nats")
	require.Contains(t, r.stdout, "critical  connection: it refuses the login: ")
	require.Contains(t, r.stdout, "name categories with --reads")
}

func TestDoctor_NATSNeedsABrokerThatIsNATS(t *testing.T) {
	r := waybill(t, "--dsn", filepath.Join(t.TempDir(), "a.db"), "doctor", "--nats")
	require.Equal(t, exitUsage, r.code)
	require.Contains(t, r.stderr, "no broker of the configuration file is of kind nats")
	r = waybill(t, "doctor", "--nats", "--kafka")
	require.Equal(t, exitUsage, r.code)
	require.Contains(t, r.stderr, "give one of them")
}
