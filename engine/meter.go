package engine

import (
	"context"
	"fmt"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	otelmetric "go.opentelemetry.io/otel/metric"
)

// meter offers OpenTelemetry what /metrics shows, read in the same way and under the
// same names. It is asked when somebody collects, and as little as a scrape.
func (e *Engine) meter() error {
	m := e.cfg.MeterProvider.Meter("github.com/waybill-go/waybill")
	instruments, all := map[string]otelmetric.Float64Observable{}, []otelmetric.Observable{}
	for _, d := range described {
		var i otelmetric.Float64Observable
		var err error
		if d.kind == prometheus.CounterValue {
			i, err = m.Float64ObservableCounter(d.name, otelmetric.WithDescription(d.help))
		} else {
			i, err = m.Float64ObservableGauge(d.name, otelmetric.WithDescription(d.help))
		}
		if err != nil {
			return fmt.Errorf("engine: metric %s: %w", d.name, err)
		}
		instruments[d.name] = i
		all = append(all, i)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(&collector{e})
	registration, err := m.RegisterCallback(func(_ context.Context, o otelmetric.Observer) error { return observe(o, instruments, registry) }, all...)
	if err != nil {
		return fmt.Errorf("engine: metrics for OpenTelemetry: %w", err)
	}
	e.unwire = append(e.unwire, func() {
		if err := registration.Unregister(); err != nil {
			e.log.Debug("OpenTelemetry keeps asking for metrics", "error", err)
		}
	})
	return nil
}

func observe(o otelmetric.Observer, instruments map[string]otelmetric.Float64Observable, from prometheus.Gatherer) error {
	families, err := from.Gather()
	for _, f := range families { // what is there, also after an error
		for _, m := range f.GetMetric() {
			var labels []attribute.KeyValue
			for _, l := range m.GetLabel() {
				labels = append(labels, attribute.String(l.GetName(), l.GetValue()))
			}
			is := func(part string, value float64, more ...attribute.KeyValue) {
				o.ObserveFloat64(instruments[f.GetName()+part], value, otelmetric.WithAttributes(append(more, labels...)...))
			}
			switch h := m.GetHistogram(); {
			case h != nil:
				for _, b := range h.GetBucket() {
					is("_bucket", float64(b.GetCumulativeCount()), attribute.String("le", strconv.FormatFloat(b.GetUpperBound(), 'g', -1, 64)))
				}
				is("_bucket", float64(h.GetSampleCount()), attribute.String("le", "+Inf"))
				is("_sum", h.GetSampleSum())
				is("_count", float64(h.GetSampleCount()))
			case m.GetCounter() != nil:
				is("", m.GetCounter().GetValue())
			default:
				is("", m.GetGauge().GetValue())
			}
		}
	}
	return err
}
