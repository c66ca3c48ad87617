package subscription

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.40.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/internal/tracing"
)

// span is one of an attempt; none where nobody traces.
type span struct{ trace.Span }

// attempting begins the span of an attempt at m, below the one that m was sent from.
// Among others that are handled together, it also leads to theirs.
func (r *Runner) attempting(ctx context.Context, m *message) (context.Context, span) {
	tracer := r.tracer.Get()
	if tracer == nil || !r.concerns(m) {
		return ctx, span{}
	}
	return r.begin(ctx, tracer, m)
}

func (r *Runner) begin(ctx context.Context, tracer trace.Tracer, m *message) (context.Context, span) {
	options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer), tracing.Message(
		r.broker.Capabilities(), m.Topic, m.shown(),
		append(r.describe(), attribute.Int("waybill.attempt", m.attempts+1))...,
	)}
	if trace.SpanContextFromContext(ctx).IsValid() {
		options = append(options, trace.WithLinks(trace.LinkFromContext(ctx)))
	}
	from := tracing.Received(ctx, m.Headers, m.traceparent)
	if !r.stream.Inbound.Trust.traces() { // whether it is sampled is not the sender's to say
		options = append(options, trace.WithNewRoot())
		if trace.SpanContextFromContext(from).IsValid() {
			options = append(options, trace.WithLinks(trace.LinkFromContext(from)))
		}
		from = ctx
	}
	ctx, s := tracer.Start(from, "process "+m.Topic, options...)
	return ctx, span{s}
}

// shown is of a message what traces show: what was understood of it, not what it has
// brought along.
func (m *message) shown() broker.Message {
	return broker.Message{ID: m.meta.ID, Body: m.Body, Headers: map[string]string{"type": m.meta.Type, "correlation-id": m.meta.CorrelationID}}
}

// attemptingAll begins the span of messages that are handled together. Each belongs
// to a trace of its own, to which this one has links.
func (r *Runner) attemptingAll(ctx context.Context, all []work) (context.Context, span) {
	tracer := r.tracer.Get()
	if tracer == nil {
		return ctx, span{}
	}
	if len(all) == 1 {
		return r.begin(ctx, tracer, all[0].message)
	}
	links := make([]trace.Link, len(all))
	for i, w := range all {
		links[i] = trace.LinkFromContext(tracing.Received(ctx, w.Headers, w.traceparent))
	}
	topic := all[0].Topic
	attributes := append(r.describe(), semconv.MessagingDestinationName(topic), semconv.MessagingBatchMessageCount(len(all)))
	if system := r.broker.Capabilities().System; system != "" {
		attributes = append(attributes, semconv.MessagingSystemKey.String(system))
	}
	ctx, s := tracer.Start(ctx, "process "+topic, trace.WithSpanKind(trace.SpanKindConsumer), trace.WithLinks(links...), trace.WithAttributes(attributes...))
	return ctx, span{s}
}

func (r *Runner) describe() []attribute.KeyValue {
	return []attribute.KeyValue{
		semconv.MessagingOperationName("process"), semconv.MessagingOperationTypeProcess,
		semconv.MessagingConsumerGroupName(r.broker.Capabilities().TopicPrefix + r.stream.Name),
		attribute.String("waybill.subscription", r.stream.Name),
	}
}

// concerns says whether m is for a handler, or is none that anybody can read.
func (r *Runner) concerns(m *message) bool {
	return m.bad != nil || r.stream.Sole || r.handles(m.meta.Type)
}

// end ends it with the outcome, and with the error of an attempt that failed: a stop
// is no failure, and why a message was set aside is told by who does it.
func (s span) end(result outcome, err error) {
	if s.Span == nil {
		return
	}
	s.SetAttributes(attribute.String("waybill.outcome", result.String()))
	if result != aborted && result != setAside {
		tracing.Fail(s, err)
	}
	s.End()
}

// knew tells the traces of messages that these came again.
func (r *Runner) knew(ctx context.Context, messages []*message) {
	for _, m := range messages {
		_, s := r.attempting(ctx, m)
		s.end(duplicate, nil)
	}
}
