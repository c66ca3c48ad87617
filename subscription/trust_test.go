package subscription_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/broker/nats/embedded"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

// letter is a message of a partner, before it is written down.
type letter struct {
	broker.Message

	data                              string
	headers, domain, envelope, claims map[string]any
}

func newLetter(name string) *letter {
	id := uuid.Must(uuid.NewV7()).String()
	return &letter{
		Message: broker.Message{ID: id, Topic: topic, Key: name, Headers: map[string]string{"id": id, "type": placedV1, "content-type": "application/json"}},
		data:    fmt.Sprintf(`{"order_id":%q,"note":"x"}`, name),
		headers: map[string]any{"id": id, "type": placedV1, "time": "2026-01-02T03:04:05.678901Z", "stream": "ordering::order-" + name},
		domain: map[string]any{
			"context": "ordering", "kind": "EVENT", "aggregate": "order", "aggregate_id": name, "stream_category": category, "version": 1, "sequence_id": "1.1",
		},
		envelope: map[string]any{"specversion": "1.0"}, claims: map[string]any{},
	}
}

func (l *letter) write(t testing.TB) broker.Message {
	t.Helper()
	if l.Body == nil {
		body, err := json.Marshal(map[string]any{
			"data":     json.RawMessage(l.data),
			"metadata": map[string]any{"headers": l.headers, "domain": l.domain, "envelope": l.envelope, "extensions": l.claims},
		})
		require.NoError(t, err)
		l.Body = body
	}
	return l.Message
}

const (
	// lie is in whatever a partner claims, and may be nowhere in what follows from it.
	lie       = "EVIL"
	lyingSpan = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
)

// lies are what a partner who lies sends, and what becomes of it: the reason for which
// it is parked, or handled, or ignored.
var lies = []struct {
	name, want string
	change     func(*letter)
}{
	{"an honest message", "handled", func(*letter) {}},
	{"tenant, priority, extensions, correlation, cause and trace in the body", "handled", func(l *letter) {
		l.claims["tenant_id"], l.claims["channel"] = lie, lie
		l.domain["correlation_id"], l.domain["causation_id"], l.domain["priority"] = lie, lie, 471147
		l.headers["traceparent"] = lyingSpan
	}},
	{"the same in native headers", "handled", func(l *letter) {
		l.Headers["tenant-id"], l.Headers["correlation-id"], l.Headers["traceparent"], l.Headers["channel"] = lie, lie, lyingSpan, lie
	}},
	{"marks of an outbox", "handled", func(l *letter) {
		l.Headers["waybill-source"], l.Headers["waybill-low"], l.Headers["waybill-at"] = lie, "9223372036854775807", "9223372036854775807"
	}},
	{"a control byte in the correlation id", "handled", func(l *letter) { l.domain["correlation_id"] = lie + "\x1b[2J\r\nlevel=ERROR" }},
	{"a time before all times", "handled", func(l *letter) { l.headers["time"] = "0001-01-01T00:00:00Z" }},
	{"an event of the reader's own", "ignored", func(l *letter) { l.headers["type"] = "Shipping.ShipmentPrepared.v1" }},
	{"a type of 3 kB", "ignored", func(l *letter) { l.headers["type"] = strings.Repeat("T", 3000) + ".v1" }},
	{"a large body of a type that nobody reads", "ignored", func(l *letter) {
		l.Headers["type"], l.data = "Ordering.ReportMade.v1", `"`+strings.Repeat("x", 100_000)+`"`
	}},
	{"a body of 100 kB where 64 are taken", "too_large", func(l *letter) { l.data = `"` + strings.Repeat("x", 100_000) + `"` }},
	{"a body nested 9,000 deep", "refused", func(l *letter) { l.Body = []byte(strings.Repeat(`{"a":`, 9000) + "1" + strings.Repeat("}", 9000)) }},
	{"200 headers", "refused", func(l *letter) {
		for n := range 200 {
			l.Headers[fmt.Sprint("x-", n)] = lie
		}
	}},
	{"a header of 40 kB", "refused", func(l *letter) { l.Headers["x"] = strings.Repeat("x", 40_000) }},
	{"a key of 3 kB", "refused", func(l *letter) { l.Key = strings.Repeat("k", 3000) }},
	{"an id of 3 kB", "refused", func(l *letter) { l.headers["id"] = strings.Repeat("i", 3000) }},
	{"a correlation id of 3 kB", "refused", func(l *letter) { l.domain["correlation_id"] = strings.Repeat("c", 3000) }},
	{"a tenant of 3 kB", "refused", func(l *letter) { l.claims["tenant_id"] = strings.Repeat("t", 3000) }},
	{"1,000 extensions", "refused", func(l *letter) {
		for n := range 1000 {
			l.claims[fmt.Sprint("x-", n)] = lie
		}
	}},
	{"an extension's name of 300 bytes", "refused", func(l *letter) { l.claims[strings.Repeat("n", 300)] = lie }},
	{"an extension's value of 9 kB", "refused", func(l *letter) { l.claims["channel"] = strings.Repeat("v", 9000) }},
	{"a checksum of 30 kB", "undecodable", func(l *letter) { l.envelope["checksum"] = strings.Repeat("c", 30_000) }},
	{"a number of 30 kB where a small one stands", "undecodable", func(l *letter) { l.domain["priority"] = json.RawMessage(strings.Repeat("9", 30_000)) }},
	{"no JSON", "undecodable", func(l *letter) { l.Body = []byte("\x00\xff\x1b[2J") }},
}

