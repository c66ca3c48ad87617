package subscription

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"mime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/jsondepth"
	"github.com/waybill-go/waybill/outbox"
)

// Format makes of a broker's message what a subscription needs to know. It is called for
// each message when it arrives, and again when it is replayed, by several goroutines, so
// it should need nothing but memory. What has an error is parked as undecodable, with as
// much of ID, Type and Key as is returned with it. A message that is too large comes
// without its Body, to tell what it is called: one of a type that nobody handles isn't kept.
type Format func(m broker.Message) (Incoming, error)

// Incoming is a message, whatever form it came in. All of Metadata but ID, Type, Time and
// what names its stream is a claim: see [Trust].
type Incoming struct {
	// ID is the same in every copy of the message, and Type is as domain.PartnerEvent or
	// domain.Foreign have it. Both are required.
	domain.Metadata
	// Source is who gives the ID, if several do: both together are the message's id then.
	// It has no blanks.
	Source string
	// Key is what the message's order is by. Defaults to the broker's key. Order between
	// messages is the broker's: those of one Key keep it if they had it there.
	Key string
	// Data is JSON.
	Data json.RawMessage
}

// Waybill is the envelope of Waybill contexts, whole or as partners get it.
func Waybill() Format {
	return func(m broker.Message) (Incoming, error) {
		called := Incoming{Metadata: domain.Metadata{ID: m.ID, Type: m.Headers["type"]}}
		if err := checkDepth(m.Body); err != nil {
			return called, err
		}
		meta, data, err := outbox.ParseEnvelope(m.Body)
		if err != nil && called.Type == "" { // Every Waybill says the type in a header, too.
			err = fmt.Errorf("%w: it isn't in Waybill's envelope: %s", err, formOf(m))
		}
		if err != nil {
			return called, err
		}
		return Incoming{Metadata: meta, Data: data}, nil
	}
}

// formOf is what to do about a message in another form.
func formOf(m broker.Message) string {
	for name, value := range m.Headers {
		name = strings.ToLower(name)
		if name == "ce_specversion" || name == "ce-specversion" || name == "content-type" && strings.HasPrefix(strings.ToLower(value), "application/cloudevents") {
			return "it is a CloudEvent, so set Stream.Inbound.Format to subscription.CloudEvents()"
		}
	}
	return "if its sender doesn't use Waybill, set Stream.Inbound.Format to what it sends"
}

// CloudEvents reads CloudEvents 1.0 with JSON data, in structured or binary mode, as the
// content type says. Source and id together are the message's id. Its key is the
// attribute partitionkey, or the broker's, or the subject. The attributes correlationid,
// causationid, tenantid and traceparent are claims like any message's, sequence and
// subject are Metadata's Sequence and AggregateID, and all others are extensions.
//
// What isn't as the standard says is an error: another specversion, an attribute that is
// missing, or has a name or a value that none can have. So are batches, and formats and data that
// are not JSON; write a [Format] for these.
func CloudEvents() Format { return cloudEvent }

func cloudEvent(m broker.Message) (Incoming, error) {
	if err := checkDepth(m.Body); err != nil {
		return Incoming{}, err
	}
	attributes := map[string]string{}
	var data []byte
	var err error
	contentType := ""
	for name, value := range m.Headers {
		if strings.EqualFold(name, "content-type") {
			contentType = value
		}
	}
	switch media, _, _ := mime.ParseMediaType(contentType); {
	case media == "application/cloudevents+json":
		attributes, data, err = structured(m.Body)
	case strings.HasPrefix(media, "application/cloudevents"):
		return Incoming{}, fmt.Errorf("subscription: a CloudEvent as %.100q: only application/cloudevents+json is read", media)
	default:
		err = native(attributes, m.Headers)
		if len(attributes) == 0 {
			return Incoming{}, fmt.Errorf("subscription: the message is no CloudEvent: its content type is %.100q, and it has no header ce_specversion or ce-specversion", contentType)
		}
		if data = m.Body; contentType != "" {
			attributes["datacontenttype"] = contentType
		}
	}
	got := Incoming{Metadata: domain.Metadata{ID: attributes["id"], Type: attributes["type"]}, Source: attributes["source"]}
	if err == nil {
		err = errors.Join(fill(&got, attributes), checkData(attributes["datacontenttype"], data))
	}
	if err != nil {
		return got, fmt.Errorf("subscription: a CloudEvent that is none: %w", err)
	}
	if got.Data = data; m.Key != "" && attributes["partitionkey"] == "" {
		got.Key = m.Key
	}
	return got, nil
}

