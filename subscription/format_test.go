package subscription_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/broker/nats/embedded"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

// Captured is a payment provider's event.
type Captured struct {
	Payment string `json:"payment"`
	Cents   int64  `json:"cents"`
}

const (
	capturedType = "com.psp.payment.captured"
	pspTopic     = "payments.v1"
)

var taking = domain.MustNew("shipping",
	domain.Aggregate[*Shipment]("shipment", domain.Event[ShipmentPrepared](domain.Published())),
	domain.PartnerEvent[Captured](capturedType, domain.Alias("com.psp.captured.v2")),
	domain.Foreign[OrderPlaced]("Ordering.OrderPlaced.v1"),
)

func header(prefix string, attributes ...string) map[string]string {
	h := map[string]string{prefix + "specversion": "1.0", prefix + "id": "e-1", prefix + "source": "/psp", prefix + "type": capturedType, "content-type": "application/json"}
	for i := 0; i < len(attributes); i += 2 {
		if h[attributes[i]] = attributes[i+1]; attributes[i+1] == "" {
			delete(h, attributes[i])
		}
	}
	return h
}

// Conformance: N.
func TestCloudEvents_Reads(t *testing.T) {
	const attributes = `"specversion":"1.0","id":"e-1","source":"/psp","type":"com.psp.payment.captured"`
	structured := map[string]string{"Content-Type": "application/cloudevents+json; charset=UTF-8"}
	plain := subscription.Incoming{Metadata: domain.Metadata{ID: "e-1", Type: capturedType}, Source: "/psp", Data: []byte(`{"a":1}`)}
	with := func(change func(*subscription.Incoming)) subscription.Incoming {
		in := plain
		change(&in)
		return in
	}
	for name, c := range map[string]struct {
		m    broker.Message
		want subscription.Incoming
	}{
		"binary of Kafka":   {broker.Message{Headers: header("ce_"), Body: []byte(`{"a":1}`)}, plain},
		"binary of others":  {broker.Message{Headers: header("ce-"), Body: []byte(`{"a":1}`)}, plain},
		"in capitals":       {broker.Message{Headers: header("Ce-", "content-type", "", "Content-Type", "text/json"), Body: []byte(`{"a":1}`)}, plain},
		"no content type":   {broker.Message{Headers: header("ce_", "content-type", ""), Body: []byte(`{"a":1}`)}, plain},
		"structured":        {broker.Message{Headers: structured, Body: []byte(`{` + attributes + `,"data":{"a":1}}`)}, plain},
		"structured, taken": {broker.Message{Headers: map[string]string{"content-type": "application/cloudevents+json", "ce_id": "other"}, Body: []byte(`{` + attributes + `,"data":{"a":1}}`)}, plain},
		"packed":            {broker.Message{Headers: structured, Body: []byte(`{` + attributes + `,"data_base64":"` + base64.StdEncoding.EncodeToString([]byte(`{"a":1}`)) + `"}`)}, plain},
		"the broker's key": {broker.Message{Key: "k", Headers: header("ce_", "ce_subject", "s"), Body: []byte(`{"a":1}`)}, with(func(in *subscription.Incoming) {
			in.Key, in.AggregateID = "k", "s"
		})},
		"partitionkey": {broker.Message{Key: "k", Headers: header("ce_", "ce_partitionkey", "p", "ce_subject", "s"), Body: []byte(`{"a":1}`)}, with(func(in *subscription.Incoming) {
			in.Key, in.AggregateID = "p", "s"
		})},
		"claims": {
			broker.Message{Headers: structured, Body: []byte(`{` + attributes + `,"subject":"s","time":"2026-01-02T03:04:05.5+01:00","datacontenttype":"application/vnd.psp+json","dataschema":"x:y",` +
				`"correlationid":"c","causationid":"d","tenantid":"t","traceparent":"tp","sequence":"7","flag":true,"number":-5,"none":null,"data":{"a":1}}`)},
			with(func(in *subscription.Incoming) {
				in.Key, in.AggregateID, in.Time, in.Sequence = "s", "s", time.Date(2026, 1, 2, 2, 4, 5, 500e6, time.UTC), "7"
				in.Origin = domain.Origin{CorrelationID: "c", CausationID: "d", TenantID: "t", Traceparent: "tp", Extensions: map[string]string{"flag": "true", "number": "-5"}}
			}),
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := subscription.CloudEvents()(c.m)
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
	for name, c := range map[string]struct {
		headers map[string]string
		body    string
		want    string
	}{
		"nothing of it":        {map[string]string{"content-type": "application/json"}, `{}`, "no header ce_specversion"},
		"a batch":              {map[string]string{"content-type": "application/cloudevents-batch+json"}, `[]`, "only application/cloudevents+json is read"},
		"another version":      {header("ce_", "ce_specversion", "0.3"), `{}`, `specversion is "0.3"`},
		"no id":                {header("ce_", "ce_id", ""), `{}`, "it has no id"},
		"no source":            {header("ce_", "ce_source", ""), `{}`, "it has no source"},
		"no type":              {header("ce_", "ce_type", ""), `{}`, "it has no type"},
		"a wrong name":         {header("ce_", "ce_tenant-id", "x"), `{}`, `attribute "tenant-id": names are of a to z and 0 to 9`},
		"two of one name":      {header("ce_", "CE_id", "e-2"), `{}`, `it has two attributes "id"`},
		"two bindings":         {header("ce_", "ce-source", "/other"), `{}`, `it has two attributes "source"`},
		"no time":              {header("ce_", "ce_time", "yesterday"), `{}`, `time is "yesterday"`},
		"time, after all":      {header("ce_", "ce_time", "9999-12-31T23:59:59-23:59"), `{}`, "no time of RFC 3339"},
		"time, before all":     {header("ce_", "ce_time", "0000-01-01T00:00:00+23:59"), `{}`, "no time of RFC 3339"},
		"XML":                  {header("ce_", "content-type", "text/xml"), `<a/>`, `its data is "text/xml": only JSON is read`},
		"another charset":      {header("ce_", "content-type", "application/json; charset=latin1"), `{}`, `its data is in "latin1"`},
		"no content type":      {header("ce_", "content-type", "/;"), `{}`, `only JSON is read`},
		"no JSON":              {header("ce_"), `{`, "its data is no JSON"},
		"no data":              {header("ce_"), ``, "it has no data"},
		"structured, no data":  {structured, `{` + attributes + `}`, "it has no data"},
		"structured, no JSON":  {structured, `{`, "its JSON"},
		"both data":            {structured, `{` + attributes + `,"data":1,"data_base64":"MQ=="}`, "it has data and data_base64"},
		"data that is packed":  {structured, `{` + attributes + `,"data_base64":"?"}`, "data_base64"},
		"data packed as such":  {structured, `{` + attributes + `,"data_base64":1}`, "data_base64"},
		"an object":            {structured, `{` + attributes + `,"a":{},"data":1}`, `attribute "a" is no text`},
		"a fraction":           {structured, `{` + attributes + `,"a":1.5,"data":1}`, `attribute "a" is the number 1.5`},
		"a large number":       {structured, `{` + attributes + `,"a":4294967296,"data":1}`, `attribute "a" is the number 4294967296`},
		"an id that is a list": {structured, strings.Replace(`{`+attributes+`,"data":1}`, `"e-1"`, `["e-1"]`, 1), `attribute "id" is no text`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := subscription.CloudEvents()(broker.Message{Headers: c.headers, Body: []byte(c.body)})
			require.ErrorContains(t, err, c.want)
		})
	}
}

// taker runs a context that handles a partner's messages.
func taker(t *testing.T, b broker.Broker, in subscription.Inbound) (w *world, r *subscription.Runner) {
	t.Helper()
	w = newWorld(t, openSQLite(t))
	var err error
	w.units, err = uow.New(uow.Config{Domain: taking, Providers: []uow.Provider{w.provider}, External: []outbox.Target{{Broker: "next", Extensions: []string{"channel", "tenant_id"}}}})
	require.NoError(t, err)
	shipments := repository.New[*Shipment](w.units)
	s := w.streamOf(subscription.On(func(ctx context.Context, e Captured) error {
		m, _ := domain.MetadataFrom(ctx)
		s := &Shipment{Root: domain.RootWithID(uuid.NewString()), Note: e.Payment + " " + m.ID}
		s.Raise(ShipmentPrepared{ShipmentID: e.Payment})
		return shipments.Save(ctx, s)
	}))
	s.Category, s.Broker, s.Inbound, s.MaxAttempts, s.OnParked = "psp::payment", "psp", in, 1, subscription.Skip
	require.NoError(t, b.EnsureTopics(t.Context(), pspTopic))
	r, stop := w.start(s, b)
	t.Cleanup(stop)
	return w, r
}

func eachBroker(t *testing.T, test func(t *testing.T, b broker.Broker)) {
	t.Helper()
	t.Run("memory", func(t *testing.T) { test(t, memory.New(memory.Config{})) })
	t.Run("nats", func(t *testing.T) {
		b, err := embedded.Open(t.Context(), embedded.Config{Dir: t.TempDir()})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Close(context.Background())) })
		test(t, b)
	})
}