// S3, S4, S12: a partner who lies, on brokers that are real. What is too much is parked
// at once and small; what is only claimed is not believed, and reaches neither the rows
// that follow from it, nor the next partner, the inbox's marks, or the log.
func TestTrust_S3_S4_S12_APartnerWhoLies(t *testing.T) {
	for kind, open := range map[string]func(t *testing.T) broker.Broker{
		"memory": func(*testing.T) broker.Broker { return memory.New(memory.Config{}) },
		"nats": func(t *testing.T) broker.Broker {
			b, err := embedded.Open(t.Context(), embedded.Config{Dir: t.TempDir()})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, b.Close(context.Background())) })
			return b
		},
	} {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t, openSQLite(t))
			var err error
			w.units, err = uow.New(uow.Config{Domain: shipping, Providers: []uow.Provider{w.provider}, External: []outbox.Target{
				{Broker: "next", Extensions: []string{"channel", "tenant_id"}}, // another partner, who may know of ours
			}})
			require.NoError(t, err)
			b := open(t)
			require.NoError(t, b.EnsureTopics(t.Context(), topic))
			shipments := repository.New[*Shipment](w.units)
			s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
				m, _ := domain.MetadataFrom(ctx)
				s := &Shipment{Root: domain.RootWithID(e.OrderID), Note: m.TenantID + domain.OriginFrom(ctx).Extensions["channel"]}
				s.Raise(ShipmentPrepared{ShipmentID: e.OrderID})
				return shipments.Save(ctx, s)
			}))
			s.Broker, s.Inbound.MaxBytes, s.MaxAttempts = "partner", 64<<10, 1
			name := map[string]string{} // by message id
			for _, l := range lies {
				letter := newLetter(l.name)
				l.change(letter)
				m := letter.write(t)
				name[m.ID] = l.name
				if id := letter.headers["id"]; id != nil {
					name[id.(string)] = l.name
				}
				require.NoError(t, b.Publish(t.Context(), []broker.Message{m}), l.name)
			}
			r, stop := w.start(s, b)
			w.until(func() bool {
				s := r.Status()
				return int(s.Handled+s.Parked+s.Ignored) == len(lies)
			}, "all are settled")
			require.NoError(t, r.Report(t.Context()))
			age, err := r.Lag(t.Context())
			require.NoError(t, err)
			require.Less(t, age.Age, time.Hour)
			stop()

			became := map[string]string{}
			table := []string{fmt.Sprintf("%-72s %-12s %10s %8s  %s", "a partner sends", "it is", "body kept", "headers", "because")}
			for _, row := range w.outboxOf("shipping::shipment") {
				m, _, err := outbox.ParseEnvelope(row.Payload)
				require.NoError(t, err)
				became[m.AggregateID] = "handled"
				require.Equal(t, row.CausationID, row.CorrelationID, "the message begins a correlation")
				require.NotContains(t, string(row.Payload), lie)
				require.NotContains(t, string(row.Payload), lyingSpan[3:35])
				require.Empty(t, row.TenantID+row.Traceparent)
				require.Zero(t, row.Priority)
				require.Empty(t, m.Extensions)
			}
			why := map[string]string{}
			for _, d := range w.parked() {
				var headers map[string]string
				require.NoError(t, json.Unmarshal([]byte(d.Headers), &headers))
				size := 0
				for n, v := range headers {
					size += len(n) + len(v)
				}
				what, known := name[d.MessageID]
				if !known { // its id doesn't fit an index
					require.Contains(t, d.Error, "id has 3000 bytes")
					what = "an id of 3 kB"
				}
				became[what] = d.Reason
				why[what] = fmt.Sprintf("%10d %8d  %.90s", len(d.Body), len(headers), d.Error)
				require.Zero(t, d.Attempts)
				require.LessOrEqual(t, len(d.Body), 64<<10)
				require.LessOrEqual(t, len(headers), 100)
				require.LessOrEqual(t, size, 32<<10)
				require.LessOrEqual(t, len(d.PartitionKey), 2048)
				require.LessOrEqual(t, len(d.MessageType), 2048)
				require.LessOrEqual(t, len([]rune(d.Error)), 2048)
			}
			for _, l := range lies {
				if became[l.name] == "" {
					became[l.name] = "ignored"
				}
				table = append(table, fmt.Sprintf("%-72s %-12s %s", l.name, became[l.name], why[l.name]))
			}
			t.Log("\n" + strings.Join(table, "\n"))
			for _, l := range lies {
				require.Equal(t, l.want, became[l.name], l.name)
			}
			require.Zero(t, w.count("SELECT count(*) FROM inbox_marks"))
			require.Zero(t, w.count("SELECT count(*) FROM documents WHERE category = 'shipping::shipment' AND state LIKE '%"+lie+"%'"))
			require.Len(t, w.logs.lines("what messages of this stream say of themselves is not believed"), 1)
			for _, line := range w.logs.lines("parked in dead_letters") {
				require.Less(t, len(line), 8<<10)
				require.NotContains(t, line, "\x1b")
			}
		})
	}
}

