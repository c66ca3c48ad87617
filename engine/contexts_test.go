package engine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
)

// strict is a broker that makes no topic by itself, as Kafka and NATS don't.
type strict struct {
	*memory.Broker
	denied string // a topic that nobody may create
}

func (b strict) EnsureTopics(ctx context.Context, topics ...string) error {
	if slices.Contains(topics, b.denied) {
		return broker.Classify(broker.Permanent, errors.New("not authorised"))
	}
	return b.Broker.EnsureTopics(ctx, topics...)
}

func (b strict) Publish(ctx context.Context, messages []broker.Message) error {
	failed := map[int]error{}
	var known []broker.Message
	for i, m := range messages {
		if slices.Contains(b.Topics(), m.Topic) {
			known = append(known, m)
		} else {
			failed[i] = broker.Scoped(broker.Transient, broker.ScopeTopic, errors.New("no such topic"))
		}
	}
	if err := b.Broker.Publish(ctx, known); err != nil || len(failed) == 0 {
		return err
	}
	return &broker.PublishError{Failed: failed}
}

// two contexts, each with a manager, an engine and connections of its own, in one
// database, as two processes have them.
type two struct {
	*bench
	sales, parcels Config
}

func twoProcesses(t *testing.T) two {
	t.Helper()
	b := setup(t)
	u := newDatabaseOn(t)
	process := func(cfg uow.Config, brokers map[string]broker.Broker) Config {
		cfg.Providers = []uow.Provider{openPostgres(t, postgres.Config{DSN: u.String()})}
		m := units(t, cfg)
		require.NoError(t, Migrate(t.Context(), m))
		c := b.config()
		c.Units, c.Brokers = []*uow.Manager{m}, brokers
		return c
	}
	main := strict{Broker: b.main}
	p := two{
		bench:   b,
		sales:   process(uow.Config{Domain: sales, External: []outbox.Target{{Broker: "partner"}}}, map[string]broker.Broker{"default": main, "partner": strict{Broker: b.partner}}),
		parcels: process(uow.Config{Domain: parcels}, map[string]broker.Broker{"default": main}),
	}
	b.sales, b.parcels = p.sales.Units[0], p.parcels.Units[0]
	b.repo = repository.New[*sale](b.sales)
	return p
}

// Two contexts in one database, an engine for each: the events of each go to
// those who consume them, and to its own partners only.
func TestContexts_EachInAProcessOfItsOwn(t *testing.T) {
	p := twoProcesses(t)
	sent := repository.New[*parcel](p.bench.parcels)
	p.parcels.Subscriptions = []subscription.Stream{p.orders(func(ctx context.Context, _ Sold) error {
		return sent.Save(ctx, newParcel(mustMetadata(ctx).AggregateID))
	})}
	p.start(p.sales)
	e := p.start(p.parcels)
	p.sell(50)
	eventually(t, func() bool { return len(p.main.Messages("parcels.parcel")) == 50 })
	require.Len(t, p.main.Messages("sales.sale"), 50)
	require.EqualValues(t, 50, e.Subscriptions()["parcels"].Handled)
	eventually(t, func() bool { return len(p.partner.Messages("sales.sale")) == 50 })
	require.Equal(t, []string{"sales.sale"}, p.partner.Topics())

	all, err := outboxdb.ReadTargets(t.Context(), p.bench.sales.Providers()[0].Reader())
	require.NoError(t, err)
	require.Equal(t, map[string]string{"sales": "default,partner", "parcels": "default"},
		map[string]string{"sales": all["sales"].String(), "parcels": all["parcels"].String()})
}