// S3, S4: a partner who sends CloudEvents and lies in them, or sends what is none.
func TestInbound_S3_S4_CloudEventsOfAPartnerWhoLies(t *testing.T) {
	eachBroker(t, func(t *testing.T, b broker.Broker) {
		w, r := taker(t, b, subscription.Inbound{Topic: pspTopic, Format: subscription.CloudEvents(), MaxBytes: 4 << 10})
		n := 0
		send := func(change func(*broker.Message)) {
			n++
			m := broker.Message{
				ID: fmt.Sprint("native-", n), Topic: pspTopic, Key: fmt.Sprint("k-", n), Headers: map[string]string{"content-type": "application/json"}, Body: fmt.Appendf(nil, `{"payment":"p-%d","cents":5}`, n),
				CloudEvent: map[string]string{"specversion": "1.0", "id": fmt.Sprint("e-", n), "source": "/psp", "type": capturedType},
			}
			change(&m)
			require.NoError(t, b.Publish(t.Context(), []broker.Message{m}))
		}
		same := func(source string) func(*broker.Message) {
			return func(m *broker.Message) { m.CloudEvent["id"], m.CloudEvent["source"] = "same", source }
		}
		send(func(*broker.Message) {})                                                                         // p-1
		send(same("/psp"))                                                                                     // p-2
		send(same("/psp"))                                                                                     // comes again
		send(same("/other%20"))                                                                                // p-4: one id, another source
		send(func(m *broker.Message) { m.CloudEvent["type"] = "com.psp.captured.v2" })                         // p-5
		send(func(m *broker.Message) { m.CloudEvent["type"] = "com.psp.payment.captured.v2" })                 // nobody's
		send(func(m *broker.Message) { m.CloudEvent["type"] = "Shipping.ShipmentPrepared.v1" })                // nobody's: it is no stranger's
		send(func(m *broker.Message) { m.CloudEvent["type"], m.Body = "com.psp.report", make([]byte, 9<<10) }) // nobody's
		send(func(m *broker.Message) {                                                                         // p-9
			for _, name := range []string{"tenantid", "correlationid", "causationid", "priority", "channel", "sequence"} {
				m.CloudEvent[name] = lie
			}
			m.CloudEvent["traceparent"] = lyingSpan
			for _, name := range []string{"waybill-source", "waybill-published", "tenant-id", "correlation-id", "type", "id"} {
				m.Headers[name] = lie
			}
			m.Headers["waybill-low"], m.Headers["waybill-at"] = "9223372036854775807", "9223372036854775807"
		})
		send(func(m *broker.Message) { m.Body = []byte(`{"payment":"` + strings.Repeat("x", 5<<10) + `"}`) }) // too large
		send(func(m *broker.Message) {
			m.Body = []byte(strings.Repeat(`{"a":`, 500) + "1" + strings.Repeat("}", 500))
		}) // refused
		send(func(m *broker.Message) { m.CloudEvent["id"] = strings.Repeat("i", 3000) }) // refused
		send(func(m *broker.Message) { m.CloudEvent["specversion"] = "2.0" })            // undecodable
		send(func(m *broker.Message) { m.CloudEvent["source"] = "/p s p" })              // undecodable
		send(func(m *broker.Message) { m.Body = []byte(`{"payment":5}`) })               // undecodable
		send(func(m *broker.Message) { m.CloudEvent = nil })                             // undecodable
		w.until(func() bool {
			s := r.Status()
			return int(s.Handled+s.Parked+s.Ignored+s.Duplicates) == n
		}, "all are settled")

		var notes []string
		require.NoError(t, w.provider.Reader().NewRaw("SELECT state ->> 'Note' FROM documents WHERE category = 'shipping::shipment' ORDER BY 1").Scan(t.Context(), &notes))
		require.Equal(t, []string{"p-1 /psp e-1", "p-2 /psp same", "p-4 /other%20 same", "p-5 /psp e-5", "p-9 /psp e-9"}, notes)
		for _, row := range w.outboxOf("shipping::shipment") {
			require.Equal(t, row.CausationID, row.CorrelationID)
			require.NotContains(t, string(row.Payload), lie)
			require.NotContains(t, string(row.Payload), lyingSpan[3:35])
			require.Empty(t, row.TenantID+row.Traceparent)
			require.Zero(t, row.Priority)
		}
		reasons := map[string]int{}
		for _, d := range w.parked() {
			reasons[d.Reason]++
			require.LessOrEqual(t, len(d.Body), 4<<10)
		}
		require.Equal(t, map[string]int{"too_large": 1, "refused": 2, "undecodable": 4}, reasons)
		require.Zero(t, w.count("SELECT count(*) FROM inbox_marks"))
	})
}

