package outbox

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
)

var updateEnvelopes = flag.Bool("update-envelopes", false, "write the golden envelopes anew")

func everything(string) bool { return true }

func internalBody(e Event) []byte {
	return appendInternal(nil, &e, encodeExtensions(e.Origin, extensionNames(e.Origin), everything))
}

func externalBody(e Event, t Target) []byte {
	return appendExternal(nil, &e, encodeExtensions(e.Origin, extensionNames(e.Origin), t.allows))
}

func plainEvent() Event {
	return Event{
		Metadata: domain.Metadata{
			Origin:      domain.Origin{CorrelationID: "0198c9a8-7c1e-7a52-9f0b-000000000001"},
			ID:          "0198c9a8-7c1e-7a52-9f0b-4a1d5f3c2b10",
			Type:        "Ordering.OrderPlaced.v1",
			Time:        time.Date(2026, 1, 2, 3, 4, 5, 678_901_999, time.UTC),
			Stream:      "ordering::order-o1",
			Category:    "ordering::order",
			Context:     "ordering",
			Aggregate:   "order",
			AggregateID: "o1",
			Version:     1,
			Sequence:    "1.1",
		},
		Data: []byte(`{"order_id":"o1","customer_id":"c1","total":100}`),
	}
}

func fullEvent() Event {
	e := plainEvent()
	e.Type = "Ordering.OrderCancelled.v12"
	e.Time = time.Date(2026, 7, 1, 0, 30, 0, 0, time.FixedZone("", 2*3600))
	e.Version, e.Sequence, e.Priority = 3, "3.2", -50
	e.CausationID = "0198c9a8-7c1e-7a52-9f0b-000000000002"
	e.TenantID = "acme"
	e.Traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	e.Extensions = map[string]string{"zone": "eu", "region": "north", "x-user": "u-17"}
	return e
}

// naming is a target that may have all of e's extensions but the tenant.
func naming(e Event) Target { return Target{Extensions: slices.Sorted(maps.Keys(e.Extensions))} }

// A38, S4-17: the bodies are stable and have no indentation. Where S4-17 asks
// for camel case and no nulls, the contract of the envelope wins.
func TestEnvelope_A38_S417_Golden(t *testing.T) {
	hostile := plainEvent()
	hostile.AggregateID = "a\"b\\c/d\x00\x01\b\f\n\r\t\x1f\x7f<&>'é東🚚\u2028\u2029"
	hostile.Stream = "ordering::order-" + hostile.AggregateID
	hostile.CorrelationID = "broken \xff\xc3( \xed\xa0\x80 end\xe2\x82"
	hostile.Extensions = map[string]string{"": "", "a\"\x02": "\\", "ключ": "значение"}

	numbers := plainEvent()
	numbers.Data = []byte(`{"z":12345678901234567890,"a":1.10,"e":1E+400,"s":"<&>","n":null}`)

	cases := []struct {
		name   string
		event  Event
		target Target
	}{
		{"plain", plainEvent(), Target{}},
		{"full", fullEvent(), naming(fullEvent())},
		{"allow-list", fullEvent(), Target{Extensions: []string{"zone", "tenant_id", "unknown"}}},
		{"no-extensions", fullEvent(), Target{}},
		{"hostile", hostile, naming(hostile)},
		{"numbers", numbers, Target{}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			for form, body := range map[string][]byte{
				"internal": internalBody(c.event),
				"external": externalBody(c.event, c.target),
			} {
				require.True(t, json.Valid(body), "%s", body)
				require.True(t, utf8.Valid(body))
				file := filepath.Join("testdata", "envelopes", c.name+"."+form+".json")
				if *updateEnvelopes {
					require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
					require.NoError(t, os.WriteFile(file, append(body, '\n'), 0o644))
				}
				want, err := os.ReadFile(file)
				require.NoError(t, err)
				require.Equal(t, string(want), string(body)+"\n", file)
			}
		})
	}
}

