package config

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

// leaves yields the paths of all keys of a form.
func leaves(v reflect.Value, path string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, k := range keysOf(v.Type()) {
			if k.typ.Kind() != reflect.Struct {
				if !yield(join(path, k.name)) {
					return
				}
				continue
			}
			for p := range leaves(v.FieldByIndex(k.index), join(path, k.name)) {
				if !yield(p) {
					return
				}
			}
		}
	}
}

// fakeProvider is a database in name only.
type fakeProvider struct {
	uow.Provider
	name   string
	cfg    providerConfig
	closed int
}

type providerConfig struct {
	DSN  string        `yaml:"dsn"`
	Path string        `yaml:"path"`
	Wait time.Duration `yaml:"wait"`
	Pool struct {
		Max int `yaml:"max"`
	} `yaml:"pool"`
	Common `yaml:",inline"`
	Logger *slog.Logger // can't be written in a file
}

type Common struct {
	Label string
}

func (p *fakeProvider) Name() string { return p.name }
func (p *fakeProvider) Close() error { p.closed++; return nil }

// fakeBroker counts its ends.
type fakeBroker struct {
	broker.Broker
	cfg    brokerConfig
	topics []string
	closed int
}

type brokerConfig struct {
	Addresses []string `yaml:"addresses"`
}

func (b *fakeBroker) EnsureTopics(_ context.Context, topics ...string) error {
	b.topics = append(b.topics, topics...)
	return nil
}
func (b *fakeBroker) Close(context.Context) error { b.closed++; return nil }

type placed struct{}

type order struct{ domain.Root }

var (
	ordering = domain.MustNew("ordering", domain.Aggregate[*order]("order", domain.Event[placed](domain.Published())))
	shipping = domain.MustNew("shipping")
)

// world has what was opened.
type world struct {
	Kinds
	mu        sync.Mutex // everything is opened at the same time
	providers []*fakeProvider
	brokers   []*fakeBroker
}

