package waybilltest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

// stranger is the context that delivered messages come from.
const stranger = "stranger"

// Message is a message that was sent.
type Message struct {
	domain.Metadata
	Key     string
	Headers map[string]string
	Body    []byte          // As it travelled.
	Data    json.RawMessage // The event's own fields; see [Decode].
}

// Sent are the messages of a broker's topic, in order, duplicates included:
// k.Sent("partner", "library.loan"). A broker or a topic of a service that runs which nobody
// has made fails the test.
func (k *Kit) Sent(broker, topic string) []Message {
	k.t.Helper()
	if err := k.unknown(broker, topic); err != nil {
		k.fatal("Sent: %v", err)
	}
	var all []Message
	for i, m := range k.Broker(broker).Messages(topic) {
		sent, err := read(m)
		if err != nil {
			k.fatal("Sent(%q, %q): message %d is none of Waybill's: %v", broker, topic, i+1, err)
		}
		all = append(all, sent)
	}
	return all
}

// unknown is the error of a name that nothing can be sent under: a test that nothing was
// would pass for ever. A broker that was down from the start has no topics yet.
func (k *Kit) unknown(broker, topic string) error {
	if k.running() == nil {
		return nil
	}
	k.mu.Lock()
	_, known := k.brokers[broker]
	names := slices.Sorted(maps.Keys(k.brokers))
	k.mu.Unlock()
	if !known {
		return fmt.Errorf("no context that was started uses a broker %q: there are %q", broker, names)
	}
	if topics := k.Broker(broker).Topics(); len(topics) > 0 && !slices.Contains(topics, topic) {
		return fmt.Errorf("broker %q has no topic %q: there are %q", broker, topic, topics)
	}
	return nil
}

// read understands every envelope that an outbox writes.
func read(m broker.Message) (sent Message, err error) {
	sent = Message{Key: m.Key, Headers: m.Headers, Body: m.Body}
	if m.Headers["ce-specversion"] == "" && !strings.HasPrefix(m.Headers["content-type"], "application/cloudevents") {
		sent.Metadata, sent.Data, err = outbox.ParseEnvelope(m.Body)
		return sent, err
	}
	got, err := subscription.CloudEvents()(m)
	sent.Metadata, sent.Data = got.Metadata, got.Data
	sent.Context = strings.TrimPrefix(got.Source, "urn:waybill:")
	return sent, err
}

// Decode reads the data of a message as E. A message of another type fails the test,
// where E is declared by a context that runs.
func Decode[E any](k *Kit, m Message) (e E) {
	k.t.Helper()
	if names := k.namesOf(e); len(names) > 0 && !slices.ContainsFunc(names, func(n string) bool { return m.Type == n || strings.HasPrefix(m.Type, n+".v") }) {
		k.fatal("Decode: the message is %s, and %T is declared as %s: decode it as the type that it is of", m.Type, e, strings.Join(names, " and "))
	}
	if err := json.Unmarshal(m.Data, &e); err != nil {
		k.fatal("Decode: %s is no %T: %v", m.Type, e, err)
	}
	return e
}

// namesOf are those that contexts that run declare a type under, without versions: JSON
// of any other would be read without a word, as an empty one.
func (k *Kit) namesOf(message any) (names []string) {
	p := k.running()
	if p == nil {
		return nil
	}
	for _, m := range p.units {
		d := m.Domain()
		if t, err := d.EventTypeOf(message); err == nil {
			names = append(names, t.Names()...)
		}
		if t, err := d.CommandTypeOf(message); err == nil {
			names = append(names, t.Name)
		}
	}
	return slices.Compact(slices.Sorted(slices.Values(names)))
}

// raised is an event of the outbox.
type raised struct {
	stream string
	event  any
}

