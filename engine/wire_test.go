package engine

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

func ignore(context.Context, Sold) error { return nil }

// Conformance: A58, F-21.
func TestNew_RefusesWhatCannotWork(t *testing.T) {
	for name, c := range map[string]struct {
		change func(t *testing.T, b *bench, cfg *Config)
		want   []string
	}{
		"no units": {
			func(_ *testing.T, _ *bench, cfg *Config) { cfg.Units = nil },
			[]string{"Units and Contexts are empty: add what uow.New returned"},
		},
		"units that are nil, and that come twice": {
			func(_ *testing.T, b *bench, cfg *Config) { cfg.Units = []*uow.Manager{b.sales, nil, b.sales} },
			[]string{"Units[1] is nil", "Units[2] stands there twice"},
		},
		"A58: an external target without its broker": {
			func(_ *testing.T, b *bench, cfg *Config) { cfg.Brokers = map[string]broker.Broker{"default": b.main} },
			[]string{`an external target of context sales names broker "partner", which is not in Brokers; there are ["default"]`},
		},
		"A58: a context without its own broker": {
			func(_ *testing.T, b *bench, cfg *Config) {
				cfg.Brokers = map[string]broker.Broker{"partner": b.partner}
			},
			[]string{`context sales names broker "default"`, `context parcels names broker "default"`},
		},
		"A58: a subscription without its broker": {
			func(_ *testing.T, b *bench, cfg *Config) {
				s := b.orders(ignore)
				s.Broker = "elsewhere"
				cfg.Subscriptions = []subscription.Stream{s}
			},
			[]string{`subscription "parcels" names broker "elsewhere"`},
		},
		"an application's server without a handler": {
			func(_ *testing.T, _ *bench, cfg *Config) { cfg.App = App{Addr: "127.0.0.1:0"} },
			[]string{"App.Addr is set and App.Handler is not"},
		},
		"an application's handler without an address": {
			func(_ *testing.T, _ *bench, cfg *Config) { cfg.App = App{Handler: http.NotFoundHandler()} },
			[]string{"App.Handler is set and App.Addr is not"},
		},
		"an application's address without a port": {
			func(_ *testing.T, _ *bench, cfg *Config) {
				cfg.App = App{Addr: "localhost", Handler: http.NotFoundHandler()}
			},
			[]string{`App.Addr is "localhost": write host:port`},
		},
		"a broker that is nil": {
			func(_ *testing.T, _ *bench, cfg *Config) { cfg.Brokers["partner"] = nil },
			[]string{`broker "partner" is nil`},
		},
		"one broker under two names": {
			func(_ *testing.T, b *bench, cfg *Config) { cfg.Brokers["partner"] = b.main },
			[]string{`brokers "default" and "partner" are one and the same`, `broker.Prefixed(b, "partner.")`},
		},
		"one broker under two names with one prefix": {
			func(_ *testing.T, b *bench, cfg *Config) {
				cfg.Brokers["second"], cfg.Brokers["partner"] = broker.Prefixed(b.main, "p."), broker.Prefixed(b.main, "p.")
			},
			[]string{`brokers "partner" and "second" are one and the same, so both would use the same topics: give one of them a prefix`},
		},
		"two providers of one name": {
			func(t *testing.T, b *bench, cfg *Config) {
				cfg.Units[1] = units(t, uow.Config{Domain: parcels, Providers: []uow.Provider{openSQLite(t, "default")}})
			},
			[]string{`two different providers are called "default", one of them in context parcels`},
		},
		"two partition counts for one provider": {
			func(t *testing.T, b *bench, cfg *Config) {
				cfg.Units = []*uow.Manager{
					units(t, uow.Config{Domain: sales, Providers: []uow.Provider{b.db}, Partitions: 8}),
					units(t, uow.Config{Domain: parcels, Providers: []uow.Provider{b.db}, Partitions: 16}),
				}
			},
			[]string{"context parcels: it expects 16 partitions of provider \"default\", and another context expects 8"},
		},
		"two streams of one name": {
			func(_ *testing.T, b *bench, cfg *Config) {
				cfg.Subscriptions = []subscription.Stream{b.orders(ignore), b.orders(ignore)}
			},
			[]string{`two subscriptions are called "parcels"`},
		},
		"a subscription of units that the engine doesn't have": {
			func(_ *testing.T, b *bench, cfg *Config) {
				cfg.Units = []*uow.Manager{b.sales}
				cfg.Subscriptions = []subscription.Stream{b.orders(ignore)}
			},
			[]string{`subscription "parcels": its Units, those of context parcels, are not among the engine's`},
		},
		"a subscription without units, where there are two contexts": {
			func(_ *testing.T, b *bench, cfg *Config) {
				s := b.orders(ignore)
				s.Units = nil
				cfg.Subscriptions = []subscription.Stream{s}
			},
			[]string{`subscription "parcels": Units is missing`},
		},
		"a subscription with an unknown provider": {
			func(_ *testing.T, b *bench, cfg *Config) {
				s := b.orders(ignore)
				s.Provider = "archive"
				cfg.Subscriptions = []subscription.Stream{s}
			},
			[]string{`context parcels has no provider "archive"`},
		},
		"a handler for an event that isn't declared": {
			func(_ *testing.T, b *bench, cfg *Config) {
				s := b.orders(ignore)
				s.Handlers = []subscription.Handler{subscription.On(func(context.Context, SaleNoted) error { return nil })}
				cfg.Subscriptions = []subscription.Stream{s}
			},
			[]string{"SaleNoted is not declared"},
		},
		"a category of another context than the handler's event": { // N
			func(_ *testing.T, b *bench, cfg *Config) {
				s := b.orders(ignore)
				s.Category = "sale::sale"
				cfg.Subscriptions = []subscription.Stream{s}
			},
			[]string{`subscription "parcels": Handlers[0]: engine.Sold is the event Sales.SaleMade.v1, and Category is "sale::sale"`},
		},
		"a category that none of the context's aggregates has": { // N
			func(_ *testing.T, b *bench, cfg *Config) {
				s := b.orders(ignore)
				s.Category = "sales::sales"
				other := b.orders(ignore) // a partner's context may have the same name
				other.Name, other.Category, other.Broker = "partner", "sales::other", "partner"
				cfg.Subscriptions = []subscription.Stream{s, other}
			},
			[]string{`subscription "parcels": Category is "sales::sales", and no aggregate of context sales raises to it: read one of ["sales::sale"]`},
		},
		"an inbox that forgets what may come again": { // F-66
			func(_ *testing.T, b *bench, cfg *Config) {
				s := b.orders(ignore)
				s.InboxRetention, s.RedeliveryHorizon = time.Hour, 2*time.Hour
				other := b.orders(ignore)
				other.Name, other.RedeliveryHorizon, other.InboxRetention = "short", 10*time.Minute, 10*time.Minute
				cfg.Subscriptions = []subscription.Stream{s, other}
			},
			[]string{
				`subscription "parcels": InboxRetention is 1h0m0s, but a message may come again for 2h0m0s (RedeliveryHorizon)`,
				`subscription "short": RedeliveryHorizon is 10m0s, but the outbox of this engine tries a message for up to`,
			},
		},
		"an address that others reach, without a token": {
			func(_ *testing.T, _ *bench, cfg *Config) { cfg.Server.Addr = ":9000" },
			[]string{`server.addr ":9000" can be reached from other machines and there is no token: set server.tokens`},
		},
		"an address that is none": {
			func(_ *testing.T, _ *bench, cfg *Config) { cfg.Server.Addr = "9000" },
			[]string{`server.addr is "9000": write host:port`},
		},
		"an outbox setting that is wrong": {
			func(_ *testing.T, _ *bench, cfg *Config) { cfg.Outbox.Calls = -1 },
			[]string{"outbox.calls is -1"},
		},
		"a negative stop timeout": {
			func(_ *testing.T, _ *bench, cfg *Config) { cfg.StopTimeout = -time.Second },
			[]string{"StopTimeout is -1s"},
		},
		"all at once": {
			func(_ *testing.T, b *bench, cfg *Config) {
				cfg.Brokers = nil
				cfg.Outbox.Lease = time.Millisecond
				cfg.Server.Addr = "0.0.0.0:1"
				s := b.orders(ignore)
				s.Handlers = nil
				cfg.Subscriptions = []subscription.Stream{s}
			},
			[]string{"names broker", "outbox.lease", "server.token", "Handlers is empty"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			cfg := b.config()
			c.change(t, b, &cfg)
			_, err := New(cfg)
			for _, want := range c.want {
				require.ErrorContains(t, err, want)
			}
		})
	}
}

