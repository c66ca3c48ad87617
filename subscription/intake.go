package subscription

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/jsondepth"
)

// What a message may have at most, whoever sent it. What has more is parked as
// refused, without an attempt. The guide writing-a-consumer.md tells of them.
const (
	maxHeaders        = 100
	maxHeaderBytes    = 32 << 10 // Names and values together.
	maxText           = 2 << 10  // Of id, key, type, correlation id, and of each of their like.
	maxExtensions     = 100
	maxExtensionName  = 256
	maxExtensionValue = 8 << 10
	maxNesting        = jsondepth.Limit
)

// The classes of priority that a stranger may have, if any.
const (
	lowestPriority  = -1
	highestPriority = 2
)

// intake understands what arrives, as far as it is believed.
type intake struct{ Inbound }

// read understands a delivery as far as the inbox and the lanes need it.
func (in intake) read(d broker.Delivery) *message {
	m := in.understand(d.Message)
	d.Message = m.Message // without what is refused: it would be held in memory as well
	m.deliveries = []broker.Delivery{d}
	m.counted = d.Redelivered > 0
	if m.sent, m.published = d.Published, cmp.Or(d.Published, time.Now()); in.Trust.kind == trusted {
		m.sent, m.published = m.meta.Time, cmp.Or(d.Published, m.meta.Time)
	}
	return m
}

func (in intake) understand(received broker.Message) *message {
	m := &message{Message: received}
	var got Incoming
	if m.fault, m.bad = in.measure(received); m.bad == nil {
		if got, m.bad = in.format(received); m.bad != nil {
			m.fault = undecodable
			if _, ok := errors.AsType[excess](m.bad); ok {
				m.fault = refused
			}
		} else if m.fault, m.bad = in.weigh(got); m.bad == nil {
			m.meta, m.data, m.traceparent = got.Metadata, got.Data, got.Traceparent
			m.fault, m.bad = in.accept(&m.meta)
		}
	} else { // what it calls itself, as far as that can be told
		unread := received
		unread.Body = nil
		got, _ = in.format(unread)
	}
	id := cmp.Or(got.ID, received.ID)
	m.id = inboxID(id, received)
	if m.bad != nil {
		m.meta, m.data = domain.Metadata{ID: plain(cut(id)), Type: plain(cut(got.Type))}, got.Data
		m.Headers = fitting(m.Headers)
	}
	if m.fault == tooLarge {
		m.Body, m.data = nil, nil
	}
	if m.key = cmp.Or(got.Key, received.Key, m.id); len(m.key) > maxText { // without a key it has no order to keep
		m.key = indexable(m.key)
	}
	m.keyID = indexable(m.key)
	return m
}

// format reads a message in the stream's form.
func (in intake) format(received broker.Message) (got Incoming, err error) {
	read := in.Format
	if read == nil {
		read = Waybill()
	}
	err = protect(func() (err error) {
		got, err = read(received)
		return err
	})
	if err != nil {
		return got, err
	}
	if got.ID == "" || got.Type == "" {
		return got, errors.New("subscription: Stream.Inbound.Format found no ID or no Type")
	}
	if strings.ContainsFunc(got.Source, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }) {
		return got, fmt.Errorf("subscription: the message's source is %.100q: no source has blanks", got.Source)
	}
	if got.Source != "" {
		// No other source and id give the same: the first has no blanks.
		got.ID = got.Source + " " + got.ID
	}
	return got, nil
}

// weigh refuses what became too much when it was unpacked.
func (in intake) weigh(got Incoming) (reason, error) {
	switch {
	case in.MaxBytes > 0 && len(got.Data) > in.MaxBytes:
		return tooLarge, fmt.Errorf("subscription: the data has %d bytes, unpacked, and is not kept: the limit is %d (Stream.Inbound.MaxBytes)", len(got.Data), in.MaxBytes)
	case len(got.Key) > maxText:
		return refused, tooLong("key", got.Key)
	case in.Format == nil: // its data is a part of the body
	case checkDepth(got.Data) != nil:
		return refused, fmt.Errorf("subscription: the data is nested deeper than %d", maxNesting)
	}
	return "", nil
}