// native finds the attributes among native headers: ce_ is Kafka's binding, and ce- that of
// others. One that is there twice could be either.
func native(attributes, headers map[string]string) error {
	for name, value := range headers {
		name = strings.ToLower(name)
		attribute, ok := strings.CutPrefix(name, "ce_")
		if !ok {
			attribute, ok = strings.CutPrefix(name, "ce-")
		}
		if other, twice := attributes[attribute]; ok && twice && other != value {
			return fmt.Errorf("it has two attributes %.100q", attribute)
		}
		if ok {
			attributes[attribute] = value
		}
	}
	return nil
}

// structured takes a CloudEvent in JSON apart.
func structured(body []byte) (attributes map[string]string, data []byte, err error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(body, &members); err != nil {
		return nil, nil, fmt.Errorf("its JSON: %w", err)
	}
	data, packed := members["data"], members["data_base64"]
	delete(members, "data")
	delete(members, "data_base64")
	attributes = map[string]string{}
	for name, member := range members {
		var value any
		decoder := json.NewDecoder(bytes.NewReader(member))
		decoder.UseNumber()
		if err := decoder.Decode(&value); err != nil {
			return nil, nil, err
		}
		switch value := value.(type) {
		case nil:
		case string:
			attributes[name] = value
		case bool:
			attributes[name] = strconv.FormatBool(value)
		case json.Number:
			if _, err := strconv.ParseInt(value.String(), 10, 32); err != nil {
				return attributes, nil, fmt.Errorf("attribute %.100q is the number %.30s, and attributes are whole ones of 32 bits", name, value)
			}
			attributes[name] = value.String()
		default:
			return attributes, nil, fmt.Errorf("attribute %.100q is no text, number or boolean", name)
		}
	}
	switch {
	case len(packed) == 0:
	case len(data) > 0:
		return attributes, nil, errors.New("it has data and data_base64")
	default:
		var text string
		if err := json.Unmarshal(packed, &text); err != nil {
			return attributes, nil, fmt.Errorf("data_base64: %w", err)
		}
		if data, err = base64.StdEncoding.DecodeString(text); err != nil {
			return attributes, nil, fmt.Errorf("data_base64: %w", err)
		}
	}
	return attributes, data, nil
}

// fill makes of attributes what is known of a message.
func fill(got *Incoming, attributes map[string]string) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		value := attributes[name]
		if name == "" || strings.ContainsFunc(name, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') }) {
			errs = append(errs, fmt.Errorf("attribute %.100q: names are of a to z and 0 to 9", name))
			continue
		}
		switch name {
		case "id", "source", "type", "datacontenttype", "dataschema":
		case "specversion":
			if value != "1.0" {
				errs = append(errs, fmt.Errorf("specversion is %.30q: 1.0 is read", value))
			}
		case "time":
			at, err := time.Parse(time.RFC3339, value)
			if year := at.UTC().Year(); err != nil || year < 0 || year > 9999 { // which JSON couldn't carry on
				errs = append(errs, fmt.Errorf("time is %.50q, and no time of RFC 3339", value))
			}
			got.Time = at.UTC()
		case "subject":
			got.AggregateID = value
		case "partitionkey":
			got.Key = value
		case "correlationid":
			got.CorrelationID = value
		case "causationid":
			got.CausationID = value
		case "tenantid":
			got.TenantID = value
		case "traceparent":
			got.Traceparent = value
		case "sequence":
			got.Sequence = value
		default:
			if got.Extensions == nil {
				got.Extensions = map[string]string{}
			}
			got.Extensions[name] = value
		}
	}
	for _, name := range []string{"specversion", "id", "source", "type"} {
		if attributes[name] == "" {
			errs = append(errs, fmt.Errorf("it has no %s", name))
		}
	}
	if got.Key == "" {
		got.Key = got.AggregateID
	}
	return errors.Join(errs...)
}

// excess is an error about a message that has too much of something.
type excess struct{ error }

// checkDepth refuses JSON that would cost too much to read.
func checkDepth(body []byte) error {
	if jsondepth.Exceeds(body, maxNesting) {
		return excess{fmt.Errorf("subscription: the body is nested deeper than %d", maxNesting)}
	}
	return nil
}

// checkData says what is wrong with data that has to be one piece of JSON.
func checkData(contentType string, data []byte) error {
	if contentType != "" {
		media, parameters, err := mime.ParseMediaType(contentType)
		if err != nil || media != "application/json" && media != "text/json" && !strings.HasSuffix(media, "+json") {
			return fmt.Errorf("its data is %.100q: only JSON is read", contentType)
		}
		if charset := parameters["charset"]; charset != "" && !strings.EqualFold(charset, "utf-8") {
			return fmt.Errorf("its data is in %.30q: JSON is in UTF-8", charset)
		}
	}
	if len(data) == 0 {
		return errors.New("it has no data")
	}
	if !json.Valid(data) {
		return errors.New("its data is no JSON")
	}
	return nil
}