// Published fails the test unless a context has raised exactly these events since the
// last call for it, in this order within each aggregate. Without events: none.
func (k *Kit) Published(units *uow.Manager, events ...any) {
	k.t.Helper()
	got, err := k.raisedBy(units)
	if err != nil {
		k.fatal("Published: %v", err)
	}
	want := make([]any, len(events))
	for i, e := range events {
		if want[i], err = likeRead(units.Domain(), e); err != nil {
			k.fatal("Published: %v", err)
		}
	}
	if problem := compare(got, want); problem != "" {
		k.t.Errorf("waybilltest: context %s: %s", units.Domain().Name(), problem)
	}
}

// likeRead is an event as it is after a journey.
func likeRead(d *domain.Domain, event any) (any, error) {
	t, data, err := d.Encode(event)
	if err != nil {
		return nil, err
	}
	return d.Decode(t.WrittenName(), data)
}

// compare finds for each event that was raised a wanted one that is equal, in the order
// of its aggregate if there is one.
func compare(got []raised, want []any) string {
	used := make([]bool, len(want))
	last := map[string]int{}
	var unexpected, order, missing []string
	for _, g := range got {
		after, ok := last[g.stream]
		if !ok {
			after = -1
		}
		found := -1
		for i, w := range want {
			if !used[i] && reflect.DeepEqual(g.event, w) && (found < 0 || found < after && i > after) {
				found = i
			}
		}
		switch {
		case found < 0:
			unexpected = append(unexpected, fmt.Sprintf("unexpected, of %s: %#v", g.stream, g.event))
			continue
		case found < after:
			order = append(order, fmt.Sprintf("raised by %s before, and wanted behind: %#v", g.stream, want[after]))
		}
		used[found], last[g.stream] = true, max(found, after)
	}
	for i, w := range want {
		if !used[i] {
			missing = append(missing, fmt.Sprintf("missing: %#v", w))
		}
	}
	if all := slices.Concat(missing, unexpected, order); len(all) > 0 {
		return "the events it has raised are others:" + list(all)
	}
	return ""
}

