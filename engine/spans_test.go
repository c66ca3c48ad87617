package engine

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

// What publishes and what handles have the engine's provider, units of work their own.
func TestSpans_TheEnginesProvider(t *testing.T) {
	own, engines := tracetest.NewInMemoryExporter(), tracetest.NewInMemoryExporter()
	b := setup(t)
	selling := units(t, uow.Config{
		Domain: sales, Providers: []uow.Provider{b.db}, External: []outbox.Target{{Broker: "partner"}},
		TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSyncer(own)),
	})
	cfg := b.config()
	cfg.Units = []*uow.Manager{selling, b.parcels}
	cfg.Subscriptions = []subscription.Stream{b.orders(func(context.Context, Sold) error { return nil })}
	cfg.TracerProvider = sdktrace.NewTracerProvider(sdktrace.WithSyncer(engines))
	b.start(cfg)
	require.NoError(t, repository.New[*sale](selling).Save(t.Context(), newSale(1)))
	eventually(t, func() bool { return len(engines.GetSpans()) == 3 })

	unit := own.GetSpans()
	require.Len(t, unit, 1)
	var names []string
	for _, s := range engines.GetSpans() {
		require.Equal(t, unit[0].SpanContext.TraceID(), s.SpanContext.TraceID())
		names = append(names, s.Name)
	}
	slices.Sort(names)
	require.Equal(t, []string{"process sales.sale", "publish sales.sale", "publish sales.sale"}, names)
}
