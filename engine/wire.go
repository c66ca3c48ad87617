package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/absent"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/internal/timerdb"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

// stream is a subscription and the database of its inbox.
type stream struct {
	name, provider string
	letters        string // the name of its dead letters, which streams of a process share
	runner         *subscription.Runner
	started        *atomic.Bool
	lag            *cached[found[subscription.Lag]]
}

func (s stream) behind(ctx context.Context) (f found[subscription.Lag]) {
	f.value, f.err = s.runner.Lag(ctx)
	return f
}

// wiring collects what is wrong while the parts are put together.
type wiring struct {
	*Engine
	errs []error
}

func (w *wiring) fail(format string, args ...any) {
	w.errs = append(w.errs, fmt.Errorf(format, args...))
}

// wire makes the parts of the engine from its configuration.
func (e *Engine) wire() error {
	w := &wiring{Engine: e}
	w.checkServer()
	w.contexts()
	w.brokers()
	w.units()
	w.subscriptions()
	if e.cfg.StopTimeout < 0 {
		w.fail("StopTimeout is %v: above 0, or 0 for %v", e.cfg.StopTimeout, defaultStopTimeout)
	}
	if err := e.cfg.Outbox.Check(); err != nil {
		w.errs = append(w.errs, err)
	}
	if err := e.cfg.DeadLetters.Check(); err != nil {
		w.errs = append(w.errs, err)
	}
	if err := e.cfg.App.check(); err != nil {
		w.errs = append(w.errs, err)
	}
	if len(w.errs) == 0 {
		w.processors()
		w.feeders()
	}
	if err := errors.Join(w.errs...); err != nil {
		return fmt.Errorf("engine: %w", err)
	}
	return nil
}

func (w *wiring) checkServer() {
	s := w.cfg.Server
	if err := s.Check(); err != nil {
		w.errs = append(w.errs, err)
	} else {
		var errs []error
		w.keys, errs = newKeyring(s.tokens(), w.log)
		w.errs = append(w.errs, errs...)
	}
	operates := slices.ContainsFunc(s.tokens(), func(t Token) bool { return t.Role == RoleOperate })
	if s.ShowPayloads && !operates {
		w.fail("server.show_payloads shows what messages carry to those who send a token of role operate, and there is none: set server.token, or leave it out")
	}
	if s.Addr == "" {
		return
	}
	if _, _, err := net.SplitHostPort(s.Addr); err != nil {
		w.fail("server.addr is %q: write host:port, such as 127.0.0.1:9000; port 0 picks a free one", s.Addr)
		return
	}
	if len(s.tokens()) == 0 && !isLoopback(s.Addr) {
		w.fail("server.addr %q can be reached from other machines and there is no token: set server.tokens, or listen on 127.0.0.1", s.Addr)
	}
}

// Check returns all that is wrong with tokens and names, as far as no file of
// tokens needs to be read, each with the key that it has in a configuration file.
func (s Server) Check() error {
	errs := s.checkTokens()
	for i, name := range s.Redact {
		if strings.Trim(name, ".") == "" || slices.Contains(strings.Split(name, "."), "") {
			errs = append(errs, fmt.Errorf("server.redact[%d] is %q: write a field's name, or the end of its path, as in customer.email", i, name))
		}
	}
	return errors.Join(errs...)
}

// isLoopback says whether host:port can only be reached from this machine.
func isLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = addr
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func (w *wiring) brokers() {
	var seen []string
	for _, name := range slices.Sorted(maps.Keys(w.cfg.Brokers)) {
		b := w.cfg.Brokers[name]
		gone := absent.Is(b)
		if gone {
			w.fail("broker %q is nil: open it, and look at the error of that, or leave it out", name)
		}
		for _, other := range seen {
			if !gone && same(b, w.cfg.Brokers[other]) {
				w.fail("brokers %q and %q are one and the same, so both would use the same topics: give one of them a prefix, broker.Prefixed(b, %q)", other, name, name+".")
			}
		}
		seen = append(seen, name)
		w.links[name] = &link{name: name, Broker: b, foreign: map[string]bool{}, log: w.log}
	}
}

// same compares interfaces whose values may not be comparable.
func same(a, b any) bool {
	return reflect.TypeOf(a) == reflect.TypeOf(b) && reflect.ValueOf(a).Comparable() && a == b
}

func (w *wiring) known(what, name string) *link {
	l, ok := w.links[name]
	if !ok {
		w.fail("%s names broker %q, which is not in Brokers; there are %q", what, name, slices.Sorted(maps.Keys(w.cfg.Brokers)))
	}
	return l
}

