package relay

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.40.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/internal/tracing"
)

// spans are those of the messages of a wave, by index; nil where nobody traces.
type spans []trace.Span

var errCrashed = errors.New("outbox: the call of the broker crashed")

// publishing begins a span for each message of a wave whose row was written in a
// sampled trace, and hands it on by the message's header; what is stored stays as it
// is. A row with a traceparent that is none begins a trace.
func (l *lane) publishing(ctx context.Context, rows []Claimed, wave []int, messages []broker.Message) spans {
	tracer := l.r.tracer.Get()
	if tracer == nil {
		return nil
	}
	all := make(spans, len(messages))
	capabilities := l.Broker.Capabilities()
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
			attribute.String("waybill.provider", l.r.cfg.Provider), attribute.String("waybill.target", l.Target),
			attribute.Int64("waybill.seq", rows[wave[n]].Seq), attribute.Int("waybill.attempt", rows[wave[n]].Attempts+1),
		))
		if span.IsRecording() {
			tracing.Send(sending, m.Headers)
			rows[wave[n]].Traceparent = m.Headers["traceparent"] // for the log
		}
		all[n] = span
	}
	return all
}

// end ends them with what the broker answered, by the rows' indexes. What a panic says
// of the program's inside is nobody's business in a trace.
func (s spans) end(wave []int, errs map[int]error) {
	for n, span := range s {
		if span == nil {
			continue
		}
		err := errs[wave[n]]
		if _, ok := errors.AsType[*panicError](err); ok {
			err = errCrashed
		}
		if err != nil {
			span.SetAttributes(semconv.ErrorTypeKey.String(broker.ClassOf(err).String()))
		}
		tracing.Fail(span, err)
		span.End()
	}
}
