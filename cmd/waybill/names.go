package main

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

// Half a name matches nothing, which would look as if nothing were left.
type (
	typeName     string // of a message of Waybill
	processName  string
	categoryName string // of a stream
	streamName   string
)

var versioned = regexp.MustCompile(`\..+\.v[1-9][0-9]*$`)

// UnmarshalText implements encoding.TextUnmarshaler.
func (n *typeName) UnmarshalText(text []byte) error {
	return whole(n, text, versioned.Match(text), "message type: write it with its context and version, as in Ordering.OrderPlaced.v1")
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (n *processName) UnmarshalText(text []byte) error {
	return whole(n, text, strings.Contains(string(text), "."), "kind of process: write it with its context, as in library.lending")
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (n *categoryName) UnmarshalText(text []byte) error {
	return whole(n, text, strings.Contains(string(text), "::"), "stream category: write it with its context, as in ordering::order")
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (n *streamName) UnmarshalText(text []byte) error {
	return whole(n, text, strings.Contains(string(text), "::"), "stream: write it with its context, as in ordering::order-17")
}

// whole sets a name if it is one; empty, there is none.
func whole[N ~string](n *N, text []byte, ok bool, what string) error {
	if len(text) > 0 && !ok {
		return fmt.Errorf("%q is no %s", text, what)
	}
	*n = N(text)
	return nil
}

// noLetters is that none match, with what may be wrong about the names: partners' types and
// subscriptions can be called anything, so that none is refused.
func (f lettersFilter) noLetters(ctx context.Context, c *cli) string {
	said := "No dead letters match."
	if f.Type != "" && !versioned.MatchString(f.Type) {
		said += " Types of Waybill's messages have context and version, as in Ordering.OrderPlaced.v1."
	}
	if f.Subscription == "" {
		return said
	}
	known := false
	err := c.eachConsumer(ctx, f.Provider, func(p uow.Provider) error {
		list, err := subscription.List(ctx, p.Reader())
		known = known || slices.ContainsFunc(list, func(s subscription.Listed) bool { // or a process, whose name theirs begin with
			return s.Name == f.Subscription || strings.HasPrefix(s.Name, f.Subscription+".")
		})
		return err
	})
	if err == nil && !known {
		said += " The database knows no subscription " + oneLine(f.Subscription) + ": `waybill subscriptions list` has their names."
	}
	return said
}