// units finds the databases, and the lanes and topics that contexts need.
func (w *wiring) units() {
	if len(w.cfg.Units) == 0 {
		w.fail("Units and Contexts are empty: add what uow.New returned")
	}
	for i, m := range w.cfg.Units {
		if m == nil {
			w.fail("Units[%d] is nil: add what uow.New returned", i)
			continue
		}
		if slices.Contains(w.cfg.Units[:i], m) {
			w.fail("Units[%d] stands there twice: remove one", i)
			continue
		}
		context := "context " + m.Domain().Name()
		for _, p := range m.Providers() {
			w.database(context, m, p)
		}
		if m.OutboxDisabled() {
			continue
		}
		w.target(m, m.Broker(), false, context, categoryTopics(m.Domain()))
		for _, t := range m.External() {
			w.target(m, t.Broker, true, "an external target of "+context, externalTopics(m.Domain(), t))
		}
	}
}

func (w *wiring) database(context string, m *uow.Manager, p uow.Provider) {
	i := slices.IndexFunc(w.databases, func(d *database) bool { return d.provider.Name() == p.Name() })
	if i < 0 {
		i = len(w.databases)
		w.databases = append(w.databases, newDatabase(p, w.log))
	}
	d := w.databases[i]
	if !same(d.provider, p) {
		w.fail("two different providers are called %q, one of them in %s: share one, or give them different names", p.Name(), context)
		return
	}
	if err := d.add(m); err != nil {
		w.fail("%s: %w", context, err)
	}
}

// target adds a lane for a broker to every database of m.
func (w *wiring) target(m *uow.Manager, name string, external bool, what string, topics []string) {
	l := w.known(what, name)
	if l == nil {
		return
	}
	l.add(topics...)
	l.carries(m.MaxMessageBytes())
	for _, p := range m.Providers() {
		for _, d := range w.databases {
			if d.provider.Name() == p.Name() {
				d.lane(l, external)
			}
		}
	}
}

// categoryTopics are where a context's own messages go, on the internal broker. An aggregate
// without events sends nothing, and its program may lack the right to make a topic.
func categoryTopics(d *domain.Domain) []string {
	var topics []string
	for _, e := range d.Events() {
		if !e.Foreign {
			topics = append(topics, outbox.DefaultTopic(e.Category))
		}
	}
	for _, category := range commandCategories(d) {
		topics = append(topics, outbox.DefaultTopic(category))
	}
	return topics
}

// externalTopics are those that a partner gets something on.
func externalTopics(d *domain.Domain, t outbox.Target) []string {
	var topics []string
	for _, e := range d.Events() {
		if !wants(t, e) {
			continue
		}
		topic, mapped := t.Topics[e.Category]
		if !mapped {
			topic = outbox.DefaultTopic(e.Category)
		}
		topics = append(topics, topic)
	}
	return topics
}

func wants(t outbox.Target, e *domain.EventType) bool {
	return e.Published && !e.Foreign && (t.Events == nil || slices.Contains(t.Events, e.ShortName()))
}

// published are a context's published events.
func published(m *uow.Manager) []string {
	names := []string{}
	for _, e := range m.Domain().Events() {
		if wants(outbox.Target{}, e) {
			names = append(names, e.ShortName())
		}
	}
	return names
}

// renamed are the names under which events of a context were stored before, with those
// that they have now.
func renamed(m *uow.Manager) map[string]string {
	names := map[string]string{}
	for _, e := range m.Domain().Events() {
		for _, before := range e.Aliases() {
			if !e.Foreign {
				names[before] = e.ShortName()
			}
		}
	}
	return names
}

// private are the wire names of a context's events that aren't published, in all versions
// that it reads: it may write an older one.
func private(m *uow.Manager) []string {
	var names []string
	for _, e := range m.Domain().Events() {
		if !e.Published && !e.Foreign {
			for _, version := range e.Reads() {
				names = append(names, e.WireNameOf(version))
			}
		}
	}
	return names
}

// homeless are the published events of a context that no external broker gets.
func homeless(m *uow.Manager, all []*uow.Manager) []string {
	var names []string
	for _, e := range m.Domain().Events() {
		wanted := slices.ContainsFunc(m.External(), func(t outbox.Target) bool { return wants(t, e) })
		if e.Published && !e.Foreign && !wanted && !heard(e, m, all) {
			names = append(names, e.ShortName())
		}
	}
	return names
}

