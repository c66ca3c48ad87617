package main

import (
	"bytes"
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Every way to empty an outbox, with a backlog that is small. Each verifies what
// it did.
func TestDrains(t *testing.T) {
	w, err := open(t.Context(), t.Output())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.close(context.WithoutCancel(t.Context()))) })

	d := drainage{events: 3000, keys: 50}
	deleted, history, watched, workers := d, d, d, d
	deleted.delete = true
	history.history = 5000
	watched.snapshot = time.Minute
	workers.workers, workers.others = 1, 1
	for name, do := range map[string]work{
		"waybill": d.waybill, "by hand": d.byHand, "watermill": d.watermill, "river": d.river,
		"waybill, delete": deleted.waybill, "by hand, delete": deleted.byHand,
		"history": history.waybill, "snapshot": watched.waybill, "two engines": workers.waybill,
	} {
		got, err := do(t.Context(), w)
		require.NoError(t, err, name)
		require.Positive(t, got["rate"], name)
	}
}

// The line of --json: peers are compared like the limit.
func TestLine(t *testing.T) {
	r := result{
		scenario: scenario{name: "drain", unit: "events/s", metrics: []string{"rate"}, peers: []peer{{name: "other", unit: "jobs/s"}}},
		waybill:  measured{"rate": {30, 10, 20}}, limit: measured{"rate": {40}}, theirs: []measured{{"rate": {5}}},
	}
	var line, text bytes.Buffer
	require.NoError(t, r.json(&line))
	var got map[string]any
	require.NoError(t, json.Unmarshal(line.Bytes(), &got))
	require.Equal(t, map[string]any{
		"scenario": "drain", "unit": "events/s",
		"waybill": map[string]any{"min": 10.0, "median": 20.0, "max": 30.0},
		"limit":   map[string]any{"min": 40.0, "median": 40.0, "max": 40.0},
		"peers":   map[string]any{"other": map[string]any{"min": 5.0, "median": 5.0, "max": 5.0}},
		"ratios":  map[string]any{"limit": 0.5, "other": 4.0},
	}, got)
	require.NoError(t, r.text(&text))
	require.Contains(t, text.String(), "other (jobs/s) 5.00 / 5.00 / 5.00, ratio 4.00")
}