// S3: what is named is taken over, cleaned and within bounds; a tenant only if the
// sender may speak for it. What was refused is handled by a replay, once it may be.
func TestTrust_S3_WhatIsNamedIsTakenOver(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		shipments := repository.New[*Shipment](w.units)
		s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
			s := &Shipment{Root: domain.RootWithID(e.OrderID)}
			s.Raise(ShipmentPrepared{ShipmentID: e.OrderID})
			return shipments.Save(ctx, s)
		}))
		s.Inbound.Trust = subscription.Trust{
			Tenant: subscription.TenantAmong("acme", "umbrella"), Correlation: true, Trace: true, Priority: true, Extensions: []string{"channel", "absent"},
		}
		send := func(name, tenant string) {
			l := newLetter(name)
			l.claims["tenant_id"], l.claims["channel"], l.claims["role"] = tenant, "web\x1b\n\u202e", "admin"
			l.domain["correlation_id"], l.domain["priority"], l.headers["traceparent"] = "c\r\n1", 99, lyingSpan
			w.publish(l.write(t))
		}
		send("o-1", "acme")
		send("o-2", "initech")
		_, stop := w.start(s, w.broker)
		w.until(w.acknowledged("shipping"), "both are settled")
		rows := w.outboxOf("shipping::shipment")
		require.Len(t, rows, 1)
		m, _, err := outbox.ParseEnvelope(rows[0].Payload)
		require.NoError(t, err)
		require.Equal(t, domain.Origin{
			CorrelationID: "c\uFFFD\uFFFD1", CausationID: rows[0].CausationID, TenantID: "acme", Traceparent: lyingSpan,
			Extensions: map[string]string{"channel": "web\uFFFD\uFFFD\uFFFD"},
		}, m.Origin)
		require.Equal(t, 2, m.Priority)
		letters := w.parked()
		require.Len(t, letters, 1)
		require.Equal(t, "refused", letters[0].Reason)
		require.Contains(t, letters[0].Error, `Stream.Inbound.Trust.Tenant: the message is of tenant "initech"`)
		stop()

		s.Inbound.Trust = subscription.Trust{Tenant: subscription.FixedTenant("initech")}
		_, stop = w.start(s, w.broker)
		_, err = subscription.NewDeadLetters(w.provider).Replay(t.Context(), subscription.DeadLetterFilter{Subscription: "shipping"}, subscription.ReplayOptions{Actor: "test"})
		require.NoError(t, err)
		w.until(func() bool { return len(w.outboxOf("shipping::shipment")) == 2 }, "it is handled")
		stop()
		require.Equal(t, "initech", w.outboxOf("shipping::shipment")[1].TenantID)
	})
}