// Only the engine of parcels runs. What sales tells the broker that both have, it
// publishes too, under topics that it has to create; what sales tells its partner
// waits, unspent, for an engine that has the partner. Both are told.
func TestContexts_OnlyOneOfTwoRuns(t *testing.T) {
	p := twoProcesses(t)
	e := p.start(p.parcels)
	require.Len(t, p.logs.with("level=INFO", "another context of the database sends to a broker that this engine doesn't have", "context=sales", "broker=partner"), 1)
	p.sell(20)
	eventually(t, func() bool { return len(p.main.Messages("sales.sale")) == 20 })
	var report outboxReport
	eventually(t, func() bool {
		require.Equal(t, 200, get(t, e, "/api/outbox", &report))
		return report.Providers["default"]["default"].Counts[outbox.Published] == 20
	})
	waiting := report.Providers["default"]["partner"]
	require.EqualValues(t, 20, waiting.Counts[outbox.Pending])
	require.Empty(t, waiting.LeaseOwners)
	store := outboxdb.New(p.bench.sales.Providers()[0].DB(), p.bench.sales.Providers()[0].Reader())
	rows, err := store.Find(t.Context(), outbox.Filter{})
	require.NoError(t, err)
	require.Len(t, rows, 40)
	for _, r := range rows {
		require.LessOrEqual(t, r.Attempts, 1)
		require.Empty(t, r.LastError)
	}

	p.start(p.sales)
	eventually(t, func() bool { return len(p.partner.Messages("sales.sale")) == 20 })
}

// A topic of another context that can't be created holds up nothing else.
func TestContexts_ATopicThatCannotBeCreated(t *testing.T) {
	p := twoProcesses(t)
	p.parcels.Brokers = map[string]broker.Broker{"default": strict{p.main, "sales.sale"}}
	p.parcels.Server.Token = token
	e := p.start(p.parcels)
	p.sell(3)
	sent := repository.New[*parcel](p.bench.parcels)
	for _, id := range []string{"a", "b", "c"} {
		require.NoError(t, sent.Save(t.Context(), newParcel(id)))
	}
	eventually(t, func() bool { return len(p.main.Messages("parcels.parcel")) == 3 })
	var report outboxReport
	eventually(t, func() bool {
		require.Equal(t, 200, get(t, e, "/api/outbox", &report))
		lane := report.Providers["default"]["default"]
		return lane.Counts[outbox.Pending] == 3 && lane.LastError != nil && strings.Contains(*lane.LastError, "no such topic")
	})
	eventually(t, func() bool {
		return slices.Equal(e.databases[0].status()["default"].OpenTopics, []string{"sales.sale"})
	})
}

// N10: private events are on the context's own broker, too, so that another context
// can handle them. It is told once that nobody promised it anything; of published
// ones nothing is said, and partners' messages don't speak of it.
func TestContexts_AForeignPrivateEventIsWarnedOf(t *testing.T) {
	type Noted struct{}
	b := setup(t)
	curious := units(t, uow.Config{Providers: []uow.Provider{b.db}, Domain: domain.MustNew("curious",
		domain.Aggregate[*parcel]("copy", domain.Event[ParcelSent]()),
		domain.Foreign[Sold]("Sales.SaleMade.v1"), domain.Foreign[Noted]("Sales.SaleNoted.v1"),
	)})
	require.NoError(t, Migrate(t.Context(), curious))
	var handled atomic.Int64
	cfg := b.config()
	cfg.Units = append(cfg.Units, curious)
	cfg.Subscriptions = []subscription.Stream{{
		Name: "curious", Category: "sales::sale", Units: curious,
		Handlers: []subscription.Handler{
			subscription.On(func(context.Context, Sold) error { handled.Add(1); return nil }),
			subscription.On(func(context.Context, Noted) error { handled.Add(1); return nil }),
		},
	}}
	b.start(cfg)
	for range 3 {
		s := newSale(1)
		s.Raise(SaleNoted{})
		require.NoError(t, b.repo.Save(t.Context(), s))
	}
	eventually(t, func() bool { return handled.Load() == 6 && len(b.partner.Messages("sales.sale")) == 3 })
	require.Len(t, b.logs.with("level=INFO", "doesn't publish", "subscription=curious"), 1)
	require.Len(t, b.logs.with("level=INFO", "doesn't publish", "type=Sales.SaleNoted.v1"), 1)
	for _, m := range b.partner.Messages("sales.sale") {
		require.False(t, outbox.IsPrivate(m.Headers))
	}
}
