package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/waybill-go/waybill/subscription"
)

// collected is what OpenTelemetry collects, written as Prometheus does.
func collected(t *testing.T, from sdkmetric.Reader) map[string]float64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	require.NoError(t, from.Collect(t.Context(), &all))
	samples := map[string]float64{}
	add := func(name string, points []metricdata.DataPoint[float64]) {
		for _, p := range points {
			var labels []string
			le := ""
			for _, a := range p.Attributes.ToSlice() {
				if pair := fmt.Sprintf("%s=%q", a.Key, a.Value.AsString()); a.Key == "le" {
					le = pair
				} else {
					labels = append(labels, pair)
				}
			}
			slices.Sort(labels)
			if le != "" {
				labels = append(labels, le)
			}
			key := name
			if len(labels) > 0 {
				key += "{" + strings.Join(labels, ",") + "}"
			}
			samples[key] = p.Value
		}
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			require.NotEmpty(t, m.Description, m.Name)
			switch data := m.Data.(type) {
			case metricdata.Gauge[float64]:
				add(m.Name, data.DataPoints)
			case metricdata.Sum[float64]:
				require.True(t, data.IsMonotonic)
				add(m.Name, data.DataPoints)
			}
		}
	}
	return samples
}

// Whoever collects by OpenTelemetry gets what a scrape by Prometheus gets, all of it.
func TestMeter_ShowsWhatPrometheusSees(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	b := setup(t)
	cfg := b.config()
	cfg.MeterProvider = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	cfg.Subscriptions = []subscription.Stream{b.orders(func(context.Context, Sold) error { return nil })}
	e := b.start(cfg)
	b.sell(3)
	scraped(t, e, map[string]float64{
		`waybill_subscription_handled_total{subscription="parcels"}`:                 3,
		`waybill_subscription_lag_messages{subscription="parcels"}`:                  0,
		`waybill_outbox_published_total{provider="default",target="partner"}`:        3,
		`waybill_dead_letters{provider="default",subscription="parcels"}`:            0,
		`waybill_outbox_oldest_pending_seconds{provider="default",target="default"}`: 0,
	})
	var want, got map[string]float64
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
		_, want = scrape(t, e)
		if got = collected(t, reader); maps.Equal(want, got) {
			break
		}
	}
	require.Equal(t, want, got)
	require.Greater(t, len(got), 80)

	require.NoError(t, e.Stop(t.Context()))
	require.Empty(t, collected(t, reader))
}
