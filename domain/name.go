package domain

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// maxName is how long the name of a context, an aggregate, a process or an index may be,
// in bytes. Two of them and a broker's prefix make a topic, of which Kafka takes 249, and
// with an identity the key of a row.
const maxName = 64

var (
	// lowerName is what a context or an aggregate can be called. It becomes part
	// of categories and topics, where "::" and "." separate.
	lowerName = regexp.MustCompile(`^[a-z][a-z0-9_-]*$`)
	// eventName is what an event can be called within its context.
	eventName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]*$`)
	// ownName is what an event is called in messages, without its version.
	ownName = regexp.MustCompile(`^[A-Z][A-Za-z0-9]*\.[A-Za-z][A-Za-z0-9_]*$`)
)

// isName says whether something of one's own can be called so. Others' names are theirs.
func isName(s string) bool { return len(s) <= maxName && lowerName.MatchString(s) }

// splitWireName takes "Ordering.OrderPlaced.v1" apart.
func splitWireName(s string) (base string, version int, err error) {
	i := strings.LastIndex(s, ".v")
	if i > 0 {
		version, err = strconv.Atoi(s[i+2:])
	}
	// Only one spelling of a number: v01 and v+1 are not v1.
	if i <= 0 || err != nil || version < 1 || strconv.Itoa(version) != s[i+2:] {
		return "", 0, fmt.Errorf("%q is not an event name such as Ordering.OrderPlaced.v1", s)
	}
	return s[:i], version, nil
}

// camel is how a context's name begins the names of its events: "Ordering" for
// "ordering", "OrderBook" for "order-book".
func camel(s string) string {
	var b strings.Builder
	for _, word := range strings.FieldsFunc(s, func(r rune) bool { return r == '-' || r == '_' }) {
		b.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return b.String()
}
