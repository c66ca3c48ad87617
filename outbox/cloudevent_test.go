package outbox

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/event"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
)

// cloudEventRow is the row of e for a partner that gets CloudEvents.
func cloudEventRow(t *testing.T, e Event, target Target) Row {
	t.Helper()
	target.Broker = "partner"
	rows, err := (&Writer{Domain: writerDomain, Internal: "default", External: []Target{target}}).Rows([]Event{e}, 64)
	require.NoError(t, err)
	require.Len(t, rows, 2)
	return rows[1]
}

// readByGo is what the CloudEvents SDK for Go makes of a row, in the mode that it
// finds itself. Binary attributes are given to it as its HTTP binding wants them:
// what is between a row and a broker's headers is shown with the brokers.
func readByGo(t *testing.T, r Row) *event.Event {
	t.Helper()
	header := http.Header{"Content-Type": {r.ContentType}}
	if r.CloudEvent != "" {
		var attributes map[string]string
		require.NoError(t, json.Unmarshal([]byte(r.CloudEvent), &attributes))
		for name, value := range attributes {
			header.Set("ce-"+name, value)
		}
	}
	e, err := binding.ToEvent(t.Context(), cehttp.NewMessage(header, io.NopCloser(bytes.NewReader(r.Payload))))
	require.NoError(t, err)
	require.NoError(t, e.Validate())
	return e
}

// A57: the partner's bytes in both modes of CloudEvents are stable.
func TestCloudEvent_A57_Golden(t *testing.T) {
	numbers := plainEvent()
	numbers.Data = []byte(`{"z":12345678901234567890,"a":1.10,"e":1E+400,"s":"<&>","n":null}`)
	hostile := orderEvent("OrderPlaced")
	hostile.AggregateID = `a"b\c/d <&>'é東🚚%20`
	hostile.Extensions = map[string]string{"x-user": " é\"% ", "Empty": ""}
	full := fullEvent()
	full.Type = "Ordering.OrderCancelled.v1"
	for name, c := range map[string]struct {
		event  Event
		target Target
	}{
		"plain":         {plainEvent(), Target{}},
		"full":          {full, naming(full)},
		"allow-list":    {full, Target{Extensions: []string{"zone", "tenant_id", "unknown"}}},
		"no-extensions": {full, Target{}},
		"numbers":       {numbers, Target{}},
		"hostile":       {hostile, naming(hostile)},
	} {
		t.Run(name, func(t *testing.T) {
			c.target.Envelope = CloudEvents
			structured := cloudEventRow(t, c.event, c.target)
			c.target.Envelope = CloudEventsBinary
			binary := cloudEventRow(t, c.event, c.target)
			require.Equal(t, "application/cloudevents+json", structured.ContentType)
			require.Empty(t, structured.CloudEvent)
			require.Equal(t, "application/json", binary.ContentType)
			require.Equal(t, string(c.event.Data), string(binary.Payload), "the data and nothing else")
			for form, body := range map[string][]byte{"cloudevents": structured.Payload, "cloudevents-binary": []byte(binary.CloudEvent)} {
				require.True(t, json.Valid(body), "%s", body)
				file := filepath.Join("testdata", "envelopes", name+"."+form+".json")
				if *updateEnvelopes {
					require.NoError(t, os.WriteFile(file, append(body, '\n'), 0o644))
				}
				want, err := os.ReadFile(file)
				require.NoError(t, err)
				require.Equal(t, string(want), string(body)+"\n", file)
			}
			require.Equal(t, readByGo(t, structured).String(), readByGo(t, binary).String(), "both modes say the same")
		})
	}
}

// A61, S3: the attributes of a CloudEvent, as a foreign reader finds them, with those
// extensions that the target names, and the tenant only if it is named.
func TestCloudEvent_A61_AsTheSDKReadsIt(t *testing.T) {
	e := orderEvent("OrderPlaced")
	for _, envelope := range []Envelope{CloudEvents, CloudEventsBinary} {
		for name, c := range map[string]struct {
			extensions []string
			want       map[string]any
		}{
			"nil: none":        {nil, map[string]any{}},
			"empty: none":      {[]string{}, map[string]any{}},
			"the named ones":   {[]string{"x-user", "nothing"}, map[string]any{"xuser": "u-17"}},
			"and the tenant's": {[]string{"tenant_id", "zone"}, map[string]any{"zone": "eu", "tenantid": "acme"}},
		} {
			got := readByGo(t, cloudEventRow(t, e, Target{Envelope: envelope, Extensions: c.extensions}))
			require.Equal(t, "1.0", got.SpecVersion())
			require.Equal(t, e.ID, got.ID())
			require.Equal(t, "urn:waybill:ordering", got.Source())
			require.Equal(t, "Ordering.OrderPlaced.v1", got.Type())
			require.True(t, e.Time.Equal(got.Time()))
			require.Equal(t, "o1", got.Subject())
			require.Equal(t, "application/json", got.DataContentType())
			require.Equal(t, string(e.Data), string(got.Data()))
			c.want["correlationid"] = e.CorrelationID
			c.want["causationid"] = e.CausationID
			c.want["sequence"] = "0000000003.00002"
			c.want["traceparent"] = e.Traceparent
			require.Equal(t, c.want, got.Extensions(), "%s, %s", envelope, name)
		}
	}
}

