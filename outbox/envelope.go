package outbox

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/waybill-go/waybill/domain"
)

const (
	contentType    = "application/json"
	checksumPrefix = "sha256:"
	kindCommand    = "COMMAND"
	// timeLayout is RFC 3339 in UTC with exactly six decimals.
	timeLayout = "2006-01-02T15:04:05.000000Z"
)

// An envelope is written key by key, in the contract's order. The external one
// is not the internal one with fields removed: it has functions of its own for
// whatever differs, so a field that is added to the internal one can't leak.

// appendInternal appends the body for the context's own broker. extensions is
// JSON, as from encodeExtensions.
func appendInternal(b []byte, e *Event, extensions []byte) []byte {
	b = appendHeaders(b, e)
	b = append(b, `,"envelope":{"specversion":"1.0","checksum":"`...)
	b = appendChecksum(b, e.Data)
	b = append(b, `"},"domain":{`...)
	b = appendDomain(b, e)
	b = append(b, `,"expected_version":`...)
	if e.Command != nil {
		b = append(b, "null"...)
	} else {
		b = strconv.AppendInt(b, e.Version-1, 10)
	}
	b = append(b, `,"asynchronous":true,"priority":`...)
	b = strconv.AppendInt(b, int64(e.Priority), 10)
	b = append(b, '}')
	if e.Command != nil {
		b = appendCommand(b, e.Command)
	} else {
		b = append(b, `,"event_store":{"position":`...)
		b = strconv.AppendInt(b, e.Version, 10)
		b = append(b, `,"global_position":null}`...)
	}
	return appendEnd(b, extensions)
}

// appendCommand appends what only a command has.
func appendCommand(b []byte, c *domain.CommandMetadata) []byte {
	b = append(b, `,"command":{"deadline":`...)
	if c.Deadline.IsZero() {
		b = append(b, "null"...)
	} else {
		b = append(b, '"')
		b = c.Deadline.UTC().AppendFormat(b, timeLayout)
		b = append(b, '"')
	}
	b = append(b, `,"idempotency_key":`...)
	b = appendNullable(b, c.Key)
	b = append(b, `,"timer":`...)
	b = strconv.AppendBool(b, c.Timer)
	b = append(b, `,"reply":`...)
	b = appendNullable(b, c.Reply)
	return append(b, '}')
}

// appendExternal appends the body for a partner.
func appendExternal(b []byte, e *Event, extensions []byte) []byte {
	b = appendHeaders(b, e)
	b = append(b, `,"envelope":{"specversion":"1.0"},"domain":{`...)
	b = appendDomain(b, e)
	b = append(b, '}')
	return appendEnd(b, extensions)
}

// appendHeaders appends what both envelopes begin with.
func appendHeaders(b []byte, e *Event) []byte {
	b = append(b, `{"data":`...)
	b = append(b, e.Data...)
	b = append(b, `,"metadata":{"headers":{"id":`...)
	b = appendString(b, e.ID)
	b = append(b, `,"type":`...)
	b = appendString(b, e.Type)
	b = append(b, `,"time":"`...)
	b = e.Time.UTC().AppendFormat(b, timeLayout)
	b = append(b, `","stream":`...)
	b = appendString(b, e.Stream)
	b = append(b, `,"traceparent":`...)
	b = appendNullable(b, e.Traceparent)
	return append(b, '}')
}

// appendDomain appends the part of the domain context that everybody may see.
func appendDomain(b []byte, e *Event) []byte {
	b = append(b, `"context":`...)
	b = appendString(b, e.Context)
	b = append(b, `,"kind":"`...)
	if e.Command != nil {
		b = append(b, kindCommand...)
	} else {
		b = append(b, "EVENT"...)
	}
	b = append(b, `","aggregate":`...)
	b = appendString(b, e.Aggregate)
	b = append(b, `,"aggregate_id":`...)
	b = appendString(b, e.AggregateID)
	b = append(b, `,"stream_category":`...)
	b = appendString(b, e.Category)
	b = append(b, `,"version":`...)
	b = append(b, e.Type[strings.LastIndexByte(e.Type, 'v')+1:]...) // a number, as Rows has checked
	b = append(b, `,"sequence_id":`...)
	b = appendNullable(b, e.Sequence)
	b = append(b, `,"correlation_id":`...)
	b = appendNullable(b, e.CorrelationID)
	b = append(b, `,"causation_id":`...)
	return appendNullable(b, e.CausationID)
}

func appendEnd(b, extensions []byte) []byte {
	b = append(b, `,"extensions":`...)
	b = append(b, extensions...)
	return append(b, `}}`...)
}