func newWorld() *world {
	w := &world{}
	w.Kinds = Kinds{
		Providers: map[string]OpenProvider{"sqlite": func(_ context.Context, name string, s broker.Settings) (uow.Provider, error) {
			p := &fakeProvider{name: name}
			if err := s.Decode(&p.cfg); err != nil {
				return nil, err
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			w.providers = append(w.providers, p)
			return p, nil
		}},
		Brokers: map[string]broker.Opener{"memory": func(_ context.Context, s broker.Settings) (broker.Broker, error) {
			b := &fakeBroker{}
			if err := s.Decode(&b.cfg); err != nil {
				return nil, err
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			w.brokers = append(w.brokers, b)
			return b, nil
		}},
	}
	return w
}

// A program says once where to log; brokers without that say nothing of it.
func TestLoad_BrokersLogWhereTheEngineDoes(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	for _, want := range []*slog.Logger{log, nil} {
		w := newWorld()
		w.Logger = want
		open := w.Kinds.Brokers["memory"]
		var got *slog.Logger
		w.Kinds.Brokers["memory"] = func(ctx context.Context, s broker.Settings) (broker.Broker, error) {
			got = broker.LoggerOf(s)
			return open(ctx, s)
		}
		s, err := Load(t.Context(), write(t, smallest), ordering, w.Kinds)
		require.NoError(t, err)
		require.Same(t, want, got)
		require.Same(t, want, s.Engine.Logger)
		require.NoError(t, s.Close(t.Context()))
	}
}

func TestLoad(t *testing.T) {
	w := newWorld()
	s, err := Load(t.Context(), write(t, smallest+`history: true
outbox:
  external_brokers: [{broker: partner}]
  calls: 2
  partitions: 8
server: {addr: "127.0.0.1:0", token: a-secret-of-tests}
`), ordering, w.Kinds)
	require.NoError(t, err)
	require.Same(t, ordering, s.Units.Domain())
	require.Equal(t, []*uow.Manager{s.Units}, s.Engine.Units)
	require.Equal(t, "default", s.Units.Broker())
	require.Equal(t, []outbox.Target{{Broker: "partner"}}, s.Units.External())
	require.Equal(t, 8, s.Units.Partitions())
	require.True(t, s.Units.KeepsHistory())
	require.Equal(t, 2, s.Engine.Outbox.Calls)
	require.Equal(t, "127.0.0.1:0", s.Engine.Server.Addr)
	require.Equal(t, "a-secret-of-tests", s.Engine.Server.Token)
	require.Equal(t, "./ordering.db", w.providers[0].cfg.Path)

	shippingUnits, err := s.UnitsFor(shipping)
	require.NoError(t, err)
	require.Same(t, w.providers[0], shippingUnits.Providers()[0].(*fakeProvider), "the same database")
	require.Empty(t, shippingUnits.External(), "external brokers are the named domain's")
	require.False(t, shippingUnits.KeepsHistory(), "so is the history")
	require.Equal(t, 8, shippingUnits.Partitions())

	require.Len(t, w.brokers, 1, "equal brokers share one connection")
	require.NoError(t, s.Engine.Brokers["partner"].EnsureTopics(t.Context(), "ordering.order"))
	require.NoError(t, s.Engine.Brokers["default"].EnsureTopics(t.Context(), "ordering.order"))
	require.Equal(t, []string{"partner.ordering.order", "ordering.order"}, w.brokers[0].topics)

	require.NoError(t, s.Close(t.Context()))
	require.Equal(t, 1, w.brokers[0].closed)
	require.Equal(t, 1, w.providers[0].closed)
}

func TestLoad_EveryBrokerMayHaveAPrefix(t *testing.T) {
	w := newWorld()
	s, err := Load(t.Context(), write(t, `domain: ordering
providers: {default: {dialect: sqlite}}
brokers: {default: {kind: memory, topic_prefix: mine., addresses: [a]}, other: {kind: memory, addresses: [b]}}
`), ordering, w.Kinds)
	require.NoError(t, err)
	require.Len(t, w.brokers, 2)
	require.NoError(t, s.Engine.Brokers["default"].EnsureTopics(t.Context(), "t"))
	topics := append(w.brokers[0].topics, w.brokers[1].topics...)
	require.Equal(t, []string{"mine.t"}, topics)
}

func TestOpenDatabases_OpensNoBroker(t *testing.T) {
	f, err := Parse(write(t, smallest+"outbox: {external_brokers: [partner]}\n"))
	require.NoError(t, err)
	w := newWorld()
	s, err := f.OpenDatabases(t.Context(), ordering, w.Kinds)
	require.NoError(t, err)
	require.Empty(t, w.brokers)
	require.Len(t, w.providers, 1)
	require.Equal(t, []outbox.Target{{Broker: "partner"}}, s.Units.External(), "rows for partners are written all the same")
	require.NoError(t, s.Close(t.Context()))
}

func TestOpen_AProgramsOwnDefaults(t *testing.T) {
	f, err := Parse(write(t, smallest))
	require.NoError(t, err)
	f.Outbox.Lease = 5 * time.Second
	s, err := f.Open(t.Context(), ordering, newWorld().Kinds)
	require.NoError(t, err)
	require.Equal(t, 5*time.Second, s.Engine.Outbox.Lease)
}

func TestOpen_AllMistakesAtOnce(t *testing.T) {
	f, err := Parse(write(t, `domain: ordering
providers: {default: {dialect: sqlit}, other: {dialect: sqlite}}
brokers: {default: {kind: memry}}
`))
	require.NoError(t, err)
	w := newWorld()
	_, err = f.Open(t.Context(), shipping, w.Kinds)
	require.ErrorContains(t, err, `providers.default.dialect is "sqlit"; did you mean "sqlite"?`)
	require.ErrorContains(t, err, `brokers.default.kind is "memry"; did you mean "memory"?`)
	require.ErrorContains(t, err, `waybill.yaml: domain is "ordering", and this program is of "shipping"`)
	require.Empty(t, w.providers, "nothing was opened")
}

// What a target says of events, extensions and topics is checked against the
// domain before anything is opened, with all other mistakes.
func TestOpen_ExternalBrokersThatDoNotFitTheDomain(t *testing.T) {
	f, err := Parse(write(t, `domain: ordering
providers: {default: {dialect: sqlite}}
brokers: {default: {kind: memry}, a: {kind: memory, topic_prefix: a.}, b: {kind: memory, topic_prefix: b.}}
outbox:
  external_brokers:
    - {broker: a, events: [shipped], extensions: ["user id"], topics: {"ordering::oder": orders}}
    - {broker: b, envelope: cloudevents-binary, extensions: [subject], versions: {placed: 2}}
`))
	require.NoError(t, err)
	w := newWorld()
	_, err = f.Open(t.Context(), ordering, w.Kinds)
	for _, want := range []string{
		`brokers.default.kind is "memry"`,
		`external broker "a": context ordering declares no event "shipped"`,
		`external broker "a": extension "user id" can't be the name of a header`,
		`external broker "a": topics names the stream category "ordering::oder"`,
		`external broker "b": versions has 2 for "placed", which is written in version 1`,
		`external broker "b": extension "subject" would be the attribute "subject" of a CloudEvent`,
	} {
		require.ErrorContains(t, err, want)
	}
	require.Empty(t, w.providers)
	require.Empty(t, w.brokers)
}

func TestOpen_DomainAndBrokersAreRequired(t *testing.T) {
	f, err := Parse(write(t, "providers: {default: {dialect: sqlite}}\n"))
	require.NoError(t, err)
	_, err = f.Open(t.Context(), ordering, newWorld().Kinds)
	require.ErrorContains(t, err, "waybill.yaml: domain is missing: write `domain: ordering`")
	require.ErrorContains(t, err, "brokers is missing")
}

func TestOpen_ClosesWhatItOpenedWhenAnotherFails(t *testing.T) {
	f, err := Parse(write(t, `domain: ordering
providers: {default: {dialect: sqlite}, other: {dialect: sqlite, path: x}}
brokers: {default: {kind: memory}, down: {kind: memory, addresses: [x]}}
`))
	require.NoError(t, err)
	w := newWorld()
	open := w.Kinds.Brokers["memory"]
	w.Kinds.Brokers["memory"] = func(ctx context.Context, s broker.Settings) (broker.Broker, error) {
		b, err := open(ctx, s)
		if err == nil && b.(*fakeBroker).cfg.Addresses != nil {
			return nil, errors.Join(b.Close(ctx), errors.New("nobody there"))
		}
		return b, err
	}
	_, err = f.Open(t.Context(), ordering, w.Kinds)
	require.ErrorContains(t, err, "brokers.down: nobody there")
	for _, p := range w.providers {
		require.Equal(t, 1, p.closed)
	}
	for _, b := range w.brokers {
		require.Equal(t, 1, b.closed)
	}
}

func TestSettings_AreStrict(t *testing.T) {
	f, err := Parse(write(t, `domain: ordering
providers:
  default: {dialect: sqlite, pth: x, wait: 0, pool: {maxx: 3}, logger: x}
brokers:
  default: {kind: memory, topic_prefx: p., addresses: {}}
`))
	require.NoError(t, err)
	_, err = f.Open(t.Context(), ordering, newWorld().Kinds)
	require.ErrorContains(t, err, `waybill.yaml:3: providers.default.pth is not a known key; did you mean "path"?`)
	require.ErrorContains(t, err, "providers.default.logger is not a known key")
	require.ErrorContains(t, err, `providers.default.wait is 0, which would mean the default`)
	require.ErrorContains(t, err, `providers.default.pool.maxx is not a known key; did you mean "max"?`)
	require.ErrorContains(t, err, `waybill.yaml:5: brokers.default.topic_prefx is not a known key; did you mean "topic_prefix"?`)
	require.ErrorContains(t, err, `brokers.default.addresses must be a list`)
}

func TestSettings_VariablesOverrideThem(t *testing.T) {
	t.Setenv("WAYBILL_PROVIDERS_DEFAULT_DSN", "postgres://u:p%20w@h/db?a=b,c")
	t.Setenv("WAYBILL_PROVIDERS_DEFAULT_WAIT", "3s")
	t.Setenv("WAYBILL_PROVIDERS_DEFAULT_POOL_MAX", "12")
	t.Setenv("WAYBILL_BROKERS_DEFAULT_ADDRESSES", "a:1, b:2")
	w := newWorld()
	_, err := Load(t.Context(), write(t, smallest), ordering, w.Kinds)
	require.NoError(t, err)
	require.Equal(t, "postgres://u:p%20w@h/db?a=b,c", w.providers[0].cfg.DSN)
	require.Equal(t, 3*time.Second, w.providers[0].cfg.Wait)
	require.Equal(t, 12, w.providers[0].cfg.Pool.Max)
	require.Len(t, w.brokers, 2, "default and partner are two now")
	require.ElementsMatch(t, [][]string{{"a:1", "b:2"}, nil}, [][]string{w.brokers[0].cfg.Addresses, w.brokers[1].cfg.Addresses})

	t.Setenv("WAYBILL_PROVIDERS_DEFAULT_WAIT", "soon")
	_, err = Load(t.Context(), write(t, smallest), ordering, newWorld().Kinds)
	require.ErrorContains(t, err, "WAYBILL_PROVIDERS_DEFAULT_WAIT: providers.default.wait is \"soon\"")
}

func TestSettings_AliasesAndEmptyValues(t *testing.T) {
	w := newWorld()
	_, err := Load(t.Context(), write(t, `domain: ordering
providers: {default: {dialect: sqlite, path: ~, label: l, dsn: &d "x?y"}}
brokers: {default: {kind: memory, addresses: [*d]}}
outbox:
server: {addr: }
`), ordering, w.Kinds)
	require.NoError(t, err)
	require.Empty(t, w.providers[0].cfg.Path)
	require.Equal(t, "l", w.providers[0].cfg.Label, "of a struct within the struct")
	require.Equal(t, []string{"x?y"}, w.brokers[0].cfg.Addresses)
}

// A kind that the program doesn't have is an error that says what to name.
func TestLoad_KindThatIsNotLinkedSaysWhatToImport(t *testing.T) {
	for kind, words := range map[string]string{
		"watermill-kafka": `Kinds.Brokers["watermill-kafka"], which is kafka.FromSettings of github.com/waybill-go/waybill/broker/watermill/kafka`,
		"kafka":           `Kinds.Brokers["kafka"], which is kafka.FromSettings of github.com/waybill-go/waybill/broker/kafka`,
		"nats":            `Kinds.Brokers["nats"], which is nats.FromSettings of github.com/waybill-go/waybill/broker/nats`,
	} {
		_, err := Load(t.Context(), write(t, "domain: ordering\nproviders: {default: {dialect: sqlite}}\nbrokers: {default: {kind: "+kind+"}}\n"), ordering, newWorld().Kinds)
		require.ErrorContains(t, err, words)
	}
}