// The contract's forms, written a second time as types. Their fields are in
// the contract's order, and encoding/json keeps that.
type (
	textOrNull   string
	contractHead struct {
		ID          string     `json:"id"`
		Type        string     `json:"type"`
		Time        string     `json:"time"`
		Stream      string     `json:"stream"`
		Traceparent textOrNull `json:"traceparent"`
	}
	contractDomain struct {
		Context       string     `json:"context"`
		Kind          string     `json:"kind"`
		Aggregate     string     `json:"aggregate"`
		AggregateID   string     `json:"aggregate_id"`
		Category      string     `json:"stream_category"`
		Version       int        `json:"version"`
		SequenceID    string     `json:"sequence_id"`
		CorrelationID textOrNull `json:"correlation_id"`
		CausationID   textOrNull `json:"causation_id"`
	}
	contractInternal struct {
		Data     json.RawMessage `json:"data"`
		Metadata struct {
			Headers  contractHead `json:"headers"`
			Envelope struct {
				Specversion string `json:"specversion"`
				Checksum    string `json:"checksum"`
			} `json:"envelope"`
			Domain struct {
				contractDomain
				Expected     int64 `json:"expected_version"`
				Asynchronous bool  `json:"asynchronous"`
				Priority     int   `json:"priority"`
			} `json:"domain"`
			EventStore struct {
				Position int64  `json:"position"`
				Global   *int64 `json:"global_position"`
			} `json:"event_store"`
			Extensions map[string]string `json:"extensions"`
		} `json:"metadata"`
	}
	contractExternal struct {
		Data     json.RawMessage `json:"data"`
		Metadata struct {
			Headers  contractHead `json:"headers"`
			Envelope struct {
				Specversion string `json:"specversion"`
			} `json:"envelope"`
			Domain     contractDomain    `json:"domain"`
			Extensions map[string]string `json:"extensions"`
		} `json:"metadata"`
	}
)

func (n textOrNull) MarshalJSON() ([]byte, error) {
	if n == "" {
		return []byte("null"), nil
	}
	return plainJSON(string(n))
}

func plainJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

func contractBodies(t *testing.T, e Event, version int) (internal, external string) {
	head := contractHead{e.ID, e.Type, e.Time.UTC().Format("2006-01-02T15:04:05.000000Z"), e.Stream, textOrNull(e.Traceparent)}
	dom := contractDomain{
		e.Context, "EVENT", e.Aggregate, e.AggregateID, e.Category, version, e.Sequence, textOrNull(e.CorrelationID), textOrNull(e.CausationID),
	}
	user := map[string]string{}
	maps.Copy(user, e.Extensions)
	var ext contractExternal
	ext.Data, ext.Metadata.Headers, ext.Metadata.Domain, ext.Metadata.Extensions = e.Data, head, dom, user
	ext.Metadata.Envelope.Specversion = "1.0"
	x, err := plainJSON(ext)
	require.NoError(t, err)

	if e.TenantID != "" {
		user["tenant_id"] = e.TenantID
	}
	var in contractInternal
	in.Data, in.Metadata.Headers, in.Metadata.Extensions = e.Data, head, user
	in.Metadata.Envelope.Specversion = "1.0"
	in.Metadata.Envelope.Checksum = fmt.Sprintf("sha256:%x", sha256.Sum256(e.Data))
	in.Metadata.Domain.contractDomain, in.Metadata.Domain.Asynchronous = dom, true
	in.Metadata.Domain.Expected, in.Metadata.Domain.Priority = e.Version-1, e.Priority
	in.Metadata.EventStore.Position = e.Version
	i, err := plainJSON(in)
	require.NoError(t, err)
	return string(i), string(x)
}

// S3-13: the internal envelope has all metadata; A57: the external one what a
// partner may know. Both in the contract's order, every key always there.
func TestEnvelope_S313_A57_IsTheContract(t *testing.T) {
	for version, e := range map[int]Event{1: plainEvent(), 12: fullEvent()} {
		internal, external := contractBodies(t, e, version)
		require.Equal(t, internal, string(internalBody(e)))
		require.Equal(t, external, string(externalBody(e, naming(e))))
	}
}

func FuzzEnvelope(f *testing.F) {
	f.Add("plain", "", "a\"b\\", "<\u2028\x00\x7f>")
	f.Add("\xff\xfe", "\xed\xa0\x80", "é\xe2\x82", "\U0010ffff\xf4\x90\x80\x80")
	f.Fuzz(func(t *testing.T, id, cause, name, value string) {
		e := plainEvent()
		e.AggregateID, e.CausationID, e.Traceparent = id, cause, value
		// Two names that differ in what isn't UTF-8 only would be one key for encoding/json.
		if name != TenantExtension {
			e.Extensions = map[string]string{name: value}
		}
		internal, external := contractBodies(t, e, 1)
		require.Equal(t, internal, string(internalBody(e)))
		require.Equal(t, external, string(externalBody(e, naming(e))))
		_, _, err := ParseEnvelope(internalBody(e))
		require.NoError(t, err)
	})
}