// raisedBy are a context's events since the last call, in the order of their commits.
func (k *Kit) raisedBy(units *uow.Manager) (all []raised, err error) {
	d := units.Domain()
	if units.OutboxDisabled() {
		return nil, fmt.Errorf("context %s has no outbox, so nobody knows what it has raised", d.Name())
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range units.Providers() {
		mark := d.Name() + " " + p.Name()
		err := dbrows.Each(k.t.Context(), p.Reader(), "SELECT m.seq, m.stream, m.payload FROM outbox_messages AS m JOIN outbox_lanes AS l ON l.id = m.lane"+
			" WHERE l.target = ? AND m.seq > ? ORDER BY m.seq", func(scan func(...any) error) error {
			var r raised
			var seq int64
			var body []byte
			if err := scan(&seq, &r.stream, &body); err != nil {
				return err
			}
			meta, data, err := outbox.ParseEnvelope(body)
			if err != nil || meta.Context != d.Name() || meta.Command != nil {
				return err
			}
			k.published[mark] = seq
			if r.event, err = d.Decode(meta.Type, data); err == nil {
				all = append(all, r)
			}
			return err
		}, units.Broker(), k.published[mark])
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Deliver puts messages into a stream that a context handles, on its broker: events that
// others raise, its own events, or commands, as a context of theirs would have sent
// them. Each is of that key; of a command whose declaration names another one, of that.
// It doesn't wait: see [Kit.Settle].
func (k *Kit) Deliver(to *uow.Manager, key string, messages ...any) {
	k.t.Helper()
	for _, event := range messages {
		if err := k.deliver(to, key, event); err != nil {
			k.fatal("Deliver: %v", err)
		}
	}
}

func (k *Kit) deliver(to *uow.Manager, key string, event any) error {
	s, err := k.streamOf(to, event)
	if err != nil {
		return err
	}
	if s.Inbound.Format != nil {
		return fmt.Errorf("the stream %s reads a form of its own (Inbound.Format), in which %T has to be written: publish it there by Broker(%q)", s.Name, event, s.Broker)
	}
	m, _, err := made(to.Domain(), s.Category, key, event, k.Now())
	if err != nil {
		return err
	}
	m.Topic = s.Topic()
	return k.Broker(s.Broker).Publish(k.t.Context(), []broker.Message{m})
}

// streamOf is where a message comes from that a context handles.
func (k *Kit) streamOf(to *uow.Manager, event any) (found subscription.Stream, err error) {
	p := k.running()
	if p == nil {
		return found, fmt.Errorf("nothing runs that could handle %T: call Start first", event)
	}
	var streams []subscription.Stream
	for _, s := range p.streams {
		same := func(o subscription.Stream) bool { return o.Broker == s.Broker && o.Category == s.Category }
		if s.Units == to && s.Handles(event) && !slices.ContainsFunc(streams, same) {
			streams = append(streams, s)
		}
	}
	switch len(streams) {
	case 0:
		if _, err := to.Domain().EventTypeOf(event); err != nil {
			return found, err
		}
		return found, fmt.Errorf("no stream of context %s that was started has a handler for %T: give one of those in its engine.Context a subscription.On for it", to.Domain().Name(), event)
	case 1:
		return streams[0], nil
	}
	return found, fmt.Errorf("context %s has handlers for %T in the streams %s and %s: say with domain.From where it comes from", to.Domain().Name(), event, streams[0].Category, streams[1].Category)
}

// made is a message as another context would have sent it.
func made(d *domain.Domain, category, key string, event any, now time.Time) (m broker.Message, meta domain.Metadata, err error) {
	t, err := d.EventTypeOf(event)
	if err != nil {
		return m, meta, err
	}
	data, err := json.Marshal(event)
	if err != nil {
		return m, meta, err
	}
	from, aggregate, _ := strings.Cut(category, "::")
	meta = domain.Metadata{
		ID: uuid.Must(uuid.NewV7()).String(), Type: t.WireName(), Time: now, Category: category, Context: from, Aggregate: aggregate,
		AggregateID: key, Version: 1, Sequence: "1.1",
	}
	if c, err := d.CommandTypeOf(event); err == nil {
		meta.Command, meta.Aggregate, meta.Version, meta.Sequence = &domain.CommandMetadata{}, "", 0, ""
		meta.AggregateID = cmp.Or(c.Key(event), key)
		if c.FromOthers {
			meta.Context = stranger
		}
	}
	if meta.AggregateID == "" {
		return m, meta, fmt.Errorf("%T has no key: give one, by which its messages are ordered", event)
	}
	meta.Stream = category + "-" + meta.AggregateID
	writer := outbox.Writer{Domain: d}
	rows, err := writer.Rows([]outbox.Event{{Metadata: meta, Data: data}}, 1)
	if err != nil {
		return m, meta, err
	}
	row := rows[0]
	return broker.Message{
		ID: row.MessageID, Key: row.PartitionKey, Body: row.Payload,
		Headers: map[string]string{"id": row.MessageID, "type": row.MessageType, "content-type": row.ContentType},
	}, meta, nil
}

// Handle gives messages to a stream's handlers at once, without an engine or a broker,
// one after the other, and returns the first error of one: each in a unit of work of its
// own, with an inbox row. They are of one key, and come from the stream's context.
// An error is not tried again, and a message that a handler would park or drop is only
// not handled.
func Handle(t testing.TB, s subscription.Stream, messages ...any) error {
	t.Helper()
	if s.Units == nil {
		t.Fatal("waybilltest: Handle: Stream.Units is missing: name the context that handles")
	}
	for _, event := range messages {
		m, meta, err := made(s.Units.Domain(), s.Category, "1", event, time.Now().UTC())
		if err != nil {
			t.Fatalf("waybilltest: Handle: %v", err)
		}
		if err := s.HandleNow(t.Context(), m, meta, event); err != nil {
			return err
		}
	}
	return nil
}
