package docs

import (
	"bytes"
	"cmp"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine/config"
	"github.com/waybill-go/waybill/outbox"
)

const partnerGuide = "docs/guides/publishing-to-a-partner.md"

// golden are the contents of files, by content.
func golden(t *testing.T, glob string) map[string]bool {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, glob))
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	all := map[string]bool{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		all[string(bytes.TrimSpace(text))] = true
	}
	return all
}

// What the guide shows of bodies and headers is what the golden files have, and
// its configuration is a valid one.
func TestPartnerGuide_ShowsWhatIsSent(t *testing.T) {
	envelopes := golden(t, "outbox/testdata/envelopes/*.json")
	bodies := blocks(t, partnerGuide, "json")
	require.Len(t, bodies, 2)
	for _, body := range bodies {
		var compact bytes.Buffer
		require.NoError(t, json.Compact(&compact, []byte(body)))
		require.True(t, envelopes[compact.String()], "no golden envelope is\n%s", compact.String())
	}
	messages := golden(t, "internal/external/testdata/*.txt")
	shown := blocks(t, partnerGuide, "text")
	require.Len(t, shown, 1)
	require.True(t, messages[string(bytes.TrimSpace([]byte(shown[0])))], "no golden message is\n%s", shown[0])

	files := blocks(t, partnerGuide, "yaml")
	require.Len(t, files, 1)
	path := filepath.Join(t.TempDir(), "waybill.yaml")
	const head = `domain: ordering
providers: {default: {dialect: sqlite, path: x.db}}
brokers: {default: {kind: kafka, addresses: [h:1]}, partner: {kind: kafka, addresses: [h:1], topic_prefix: partner.}}
`
	require.NoError(t, os.WriteFile(path, []byte(head+files[0]), 0o600))
	f, err := config.Parse(path)
	require.NoError(t, err)
	require.Equal(t, []outbox.Target{{
		Broker: "partner", Envelope: outbox.CloudEvents, Events: []string{"OrderPlaced"}, Extensions: []string{"region", "tenant_id"},
		Topics: map[string]string{"ordering::order": "orders"},
	}}, f.External)
}

var partnerRow = regexp.MustCompile(`(?m)^\| (.+) \| yes(?:, all)? \| (yes|if named|never)\b.*\|$`)

// S14: the guide's table says what a partner gets, and it is what a writer writes.
func TestPartnerGuide_TheTableIsWhatPartnersGet(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, partnerGuide))
	require.NoError(t, err)
	// A word that is nowhere else for what has no name of its own in the body.
	values := map[string]string{
		"id": "id-marker", "type": "Ordering.OrderPlaced.v1", "time": "2026-01-02T03:04:05.000000Z",
		"context": "ordering", "aggregate_id": "aggregate-marker", "sequence_id": `"7.1"`,
		"correlation_id": "correlation-marker", "causation_id": "causation-marker", "traceparent": "trace-marker",
		"tenant_id": "tenant-marker", "extensions": "extension-marker",
	}
	e := outbox.Event{Data: []byte(`{}`), Metadata: domain.Metadata{
		Origin: domain.Origin{
			CorrelationID: values["correlation_id"], CausationID: values["causation_id"], TenantID: values["tenant_id"],
			Traceparent: values["traceparent"], Extensions: map[string]string{"region": values["extensions"]},
		},
		ID: values["id"], Type: values["type"], Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Stream: "ordering::order-aggregate-marker",
		Category: "ordering::order", Context: "ordering", Aggregate: "order", AggregateID: values["aggregate_id"], Version: 7, Sequence: "7.1",
	}}
	ordering := domain.MustNew("ordering", domain.Aggregate[*order]("order", domain.Event[OrderPlaced](domain.Published())))
	w := outbox.Writer{Domain: ordering, Internal: "default", External: []outbox.Target{
		{Broker: "unnamed"}, {Broker: "named", Extensions: []string{"region", "tenant_id"}},
	}}
	rows, err := w.Rows([]outbox.Event{e}, 1)
	require.NoError(t, err)
	own, unnamed, named := string(rows[0].Payload), string(rows[1].Payload), string(rows[2].Payload)

	found := 0
	for _, line := range partnerRow.FindAllStringSubmatch(string(text), -1) {
		words := regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(line[1], -1)
		if strings.HasPrefix(line[1], "extensions") {
			words = [][]string{{"", "extensions"}}
		}
		for _, word := range words {
			found++
			value := cmp.Or(values[word[1]], `"`+word[1]+`"`)
			require.Contains(t, own, value)
			require.Equal(t, line[2] == "yes", strings.Contains(unnamed, value), "%s: %s", word[1], line[2])
			require.Equal(t, line[2] != "never", strings.Contains(named, value), "%s: %s", word[1], line[2])
		}
	}
	require.Equal(t, 20, found, "all that an envelope has")
	require.Empty(t, rows[1].TenantID, "nor is it a native header")
	require.Equal(t, "tenant-marker", rows[2].TenantID)
}

type order struct{ domain.Root }

// OrderPlaced has a name on the wire.
type OrderPlaced struct{}