// S3-12, F-44: nothing internal is anywhere in a partner's bytes.
func TestEnvelope_S312_F44_ExternalHasNoInternalName(t *testing.T) {
	e := fullEvent()
	e.TenantID = "the-tenant"
	for name, target := range map[string]Target{
		"default": {},
		"none":    {Extensions: []string{}},
		"some":    {Extensions: []string{"zone"}},
	} {
		body := string(externalBody(e, target))
		for _, internal := range []string{
			"checksum", "sha256", "expected_version", "asynchronous", "priority", "event_store", "position",
			"tenant_id", "the-tenant",
		} {
			require.NotContains(t, body, internal, name)
		}
	}
	// The same words are in the internal body, so they are the right ones.
	body := string(internalBody(e))
	for _, internal := range []string{`"checksum"`, `"expected_version"`, `"asynchronous"`, `"priority"`, `"event_store"`, `"position"`, `"global_position"`, `"tenant_id":"the-tenant"`} {
		require.Contains(t, body, internal)
	}
}

// A61, S3: the extension allow-list. A target without one gets none.
func TestEnvelope_A61_ExtensionAllowList(t *testing.T) {
	extensions := func(target Target) (m map[string]string) {
		var body struct {
			Metadata struct{ Extensions map[string]string }
		}
		require.NoError(t, json.Unmarshal(externalBody(fullEvent(), target), &body))
		return body.Metadata.Extensions
	}
	require.Equal(t, map[string]string{}, extensions(Target{}), "nil: none")
	require.Equal(t, map[string]string{}, extensions(Target{Extensions: []string{}}), "empty: none")
	require.Equal(t, map[string]string{"zone": "eu", "region": "north", "x-user": "u-17"}, extensions(naming(fullEvent())))
	require.Equal(t, map[string]string{"region": "north"}, extensions(Target{Extensions: []string{"region"}}))
	require.Equal(t, map[string]string{"region": "north", "tenant_id": "acme"}, extensions(Target{Extensions: []string{"tenant_id", "region"}}))
}

// F-36, F-37: the bytes that were checksummed are the bytes in the body, with
// their numbers, order and escapes.
func TestEnvelope_F36_F37_DataIsUntouched(t *testing.T) {
	for _, data := range []string{
		`{"z":12345678901234567890123,"a":1.10,"b":1e-7,"a":"again"}`,
		`{ "spaced" :  [1 , 2],` + "\n" + `"x":"\u00e9é\/<>"}`,
		`{}`,
	} {
		e := plainEvent()
		e.Data = []byte(data)
		for _, body := range [][]byte{internalBody(e), externalBody(e, Target{})} {
			require.Contains(t, string(body), `{"data":`+data+`,"metadata":`)
			_, got, err := ParseEnvelope(body)
			require.NoError(t, err)
			require.Equal(t, data, string(got))
		}
		require.Contains(t, string(internalBody(e)), fmt.Sprintf(`"checksum":"sha256:%x"`, sha256.Sum256([]byte(data))))
	}
}

func TestEnvelope_TimesHaveMicrosecondsAndZ(t *testing.T) {
	e := plainEvent()
	for at, want := range map[time.Time]string{
		time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC):                        "2026-01-02T03:04:05.000000Z",
		time.Date(2026, 1, 2, 3, 4, 5, 1999, time.UTC):                     "2026-01-02T03:04:05.000001Z",
		time.Date(2026, 1, 2, 3, 4, 5, 120e6, time.FixedZone("", -7*3600)): "2026-01-02T10:04:05.120000Z",
	} {
		e.Time = at
		require.Contains(t, string(internalBody(e)), `"time":"`+want+`"`)
	}
}

// A39: what a consumer reads is what was written.
func TestParseEnvelope_A39_RoundTrip(t *testing.T) {
	for _, e := range []Event{plainEvent(), fullEvent()} {
		m, data, err := ParseEnvelope(internalBody(e))
		require.NoError(t, err)
		require.Equal(t, string(e.Data), string(data))
		want := e.Metadata
		want.Time = want.Time.UTC().Truncate(time.Microsecond)
		require.Equal(t, want, m)
	}
}

