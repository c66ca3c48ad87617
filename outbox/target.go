package outbox

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill/domain"
)

// Target is an external broker that published events go to. Bodies are final
// at commit, so whoever commits knows their form.
type Target struct {
	Broker     string            // Its name in the engine. Required.
	Envelope   Envelope          // The form of its messages. Defaults to Stripped.
	Events     []string          // Names such as "OrderPlaced". Nil: all published ones.
	Extensions []string          // Extensions that may leave; "tenant_id" is the tenant. Defaults to none.
	Topics     map[string]string // Stream category to topic, where it is not the broker's rule.
	// Versions are the events, by name such as "OrderPlaced", of which the target gets an
	// older version than is written: {"OrderPlaced": 1}. It gets that one only, through
	// domain.Downcast, until this is taken out; the context's own broker has the written one.
	Versions map[string]int
}

// Envelope is the form in which a target gets its messages.
type Envelope string

// The envelopes, under their names in configuration files.
const (
	// Stripped is the context's own envelope without what is internal.
	Stripped Envelope = "waybill"
	// CloudEvents is CloudEvents 1.0 in structured mode: attributes and data are in
	// the body.
	CloudEvents Envelope = "cloudevents"
	// CloudEventsBinary is CloudEvents 1.0 in binary mode: the body is the event's
	// data, and the attributes are native headers.
	CloudEventsBinary Envelope = "cloudevents-binary"
)

// Envelopes are all of them.
func Envelopes() []Envelope { return []Envelope{Stripped, CloudEvents, CloudEventsBinary} }

// TenantExtension is the extension in which an envelope names the tenant. It is
// the framework's: a user's extension can't have this name.
const TenantExtension = "tenant_id"

// headerName is a token of RFC 9110: what a native header can be called.
var headerName = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")

// Check returns all that is wrong with t for the events of d, or nil.
func (t Target) Check(d *domain.Domain) error {
	var errs []error
	fail := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("external broker %q: "+format, append([]any{t.Broker}, args...)...))
	}
	if t.Broker == "" {
		fail("it has no name: set Broker to the name that the engine has for it")
	}

	published, private := publishedNames(d)
	t.checkEvents(d, published, private, fail)
	for _, name := range slices.Sorted(maps.Keys(t.Versions)) {
		t.checkVersion(d, name, published, fail)
	}

	if !slices.Contains(Envelopes(), t.envelope()) {
		fail("envelope %q is not known: use one of %q, or leave it out for %q", t.Envelope, Envelopes(), Stripped)
	}
	t.checkExtensions(fail)
	t.checkTopics(d, fail)
	return errors.Join(errs...)
}

func (t Target) checkEvents(d *domain.Domain, published, private []string, fail func(string, ...any)) {
	if t.Events != nil && len(t.Events) == 0 {
		fail("events is empty, so nothing would go there: leave it out for all published events, or leave out the broker")
	}
	for _, name := range t.Events {
		switch {
		case name == "":
			fail("events has an empty name: take it out")
		case slices.Contains(private, name):
			fail("event %q is not published: declare it with domain.Published(), or take it out of events", name)
		case !slices.Contains(published, name):
			fail("context %s declares no event %q: name one of its published events %q", d.Name(), name, published)
		}
	}
}

func (t Target) checkExtensions(fail func(string, ...any)) {
	attributes := map[string]string{} // extension by attribute
	for _, name := range t.Extensions {
		if !headerName.MatchString(name) {
			fail("extension %q can't be the name of a header: use ASCII letters, digits, '-', '_' and '.'", name)
			continue
		}
		if t.envelope() == Stripped {
			continue
		}
		attribute, err := attributeOf(name)
		if err != nil {
			fail("%w", err)
			continue
		}
		if other, taken := attributes[attribute]; taken && other != name {
			fail("%w", sameAttribute(other, name, attribute))
		}
		attributes[attribute] = name
	}
}

func (t Target) checkTopics(d *domain.Domain, fail func(string, ...any)) {
	var categories []string
	for _, a := range d.Aggregates() {
		categories = append(categories, a.Category)
	}
	for _, category := range slices.Sorted(maps.Keys(t.Topics)) {
		if !slices.Contains(categories, category) {
			fail("topics names the stream category %q, which context %s doesn't have: use one of %q", category, d.Name(), categories)
		}
		if strings.TrimSpace(t.Topics[category]) == "" {
			fail("topics has no topic for %q: name one, or take the category out for the broker's rule", category)
		}
	}
}

