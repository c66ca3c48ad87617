package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybill-go/waybill/broker"
)

const (
	// keyHeader carries Message.Key.
	keyHeader = "key"
	// encodedHeader names the headers of a message whose values are percent-encoded,
	// with commas between. All others are to be read as they are, as are those of
	// publishers that don't know of it.
	encodedHeader = "waybill-encoded"
)

// Publish implements [broker.Publisher]. The native id of a message is its topic,
// a slash, and Message.ID; its headers are Message.Headers and "key". A value that
// isn't plain text of one line goes percent-encoded, and "waybill-encoded" names it.
// Nothing is sent again once Publish has returned. It may outlast ctx by 10 s if
// the server stops reading in the middle.
func (b *Broker) Publish(ctx context.Context, messages []broker.Message) error {
	if len(messages) == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return broker.Classify(broker.Unavailable, fmt.Errorf("nats: nothing was sent: %w", err))
	}
	if err := b.reach(); err != nil {
		return fmt.Errorf("nats: nothing was sent: %w", err)
	}
	call := b.requests.begin(len(messages))
	defer call.end()

	results := make([]error, len(messages))
	waiting := map[int]bool{}
	for i, m := range messages {
		if results[i] = b.send(call, i, m); results[i] == nil {
			waiting[i] = true
		}
	}
	unrouted := b.collect(ctx, call, messages, waiting, results)
	b.explain(ctx, call, messages, unrouted, results)

	failed := map[int]error{}
	for i, err := range results {
		if err != nil {
			failed[i] = err
		}
	}
	if len(failed) > 0 {
		return &broker.PublishError{Failed: failed}
	}
	return nil
}

// send hands a message to the connection.
func (b *Broker) send(call *call, number int, m broker.Message) error {
	if err := checkTopic(m.Topic); err != nil {
		// A prefix or a rule of the configuration may have made the name.
		return broker.Scoped(broker.Unavailable, broker.ScopeTopic, fmt.Errorf("nats: message %s: topic %q %w", m.ID, m.Topic, err))
	}
	encoded, err := encode(m)
	if err != nil {
		return broker.Scoped(broker.Permanent, broker.ScopeRow, fmt.Errorf("nats: message %s: %w", m.ID, err))
	}
	switch err = call.send(number, encoded); {
	case err == nil:
		return nil
	case errors.Is(err, nats.ErrMaxPayload):
		err = broker.Scoped(broker.Permanent, broker.ScopeRow, fmt.Errorf("%w: body and headers of %d bytes, the server takes %d", err, encoded.Size(), b.nc.MaxPayload()))
	case errors.Is(err, nats.ErrBadHeaderMsg):
		err = broker.Scoped(broker.Permanent, broker.ScopeRow, err)
	case errors.Is(err, nats.ErrBadSubject):
		err = broker.Scoped(broker.Unavailable, broker.ScopeTopic, err)
	case errors.Is(err, nats.ErrHeadersNotSupported):
		err = broker.Scoped(broker.Unavailable, broker.ScopeBroker, err)
	default:
		// What isn't proven unsent, such as a write that failed half-way, may
		// have arrived.
		if err = classify(err); broker.ClassOf(err) != broker.Unavailable {
			err = broker.Classify(broker.Unknown, err)
		}
	}
	return fmt.Errorf("nats: publish: %w", err)
}

// collect waits for the replies, and returns the messages that no stream took.
func (b *Broker) collect(ctx context.Context, call *call, messages []broker.Message, waiting map[int]bool, results []error) (unrouted []int) {
	unknown := func(err error) {
		for i := range waiting {
			results[i] = broker.Classify(broker.Unknown, fmt.Errorf("nats: publish: no answer: %w", err))
		}
		clear(waiting)
	}
	for len(waiting) > 0 {
		select {
		case r := <-call.replies:
			if !waiting[r.number] {
				continue
			}
			delete(waiting, r.number)
			if noResponders(r.Msg) {
				unrouted = append(unrouted, r.number)
			} else {
				results[r.number] = ackError(r.Msg)
			}
		case subject := <-call.denied:
			for i := range waiting {
				if messages[i].Topic == subject {
					results[i] = broker.Scoped(broker.Transient, broker.ScopeTopic, fmt.Errorf("nats: publish: not authorised for subject %s", subject))
					delete(waiting, i)
				}
			}
		case <-call.broken:
			unknown(errors.New("the connection broke"))
		case <-ctx.Done():
			unknown(ctx.Err())
		}
	}
	return unrouted
}

