package external

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/binding/format"
	"github.com/cloudevents/sdk-go/v2/binding/spec"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/outbox"
)

var updateWire = flag.Bool("update-wire", false, "write the golden messages anew")

const data = `{"order_id":"o-1","note":"é"}`

// partners are one for each broker and envelope.
func (w *world) partners() (targets []outbox.Target, brokers map[string]broker.Broker) {
	brokers = map[string]broker.Broker{}
	for kind, b := range map[string]broker.Broker{"kafka": w.kafka, "nats": w.nats} {
		for _, envelope := range outbox.Envelopes() {
			t := outbox.Target{Broker: "lane-marker-" + kind + "-" + string(envelope), Envelope: envelope, Extensions: []string{"x-user", "zone"}}
			targets = append(targets, t)
			brokers[t.Broker] = broker.Prefixed(b, string(envelope)+".")
		}
	}
	return targets, brokers
}

// A57, S4-15, S4-16, F-44: everything that a partner gets on Kafka and on NATS, in
// each envelope: native headers and body. It is what the golden files show, and
// nothing that is internal, or that the target may not have, is anywhere in it.
// Conformance: A60.
func TestWire_A57_S4_15_S4_16_F_44(t *testing.T) {
	w := newWorld(t)
	targets, brokers := w.partners()
	m := w.units(targets...)
	w.run(w.engine(brokers, m))
	origin := domain.Origin{
		CorrelationID: "0198c9a8-7c1e-7a52-9f0b-000000000001", CausationID: "0198c9a8-7c1e-7a52-9f0b-000000000002",
		TenantID: "tenant-marker", Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		Extensions: map[string]string{"x-user": "u-17", "zone": "Łódź 100%", "secret_note": "extension-marker"},
	}
	ctx := domain.WithPriority(domain.WithOrigin(t.Context(), origin), -471147)
	w.place(ctx, m, "o-1", "é")
	rows := w.settled(1 + 3 + len(targets))

	forbidden := []string{
		"tenant-marker", "tenant_id", "tenant-id", "tenantid", "extension-marker", "secret", "lane-marker", "-471147",
		fmt.Sprintf("%x", sha256.Sum256([]byte(data))), w.prefix,
		// The internal fields of the contract, and what else begins with our name.
		"checksum", "sha256", "expected_version", "asynchronous", "priority", "event_store", "position", "waybill-",
		// The columns that are no field of the contract's.
		"message_id", "target_broker", "partition", "message_type", "aggregate_type", "aggregate_version", "payload", "content_type", "cloud_event",
		"status", "attempts", "available_at", "last_attempt", "last_error", "failure_class", "locked_", "fence", "claim", "losses", "held",
		"occurred_at", "created_at", "published_at", "expires_at", "finished_at",
	}
	var id, at string
	for _, r := range rows {
		forbidden = append(forbidden, r.ID)
		if r.MessageType == "Ordering.OrderPlaced.v1" {
			id, at = r.MessageID, r.OccurredAt.UTC().Format("2006-01-02T15:04:05.000000Z")
		}
	}
	for _, envelope := range outbox.Envelopes() {
		for kind, read := range map[string]func(string) wire{"kafka": w.fromKafka, "nats": w.fromNATS} {
			t.Run(kind+"/"+string(envelope), func(t *testing.T) {
				got := read(string(envelope) + ".ordering.order")
				require.Contains(t, string(got.body), data, "the event's bytes")
				text := strings.NewReplacer(id, "<id>", at, "<time>").Replace(got.String())
				for _, word := range forbidden {
					require.NotContains(t, text, word)
				}
				file := filepath.Join("testdata", kind+"."+string(envelope)+".txt")
				if *updateWire {
					require.NoError(t, os.MkdirAll("testdata", 0o755))
					require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
				}
				want, err := os.ReadFile(file)
				require.NoError(t, err)
				require.Equal(t, string(want), text)
			})
		}
	}
	// The same words are in what the context's own broker has, as far as they are of
	// a message: they are the right ones.
	own := w.fromOwn(id)
	for _, word := range []string{"tenant-marker", "extension-marker", "-471147", "checksum", "expected_version", "asynchronous", "event_store", "position", "tenant-id"} {
		require.Contains(t, own, word)
	}
}

// The CloudEvents SDK for Go reads both modes from both brokers, and finds the same
// event.
func TestWire_CloudEventsAsTheSDKReadsThem(t *testing.T) {
	w := newWorld(t)
	targets, brokers := w.partners()
	m := w.units(targets...)
	w.run(w.engine(brokers, m))
	ctx := domain.WithOrigin(t.Context(), domain.Origin{CorrelationID: "c-1", Extensions: map[string]string{"x-user": "u-17", "zone": "eu"}})
	w.place(ctx, m, "o-1", "é")
	placed := w.settled(4 + len(targets))[0]
	for _, envelope := range []outbox.Envelope{outbox.CloudEvents, outbox.CloudEventsBinary} {
		for prefix, got := range map[string]wire{
			"ce_": w.fromKafka(string(envelope) + ".ordering.order"),
			"ce-": w.fromNATS(string(envelope) + ".ordering.order"),
		} {
			e, err := binding.ToEvent(t.Context(), sdkMessage{wire: got, versions: spec.WithPrefix(prefix)})
			require.NoError(t, err)
			require.NoError(t, e.Validate())
			require.Equal(t, placed.MessageID, e.ID())
			require.Equal(t, "urn:waybill:ordering", e.Source())
			require.Equal(t, "Ordering.OrderPlaced.v1", e.Type())
			require.Equal(t, "o-1", e.Subject())
			require.True(t, placed.OccurredAt.Equal(e.Time()))
			require.Equal(t, "application/json", e.DataContentType())
			require.True(t, bytes.Equal([]byte(data), e.Data()), "%s", e.Data())
			require.Equal(t, map[string]any{"correlationid": "c-1", "sequence": "0000000001.00001", "xuser": "u-17", "zone": "eu"}, e.Extensions())
		}
	}
}

// sdkMessage hands a message to the SDK, whose own readers are for other clients
// than those of this module.
type sdkMessage struct {
	binding.MessageMetadataReader // Needed by nobody here.
	wire
	versions *spec.Versions
}

func (m sdkMessage) ReadEncoding() binding.Encoding {
	if format.Lookup(m.headers["content-type"]) != nil {
		return binding.EncodingStructured
	}
	return binding.EncodingBinary
}

func (m sdkMessage) ReadStructured(ctx context.Context, w binding.StructuredWriter) error {
	if m.ReadEncoding() != binding.EncodingStructured {
		return binding.ErrNotStructured
	}
	return w.SetStructuredEvent(ctx, format.Lookup(m.headers["content-type"]), bytes.NewReader(m.body))
}

func (m sdkMessage) ReadBinary(ctx context.Context, w binding.BinaryWriter) error {
	version := m.versions.Version(m.headers[m.versions.PrefixedSpecVersionName()])
	if version == nil {
		return binding.ErrNotBinary
	}
	errs := []error{w.SetAttribute(version.AttributeFromKind(spec.DataContentType), m.headers["content-type"])}
	for name, value := range m.headers {
		attribute := version.Attribute(name)
		extension, prefixed := strings.CutPrefix(name, m.versions.Prefix())
		switch {
		case attribute != nil:
			errs = append(errs, w.SetAttribute(attribute, value))
		case prefixed:
			errs = append(errs, w.SetExtension(extension, value))
		}
	}
	return errors.Join(append(errs, w.SetData(bytes.NewReader(m.body)))...)
}
