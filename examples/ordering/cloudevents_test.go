package main

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// inPython starts the partner that is written in Python.
func inPython(t *testing.T, args ...string) *process {
	t.Helper()
	out, err := exec.Command("../../scripts/python").Output()
	require.NoError(t, err)
	source, err := filepath.Abs("../partner/python/partner.py")
	require.NoError(t, err)
	return start(t, t.TempDir(), strings.TrimSpace(string(out)), append([]string{source}, args...)...)
}

// A partner with the CloudEvents reader of another language accepts every message
// of a service, in either mode, and is told each order's events in their order.
// What is no CloudEvent it refuses.
func TestCloudEvents_APartnerInPython(t *testing.T) {
	for _, mode := range []string{"cloudevents", "cloudevents-binary"} {
		t.Run(mode, func(t *testing.T) {
			t.Setenv("WAYBILL_OUTBOX_EXTERNAL_BROKERS", fmt.Sprintf(`[{broker: partner, envelope: %s, topics: {"ordering::order": orders}}]`, mode))
			s := newSite(t)
			engine := s.serve()
			partner := inPython(t, "--kafka", s.kafka, "--topic", s.prefix+"partner.orders")
			s.succeed("place", "--orders", "120", "--customers", "11", "--cancel-percent", "25", "--writers", "4")
			require.True(t, decode[books](t, s.succeed("verify", "--wait", "90s")).OK)

			rows := s.strings("SELECT message_id || ' ' || message_type || ' ' || aggregate_id FROM outbox WHERE target_broker = 'partner' ORDER BY seq")
			require.Greater(t, len(rows), 120)
			partner.eventually(func() bool { return len(partner.output()) >= len(rows) }, "hears of everything")
			partner.stop()
			var told []string
			byOrder := map[string][]string{}
			for _, line := range partner.output() {
				var e struct {
					Attributes map[string]string
					Data       struct {
						OrderID string `json:"order_id"`
					}
				}
				require.NoError(t, json.Unmarshal([]byte(line), &e), line)
				a := e.Attributes
				told = append(told, a["id"]+" "+a["type"]+" "+a["subject"])
				byOrder[a["subject"]] = append(byOrder[a["subject"]], a["sequence"])
				require.Equal(t, "1.0", a["specversion"])
				require.Equal(t, "urn:waybill:ordering", a["source"])
				require.Equal(t, "application/json", a["datacontenttype"])
				require.NotEmpty(t, a["correlationid"])
				require.Equal(t, a["subject"], e.Data.OrderID)
				at, err := time.Parse(time.RFC3339Nano, a["time"])
				require.NoError(t, err)
				require.WithinDuration(t, time.Now(), at, time.Hour)
			}
			require.ElementsMatch(t, rows, told)
			for id, sequences := range byOrder {
				require.IsIncreasing(t, sequences, id)
			}

			own := inPython(t, "--kafka", s.kafka, "--topic", s.prefix+"ordering.order")
			require.Equal(t, 1, own.wait())
			require.Contains(t, own.stderr.String(), "it is no CloudEvent")
			engine.stop()
		})
	}
}