func noResponders(m *nats.Msg) bool {
	return len(m.Data) == 0 && m.Header.Get("Status") == "503"
}

// ackError is what JetStream answered.
func ackError(m *nats.Msg) error {
	var ack struct {
		Stream string              `json:"stream"`
		Error  *jetstream.APIError `json:"error"`
		// Its flag "duplicate" isn't asked for: it says that the stream has this id
		// already, which names topic and message, so that the message is stored.
	}
	if err := json.Unmarshal(m.Data, &ack); err != nil || (ack.Error == nil && ack.Stream == "") {
		return broker.Classify(broker.Unknown, errors.New("nats: publish: something other than JetStream answered: give the subject to a stream alone"))
	}
	if ack.Error == nil {
		return nil
	}
	err := fmt.Errorf("nats: publish: %w", ack.Error)
	if ack.Error.ErrorCode == messageTooLarge || ack.Error.ErrorCode == headersTooLarge {
		return broker.Scoped(broker.Permanent, broker.ScopeRow, err)
	}
	if ack.Error.ErrorCode == serverFull {
		err = fmt.Errorf("%w: JetStream has no room left on its server: make room on its disk and restart it, or raise max_file_store in its jetstream block, which is three quarters of what was free when it started if nothing is said", err)
	}
	// Its limits, its storage, its leader: what the stream says is about the stream.
	return broker.Scoped(broker.ClassOf(classify(err)), broker.ScopeTopic, err)
}

// JetStream's codes for more than a stream's own limit, more than 64 KiB of headers, and
// more than the server may store.
const (
	messageTooLarge = 10054
	headersTooLarge = 10097
	serverFull      = 10023
)

// explain finds out why nobody took a message. A stream that is missing is an
// answer (Transient): somebody has to make it. One that is there but has no
// leader is an outage of its topic, a server whose JetStream isn't up one of all.
func (b *Broker) explain(ctx context.Context, call *call, messages []broker.Message, unrouted []int, results []error) {
	if len(unrouted) == 0 {
		return
	}
	// A server that is going down doesn't answer.
	ctx, cancel := until(ctx, call.broken, b.timing.pull)
	defer cancel()
	reasons := map[string]error{}
	for _, i := range unrouted {
		topic := messages[i].Topic
		if _, known := reasons[topic]; !known {
			_, err := b.js.StreamNameBySubject(ctx, topic)
			reasons[topic] = unroutedError(topic, err)
		}
		results[i] = reasons[topic]
	}
}

// unroutedError says why nobody took what goes to topic; err came of the question
// for its stream.
func unroutedError(topic string, err error) error {
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return broker.Scoped(broker.Transient, broker.ScopeTopic, fmt.Errorf("nats: publish: no stream holds topic %q: restart an engine that may make it, which calls EnsureTopics, or make it: nats stream add --subjects %[1]s", topic))
	}
	scope, because := broker.ScopeTopic, ""
	switch {
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, nats.ErrNoResponders):
		scope, because = broker.ScopeBroker, ": the server has no JetStream for this user, or not yet; see jetstream in its configuration"
	case errors.Is(err, nats.ErrConnectionClosed):
		scope = broker.ScopeBroker
	}
	return broker.Scoped(broker.Unavailable, scope, fmt.Errorf("nats: publish: the stream of topic %q doesn't answer%s", topic, because))
}

// encode turns a message into NATS's own.
func encode(m broker.Message) (*nats.Msg, error) {
	if m.ID == "" || m.Key == "" {
		return nil, errors.New("id and key are required")
	}
	header := nats.Header{}
	for name, value := range m.Headers {
		if err := setHeader(header, name, value); err != nil {
			return nil, err
		}
	}
	if err := setHeader(header, keyHeader, m.Key); err != nil {
		return nil, err
	}
	for name, value := range cloudEvent(m) {
		if err := checkName(cloudEventsPrefix + name); err != nil {
			return nil, err
		}
		header[cloudEventsPrefix+name] = []string{percentEncode(value)}
	}
	if !plain(m.ID) {
		return nil, errors.New("the id isn't plain text of one line")
	}
	header[nats.MsgIdHdr] = []string{nativeID(m.Topic, m.ID)}
	return &nats.Msg{Subject: m.Topic, Header: header, Data: m.Body}, nil
}