// What isn't there is no attribute, not an empty one.
func TestCloudEvent_WhatIsUnknownIsAbsent(t *testing.T) {
	e := plainEvent()
	e.CorrelationID = ""
	got := readByGo(t, cloudEventRow(t, e, Target{Envelope: CloudEvents}))
	require.Equal(t, map[string]any{"sequence": "0000000001.00001"}, got.Extensions())
}

// Values of the attribute sequence compare as text, as CloudEvents wants it.
func TestCloudEvent_SequencesCompareAsText(t *testing.T) {
	var all []string
	for _, version := range []int64{1, 2, 9, 10, 99, 100, 12345, 9_999_999_999} {
		for _, n := range []int{1, 2, 10, 99_999} {
			all = append(all, sortable(fmt.Sprintf("%d.%d", version, n)))
		}
	}
	require.True(t, slices.IsSorted(all), all)
	require.Equal(t, "other", sortable("other"))
}

func TestTargetCheck_ExtensionsThatAreNoAttributes(t *testing.T) {
	for _, envelope := range []Envelope{CloudEvents, CloudEventsBinary} {
		target := Target{Broker: "partner", Envelope: envelope, Extensions: []string{"tenant_id", "X-User", "x.user", "a.b", "zone9", "zone9"}}
		require.EqualError(t, target.Check(writerDomain),
			`external broker "partner": extensions "X-User" and "x.user" would both be the attribute "xuser" of a CloudEvent: rename one of them, or take one out of the target's extensions`)
		target.Extensions = []string{"x&y", "an-extension-with-a-long-name", "Source", "correlation_id", "data", "tenant-id", "trace-parent", "--"}
		mistakes := strings.Split(target.Check(writerDomain).Error(), "\n")
		require.Len(t, mistakes, 8)
		for i, want := range []string{
			`extension "x&y" can't be an attribute of a CloudEvent: rename it to 1 to 20 ASCII letters and digits`,
			`extension "an-extension-with-a-long-name" can't be an attribute`,
			`extension "Source" would be the attribute "source" of a CloudEvent, which has a meaning already: rename it`,
			`extension "correlation_id" would be the attribute "correlationid"`,
			`extension "data" would be the attribute "data"`,
			`extension "tenant-id" would be the attribute "tenantid"`,
			`extension "trace-parent" would be the attribute "traceparent"`,
			`extension "--" can't be an attribute`,
		} {
			require.Contains(t, mistakes[i], `external broker "partner": `+want)
		}
		target.Envelope = ""
		require.NoError(t, target.Check(writerDomain), "the own envelope takes them all")
	}
	err := Target{Broker: "partner", Envelope: "avro"}.Check(writerDomain)
	require.EqualError(t, err, `external broker "partner": envelope "avro" is not known: use one of ["waybill" "cloudevents" "cloudevents-binary"], or leave it out for "waybill"`)
}

// What can't be said in a CloudEvent is refused when it is saved, by name; what the
// target doesn't get doesn't matter.
func TestRows_RefusesWhatIsNoCloudEvent(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Event)
		want   string
	}{
		"a long name":       {func(e *Event) { e.Extensions = map[string]string{"an_extension_with_a_long_name": "x"} }, `extension "an_extension_with_a_long_name" can't be an attribute`},
		"a foreign letter":  {func(e *Event) { e.Extensions = map[string]string{"größe": "x"} }, `extension "größe" can't be an attribute`},
		"a taken name":      {func(e *Event) { e.Extensions = map[string]string{"Subject": "x"} }, `extension "Subject" would be the attribute "subject"`},
		"two of one name":   {func(e *Event) { e.Extensions = map[string]string{"a_b": "x", "a-b": "y"} }, `extensions "a-b" and "a_b" would both be the attribute "ab"`},
		"a control letter":  {func(e *Event) { e.Extensions = map[string]string{"zone": "a\nb"} }, `its attribute zone is "a\nb", which has a control character`},
		"a noncharacter":    {func(e *Event) { e.Extensions = map[string]string{"zone": "a\ufffe"} }, "its attribute zone is"},
		"not UTF-8":         {func(e *Event) { e.Extensions = map[string]string{"zone": "a\xff"} }, "its attribute zone is"},
		"a subject with it": {func(e *Event) { e.AggregateID = "a\x7f" }, "its attribute subject is"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, envelope := range []Envelope{CloudEvents, CloudEventsBinary} {
				e := orderEvent("OrderPlaced")
				c.change(&e)
				w := Writer{Domain: writerDomain, Internal: "default", External: []Target{{Broker: "partner", Envelope: envelope, Extensions: naming(e).Extensions}}}
				rows, err := w.Rows([]Event{e}, 64)
				require.ErrorContains(t, err, "outbox: Ordering.OrderPlaced.v1 of ordering::order-o1 can't be a CloudEvent for broker partner: "+c.want)
				require.Empty(t, rows)

				w.External[0].Envelope = ""
				_, err = w.Rows([]Event{e}, 64)
				require.NoError(t, err)
				w.External[0].Envelope, w.External[0].Extensions = envelope, []string{}
				_, err = w.Rows([]Event{e}, 64)
				if len(e.Extensions) > 0 && e.AggregateID == "o1" {
					require.NoError(t, err, "it isn't among the target's extensions")
				}
			}
		})
	}
}

