package docs

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

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
