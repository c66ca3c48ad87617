package outbox

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.40.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/internal/tracing"
)

// spans are those of the messages of a call, by index; nil where nobody traces.
type spans []trace.Span

var errCrashed = errors.New("outbox: the call of the broker crashed")

// publishing begins a span for each message of a call whose row was written in a
// sampled trace, and hands it on by the message's header; what is stored stays as it
// is. A row with a traceparent that is none begins a trace.
func (w *worker) publishing(ctx context.Context, rows []Claimed, indexes []int, messages []broker.Message) spans {
	tracer := w.lane.p.tracer.Get()
	if tracer == nil {
		return nil
	}
	all := make(spans, len(messages))
	capabilities := w.lane.Broker.Capabilities()
	for n, m := range messages {
		written := m.Headers["traceparent"]
		if written == "" {
			continue
		}
		under := tracing.Under(ctx, written)
		if parent := trace.SpanContextFromContext(under); parent.IsValid() && !parent.IsSampled() {
			continue
		}
		topic := capabilities.TopicPrefix + m.Topic
		sending, span := tracer.Start(under, "publish "+topic, trace.WithSpanKind(trace.SpanKindProducer), tracing.Message(
			capabilities, topic, m,
			semconv.MessagingOperationName("publish"), semconv.MessagingOperationTypeSend,
			attribute.String("waybill.provider", w.lane.p.cfg.Provider), attribute.String("waybill.target", w.lane.target),
			attribute.Int64("waybill.seq", rows[indexes[n]].Seq), attribute.Int("waybill.attempt", rows[indexes[n]].Attempts),
		))
		if span.IsRecording() {
			tracing.Send(sending, m.Headers)
		}
		all[n] = span
	}
	return all
}

// end ends them with what the broker answered.
func (s spans) end(indexes []int, errs map[int]error, answered bool) {
	for n, span := range s {
		if span == nil {
			continue
		}
		err := errs[indexes[n]]
		if !answered {
			err = errCrashed
		}
		if err != nil {
			span.SetAttributes(semconv.ErrorTypeKey.String(broker.ClassOf(err).String()))
		}
		tracing.Fail(span, err)
		span.End()
	}
}
