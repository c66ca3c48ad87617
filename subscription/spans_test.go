package subscription_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

const traceID = "0af7651916cd43dd8448eb211c80319c"

// traced starts a stream whose spans are kept, units of work among them.
func (w *world) traced(s subscription.Stream) (*subscription.Runner, *tracetest.InMemoryExporter) {
	w.t.Helper()
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	var err error
	s.Units, err = uow.New(uow.Config{Domain: shipping, Providers: []uow.Provider{w.provider}, TracerProvider: provider})
	require.NoError(w.t, err)
	r, err := subscription.NewRunner(subscription.RunnerConfig{
		Stream: s, Broker: broker.Prefixed(w.broker, "test."), Logger: slog.New(slog.DiscardHandler), TracerProvider: provider,
	})
	require.NoError(w.t, err)
	require.NoError(w.t, r.Start(w.t.Context()))
	w.t.Cleanup(func() { require.NoError(w.t, r.Stop(context.Background())) })
	return r, spans
}

// in is a message that was sent in a span.
func in(m broker.Message, span string) broker.Message {
	m.Topic = "test." + m.Topic
	m.Headers["traceparent"] = "00-" + traceID + "-" + span + "-01"
	return m
}

func named(all tracetest.SpanStubs, name string) (found []tracetest.SpanStub) {
	for _, s := range all {
		if s.Name == name {
			found = append(found, s)
		}
	}
	return found
}

func attributesOf(s tracetest.SpanStub) map[string]any {
	all := map[string]any{}
	for _, a := range s.Attributes {
		all[string(a.Key)] = a.Value.AsInterface()
	}
	return all
}

const process = "process test." + topic

// Each attempt at a message is a child of the span that sent it, and its unit of
// work is the attempt's child; a message that comes again is seen in its trace.
func TestSpans_EveryAttemptIsTheSendersChild(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		tries := 0
		var inside []trace.SpanContext
		r, spans := w.traced(w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
			inside = append(inside, trace.SpanContextFromContext(ctx))
			if tries++; tries == 1 {
				return errors.New("not now")
			}
			return effect(ctx, e)
		})))
		m := in(placed("o", "x"), "00f067aa0ba902b7")
		w.publish(m, in(message("1", "Ordering.NoteAdded.v1", "o", `{}`), "00f067aa0ba902b8")) // that one is ignored
		w.until(func() bool { return r.Status().Handled == 1 && r.Status().Ignored == 1 }, "it is handled")
		w.publish(m)
		w.until(func() bool { return r.Status().Duplicates == 1 }, "it comes again")
		w.until(func() bool { return len(named(spans.GetSpans(), process)) == 3 }, "all are told")

		attempts, units := named(spans.GetSpans(), process), named(spans.GetSpans(), "waybill.uow")
		require.Len(t, units, 2)
		for i, s := range attempts {
			require.Equal(t, trace.SpanKindConsumer, s.SpanKind)
			require.Equal(t, traceID, s.SpanContext.TraceID().String())
			require.Equal(t, "00f067aa0ba902b7", s.Parent.SpanID().String())
			require.Empty(t, s.Links)
			got := attributesOf(s)
			for name, want := range map[string]any{
				"messaging.system": "memory", "messaging.destination.name": "test." + topic,
				"messaging.operation.name": "process", "messaging.operation.type": "process",
				"messaging.consumer.group.name": "test.shipping", "waybill.subscription": "shipping",
				"messaging.message.id": m.ID, "messaging.message.body.size": int64(len(m.Body)),
				"waybill.outcome": []string{"failed", "handled", "duplicate"}[i],
			} {
				require.Equal(t, want, got[name], name)
			}
			if i < 2 {
				require.EqualValues(t, i+1, got["waybill.attempt"])
				require.Equal(t, s.SpanContext.SpanID(), units[i].Parent.SpanID())
				require.Equal(t, units[i].SpanContext.SpanID(), inside[i].SpanID())
			}
		}
		require.Equal(t, codes.Error, attempts[0].Status.Code)
		require.Equal(t, codes.Error, units[0].Status.Code)
		require.Equal(t, codes.Unset, attempts[1].Status.Code)
		require.Equal(t, codes.Unset, attempts[2].Status.Code)
	})
}

