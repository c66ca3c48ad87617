package outbox

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/waybill-go/waybill/domain"
)

const (
	// DefaultMaxMessageBytes is the limit of a message's body where nothing is said.
	DefaultMaxMessageBytes = 1 << 20
	// BesideBody is what a message needs of a broker's limit beside its body, for its key and headers.
	BesideBody = 4 << 10
)

// Writer turns events into rows: one for the context's own broker, and one per
// external target that wants the event. Each distinct envelope is built once,
// however many targets share it. A Writer is safe for concurrent use.
type Writer struct {
	Domain          *domain.Domain
	Internal        string // The context's own broker.
	External        []Target
	MaxMessageBytes int // 0: no limit.
}

// Rows returns the rows of events, in their order: for each event the internal
// row first, then the external ones. partitions is the database's count.
//
// A body over the limit is a [*TooLargeError]. An extension named as one of the
// framework's own is an error; the tenant goes into Origin.TenantID. So is, for a
// target that gets CloudEvents, an extension that may leave and can't be an
// attribute.
func (w *Writer) Rows(events []Event, partitions int) ([]Row, error) {
	if partitions < 1 {
		return nil, fmt.Errorf("outbox: the outbox has %d partitions; it needs at least one", partitions)
	}
	rows := make([]Row, 0, len(events)*(1+len(w.External)))
	for i := range events {
		e := &events[i]
		t, err := w.check(e)
		if err != nil {
			return nil, err
		}
		row := e.row(partitions)
		if rows, err = w.appendRows(rows, row, e, t); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// Again returns an event's rows for the targets once more, after it was raised and kept.
// published are the short names of events that external ones get, and renamed says which of
// them were stored under another name. Without a Domain, an event of another version than a
// target gets is an error.
func (w *Writer) Again(e *Event, published []string, renamed map[string]string, partitions int) ([]Row, error) {
	t := eventCalled(e.Type, renamed)
	t.Published = slices.Contains(published, t.ShortName())
	return w.again(e, t, partitions)
}

// again makes the rows of an event of a type that has the name it was stored with.
func (w *Writer) again(e *Event, t *domain.EventType, partitions int) ([]Row, error) {
	if w.Domain != nil {
		if known, err := w.Domain.EventNamed(e.Type); err == nil {
			t.Name = known.Name // It may have had another one.
		}
	}
	return w.appendRows(nil, e.row(partitions), e, t)
}

// row is what the rows of e share.
func (e *Event) row(partitions int) Row {
	key := cmp.Or(e.Key, e.AggregateID)
	return Row{
		MessageID:        e.ID,
		Stream:           e.Stream,
		StreamCategory:   e.Category,
		PartitionKey:     key,
		Partition:        PartitionOf(key, partitions),
		MessageType:      e.Type,
		AggregateType:    e.Aggregate,
		AggregateID:      e.AggregateID,
		AggregateVersion: e.Version,
		ContentType:      contentType,
		CorrelationID:    e.CorrelationID,
		CausationID:      e.CausationID,
		Traceparent:      e.Traceparent,
		Priority:         e.Priority,
		OccurredAt:       e.Time.UTC(),
	}
}

func (w *Writer) check(e *Event) (*domain.EventType, error) {
	t, err := w.Domain.EventNamed(e.Type)
	if err != nil {
		return nil, fmt.Errorf("outbox: event %s of %s: %w", e.ID, e.Stream, err)
	}
	if len(e.Data) == 0 || string(e.Data) == "null" {
		return nil, fmt.Errorf("outbox: %s of %s has no data, and a message without is none; that something is gone is an event with a name of its own", e.Type, e.Stream)
	}
	if _, ok := e.Extensions[TenantExtension]; ok {
		return nil, fmt.Errorf("outbox: %s of %s: the extension %q is the framework's; put the tenant into domain.Origin.TenantID, or rename the extension", e.Type, e.Stream, TenantExtension)
	}
	return t, nil
}

// appendRows appends the rows of one event. row has what they share.
func (w *Writer) appendRows(rows []Row, row Row, e *Event, t *domain.EventType) ([]Row, error) {
	add := func(target, topic, tenant string, m form) error {
		if w.MaxMessageBytes > 0 && len(m.body) > w.MaxMessageBytes {
			return &TooLargeError{Type: e.Type, AggregateID: e.AggregateID, Target: target, Size: len(m.body), Limit: w.MaxMessageBytes}
		}
		row.ID = uuid.Must(uuid.NewV7()).String()
		row.TargetBroker, row.Topic, row.TenantID = target, topic, tenant
		row.ContentType, row.CloudEvent, row.Payload = m.contentType, m.attributes, m.body
		rows = append(rows, row)
		return nil
	}

	names := extensionNames(e.Origin)
	extensions := encodeExtensions(e.Origin, names, func(string) bool { return true })
	size := bodySize(e, len(extensions))
	own := form{contentType: contentType, body: appendInternal(make([]byte, 0, size), e, extensions)}
	if err := add(w.Internal, "", e.TenantID, own); err != nil {
		return nil, err
	}
	if !t.Published {
		return rows, nil
	}
	var built []form
	for _, target := range w.External {
		if !target.wants(t) {
			continue
		}
		m := form{envelope: target.envelope(), extensions: encodeExtensions(e.Origin, names, target.allows), version: target.Versions[t.ShortName()]}
		if i := slices.IndexFunc(built, m.same); i >= 0 {
			m = built[i]
		} else {
			of, err := w.recast(e, m.version, target.Broker)
			if err != nil {
				return nil, err
			}
			if err := m.build(of, names, target, size); err != nil {
				return nil, err
			}
			built = append(built, m)
		}
		row.MessageType = m.typ
		tenant := ""
		if target.allows(TenantExtension) {
			tenant = e.TenantID
		}
		if err := add(target.Broker, target.Topics[e.Category], tenant, m); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// recast is e in the version that a target gets; 0: as it is.
func (w *Writer) recast(e *Event, version int, target string) (*Event, error) {
	if version == 0 || strings.HasSuffix(e.Type, fmt.Sprintf(".v%d", version)) {
		return e, nil
	}
	if w.Domain == nil {
		return nil, fmt.Errorf("outbox: %s of %s goes to broker %s in version %d, and only a program that declares the event can make that: use engine.Backfill or engine.RepublishHistory", e.Type, e.Stream, target, version)
	}
	of := *e
	var err error
	if of.Type, of.Data, err = w.Domain.Recast(e.Type, e.Data, version); err != nil {
		return nil, fmt.Errorf("outbox: %s of %s goes to broker %s in version %d: %w", e.Type, e.Stream, target, version, err)
	}
	return &of, nil
}

// form is what an event looks like to some targets. They differ in the envelope, the
// extensions and the version that they get, and in nothing else.
type form struct {
	envelope    Envelope
	version     int
	typ         string
	extensions  []byte // as encodeExtensions
	contentType string
	attributes  string // of a binary CloudEvent
	body        []byte
}

func (f form) same(o form) bool {
	return f.envelope == o.envelope && f.version == o.version && bytes.Equal(f.extensions, o.extensions)
}

func (f *form) build(e *Event, names []string, target Target, size int) error {
	f.typ = e.Type
	if f.envelope == Stripped {
		f.contentType, f.body = contentType, appendExternal(make([]byte, 0, size), e, f.extensions)
		return nil
	}
	attributes, err := appendAttributes(make([]byte, 0, size), e, names, target.allows)
	if err != nil {
		return fmt.Errorf("outbox: %s of %s can't be a CloudEvent for broker %s: %w", e.Type, e.Stream, target.Broker, err)
	}
	if f.envelope == CloudEventsBinary {
		f.contentType, f.attributes, f.body = contentType, string(append(attributes, '}')), e.Data
		return nil
	}
	f.contentType, f.body = structuredContentType, appendStructured(attributes, e.Data)
	return nil
}

// bodySize is about how many bytes a body has, so that it is allocated once.
func bodySize(e *Event, extensions int) int {
	const keys = 700
	return keys + len(e.Data) + extensions + 2*(len(e.AggregateID)+len(e.Category)+len(e.Aggregate)) + len(e.Type) + len(e.Context) +
		len(e.CorrelationID) + len(e.CausationID) + len(e.Traceparent)
}