// What a Waybill context sends to a partner as CloudEvents, one that reads CloudEvents reads.
// Conformance: N.
func TestInbound_CloudEventsOfAWaybillContext(t *testing.T) {
	for _, envelope := range []outbox.Envelope{outbox.CloudEvents, outbox.CloudEventsBinary} {
		t.Run(string(envelope), func(t *testing.T) {
			eachBroker(t, func(t *testing.T, b broker.Broker) {
				require.NoError(t, b.EnsureTopics(t.Context(), pspTopic))
				consumer, err := b.Consume(t.Context(), pspTopic, "group")
				require.NoError(t, err)
				defer func() { require.NoError(t, consumer.Close(t.Context())) }()
				e := outbox.Event{Metadata: domain.Metadata{
					ID: uuid.Must(uuid.NewV7()).String(), Type: "Shipping.ShipmentPrepared.v1", Time: time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC),
					Category: "shipping::shipment", Context: "shipping", AggregateID: "s", Sequence: "3.1",
					Origin: domain.Origin{CorrelationID: "c", CausationID: "d", TenantID: "łódź 100%", Extensions: map[string]string{"channel": "/a%20b"}},
				}, Key: "k", Data: []byte(`{"shipment_id":"s"}`)}
				w := outbox.Writer{Domain: taking, Internal: "default", External: []outbox.Target{{Broker: "psp", Envelope: envelope, Extensions: []string{"channel", "tenant_id"}}}}
				rows, err := w.Rows([]outbox.Event{e}, 4)
				require.NoError(t, err)
				row := rows[1]
				m := broker.Message{ID: row.MessageID, Topic: pspTopic, Key: row.PartitionKey, Body: row.Payload, Headers: map[string]string{"content-type": row.ContentType}}
				if row.CloudEvent != "" {
					require.NoError(t, json.Unmarshal([]byte(row.CloudEvent), &m.CloudEvent))
				}
				require.NoError(t, b.Publish(t.Context(), []broker.Message{m}))
				got, err := consumer.Receive(t.Context(), 1)
				require.NoError(t, err)
				in, err := subscription.CloudEvents()(got[0].Message)
				require.NoError(t, err)
				want := subscription.Incoming{Metadata: e.Metadata, Source: "urn:waybill:shipping", Key: "k", Data: e.Data}
				want.Category, want.Context, want.Sequence = "", "", "0000000003.00001"
				require.Equal(t, want, in)
			})
		})
	}
}

