package engine

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/process"
	"github.com/waybill-go/waybill/projection"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

type Weigh struct {
	ParcelID string `json:"parcel_id"`
}

type Invoice struct {
	ParcelID string `json:"parcel_id"`
}

// scales is a context with commands, its own and another's.
var scales = domain.MustNew("scales",
	domain.Command[Weigh](domain.KeyedBy("parcel_id")),
	domain.ForeignCommand[Invoice]("accounts", "Accounts.Invoice.v1", domain.KeyedBy("parcel_id")),
)

func weighing(t *testing.T, units *uow.Manager) *command.Handlers {
	t.Helper()
	h, err := command.New(command.Config{Units: units, Handlers: []command.Handler{command.On(func(context.Context, Weigh) error { return nil })}})
	require.NoError(t, err)
	return h
}

func TestContexts_WrongDeclarationsTogether(t *testing.T) {
	b := setup(t)
	weighed := units(t, uow.Config{Domain: scales, Providers: []uow.Provider{b.db}})
	lonely := units(t, uow.Config{Domain: scales, Providers: []uow.Provider{b.db}})
	cfg := b.config()
	cfg.Units = []*uow.Manager{b.sales, lonely}
	cfg.Contexts = []Context{{}, {Units: b.sales}, {Units: b.sales}, {Units: b.parcels, Commands: weighing(t, weighed)}}
	_, err := New(cfg)
	for _, part := range []string{
		"Contexts[0] has no Units", "Contexts[2]: the units of context sales stand in another of Contexts, too",
		"Contexts[3]: Commands belong to units of context scales, and Units are others",
		"context scales declares commands, and nothing handles them: add engine.Context",
	} {
		require.ErrorContains(t, err, part)
	}
	require.ErrorContains(t, Migrate(t.Context(), b.sales, nil), "engine: units[1] are nil: give what uow.New returned")
	var unopened *memory.Broker
	cfg = b.config()
	cfg.Brokers = map[string]broker.Broker{"default": unopened}
	_, err = New(cfg)
	require.ErrorContains(t, err, `broker "default" is nil: open it`)
	_, err = process.New(nil, nil, nil)
	require.ErrorContains(t, err, "process: the units of work are nil")
	_, err = projection.New(nil, nil, nil)
	require.ErrorContains(t, err, "projection: the units of work are nil")
	_, err = New(Config{})
	require.ErrorContains(t, err, "Units and Contexts are empty")
}

// An engine removes idempotency keys whose time is over.
func TestContexts_KeysAreForgotten(t *testing.T) {
	b := setup(t)
	weighed := units(t, uow.Config{Domain: scales, Providers: []uow.Provider{b.db}})
	require.NoError(t, Migrate(t.Context(), weighed))
	h := weighing(t, weighed)
	for _, key := range []string{"old", "new"} {
		require.NoError(t, h.Do(t.Context(), Weigh{"p1"}, command.Once(key)))
	}
	_, err := b.db.DB().ExecContext(t.Context(), "UPDATE command_keys SET expires_at = '2026-01-01T00:00:00.000Z' WHERE key = 'old'")
	require.NoError(t, err)
	cfg := b.config()
	cfg.Contexts = []Context{{Commands: h}}
	b.start(cfg)
	waittest.Until(t, func() bool {
		var left []string
		require.NoError(t, b.db.Reader().NewRaw("SELECT key FROM command_keys").Scan(t.Context(), &left))
		return len(left) == 1 && left[0] == "new"
	})
}

// A context brings its units, its streams, which are of its units, and the subscription of
// its commands; the topics of these are made, and of those that it sends to others.
func TestContexts_BringAllThatTheyRun(t *testing.T) {
	b := setup(t)
	weighed := units(t, uow.Config{Domain: scales, Providers: []uow.Provider{b.db}})
	cfg := b.config()
	cfg.Units = []*uow.Manager{b.sales}
	cfg.Contexts = []Context{
		{Units: b.sales},
		{Units: b.parcels, Subscriptions: []subscription.Stream{{Name: "parcels.sales", Category: "sales::sale", Handlers: []subscription.Handler{
			subscription.On(func(context.Context, Sold) error { return nil }),
		}}}},
		{Commands: weighing(t, weighed)},
	}
	main := strict{Broker: memory.New(memory.Config{})}
	cfg.Brokers["default"] = broker.Broker(main)
	e, err := New(cfg)
	require.NoError(t, err)
	require.NoError(t, Migrate(t.Context(), weighed))
	require.NoError(t, e.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, e.Stop(context.Background())) })
	require.Contains(t, e.Subscriptions(), "parcels.sales")
	require.Contains(t, e.Subscriptions(), "scales.commands")
	require.Subset(t, main.Topics(), []string{"scales.commands", "accounts.commands"})
	require.Len(t, e.cfg.Units, 3)
	require.Len(t, cfg.Units, 1, "the caller's configuration stays as it is")
}