func TestParseEnvelope_PartnerForm(t *testing.T) {
	e := fullEvent()
	m, data, err := ParseEnvelope(externalBody(e, naming(e)))
	require.NoError(t, err)
	require.Equal(t, string(e.Data), string(data))
	want := e.Metadata
	want.Time = want.Time.UTC()
	want.TenantID, want.Version, want.Priority = "", 0, 0
	require.Equal(t, want, m)
}

func TestParseEnvelope_Tolerates(t *testing.T) {
	m, data, err := ParseEnvelope([]byte(`{
		"later": {"a": 1},
		"metadata": {"headers": {"type": "X.Y.v1", "id": "1", "traceparent": null, "new": []}, "more": 1,
			"extensions": {"n": 1.50, "o": {"a": [1]}, "s": "t", "gone": null, "tenant_id": "acme"}},
		"data": {"a": 1}
	}`))
	require.NoError(t, err)
	require.Equal(t, `{"a": 1}`, string(data))
	require.Equal(t, domain.Metadata{
		ID: "1", Type: "X.Y.v1",
		Origin: domain.Origin{TenantID: "acme", Extensions: map[string]string{"n": "1.50", "o": `{"a": [1]}`, "s": "t"}},
	}, m)
	require.True(t, m.Time.IsZero())
}

func TestParseEnvelope_Refuses(t *testing.T) {
	changed := bytes.Replace(internalBody(plainEvent()), []byte(`"total":100`), []byte(`"total":900`), 1)
	otherSum := bytes.Replace(internalBody(plainEvent()), []byte(`"sha256:`), []byte(`"md5:`), 1)
	for name, c := range map[string]struct{ body, want string }{
		"nothing":        {``, "not a message"},
		"text":           {`hello`, "not a message"},
		"an array":       {`[]`, "not a message"},
		"two":            {`{} {}`, "not a message"},
		"cut off":        {string(internalBody(plainEvent())[:200]), "not a message"},
		"empty":          {`{}`, "no data, no metadata.headers.type, no metadata.headers.id"},
		"null data":      {`{"data":null,"metadata":{"headers":{"id":"1","type":"A.B.v1"}}}`, "the message has no data"},
		"no type":        {`{"data":{},"metadata":{"headers":{"id":"1"}}}`, "the message has no metadata.headers.type"},
		"no id":          {`{"data":{},"metadata":{"headers":{"type":"A.B.v1","id":null}}}`, "the message has no metadata.headers.id"},
		"changed data":   {string(changed), "was changed on its way"},
		"other checksum": {string(otherSum), "checksum of an unknown kind"},
	} {
		_, _, err := ParseEnvelope([]byte(c.body))
		require.ErrorContains(t, err, c.want, name)
	}
}

func TestAppendString_InvalidUTF8BecomesTheReplacementCharacter(t *testing.T) {
	require.Equal(t, `"a\ufffd\ufffdb"`, string(appendString(nil, "a\xff\xc3b")))
	require.Equal(t, `"\u2028\u2029\u0000\u001f"`+"", string(appendString(nil, "\u2028\u2029\x00\x1f")))
	require.Equal(t, `"`+strings.Repeat("é", 3)+`"`, string(appendString(nil, "ééé")))
	require.Equal(t, "\"\ufffd\"", string(appendString(nil, "\ufffd")))
}

func BenchmarkEnvelopes(b *testing.B) {
	e := fullEvent()
	e.Data = []byte(`{"text":"` + strings.Repeat("x", 400) + `"}`)
	b.ReportAllocs()
	for b.Loop() {
		names := extensionNames(e.Origin)
		extensions := encodeExtensions(e.Origin, names, everything)
		size := bodySize(&e, len(extensions))
		appendInternal(make([]byte, 0, size), &e, extensions)
		appendExternal(make([]byte, 0, size), &e, extensions)
	}
}

// A body is a message with an id, a type and data, or it is refused.
func FuzzParseEnvelope(f *testing.F) {
	f.Add(internalBody(plainEvent()))
	f.Add(externalBody(fullEvent(), Target{}))
	f.Add([]byte(`{"data":null,"metadata":{"headers":{"id":1},"extensions":{"a":[]}}}`))
	f.Add([]byte(`{"data":{},"metadata":{"headers":{"id":"a","type":"t"},"envelope":{"checksum":"md5:"},"domain":{"kind":"COMMAND"}}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		meta, data, err := ParseEnvelope(body)
		if err != nil {
			return
		}
		require.NotEmpty(t, meta.ID)
		require.NotEmpty(t, meta.Type)
		require.True(t, json.Valid(data))
	})
}
