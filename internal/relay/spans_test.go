package relay_test

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/outbox"
)

const (
	traceID   = "0af7651916cd43dd8448eb211c80319c"
	sampled   = "00-" + traceID + "-b7ad6b7169203331-01"
	unsampled = "00-" + traceID + "-b7ad6b7169203331-00"
)

// traced is a row that was written in a trace.
func traced(key, traceparent string) outbox.Row {
	row := outboxdbtest.Row(key)
	row.Traceparent = traceparent
	return row
}

// S2-52: what is published is a child of the span in which its row was written, each
// attempt of it, and says so to whoever receives it. A traceparent that is none begins
// a trace; a row of no trace, or of one that isn't sampled, is nobody's to follow.
func TestSpans_S2_52_APublishIsTheChildOfItsRow(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		rows := []outbox.Row{traced("sampled", sampled), traced("unsampled", unsampled), traced("invalid", "00-who-knows-01"), traced("none", "")}
		rows[0].CorrelationID = "c-1"
		b.InsertRows(rows...)
		m := memory.New(memory.Config{})
		refused := false
		m.FailWhere(func(m broker.Message) error {
			if m.Key != "sampled" || refused {
				return nil
			}
			refused = true
			return refuse("not now")
		})
		spans := tracetest.NewInMemoryExporter()
		lines := &logs{}
		start(t, relay.Config{
			Store: b.Store, Lanes: []relay.Lane{to(broker.Prefixed(m, "test."))}, Outbox: quick(),
			TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)),
			Logger:         slog.New(slog.NewTextHandler(lines, &slog.HandlerOptions{Level: slog.LevelDebug})),
		})
		statuses(t, b, map[outbox.Status]int{outbox.Published: 4})
		sent := map[string]broker.Message{}
		for _, message := range m.Messages("test." + orders) {
			sent[message.Key] = message
		}

		of := map[string][]tracetest.SpanStub{}
		for _, span := range spans.GetSpans() {
			require.Equal(t, "publish test."+orders, span.Name)
			require.Equal(t, trace.SpanKindProducer, span.SpanKind)
			id := value(span, "messaging.message.id").AsString()
			of[id] = append(of[id], span)
		}
		require.Len(t, of, 2)
		tries := of[rows[0].MessageID]
		require.Len(t, tries, 2)
		for i, span := range tries {
			require.Equal(t, traceID, span.SpanContext.TraceID().String())
			require.Equal(t, "b7ad6b7169203331", span.Parent.SpanID().String())
			require.True(t, span.Parent.IsRemote())
			for name, want := range map[string]attribute.Value{
				"messaging.system":                  attribute.StringValue("memory"),
				"messaging.destination.name":        attribute.StringValue("test." + orders),
				"messaging.operation.name":          attribute.StringValue("publish"),
				"messaging.operation.type":          attribute.StringValue("send"),
				"messaging.message.body.size":       attribute.IntValue(len(rows[0].Payload)),
				"messaging.message.conversation_id": attribute.StringValue("c-1"),
				"waybill.target":                    attribute.StringValue("default"),
				"waybill.attempt":                   attribute.IntValue(i + 1),
			} {
				require.Equal(t, want, value(span, name), name)
			}
		}
		require.Equal(t, codes.Error, tries[0].Status.Code)
		require.Equal(t, "transient", value(tries[0], "error.type").AsString())
		require.Equal(t, "exception", tries[0].Events[0].Name)
		require.Equal(t, codes.Unset, tries[1].Status.Code)
		begun := of[rows[2].MessageID]
		require.Len(t, begun, 1)
		require.False(t, begun[0].Parent.IsValid())

		header := func(span tracetest.SpanStub) string {
			return "00-" + span.SpanContext.TraceID().String() + "-" + span.SpanContext.SpanID().String() + "-01"
		}
		require.Equal(t, header(tries[1]), sent["sampled"].Headers["traceparent"])
		require.Equal(t, header(begun[0]), sent["invalid"].Headers["traceparent"])
		require.Equal(t, unsampled, sent["unsampled"].Headers["traceparent"])
		require.NotContains(t, sent["none"].Headers, "traceparent")
		for i, key := range []string{"sampled", "unsampled", "invalid", "none"} {
			require.Equal(t, rows[i].Payload, sent[key].Body)
		}
		for _, e := range entries(t, b) { // what is stored stays
			require.Contains(t, []string{sampled, unsampled, "00-who-knows-01", ""}, e.Traceparent)
		}
		// S2-24
		require.Equal(t, 4, lines.count("msg=published"))
		require.Equal(t, 3, lines.count("trace_id="))
		require.Equal(t, 2, lines.count("trace_id="+traceID))
	})
}

// Without a provider messages go out as they were written.
func TestSpans_NoneWithoutAProvider(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		b.InsertRows(traced("a", sampled), traced("b", "invalid"))
		m := memory.New(memory.Config{})
		start(t, relay.Config{
			Store: b.Store, Lanes: []relay.Lane{to(m)}, Outbox: quick(), TracerProvider: noop.NewTracerProvider(),
		})
		statuses(t, b, map[outbox.Status]int{outbox.Published: 2})
		var headers []string
		for _, message := range m.Messages(orders) {
			headers = append(headers, message.Headers["traceparent"])
		}
		require.ElementsMatch(t, []string{sampled, "invalid"}, headers)
	})
}

// A call that crashes ends its spans with an error.
func TestSpans_ACallThatCrashes(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		b.InsertRows(traced("a", sampled))
		m := memory.New(memory.Config{})
		crashed := false
		m.FailWhere(func(broker.Message) error {
			if !crashed {
				crashed = true
				panic("no such thing")
			}
			return nil
		})
		spans := tracetest.NewInMemoryExporter()
		start(t, relay.Config{
			Store: b.Store, Lanes: []relay.Lane{to(m)}, Outbox: quick(),
			TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)),
		})
		statuses(t, b, map[outbox.Status]int{outbox.Published: 1})
		all := spans.GetSpans()
		require.Len(t, all, 2)
		require.Equal(t, codes.Error, all[0].Status.Code)
		require.Contains(t, all[0].Status.Description, "crashed")
		require.Equal(t, codes.Unset, all[1].Status.Code)
	})
}

func value(span tracetest.SpanStub, name string) attribute.Value {
	for _, a := range span.Attributes {
		if string(a.Key) == name {
			return a.Value
		}
	}
	return attribute.Value{}
}