// heard says whether another context of the engine knows an event: it needn't go
// outside to be part of a contract.
func heard(e *domain.EventType, by *uow.Manager, all []*uow.Manager) bool {
	return slices.ContainsFunc(all, func(m *uow.Manager) bool {
		return m != by && slices.ContainsFunc(m.Domain().Events(), func(o *domain.EventType) bool { return o.Foreign && o.Name == e.Name })
	})
}

func (w *wiring) subscriptions() {
	names := map[string]bool{}
	for _, s := range w.cfg.Subscriptions {
		if s.Units == nil && len(w.cfg.Units) == 1 {
			s.Units = w.cfg.Units[0]
		}
		s = s.WithDefaults()
		what := fmt.Sprintf("subscription %q", s.Name)
		if names[s.Name] {
			w.fail("two subscriptions are called %q, so each would take the other's messages: give one of them another Name", s.Name)
		}
		names[s.Name] = true
		if s.Units != nil && !slices.Contains(w.cfg.Units, s.Units) {
			w.fail("%s: its Units, those of context %s, are not among the engine's: add them", what, s.Units.Domain().Name())
		}
		w.checkCategory(what, s)
		cfg := w.cfg.Outbox.WithDefaults()
		if tried := cfg.Retry.Horizon() + cfg.Lease; s.InboxRetention != -1 && s.RedeliveryHorizon < tried {
			w.fail("%s: RedeliveryHorizon is %v, but the outbox of this engine tries a message for up to %v (outbox.retry and lease), and would then send it again to an inbox that has forgotten it: raise RedeliveryHorizon and InboxRetention", what, s.RedeliveryHorizon, tried.Round(time.Second))
		}
		var b broker.Broker = unknown{}
		if l := w.known(what, s.Broker); l != nil {
			l.add(s.Topic())
			b = l.Broker
		}
		r, err := subscription.NewRunner(subscription.RunnerConfig{Stream: s, Broker: b, Logger: w.log, TracerProvider: w.cfg.TracerProvider})
		if err != nil {
			w.errs = append(w.errs, err)
			continue
		}
		w.streams = append(w.streams, stream{name: s.Name, provider: s.Provider, letters: s.Letters(), runner: r, started: new(atomic.Bool)})
	}
}

// unknown stands for a broker that there isn't: the rest of its stream is looked at.
type unknown struct{ broker.Broker }

func (unknown) Capabilities() broker.Capabilities { return broker.Capabilities{} }

// checkCategory finds a stream that no aggregate of a context raises to, where that
// context is one of the engine's: its runner knows the context's name alone.
func (w *wiring) checkCategory(what string, s subscription.Stream) {
	name, _, _ := strings.Cut(s.Category, "::")
	for _, m := range w.cfg.Units {
		if m == nil || m.Domain().Name() != name || m.Broker() != s.Broker {
			continue
		}
		var categories []string
		for _, a := range m.Domain().Aggregates() {
			categories = append(categories, a.Category)
		}
		categories = append(categories, ownCategories(m.Domain())...)
		if !slices.Contains(categories, s.Category) {
			w.fail("%s: Category is %q, and no aggregate of context %s raises to it: read one of %q", what, s.Category, name, categories)
		}
	}
}

// processors makes one per database, unless none of its contexts has an outbox.
func (w *wiring) processors() {
	gate := relay.NewGate()
	for _, d := range w.databases {
		if len(d.lanes) == 0 {
			continue
		}
		w.checkConnections(d)
		p, err := relay.New(relay.Config{
			Provider: d.provider.Name(), Store: d.store, Lanes: d.lanes, Outbox: w.cfg.Outbox, Logger: w.log, TracerProvider: w.cfg.TracerProvider, Gate: gate,
			Private: d.private, Here: d.here,
		})
		if err != nil {
			w.errs = append(w.errs, err)
			continue
		}
		d.processor, d.onFailover = p, w.cfg.Outbox.WithDefaults().OnFailover
		d.promoter = timerdb.NewPromoter(d.timers, w.cfg.Outbox.WithDefaults().PollInterval, d.promoted, d.lanesTell, w.log.With("provider", d.provider.Name()))
	}
}

// checkConnections refuses a pool in which a unit of work leaves nothing for what is
// published. Leases have a connection of their own.
func (w *wiring) checkConnections(d *database) {
	const need = 2
	if p, ok := d.provider.(interface{ MaxConns() int }); ok && p.MaxConns() < need {
		w.fail("provider %q may have %d connection, and needs at least %d: one to publish beside units of work; raise max_conns (postgres.Config.MaxConns)",
			d.provider.Name(), p.MaxConns(), need)
	}
}