func (t Target) checkVersion(d *domain.Domain, name string, published []string, fail func(string, ...any)) {
	i := slices.IndexFunc(d.Events(), func(e *domain.EventType) bool { return !e.Foreign && e.ShortName() == name })
	if i < 0 || !slices.Contains(published, name) {
		fail("versions names %q, which is no published event of context %s: name one of %q", name, d.Name(), published)
		return
	}
	e, version := d.Events()[i], t.Versions[name]
	switch {
	case !t.wants(e):
		fail("versions names %q, which events leaves out: take one of them out", name)
	case version > e.Written:
		fail("versions has %d for %q, which is written in version %d: name one that is older", version, name, e.Written)
	case !e.Reaches(e.Written, version):
		fail("versions has %d for %q, which is written in version %d, and nothing makes one of the other: declare domain.Downcast for each version from %d down, or correct the number", version, name, e.Written, e.Written)
	}
}

func publishedNames(d *domain.Domain) (published, private []string) {
	for _, e := range d.Events() {
		switch {
		case e.Foreign:
		case e.Published:
			published = append(published, e.ShortName())
		default:
			private = append(private, e.ShortName())
		}
	}
	return published, private
}

// wants says whether a published event goes to t.
func (t Target) wants(e *domain.EventType) bool {
	return t.Events == nil || slices.Contains(t.Events, e.ShortName())
}

func (t Target) envelope() Envelope { return cmp.Or(t.Envelope, Stripped) }

// allows says whether an extension may leave for t. What a request brings along is
// nobody's but ours, unless somebody has named it.
func (t Target) allows(extension string) bool { return slices.Contains(t.Extensions, extension) }

// TargetsFresh is for how long a writer relies on the targets that it has read.
// One whose list was changed behind its back is refused from then on, and until
// then no back-fill ends.
const TargetsFresh = 3 * time.Second

// Targets are the brokers that a context's rows are for. Every process that
// writes a context into a database must have the same ones: a broker that one of
// them doesn't know never gets its events, and nothing would show it. So they are
// written into the database when a context comes to it, by a migration or by an
// engine, and whoever has others is refused from then on.
type Targets struct {
	Broker   string   `json:"broker"`   // The context's own.
	External []string `json:"external"` // The partners', in any order.
	// Joining are those of External that get the earlier events from
	// engine.Backfill. Until it has ended, no unit of work writes rows for them.
	// That is a state of the database: a program's configuration doesn't have it.
	Joining []string `json:"joining,omitempty"`
	// History says whether units of work keep the context's events: all of them, or none,
	// whatever the configuration of their program says. It is a state of the database, too.
	History History `json:"history,omitempty"`
}

// History is whether a context's events are kept.
type History string

const (
	// HistoryStarting: not yet, and every unit of work looks whether they are by now.
	HistoryStarting History = "starting"
	// HistoryOn: each event is kept, since the transaction that wrote this.
	HistoryOn History = "on"
)

// TargetsOf are a context's targets, as uow.Config has them.
func TargetsOf(own string, external []Target) Targets {
	t := Targets{Broker: own}
	for _, e := range external {
		t.External = append(t.External, e.Broker)
	}
	return t
}

// Sorted is t as it is stored.
func (t Targets) Sorted() Targets {
	t.External = append([]string{}, t.External...)
	slices.Sort(t.External)
	t.Joining = slices.Compact(slices.Sorted(slices.Values(t.Joining)))
	return t
}

// Equal says whether t and o are the same brokers, joining or not, with a history or
// without.
func (t Targets) Equal(o Targets) bool {
	return t.Broker == o.Broker && slices.Equal(t.Sorted().External, o.Sorted().External)
}

// String is the form of `waybill migrate --set-targets`: "default,partner", the
// context's own first.
func (t Targets) String() string {
	return strings.Join(append([]string{t.Broker}, t.Sorted().External...), ",")
}

// Check returns what is wrong with t, or nil.
func (t Targets) Check() error {
	all := append([]string{t.Broker}, t.External...)
	slices.Sort(all)
	if slices.Contains(all, "") || len(slices.Compact(slices.Clone(all))) < len(all) {
		return fmt.Errorf("outbox: targets %q: name every broker, and none twice", t)
	}
	for _, j := range t.Joining {
		if !slices.Contains(t.External, j) {
			return fmt.Errorf("outbox: targets %q: %q can't join, as it is not an external broker of them", t, j)
		}
	}
	return nil
}
