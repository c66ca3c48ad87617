package subscription

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/outbox"
)

// defaultMaxBytes is the largest body, unless Inbound.MaxBytes says otherwise.
const defaultMaxBytes = 1 << 20

// Inbound says what a stream's messages are, and what is taken over of them.
type Inbound struct {
	// Topic is where they are. Defaults to that of the stream's Category, as in
	// "ordering.order".
	Topic string
	// Format reads them. Defaults to [Waybill].
	Format Format
	// Trust says what is believed of what a message says of itself. Defaults to
	// Trusted on the broker of the stream's own context, and to Untrusted elsewhere.
	Trust Trust
	// MaxBytes is the largest body, and the largest Data that Format makes of one. A
	// larger message is parked without it. Defaults
	// to 1 MiB or, where the stream is Trusted, to the limit of its context's own
	// outbox if that is more; -1: no limit.
	MaxBytes int
}

// Trust says which of a message's claims are taken over: the handler finds them, and
// what it raises carries them on. A Trust with a field set takes over what it names,
// and no more. The zero value is the stream's default; see [Trusted] and [Untrusted].
type Trust struct {
	// Tenant returns the tenant of a message from what it says of itself, or an error,
	// which parks it. It is called for each message when it arrives, so it should need
	// nothing but memory. Nil: no tenant; of Trusted, the sender's. See [TenantAmong]
	// and [FixedTenant].
	Tenant func(says domain.Metadata) (string, error)
	// Correlation goes on with the sender's correlation and causation ids. Otherwise a
	// correlation begins under the message's id.
	Correlation bool
	// Trace goes on with the sender's trace. Otherwise a trace of one's own begins, with
	// a link to the sender's.
	Trace bool
	// Priority takes over the sender's, from -1 to 2.
	Priority bool
	// Extensions are those that are taken over, by name.
	Extensions []string

	kind kind
}

type kind int

const (
	_ kind = iota
	untrusted
	trusted
)

// Trusted takes over all that a message says, and the headers in which a Waybill
// outbox says what it has settled: for senders who are as trustworthy as the context
// itself. With a Tenant, that one is asked all the same.
func Trusted() Trust { return Trust{kind: trusted} }

// Untrusted takes over a message's id, type, time, key and data, and no more.
func Untrusted() Trust { return Trust{kind: untrusted} }

// TenantAmong is a [Trust].Tenant for a sender who acts for several tenants: the one
// that a message names, if it is among ids.
func TenantAmong(ids ...string) func(domain.Metadata) (string, error) {
	return func(says domain.Metadata) (string, error) {
		if slices.Contains(ids, says.TenantID) {
			return says.TenantID, nil
		}
		return "", fmt.Errorf("the message is of tenant %.100q, for whom its sender may not speak", says.TenantID)
	}
}

// FixedTenant is a [Trust].Tenant for a sender who acts for one tenant, whatever its
// messages say.
func FixedTenant(id string) func(domain.Metadata) (string, error) {
	return func(domain.Metadata) (string, error) { return id, nil }
}

func (t Trust) isZero() bool { return t.kind == 0 && t.Tenant == nil && !t.names() }

// names says whether t has a field besides Tenant.
func (t Trust) names() bool { return t.Correlation || t.Trace || t.Priority || len(t.Extensions) > 0 }

func (t Trust) traces() bool { return t.kind == trusted || t.Trace }

// withDefaults needs a stream whose Broker is known.
func (in Inbound) withDefaults(s Stream) Inbound {
	if in.Trust.isZero() {
		if in.Trust = Untrusted(); s.Units != nil && s.Broker == s.Units.Broker() {
			in.Trust = Trusted()
		}
	}
	if in.MaxBytes == 0 {
		in.MaxBytes = defaultMaxBytes
		if in.Trust.kind == trusted && s.Units != nil {
			if own := s.Units.MaxMessageBytes(); own > in.MaxBytes || own == 0 {
				in.MaxBytes = own
			}
		}
	}
	return in
}

// check returns what is wrong with in.
func (in Inbound) check() error {
	var errs []error
	if strings.ContainsFunc(in.Topic, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }) {
		errs = append(errs, fmt.Errorf("Inbound.Topic is %q, which no topic is called: name it as the broker does, or leave it out for that of Category", in.Topic))
	}
	if in.MaxBytes < -1 {
		errs = append(errs, fmt.Errorf("Inbound.MaxBytes is %d: above 0, 0 for 1 MiB, or -1 for no limit", in.MaxBytes))
	}
	if in.Trust.kind == trusted && in.Trust.names() {
		errs = append(errs, errors.New("Inbound.Trust is Trusted() and names what is taken over: Trusted takes over all; leave it out to take over what is named"))
	}
	for _, name := range in.Trust.Extensions {
		switch name {
		case "":
			errs = append(errs, errors.New("Inbound.Trust.Extensions has an empty name: take it out"))
		case outbox.TenantExtension:
			errs = append(errs, fmt.Errorf("Inbound.Trust.Extensions names %q: the tenant is taken over by Trust.Tenant, as subscription.TenantAmong(…)", name))
		}
	}
	return errors.Join(errs...)
}