// measure refuses what is too much before anybody works on it.
func (in intake) measure(m broker.Message) (reason, error) {
	if in.MaxBytes > 0 && len(m.Body) > in.MaxBytes {
		return tooLarge, fmt.Errorf("subscription: the body has %d bytes and is not kept: the limit is %d (Stream.Inbound.MaxBytes)", len(m.Body), in.MaxBytes)
	}
	size := 0
	for name, value := range m.Headers {
		size += len(name) + len(value)
	}
	switch {
	case len(m.Headers) > maxHeaders || size > maxHeaderBytes:
		return refused, fmt.Errorf("subscription: the message has %d headers of %d bytes: at most %d, of %d bytes together", len(m.Headers), size, maxHeaders, maxHeaderBytes)
	case len(m.Key) > maxText:
		return refused, tooLong("key", m.Key)
	case len(m.ID) > maxText:
		return refused, tooLong("native id", m.ID)
	}
	return "", nil
}

func tooLong(what, value string) error {
	return fmt.Errorf("subscription: the message's %s has %d bytes: at most %d", what, len(value), maxText)
}

// accept holds a message's metadata against the bounds, and leaves of it what is
// believed.
func (in intake) accept(m *domain.Metadata) (reason, error) {
	for _, text := range [...]struct{ name, value string }{
		{"id", m.ID},
		{"type", m.Type},
		{"stream", m.Stream},
		{"category", m.Category},
		{"context", m.Context},
		{"aggregate", m.Aggregate},
		{"aggregate id", m.AggregateID},
		{"sequence id", m.Sequence},
		{"correlation id", m.CorrelationID},
		{"causation id", m.CausationID},
		{"tenant", m.TenantID},
		{"traceparent", m.Traceparent},
	} {
		if len(text.value) > maxText {
			return refused, tooLong(text.name, text.value)
		}
	}
	if len(m.Extensions) > maxExtensions {
		return refused, fmt.Errorf("subscription: the message has %d extensions: at most %d", len(m.Extensions), maxExtensions)
	}
	for name, value := range m.Extensions {
		if len(name) > maxExtensionName || len(value) > maxExtensionValue {
			return refused, fmt.Errorf("subscription: the message's extension %.100q has a name of %d bytes and a value of %d: at most %d and %d",
				name, len(name), len(value), maxExtensionName, maxExtensionValue)
		}
	}
	if err := in.believe(m); err != nil {
		return refused, err
	}
	if m.Command != nil {
		m.Command.Key, m.Command.Reply = plain(m.Command.Key), plain(m.Command.Reply)
	}
	// These go on into rows, headers and logs, which have lines.
	for _, text := range []*string{&m.ID, &m.Type, &m.CorrelationID, &m.CausationID, &m.TenantID, &m.Traceparent} {
		*text = plain(*text)
	}
	return "", nil
}

// believe leaves of a message's claims those that are trusted.
func (in intake) believe(m *domain.Metadata) error {
	claims := *m
	if t := in.Trust; t.kind != trusted {
		m.Origin, m.Priority = domain.Origin{}, 0
		if t.Correlation {
			m.CorrelationID, m.CausationID = claims.CorrelationID, claims.CausationID
		}
		if t.Trace {
			m.Traceparent = claims.Traceparent
		}
		if t.Priority {
			m.Priority = min(max(claims.Priority, lowestPriority), highestPriority)
		}
		for _, name := range t.Extensions {
			if value, ok := claims.Extensions[name]; ok {
				if m.Extensions == nil {
					m.Extensions = map[string]string{}
				}
				m.Extensions[name] = plain(value)
			}
		}
	}
	if in.Trust.Tenant == nil {
		return nil
	}
	return protect(func() (err error) {
		if m.TenantID, err = in.Trust.Tenant(claims); err != nil {
			return fmt.Errorf("subscription: refused by Stream.Inbound.Trust.Tenant: %w", err)
		}
		return nil
	})
}

// fitting are as many of headers as a message may have, by name.
func fitting(headers map[string]string) map[string]string {
	kept, size := make(map[string]string, min(len(headers), maxHeaders)), 0
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		if more := len(name) + len(headers[name]); len(kept) < maxHeaders && size+more <= maxHeaderBytes {
			kept[name], size = headers[name], size+more
		}
	}
	return kept
}

// cut is the beginning of s, as long as a text may be.
func cut(s string) string { return s[:min(len(s), maxText)] }

// plain is s as one line of text: without what is no UTF-8, and with U+FFFD for each
// character that a terminal or a log would obey.
func plain(s string) string { return strings.Map(obedient, s) }

func obedient(r rune) rune {
	if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' || unicode.Is(unicode.Bidi_Control, r) {
		return unicode.ReplacementChar
	}
	return r
}