func TestNew_AddressesThatOnlyThisMachineReaches(t *testing.T) {
	for addr, want := range map[string]bool{
		"127.0.0.1:1": true, "127.8.0.1:1": true, "localhost:1": true, "[::1]:1": true,
		":1": false, "0.0.0.0:1": false, "[::]:1": false, "10.0.0.1:1": false, "localhost.example:1": false,
	} {
		require.Equal(t, want, isLoopback(addr), addr)
	}
}

func TestNew_APrefixMakesTwoBrokersOfOne(t *testing.T) {
	b := setup(t)
	cfg := b.config()
	cfg.Brokers["partner"] = broker.Prefixed(b.main, "partner.")
	cfg.Brokers["second"] = broker.Prefixed(b.main, "second.")
	b.make(cfg)
}

func TestNew_TheOnlyUnitsAreTheSubscriptions(t *testing.T) {
	b := setup(t)
	cfg := b.config()
	cfg.Units = []*uow.Manager{b.parcels}
	s := b.orders(ignore)
	s.Units = nil
	cfg.Subscriptions = []subscription.Stream{s}
	b.make(cfg)
}

// One processor per provider, with one lane per target of all its contexts.
func TestNew_LanesOfSeveralContexts(t *testing.T) {
	b := setup(t)
	archive := openSQLite(t, "archive")
	cfg := b.config()
	cfg.Brokers["second"] = broker.Prefixed(b.main, "second.")
	cfg.Units = []*uow.Manager{
		units(t, uow.Config{Domain: sales, Providers: []uow.Provider{b.db, archive}, External: []outbox.Target{{Broker: "partner"}, {Broker: "second"}}}),
		units(t, uow.Config{Domain: parcels, Providers: []uow.Provider{b.db}, Broker: "second"}),
	}
	e := b.make(cfg)
	lanes := map[string]map[string]bool{}
	for _, d := range e.databases {
		lanes[d.provider.Name()] = map[string]bool{}
		for _, l := range d.lanes {
			lanes[d.provider.Name()][l.Target] = l.External
		}
	}
	require.Equal(t, map[string]map[string]bool{
		// A broker that is some context's own is no external one, though another
		// context sends to it as to a partner.
		"default": {"default": false, "partner": true, "second": false},
		"archive": {"default": false, "partner": true, "second": true},
	}, lanes)
}

func TestNew_Topics(t *testing.T) {
	type kept struct{ domain.Root }
	type Kept struct{}
	type mute struct{ domain.Root }
	d := domain.MustNew("shop",
		domain.Aggregate[*sale]("sale", domain.Event[SaleMade](domain.Published())),
		domain.Aggregate[*parcel]("parcel", domain.Event[ParcelSent](domain.Published())),
		domain.Aggregate[*kept]("kept", domain.Event[Kept]()),
		domain.Aggregate[*mute]("mute"), // sends nothing, and has no topic
	)
	b := setup(t)
	cfg := b.config()
	cfg.Units = []*uow.Manager{b.parcels, units(t, uow.Config{
		Domain: d, Providers: []uow.Provider{b.db},
		External: []outbox.Target{{Broker: "partner", Events: []string{"SaleMade"}, Topics: map[string]string{"shop::sale": "bought"}}},
	})}
	cfg.Subscriptions = []subscription.Stream{b.orders(ignore)}
	e := b.make(cfg)
	require.Equal(t, []string{"parcels.parcel", "sales.sale", "shop.kept", "shop.parcel", "shop.sale"}, e.links["default"].topics)
	require.Equal(t, []string{"bought"}, e.links["partner"].topics, "a partner learns no other name")
}
