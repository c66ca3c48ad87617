package tracing_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/waybill-go/waybill/internal/tracing"
)

const sampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// Without a provider nothing is begun; the global one counts from when it is set.
func TestTracer_TheGlobalProviderMayComeLater(t *testing.T) {
	none, later, own := tracing.New(noop.NewTracerProvider()), tracing.New(nil), tracing.New(sdktrace.NewTracerProvider())
	require.Nil(t, none.Get())
	require.NotNil(t, own.Get())
	require.Zero(t, testing.AllocsPerRun(100, func() { require.Nil(t, later.Get()) }))

	otel.SetTracerProvider(sdktrace.NewTracerProvider())
	defer otel.SetTracerProvider(noop.NewTracerProvider())
	for range 2 {
		require.NotNil(t, later.Get())
	}
	require.NotNil(t, tracing.New(nil).Get())
	require.Nil(t, none.Get())
	otel.SetTracerProvider(noop.NewTracerProvider())
	require.Nil(t, tracing.New(nil).Get())
}

func TestParents(t *testing.T) {
	of := func(traceparent string) trace.SpanContext {
		return trace.SpanContextFromContext(tracing.Under(t.Context(), traceparent))
	}
	require.True(t, of(sampled).IsSampled())
	require.True(t, of(sampled).IsRemote())
	require.Equal(t, sampled, tracing.Traceparent(tracing.Under(t.Context(), sampled)))
	require.Equal(t, "0af7651916cd43dd8448eb211c80319c", tracing.TraceID(t.Context(), sampled))
	for _, invalid := range []string{"", "x", "00-0-0-01", "00-00000000000000000000000000000000-b7ad6b7169203331-01", "ff" + sampled[2:], sampled + "-x"} {
		require.False(t, of(invalid).IsValid(), invalid)
		require.Empty(t, tracing.TraceID(t.Context(), invalid), invalid)
	}
	require.Empty(t, tracing.Traceparent(t.Context()))
	require.Zero(t, testing.AllocsPerRun(100, func() { _ = tracing.Traceparent(t.Context()) }))

	// The headers say who sent; the envelope, who wrote.
	other := "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"
	for header, want := range map[string]string{other: other, "": sampled, "invalid": sampled} {
		require.Equal(t, want, tracing.Traceparent(tracing.Received(t.Context(), map[string]string{"traceparent": header}, sampled)), header)
	}
	require.Equal(t, sampled, tracing.Traceparent(tracing.Received(t.Context(), nil, sampled)))
	require.Empty(t, tracing.Traceparent(tracing.Received(t.Context(), nil, "invalid")))
}