// encodeExtensions is the object of those extensions that may be there, sorted by
// name, the tenant among them.
func encodeExtensions(o domain.Origin, names []string, allowed func(string) bool) []byte {
	b := []byte{'{'}
	first := true
	for _, name := range names {
		if !allowed(name) {
			continue
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		value := o.TenantID
		if name != TenantExtension {
			value = o.Extensions[name]
		}
		b = appendString(b, name)
		b = append(b, ':')
		b = appendString(b, value)
	}
	return append(b, '}')
}

// extensionNames are the names of all extensions of o, sorted.
func extensionNames(o domain.Origin) []string {
	if len(o.Extensions) == 0 && o.TenantID == "" {
		return nil
	}
	names := make([]string, 0, len(o.Extensions)+1)
	if o.TenantID != "" {
		names = append(names, TenantExtension)
	}
	names = slices.AppendSeq(names, maps.Keys(o.Extensions))
	slices.Sort(names)
	return names
}

func appendChecksum(b, data []byte) []byte {
	sum := sha256.Sum256(data)
	return hex.AppendEncode(append(b, checksumPrefix...), sum[:])
}

func appendNullable(b []byte, s string) []byte {
	if s == "" {
		return append(b, "null"...)
	}
	return appendString(b, s)
}

const hexDigits = "0123456789abcdef"

// appendString appends s as JSON. Bytes that aren't UTF-8 become U+FFFD, and
// the line separators U+2028 and U+2029, which end a line in JavaScript, are
// escaped.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c < utf8.RuneSelf && c != '"' && c != '\\' {
			i++
			continue
		}
		r, size := rune(c), 1
		if c >= utf8.RuneSelf {
			r, size = utf8.DecodeRuneInString(s[i:])
			if size > 1 && r != '\u2028' && r != '\u2029' {
				i += size
				continue
			}
		}
		b = append(b, s[start:i]...)
		switch r {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\b':
			b = append(b, `\b`...)
		case '\f':
			b = append(b, `\f`...)
		case '\n':
			b = append(b, `\n`...)
		case '\r':
			b = append(b, `\r`...)
		case '\t':
			b = append(b, `\t`...)
		default:
			b = append(b, '\\', 'u', hexDigits[r>>12], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
		}
		i += size
		start = i
	}
	b = append(b, s[start:]...)
	return append(b, '"')
}

// received is what is read of a message's body.
type received struct {
	Data     json.RawMessage
	Metadata struct {
		Headers struct {
			ID, Type, Stream, Traceparent string
			Time                          time.Time
		}
		Envelope struct{ Checksum string }
		Domain   struct {
			Context, Aggregate string
			Kind               string
			AggregateID        string `json:"aggregate_id"`
			Category           string `json:"stream_category"`
			Sequence           string `json:"sequence_id"`
			CorrelationID      string `json:"correlation_id"`
			CausationID        string `json:"causation_id"`
			Priority           int
		}
		EventStore struct{ Position int64 } `json:"event_store"`
		Command    struct {
			Deadline time.Time
			Key      string `json:"idempotency_key"`
			Timer    bool
			Reply    string
		}
		Extensions map[string]json.RawMessage
	}
}

// ParseEnvelope reads a message's body: the context's own or a partner's, in
// which the internal fields are missing. It returns the data's bytes as they
// stand in the body. Fields that it doesn't know are ignored.
//
// An error says that the body isn't JSON of this form, that data, type or id is
// missing, or that data isn't what its checksum was made over.
func ParseEnvelope(body []byte) (domain.Metadata, json.RawMessage, error) {
	var m received
	if err := json.Unmarshal(body, &m); err != nil {
		return domain.Metadata{}, nil, fmt.Errorf("outbox: the body is not a message: %w", err)
	}
	head, dom := &m.Metadata.Headers, &m.Metadata.Domain
	if err := complete(m.Data, head.Type, head.ID); err != nil {
		return domain.Metadata{}, nil, err
	}
	if err := verify(m.Metadata.Envelope.Checksum, m.Data, head.ID); err != nil {
		return domain.Metadata{}, nil, err
	}
	origin := domain.Origin{
		CorrelationID: dom.CorrelationID,
		CausationID:   dom.CausationID,
		Traceparent:   head.Traceparent,
	}
	origin.TenantID, origin.Extensions = parseExtensions(m.Metadata.Extensions)
	var command *domain.CommandMetadata
	if c := &m.Metadata.Command; dom.Kind == kindCommand {
		command = &domain.CommandMetadata{Deadline: c.Deadline, Key: c.Key, Timer: c.Timer, Reply: c.Reply}
	}
	return domain.Metadata{
		Origin:      origin,
		ID:          head.ID,
		Type:        head.Type,
		Time:        head.Time.UTC(),
		Stream:      head.Stream,
		Category:    dom.Category,
		Context:     dom.Context,
		Aggregate:   dom.Aggregate,
		AggregateID: dom.AggregateID,
		Version:     m.Metadata.EventStore.Position,
		Sequence:    dom.Sequence,
		Priority:    dom.Priority,
		Command:     command,
	}, m.Data, nil
}

// complete says what every message has, and this one hasn't.
func complete(data json.RawMessage, typeName, id string) error {
	var missing []string
	if len(data) == 0 || bytes.Equal(data, []byte("null")) {
		missing = append(missing, "data")
	}
	if typeName == "" {
		missing = append(missing, "metadata.headers.type")
	}
	if id == "" {
		missing = append(missing, "metadata.headers.id")
	}
	if len(missing) > 0 {
		return errors.New("outbox: the message has no " + strings.Join(missing, ", no "))
	}
	return nil
}

// verify says that data isn't what its checksum was made over. Not every message has
// a checksum.
func verify(want string, data json.RawMessage, id string) error {
	if want == "" {
		return nil
	}
	if !strings.HasPrefix(want, checksumPrefix) {
		return fmt.Errorf("outbox: message %.100s has a checksum of an unknown kind: %.100q", id, want)
	}
	if have := appendChecksum(nil, data); string(have) != want {
		return fmt.Errorf("outbox: message %.100s was changed on its way: its data has checksum %s, it says %.100s", id, have, want)
	}
	return nil
}

func parseExtensions(raw map[string]json.RawMessage) (tenant string, extensions map[string]string) {
	for name, text := range raw {
		var value string
		if err := json.Unmarshal(text, &value); err != nil {
			value = string(text) // a partner's number or object, as it stands
		}
		switch {
		case string(text) == "null":
		case name == TenantExtension:
			tenant = value
		default:
			if extensions == nil {
				extensions = make(map[string]string, len(raw))
			}
			extensions[name] = value
		}
	}
	return tenant, extensions
}