// nativeID names the topic, too: a stream that holds several topics deduplicates
// over all of them, and would drop what goes to a second one. No topic has a slash.
func nativeID(topic, id string) string { return topic + "/" + id }

// ownID is the reverse. An id of another form is another publisher's, or that of
// an earlier version, and is taken as it is.
func ownID(native, topic string) string { return strings.TrimPrefix(native, topic+"/") }

// cloudEventsPrefix is that of the CloudEvents binding for NATS.
const cloudEventsPrefix = "ce-"

// cloudEvent are all attributes of m's CloudEvent: this binding wants the content
// type as one of them.
func cloudEvent(m broker.Message) map[string]string {
	if len(m.CloudEvent) == 0 {
		return nil
	}
	all := maps.Clone(m.CloudEvent)
	all["datacontenttype"] = m.Headers["content-type"]
	return all
}

// percentEncode encodes what the binding says: everything but visible ASCII, and
// the quote and the percent sign.
func percentEncode(value string) string {
	const hexDigits = "0123456789ABCDEF"
	var b strings.Builder
	for _, c := range []byte(value) {
		if c <= ' ' || c >= 127 || c == '"' || c == '%' {
			b.Write([]byte{'%', hexDigits[c>>4], hexDigits[c&15]})
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// plain says whether a value arrives as it is, whatever client reads it: text of
// one line, in ASCII, without spaces at its ends.
func plain(value string) bool {
	return value == strings.Trim(value, " ") &&
		!strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r >= 127 })
}

// setHeader encodes what would arrive as something else, or would give orders to
// the server or to a client.
func setHeader(header nats.Header, name, value string) error {
	if err := checkName(name); err != nil {
		return err
	}
	if !plain(value) {
		encoded := name
		if others := header.Get(encodedHeader); others != "" {
			encoded = others + "," + name
		}
		header[encodedHeader], value = []string{encoded}, percentEncode(value)
	}
	header[name] = []string{value}
	return nil
}

func checkName(name string) error {
	switch {
	case name == "" || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == ':' || r == ',' || r >= 127 }):
		return fmt.Errorf("header %q: the name must be visible ASCII without a colon or a comma", name)
	case name == "Status", len(name) >= 5 && strings.EqualFold(name[:5], "nats-"):
		return fmt.Errorf("header %q: Status, and names that begin with Nats-, are the server's", name)
	case name == encodedHeader:
		return fmt.Errorf("header %q: the name is the adapter's", name)
	}
	return nil
}

// decode is the reverse. A message of another publisher may lack id and key; its
// place in the stream identifies it then, with its time: a stream that was deleted and
// made again counts from 1.
func decode(m *nats.Msg, meta *nats.MsgMetadata) broker.Message {
	headers := map[string]string{}
	for name, values := range m.Header {
		if len(values) > 0 && !strings.HasPrefix(name, "Nats-") {
			headers[name] = values[0]
		}
	}
	decodeHeaders(headers)
	for name, value := range headers {
		if strings.HasPrefix(name, cloudEventsPrefix) {
			if value, err := url.PathUnescape(value); err == nil {
				headers[name] = value
			}
		}
	}
	decoded := broker.Message{ID: ownID(m.Header.Get(nats.MsgIdHdr), m.Subject), Topic: m.Subject, Key: headers[keyHeader], Headers: headers, Body: m.Data}
	maps.DeleteFunc(headers, func(name, _ string) bool { return name == keyHeader })
	if decoded.ID == "" {
		decoded.ID = headers["id"]
	}
	if decoded.ID == "" {
		decoded.ID = fmt.Sprintf("%s:%d:%d", meta.Stream, meta.Sequence.Stream, meta.Timestamp.UnixMilli())
	}
	return decoded
}

// decodeHeaders decodes the values that are named as encoded. One that isn't
// encoded after all stays as it is.
func decodeHeaders(headers map[string]string) {
	names, some := headers[encodedHeader]
	if !some {
		return
	}
	delete(headers, encodedHeader)
	for name := range strings.SplitSeq(names, ",") {
		if value, err := url.PathUnescape(headers[name]); err == nil && value != "" {
			headers[name] = value
		}
	}
}