// S2-52: a trace that can't be understood is none, and the message is handled. Where
// the header says nothing, the envelope may.
func TestSpans_S2_52_AnInvalidTraceparentBeginsATrace(t *testing.T) {
	w := newWorld(t, openSQLite(t))
	r, spans := w.traced(w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error { return effect(ctx, e) })))
	m := in(placed("o", "x"), "nonsense")
	w.publish(m)
	w.until(func() bool { return r.Status().Handled == 1 }, "it is handled")
	w.until(func() bool { return len(spans.GetSpans()) == 2 }, "all are told")
	s := named(spans.GetSpans(), process)[0]
	require.False(t, s.Parent.IsValid())
	require.True(t, s.SpanContext.IsValid())
	require.NotEqual(t, traceID, s.SpanContext.TraceID().String())
}

// Messages that are handled together each stay in their own trace, and the batch has
// links to all.
func TestSpans_ABatchHasLinks(t *testing.T) {
	w := newWorld(t, openSQLite(t))
	gate := make(chan struct{})
	s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
		<-gate
		return effect(ctx, e)
	}))
	s.Lanes, s.Batch = 1, 10
	ids := map[string]string{}
	var sent []broker.Message
	for i, span := range []string{"00f067aa0ba902b1", "00f067aa0ba902b2", "00f067aa0ba902b3", "00f067aa0ba902b4"} {
		m := in(orders(4)[i], span)
		ids[m.ID] = span
		sent = append(sent, m)
	}
	w.publish(sent...)
	r, spans := w.traced(s)
	w.until(func() bool { return r.Status().InFlight == 4 }, "all have come")
	close(gate)
	w.until(func() bool { return r.Status().Handled == 4 }, "all are handled")
	w.until(func() bool { return len(spans.GetSpans()) >= 5 }, "all are told")

	batches, handled := 0, 0
	for _, s := range named(spans.GetSpans(), process) {
		got := attributesOf(s)
		if n, ok := got["messaging.batch.message_count"]; ok {
			batches++
			require.Len(t, s.Links, int(n.(int64)))
			require.False(t, s.Parent.IsValid())
			for _, l := range s.Links {
				require.Contains(t, slices.Collect(maps.Values(ids)), l.SpanContext.SpanID().String())
			}
			continue
		}
		handled++
		require.Equal(t, ids[got["messaging.message.id"].(string)], s.Parent.SpanID().String())
		require.Equal(t, "handled", got["waybill.outcome"])
	}
	require.Positive(t, batches)
	require.Equal(t, 4, handled)
}

// Why a message is set aside stands in its trace.
func TestSpans_AParkedMessage(t *testing.T) {
	w := newWorld(t, openSQLite(t))
	r, spans := w.traced(w.streamOf(subscription.On(func(context.Context, OrderPlaced) error {
		return subscription.Park(errors.New("no such customer"))
	})))
	w.publish(in(placed("o", "x"), "00f067aa0ba902b7"))
	w.until(func() bool { return r.Status().Parked == 1 }, "it is parked")
	w.until(func() bool { return len(named(spans.GetSpans(), process)) == 1 }, "it is told")
	all := spans.GetSpans()
	s := named(all, process)[0]
	require.Equal(t, "set aside", attributesOf(s)["waybill.outcome"])
	require.Equal(t, codes.Error, s.Status.Code)
	require.Equal(t, "no such customer", s.Status.Description)
	require.Len(t, s.Events, 1)
	require.Contains(t, s.Events[0].Attributes, attribute.String("exception.message", "no such customer"))
	for _, u := range named(all, "waybill.uow") {
		require.Equal(t, s.SpanContext.SpanID(), u.Parent.SpanID())
	}
}
