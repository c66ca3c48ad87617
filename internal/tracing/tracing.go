// Package tracing is what the spans of Waybill's packages have in common.
package tracing

import (
	"context"
	"reflect"
	"sync/atomic"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.40.0"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/waybill-go/waybill/broker"
)

const (
	scope  = "github.com/waybill-go/waybill"
	header = "traceparent"
)

// Tracer begins spans, and costs nothing while nobody traces.
type Tracer struct {
	tracer trace.Tracer
	// unset is OpenTelemetry's global provider from before an application has set
	// one, and set the tracer of the one that it has set since.
	unset trace.TracerProvider
	set   atomic.Pointer[trace.Tracer]
}

// New returns a tracer of p, or of OpenTelemetry's global provider if p is nil,
// also if the application sets that later.
func New(p trace.TracerProvider) *Tracer {
	if p == nil {
		if p = otel.GetTracerProvider(); doesNothing(p) {
			return &Tracer{unset: p}
		}
	}
	return &Tracer{tracer: tracerOf(p)}
}

// doesNothing says whether p is the global provider as it is at the start of a
// program. Its spans go nowhere, and yet are allocated.
func doesNothing(p trace.TracerProvider) bool {
	t := reflect.TypeOf(p)
	return t.Kind() == reflect.Pointer && t.Elem().PkgPath() == "go.opentelemetry.io/otel/internal/global"
}

func tracerOf(p trace.TracerProvider) trace.Tracer {
	if _, ok := p.(noop.TracerProvider); ok {
		return nil
	}
	return p.Tracer(scope, trace.WithSchemaURL(semconv.SchemaURL))
}

// Get returns nil while nobody traces.
func (t *Tracer) Get() trace.Tracer {
	if t.unset == nil {
		return t.tracer
	}
	if set := t.set.Load(); set != nil {
		return *set
	}
	p := otel.GetTracerProvider()
	if p == t.unset {
		return nil
	}
	set := tracerOf(p)
	t.set.Store(&set)
	return set
}

// Under returns ctx with the span of a traceparent instead of its own, and with none
// if that is empty or no traceparent.
func Under(ctx context.Context, traceparent string) context.Context {
	return extract(ctx, propagation.MapCarrier{header: traceparent})
}

// Received returns ctx with the span of a message's headers instead of its own, or
// that of the traceparent in its envelope where they have none.
func Received(ctx context.Context, headers map[string]string, envelope string) context.Context {
	received := extract(ctx, headers)
	if trace.SpanContextFromContext(received).IsValid() {
		return received
	}
	return Under(ctx, envelope)
}

func extract(ctx context.Context, from propagation.MapCarrier) context.Context {
	return propagation.TraceContext{}.Extract(trace.ContextWithSpanContext(ctx, trace.SpanContext{}), from)
}

// Send hands the span of ctx on by a message's headers.
func Send(ctx context.Context, headers map[string]string) {
	propagation.TraceContext{}.Inject(ctx, propagation.MapCarrier(headers))
}

// Traceparent is the one of ctx's span; "" without a span.
func Traceparent(ctx context.Context) string {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return ""
	}
	headers := map[string]string{}
	Send(ctx, headers)
	return headers[header]
}

// TraceID is the trace of a traceparent; "" if it is none.
func TraceID(ctx context.Context, traceparent string) string {
	if s := trace.SpanContextFromContext(Under(ctx, traceparent)); s.IsValid() {
		return s.TraceID().String()
	}
	return ""
}

// Message are the attributes that OpenTelemetry's conventions have for a message
// and its broker.
func Message(c broker.Capabilities, topic string, m broker.Message, more ...attribute.KeyValue) trace.SpanStartEventOption {
	all := append(more, semconv.MessagingDestinationName(topic), semconv.MessagingMessageID(m.ID), semconv.MessagingMessageBodySize(len(m.Body)))
	if c.System != "" {
		all = append(all, semconv.MessagingSystemKey.String(c.System))
	}
	if id := m.Headers["correlation-id"]; id != "" {
		all = append(all, semconv.MessagingMessageConversationID(id))
	}
	if t := m.Headers["type"]; t != "" {
		all = append(all, attribute.String("waybill.message.type", t))
	}
	return trace.WithAttributes(all...)
}

// Fail notes an error, if there is one.
func Fail(span trace.Span, err error) {
	if err != nil {
		span.RecordError(err)
		span.SetStatus(codes.Error, err.Error())
	}
}