// A Format of one's own: what it returns is held to the same bounds.
func TestInbound_S5_AFormatOfOnesOwn(t *testing.T) {
	b := memory.New(memory.Config{})
	w, r := taker(t, b, subscription.Inbound{Topic: pspTopic, MaxBytes: 1000, Format: func(m broker.Message) (subscription.Incoming, error) {
		what, payment, _ := strings.Cut(string(m.Body), " ")
		in := subscription.Incoming{Metadata: domain.Metadata{ID: m.ID, Type: capturedType}, Source: "legacy", Key: payment, Data: fmt.Appendf(nil, `{"payment":%q}`, payment)}
		switch what {
		case "bomb":
			in.Data = fmt.Appendf(nil, `{"payment":%q}`, strings.Repeat("x", 2000))
		case "deep":
			in.Data = []byte(strings.Repeat("[", 200) + strings.Repeat("]", 200))
		case "panic":
			panic("at the format")
		case "nameless":
			in.Type = ""
		case "wrong":
			return in, errors.New("no such form")
		}
		return in, nil
	}})
	for i, body := range []string{"fine p-1", "bomb p-2", "deep p-3", "panic p-4", "nameless p-5", "wrong p-6", "[[[[ p-7"} {
		require.NoError(t, b.Publish(t.Context(), []broker.Message{{ID: fmt.Sprint(i), Topic: pspTopic, Key: "k", Body: []byte(body)}}))
	}
	w.until(func() bool { s := r.Status(); return s.Handled+s.Parked == 7 }, "all are settled")
	require.EqualValues(t, 2, r.Status().Handled)
	reasons := map[string][]string{}
	for _, d := range w.parked() {
		reasons[d.Reason] = append(reasons[d.Reason], d.PartitionKey)
		if d.Reason == "too_large" {
			require.Nil(t, d.Body)
			require.Contains(t, d.Error, "the data has 2014 bytes, unpacked, and is not kept: the limit is 1000")
		}
	}
	require.ElementsMatch(t, []string{"p-2"}, reasons["too_large"])
	require.ElementsMatch(t, []string{"p-3"}, reasons["refused"])
	require.Len(t, reasons["undecodable"], 3)
	require.Contains(t, reasons["undecodable"], "p-6")
}
