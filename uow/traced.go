package uow

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/tracing"
)

// traced is do in a span. That is below ctx's span or, in a context that has none,
// below the trace that its origin names.
func (m *Manager) traced(ctx context.Context, tracer trace.Tracer, fn func(ctx context.Context) error, o options) (err error) {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		ctx = tracing.Under(ctx, domain.OriginFrom(ctx).Traceparent)
	}
	ctx, span := tracer.Start(ctx, "waybill.uow", trace.WithAttributes(attribute.String("waybill.context", m.cfg.Domain.Name())))
	defer span.End() // records a panic
	u, tries, err := m.do(ctx, fn, o)
	if span.IsRecording() {
		providers := make([]string, len(u.touched))
		for i, p := range u.touched {
			providers[i] = p.provider.Name()
		}
		span.SetAttributes(attribute.StringSlice("waybill.providers", providers), attribute.Int("waybill.events", u.events),
			attribute.Int("waybill.rows", u.rows), attribute.Int("waybill.tries", tries))
	}
	tracing.Fail(span, err)
	return err
}
