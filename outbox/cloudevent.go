package outbox

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

const structuredContentType = "application/cloudevents+json"

// attributeName is what CloudEvents lets an attribute be called. That it has 20
// letters at most is only recommended there, and demanded by some readers.
var attributeName = regexp.MustCompile("^[a-z0-9]{1,20}$")

// attributesTaken are those of the standard and our own.
var attributesTaken = []string{
	"specversion", "id", "source", "type", "time", "subject", "datacontenttype", "dataschema", "data",
	"correlationid", "causationid", "sequence", "traceparent",
}

// tenantAttribute is what [TenantExtension] is called in a CloudEvent.
const tenantAttribute = "tenantid"

// attributeOf is what an extension is called in a CloudEvent: its name in lower
// case without '-', '_' and '.'.
func attributeOf(extension string) (string, error) {
	name := strings.Map(func(r rune) rune {
		switch {
		case r == '-' || r == '_' || r == '.':
			return -1
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return r
	}, extension)
	switch {
	case !attributeName.MatchString(name):
		return "", fmt.Errorf("extension %q can't be an attribute of a CloudEvent: rename it to 1 to 20 ASCII letters and digits ('-', '_' and '.' are left out), or take it out of the target's extensions", extension)
	case slices.Contains(attributesTaken, name), name == tenantAttribute && extension != TenantExtension:
		return "", fmt.Errorf("extension %q would be the attribute %q of a CloudEvent, which has a meaning already: rename it, or take it out of the target's extensions", extension, name)
	}
	return name, nil
}

func sameAttribute(a, b, attribute string) error {
	return fmt.Errorf("extensions %q and %q would both be the attribute %q of a CloudEvent: rename one of them, or take one out of the target's extensions", a, b, attribute)
}

// appendAttributes appends the attributes of e's CloudEvent as a JSON object that
// is not closed yet. The value of an attribute is never escaped into something
// else: what isn't allowed in CloudEvents is an error.
func appendAttributes(b []byte, e *Event, names []string, allowed func(string) bool) ([]byte, error) {
	b = append(b, `{"specversion":"1.0"`...)
	var err error
	add := func(attribute, value string) {
		switch {
		case err != nil:
		case !utf8.ValidString(value) || strings.ContainsFunc(value, forbidden):
			err = fmt.Errorf("its attribute %s is %.100q, which has a control character or isn't UTF-8: CloudEvents don't allow that", attribute, value)
		default:
			b = append(append(append(b, `,"`...), attribute...), `":`...)
			b = appendString(b, value)
		}
	}
	add("id", e.ID)
	add("source", "urn:waybill:"+e.Context)
	add("type", e.Type)
	add("time", e.Time.UTC().Format(timeLayout))
	if strings.TrimSpace(e.AggregateID) != "" { // the SDK for Go reads no event with a blank one
		add("subject", e.AggregateID)
	}
	for _, own := range [...]struct{ attribute, value string }{
		{"correlationid", e.CorrelationID},
		{"causationid", e.CausationID},
		{"sequence", sortable(e.Sequence)},
		{"traceparent", e.Traceparent},
	} {
		if own.value != "" {
			add(own.attribute, own.value)
		}
	}
	from := map[string]string{} // extension by attribute
	for _, name := range names {
		if !allowed(name) {
			continue
		}
		attribute, unfit := attributeOf(name)
		if unfit != nil {
			return nil, unfit
		}
		if other, taken := from[attribute]; taken {
			return nil, sameAttribute(other, name, attribute)
		}
		from[attribute] = name
		value := e.TenantID
		if name != TenantExtension {
			value = e.Extensions[name]
		}
		add(attribute, value)
	}
	return b, err
}

// appendStructured closes attributes with the data.
func appendStructured(attributes, data []byte) []byte {
	b := append(attributes, `,"datacontenttype":"`+contentType+`","data":`...)
	return append(append(b, data...), '}')
}

// forbidden are the characters that no attribute may have.
func forbidden(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Noncharacter_Code_Point, r)
}

// sortable is a sequence id "<version>.<n>" with both numbers filled up with
// zeros: CloudEvents wants values that compare as text.
func sortable(sequence string) string {
	version, n, ok := strings.Cut(sequence, ".")
	if !ok {
		return sequence
	}
	return zeros(version, 10) + "." + zeros(n, 5)
}

func zeros(number string, length int) string {
	return strings.Repeat("0", max(length-len(number), 0)) + number
}