// F-35: there is no message without data: an event whose JSON is null is refused,
// and none leaves as the text "null", or as a tombstone.
func TestRows_F35_NoTombstones(t *testing.T) {
	for _, data := range []string{"", "null"} {
		e := orderEvent("OrderPlaced")
		e.Data = []byte(data)
		for _, envelope := range Envelopes() {
			w := Writer{Domain: writerDomain, Internal: "default", External: []Target{{Broker: "partner", Envelope: envelope}}}
			_, err := w.Rows([]Event{e}, 64)
			require.EqualError(t, err, "outbox: Ordering.OrderPlaced.v1 of ordering::order-o1 has no data, and a message without is none; that something is gone is an event with a name of its own")
		}
	}
}

// A61, A62: each target has its own envelope, extensions and topic, and all have
// the aggregate's key.
func TestRows_A61_A62_EachTargetItsOwn(t *testing.T) {
	e := orderEvent("OrderPlaced")
	w := Writer{Domain: writerDomain, Internal: "default", External: []Target{
		{Broker: "a"},
		{Broker: "b", Envelope: CloudEvents, Topics: map[string]string{"ordering::order": "orders.b"}},
		{Broker: "c", Envelope: CloudEventsBinary, Topics: map[string]string{"ordering::order": "orders.c"}},
		{Broker: "d", Envelope: CloudEvents, Extensions: []string{"tenant_id"}},
		{Broker: "e", Envelope: Stripped},
		{Broker: "f", Envelope: CloudEvents},
	}}
	rows, err := w.Rows([]Event{e, orderEvent("NoteAdded")}, 64)
	require.NoError(t, err)
	require.Len(t, rows, 8)
	for _, r := range rows {
		require.Equal(t, "o1", r.PartitionKey)
		require.Equal(t, r.TargetBroker == "c", r.CloudEvent != "")
		require.Equal(t, r.TargetBroker == "default" || r.TargetBroker == "d", r.TenantID != "", r.TargetBroker)
	}
	require.Equal(t, []string{"", "", "orders.b", "orders.c", "", "", "", ""}, column(rows, func(r Row) string { return r.Topic }))
	require.Equal(t, string(externalBody(e, Target{})), string(rows[1].Payload))
	require.Equal(t, string(rows[1].Payload), string(rows[5].Payload))
	require.Equal(t, string(rows[2].Payload), string(rows[6].Payload))
	require.NotEqual(t, string(rows[2].Payload), string(rows[4].Payload))
	require.Contains(t, string(rows[4].Payload), `"tenantid":"acme"`)
	require.Equal(t, "default", rows[7].TargetBroker, "an event that isn't published stays")
}

func column(rows []Row, of func(Row) string) (all []string) {
	for _, r := range rows {
		all = append(all, of(r))
	}
	return all
}

func FuzzCloudEvent(f *testing.F) {
	f.Add("o1", "x-user", "u-17", "c")
	f.Add(`"\<>`, "größe", "\u2028 %", "\U0001f69a")
	f.Add("\u0085", "data", "\xff", "\ufffe")
	f.Add(" ", "0", "0", "0")
	f.Fuzz(func(t *testing.T, id, name, value, correlation string) {
		e := orderEvent("OrderPlaced")
		e.AggregateID, e.Stream, e.Origin = id, "ordering::order-"+id, domain.Origin{CorrelationID: correlation}
		if name != TenantExtension {
			e.Extensions = map[string]string{name: value}
		}
		w := Writer{Domain: writerDomain, Internal: "default", External: []Target{{Broker: "s", Envelope: CloudEvents, Extensions: []string{name}}, {Broker: "b", Envelope: CloudEventsBinary, Extensions: []string{name}}}}
		rows, err := w.Rows([]Event{e}, 64)
		if err != nil || id == "" {
			return
		}
		// What was accepted is read, and says what was written.
		for _, r := range rows[1:] {
			got := readByGo(t, r)
			if strings.TrimSpace(id) != "" {
				require.Equal(t, id, got.Subject())
			}
			if name != TenantExtension {
				attribute, err := attributeOf(name)
				require.NoError(t, err)
				require.Equal(t, value, got.Extensions()[attribute])
			}
		}
	})
}
