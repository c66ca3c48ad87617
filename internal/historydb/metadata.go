package historydb

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/outbox"
)

// more is the column metadata: what the others don't say.
type more struct {
	CorrelationID string            `json:"correlation_id,omitempty"`
	CausationID   string            `json:"causation_id,omitempty"`
	TenantID      string            `json:"tenant_id,omitempty"`
	Traceparent   string            `json:"traceparent,omitempty"`
	Extensions    map[string]string `json:"extensions,omitempty"`
	Priority      int               `json:"priority,omitempty"`
	Key           string            `json:"key,omitempty"` // Of domain.OrderedBy.
	// Of a foreign event, where they aren't what a context of this kind would have written.
	ID        string  `json:"id,omitempty"`
	Stream    *string `json:"stream,omitempty"`
	Context   *string `json:"context,omitempty"`
	Aggregate *string `json:"aggregate,omitempty"`
	Sequence  *string `json:"sequence,omitempty"`
}

// Metadata is what the column of this name has of an event; nil: nothing.
func Metadata(e *outbox.Event) ([]byte, error) {
	m := more{
		CorrelationID: e.CorrelationID, CausationID: e.CausationID, TenantID: e.TenantID, Traceparent: e.Traceparent,
		Extensions: e.Extensions, Priority: e.Priority, Key: e.Key,
	}
	version, n := place(&e.Metadata)
	usual := derived(e.Category, e.AggregateID, version, n)
	for _, f := range [...]struct {
		is, usual string
		to        **string
	}{
		{e.Stream, usual.Stream, &m.Stream},
		{e.Context, usual.Context, &m.Context},
		{e.Aggregate, usual.Aggregate, &m.Aggregate},
		{e.Sequence, usual.Sequence, &m.Sequence},
	} {
		if f.is != f.usual {
			*f.to = &f.is
		}
	}
	if MessageID(e.Category, e.ID) != e.ID {
		m.ID = e.ID
	}
	b, err := json.Marshal(m)
	if err != nil || string(b) == "{}" {
		return nil, err
	}
	return b, nil
}

// place is an event's version and its number within the save. A partner's event may say
// them in its sequence only.
func place(m *domain.Metadata) (version int64, n int) {
	v, rest, found := strings.Cut(m.Sequence, ".")
	version, errV := strconv.ParseInt(v, 10, 64)
	number, errN := strconv.ParseInt(rest, 10, 32)
	if !found || errV != nil || errN != nil || number < 1 || m.Version != 0 && m.Version != version {
		return m.Version, 1
	}
	return version, int(number)
}

// derived is what an event's place says of it.
func derived(category, id string, version int64, n int) domain.Metadata {
	context, aggregate, _ := strings.Cut(category, "::")
	return domain.Metadata{
		Category: category, AggregateID: id, Stream: category + "-" + id, Context: context, Aggregate: aggregate, Version: version,
		Sequence: fmt.Sprintf("%d.%d", version, n),
	}
}

// restore is the event that a row has.
func restore(e *outbox.Event, n int, metadata []byte) error {
	of := derived(e.Category, e.AggregateID, e.Version, n)
	e.Stream, e.Context, e.Aggregate, e.Sequence = of.Stream, of.Context, of.Aggregate, of.Sequence
	if len(metadata) == 0 {
		return nil
	}
	var m more
	if err := json.Unmarshal(metadata, &m); err != nil {
		return err
	}
	e.Origin = domain.Origin{CorrelationID: m.CorrelationID, CausationID: m.CausationID, TenantID: m.TenantID, Traceparent: m.Traceparent, Extensions: m.Extensions}
	e.Priority, e.Key = m.Priority, m.Key
	if m.ID != "" {
		e.ID = m.ID
	}
	for from, to := range map[*string]*string{m.Stream: &e.Stream, m.Context: &e.Context, m.Aggregate: &e.Aggregate, m.Sequence: &e.Sequence} {
		if from != nil {
			*to = *from
		}
	}
	return nil
}
