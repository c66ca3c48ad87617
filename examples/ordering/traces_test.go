package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/examples/ordering/ordering"
	"github.com/waybill-go/waybill/examples/ordering/shipping"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
)

// setUpTracing sends a share of all traces to an exporter. Whoever calls it calls
// Shutdown at the end, so that the last spans get there.
func setUpTracing(exporter sdktrace.SpanExporter, share float64) *sdktrace.TracerProvider {
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exporter),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(share))),
	)
	otel.SetTracerProvider(provider)
	return provider
}

// traced begins a span for each request, in its caller's trace if it has one.
func traced(next http.Handler) http.Handler {
	tracer := otel.Tracer("example.com/ordering")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		ctx, span := tracer.Start(ctx, r.Method+" "+r.URL.Path, trace.WithSpanKind(trace.SpanKindServer))
		defer span.End()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// A request into ordering, what it publishes, and what shipping does across Kafka are
// one trace, the caller's, each a child of what caused it.
func TestTraces_FromARequestThroughKafkaToTheOtherContext(t *testing.T) {
	s := newSite(t)
	spans := tracetest.NewInMemoryExporter()
	provider := setUpTracing(spans, 0) // what the caller samples, all the same
	t.Cleanup(func() {
		require.NoError(t, provider.Shutdown(context.Background()))
		otel.SetTracerProvider(noop.NewTracerProvider())
	})

	p := program{config: s.dir + "/waybill.yaml", stdout: io.Discard, stderr: io.Discard}
	f, err := p.file()
	require.NoError(t, err)
	service, err := f.Open(t.Context(), ordering.Domain, p.kinds())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, closed(context.Background(), service)) })
	shipments, err := service.UnitsFor(shipping.Domain)
	require.NoError(t, err)
	service.Engine.Units = append(service.Engine.Units, shipments)
	service.Engine.Subscriptions = []subscription.Stream{shipping.Orders(shipments)}
	eng, err := engine.New(service.Engine)
	require.NoError(t, err)
	require.NoError(t, eng.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, eng.Stop(context.Background())) })

	orders := repository.New[*ordering.Order](service.Units)
	server := httptest.NewServer(traced(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o, err := ordering.Place("c-1", ordering.Line{Article: "tea", Quantity: 1, Amount: 300})
		if err == nil {
			err = orders.Save(r.Context(), o)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})))
	t.Cleanup(server.Close)

	const caller = "4bf92f3577b34da6a3ce929d0e0e4736"
	for _, flags := range []string{"00", "01"} { // the first isn't sampled
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/orders", &bytes.Buffer{})
		require.NoError(t, err)
		request.Header.Set("traceparent", "00-"+caller+"-00f067aa0ba902b7-"+flags)
		answer, err := server.Client().Do(request)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		require.Equal(t, http.StatusOK, answer.StatusCode)
	}

	published := func(target, topic string) string { return "publish " + target + " " + s.prefix + topic }
	want := map[string]string{ // its parent
		"POST /orders":                                 "caller",
		"unit of ordering":                             "POST /orders",
		published("default", "ordering.order"):         "unit of ordering",
		published("partner", "partner.ordering.order"): "unit of ordering",
		"process " + s.prefix + "ordering.order":       published("default", "ordering.order"),
		"unit of shipping":                             "process " + s.prefix + "ordering.order",
		published("default", "shipping.shipment"):      "unit of shipping",
	}
	waittest.Until(t, func() bool {
		return provider.ForceFlush(t.Context()) == nil && len(spans.GetSpans()) >= len(want)
	})

	name, kinds := map[trace.SpanID]string{}, map[string]trace.SpanKind{}
	for _, span := range spans.GetSpans() {
		require.Equal(t, caller, span.SpanContext.TraceID().String())
		is := map[string]string{}
		for _, a := range span.Attributes {
			is[string(a.Key)] = a.Value.Emit()
		}
		n := span.Name
		switch span.SpanKind {
		case trace.SpanKindInternal:
			n = "unit of " + is["waybill.context"]
		case trace.SpanKindProducer:
			n = "publish " + is["waybill.target"] + " " + is["messaging.destination.name"]
		}
		name[span.SpanContext.SpanID()], kinds[n] = n, span.SpanKind
		if span.SpanKind == trace.SpanKindProducer || span.SpanKind == trace.SpanKindConsumer {
			require.Equal(t, "kafka", is["messaging.system"])
			require.NotEmpty(t, is["messaging.message.id"])
		}
		if span.SpanKind == trace.SpanKindConsumer {
			require.Equal(t, s.prefix+"shipping", is["messaging.consumer.group.name"])
		}
	}
	got := map[string]string{}
	for _, span := range spans.GetSpans() {
		parent, known := name[span.Parent.SpanID()]
		if !known {
			require.Equal(t, "00f067aa0ba902b7", span.Parent.SpanID().String())
			parent = "caller"
		}
		got[name[span.SpanContext.SpanID()]] = parent
	}
	require.Equal(t, want, got)
	require.Equal(t, trace.SpanKindConsumer, kinds["process "+s.prefix+"ordering.order"])
}