// S12: a body that was not kept can't be handled by a replay, and is not taken for
// another mistake; nor is one that came behind a parked message of its key.
func TestTrust_S12_ReplayOfABodyThatWasNotKept(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		s := w.stream()
		s.OnParked, s.Inbound.MaxBytes = subscription.Hold, 1000
		for range 2 {
			l := newLetter("o-1")
			l.data = `"` + strings.Repeat("x", 2000) + `"`
			w.publish(l.write(t))
		}
		_, stop := w.start(s, w.broker)
		defer stop()
		w.until(w.acknowledged("shipping"), "both are set aside")
		letters := w.parked()
		require.Equal(t, []string{"parked", "held"}, []string{letters[0].Status, letters[1].Status})
		replay := func(id string) {
			_, err := subscription.NewDeadLetters(w.provider).Replay(t.Context(), subscription.DeadLetterFilter{Subscription: "shipping", IDs: []string{id}}, subscription.ReplayOptions{Actor: "test"})
			require.NoError(t, err)
			w.until(func() bool { return w.count("SELECT count(*) FROM dead_letters WHERE status = 'replay'") == 0 }, "it is parked again")
		}
		replay(letters[0].ID)
		_, err := subscription.NewDeadLetters(w.provider).Discard(t.Context(), subscription.DeadLetterFilter{Subscription: "shipping", IDs: []string{letters[0].ID}}, subscription.DiscardOptions{Actor: "test"})
		require.NoError(t, err)
		w.until(func() bool { return w.parked()[1].Status == "parked" }, "its turn has come")
		for _, d := range w.parked() {
			require.Equal(t, "too_large", d.Reason)
			require.Nil(t, d.Body)
			require.Regexp(t, `the body has 2\d\d\d bytes and is not kept: the limit is 1000 \(Stream.Inbound.MaxBytes\)`, d.Error)
		}
	})
}

// S3: whom nobody has said to trust is trusted on the context's own broker, and
// nowhere else. The size follows the context's own outbox there.
func TestTrust_S3_Defaults(t *testing.T) {
	w := newWorld(t, openSQLite(t))
	own, err := uow.New(uow.Config{Domain: shipping, Providers: []uow.Provider{w.provider}, Broker: "own", MaxMessageBytes: 4 << 20})
	require.NoError(t, err)
	s := subscription.Stream{Units: own, Broker: "own"}.WithDefaults()
	require.Equal(t, subscription.Inbound{Trust: subscription.Trusted(), MaxBytes: 4 << 20}, s.Inbound)
	s = subscription.Stream{Units: own}.WithDefaults()
	require.Equal(t, subscription.Inbound{Trust: subscription.Untrusted(), MaxBytes: 1 << 20}, s.Inbound, `its broker is "default"`)
	s = subscription.Stream{Units: w.units}.WithDefaults()
	require.Equal(t, subscription.Inbound{Trust: subscription.Trusted(), MaxBytes: 1 << 20}, s.Inbound)
	s = subscription.Stream{Units: w.units, Inbound: subscription.Inbound{Trust: subscription.Trust{Correlation: true}, MaxBytes: -1}}.WithDefaults()
	require.Equal(t, subscription.Inbound{Trust: subscription.Trust{Correlation: true}, MaxBytes: -1}, s.Inbound)

	s = w.stream()
	s.Inbound = subscription.Inbound{Trust: subscription.Trusted(), MaxBytes: -2}
	s.Inbound.Trust.Extensions = []string{"", "tenant_id"}
	_, err = subscription.NewRunner(subscription.RunnerConfig{Stream: s, Broker: w.broker})
	for _, part := range []string{
		"Inbound.MaxBytes is -2: above 0, 0 for 1 MiB, or -1 for no limit", "Inbound.Trust is Trusted() and names what is taken over",
		"Inbound.Trust.Extensions has an empty name", `Inbound.Trust.Extensions names "tenant_id": the tenant is taken over by Trust.Tenant`,
	} {
		require.ErrorContains(t, err, part)
	}
}

// S3: the trace of a sender who isn't trusted is a link; whether one's own is recorded
// is not the sender's to say.
func TestTrust_S3_TheSendersTraceIsALink(t *testing.T) {
	w := newWorld(t, openSQLite(t))
	s := w.stream()
	s.Inbound.Trust = subscription.Untrusted()
	_, spans := w.traced(s)
	sent := in(placed("o-1", ""), "b7ad6b7169203331")
	sent.Headers["correlation-id"], sent.Headers["type"] = lie, placedV1
	w.publish(sent)
	w.until(func() bool { return w.allEffects() == 1 && len(named(spans.GetSpans(), "process test."+topic)) == 1 }, "it is handled")
	process := named(spans.GetSpans(), "process test."+topic)[0]
	require.False(t, process.Parent.IsValid())
	require.NotEqual(t, traceID, process.SpanContext.TraceID().String())
	require.Len(t, process.Links, 1)
	require.Equal(t, traceID, process.Links[0].SpanContext.TraceID().String())
	require.Equal(t, trace.SpanKindConsumer, process.SpanKind)
	for name, value := range attributesOf(process) {
		require.NotContains(t, fmt.Sprint(value), lie, name)
	}
}
