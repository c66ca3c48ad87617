package engine

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

// S3-03: the processor runs as part of the engine, and ends with it.
func TestRun_S3_03_PublishesUntilItIsStopped(t *testing.T) {
	b := setup(t)
	sent := repository.New[*parcel](b.parcels)
	cfg := b.config()
	cfg.Subscriptions = []subscription.Stream{b.orders(func(ctx context.Context, _ Sold) error {
		m := mustMetadata(ctx)
		p := newParcel(m.AggregateID)
		return sent.Save(ctx, p)
	})}
	e := b.make(cfg)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()

	b.sell(3)
	eventually(t, func() bool { return len(b.main.Messages("sales.sale")) == 3 })
	eventually(t, func() bool { return len(b.partner.Messages("sales.sale")) == 3 })
	eventually(t, func() bool { return len(b.main.Messages("parcels.parcel")) == 3 })
	require.Empty(t, b.partner.Messages("parcels.parcel"), "parcels has no partner")
	require.EqualValues(t, 3, e.Subscriptions()["parcels"].Handled)

	stop()
	require.NoError(t, <-ended, "a clean stop")
	b.sell(1)
	stats, err := outboxdb.New(b.db.DB(), b.db.Reader()).Stats(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, stats["default"].Counts[outbox.Pending], "nobody publishes any more")
	require.EqualValues(t, 6, stats["default"].Counts[outbox.Published])
	require.Empty(t, stats["default"].LeaseOwners, "partitions were released")
	require.Empty(t, stats["partner"].LeaseOwners)
}

// C-79, C-80: a subscription is paused and resumed while the rest goes on, and
// tells how far it is behind.
func TestRun_C_79_PauseAndResume(t *testing.T) {
	b := setup(t)
	cfg := b.config()
	cfg.Subscriptions = []subscription.Stream{b.orders(func(context.Context, Sold) error { return nil })}
	e := b.make(cfg)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	require.EqualError(t, e.Pause("other"), `engine: there is no subscription "other"; there are ["parcels"]`)
	require.Error(t, e.Resume("other"))
	_, err := e.Lag(t.Context(), "other")
	require.Error(t, err)

	require.NoError(t, e.Pause("parcels"))
	b.sell(3)
	eventually(t, func() bool {
		l, err := e.Lag(t.Context(), "parcels")
		return err == nil && l.Messages == 3
	})
	require.Len(t, b.main.Messages("sales.sale"), 3)
	require.Zero(t, e.Subscriptions()["parcels"].Handled)
	require.NoError(t, e.Resume("parcels"))
	eventually(t, func() bool { return e.Subscriptions()["parcels"].Handled == 3 })
	stop()
	require.NoError(t, <-ended)
}

// What a subscription's handlers need is away: that shows, and the rest goes on.
func TestRun_AnOpenBreakerShows(t *testing.T) {
	b := setup(t)
	cfg := b.guarded()
	var away atomic.Bool
	away.Store(true)
	cfg.Subscriptions = []subscription.Stream{b.orders(func(context.Context, Sold) error {
		if away.Load() {
			return errors.New("the depot doesn't answer")
		}
		return nil
	})}
	e := b.start(cfg)
	b.sell(6)
	var h health
	eventually(t, func() bool { return get(t, e, "/readyz", &h) == 200 && h.Status == "degraded" })
	require.False(t, *h.Components.Subscriptions["parcels"].OK)
	require.Contains(t, *h.Components.Subscriptions["parcels"].Error, "the depot doesn't answer")
	away.Store(false)
	eventually(t, func() bool { return get(t, e, "/readyz", &h) == 200 && h.Status == "ready" })
}

// C-56: the commit wakes the processor: no poll comes for an hour.
// Conformance: S1-04, S2-28.
func TestRun_CommitsWakeTheProcessor(t *testing.T) {
	b := setup(t)
	cfg := b.config()
	cfg.Outbox = outbox.Config{PollInterval: time.Hour, MaxPollInterval: time.Hour}
	b.start(cfg)
	for i := range 5 {
		b.sell(1)
		eventually(t, func() bool { return len(b.main.Messages("sales.sale")) == i+1 })
		eventually(t, func() bool { return len(b.partner.Messages("sales.sale")) == i+1 })
	}
}

func TestStart_MissingTablesSayWhatToDo(t *testing.T) {
	b := setup(t)
	fresh := openEmpty(t, "fresh")
	cfg := b.config()
	cfg.Units = append(cfg.Units, units(t, uow.Config{Domain: sales, Providers: []uow.Provider{fresh}}))
	e := b.make(cfg)
	err := e.Start(t.Context())
	require.ErrorContains(t, err, `provider "fresh": tables of outbox are missing; run `+"`waybill migrate`")
	require.NotContains(t, err.Error(), "default")
	_, err = net.Dial("tcp", e.Addr())
	require.Error(t, err, "what was started before has ended")
	require.ErrorContains(t, e.Start(t.Context()), "make another")
}

func TestStart_AnotherPartitionCount(t *testing.T) {
	b := setup(t)
	cfg := b.config()
	cfg.Units = []*uow.Manager{units(t, uow.Config{Domain: parcels, Providers: []uow.Provider{b.db}, Partitions: 7})}
	err := b.make(cfg).Start(t.Context())
	var wrong *outbox.PartitionsError
	require.ErrorAs(t, err, &wrong)
	require.ErrorContains(t, err, `provider "default": outbox: the database has 64 partitions, the configuration says 7; the count is fixed by the first migration: configure 64, or leave it out`)

	cfg.Units = []*uow.Manager{units(t, uow.Config{Domain: parcels, Providers: []uow.Provider{b.db}, Partitions: 64})}
	b.start(cfg)
}

func TestStart_AnAddressInUse(t *testing.T) {
	b := setup(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	cfg := b.config()
	cfg.Server.Addr = l.Addr().String()
	require.ErrorContains(t, b.make(cfg).Start(t.Context()), "port 0 for a free one")
}

// denying is a broker that lets nobody create topics.
type denying struct{ broker.Broker }

func (denying) EnsureTopics(context.Context, ...string) error {
	return broker.Classify(broker.Permanent, errors.New("not authorised"))
}

func TestStart_ABrokerThatRefusesForGood(t *testing.T) {
	b := setup(t)
	cfg := b.config()
	cfg.Brokers["partner"] = denying{b.partner}
	err := b.make(cfg).Start(t.Context())
	require.ErrorContains(t, err, `broker "partner": create topics ["sales.sale"]: not authorised`)
	stats, err := outboxdb.New(b.db.DB(), b.db.Reader()).Stats(t.Context())
	require.NoError(t, err)
	require.Empty(t, stats["default"].LeaseOwners, "the other lane was stopped, too")

	cfg.Brokers["partner"] = broker.Prefixed(denying{b.partner}, "p.")
	require.ErrorContains(t, b.make(cfg).Start(t.Context()), `create topics ["sales.sale"] behind topic_prefix "p.": not authorised`)
}

func TestStart_CreatesTopics(t *testing.T) {
	b := setup(t)
	b.start(b.config())
	require.Equal(t, []string{"parcels.parcel", "sales.sale"}, b.main.Topics())
	require.Equal(t, []string{"sales.sale"}, b.partner.Topics())
}

// Conformance: S1-01, S2-02.
func TestStart_ABrokerThatIsDownIsWaitedFor(t *testing.T) {
	b := setup(t)
	b.partner.SetOutage(true)
	e := b.start(b.config())
	b.sell(2)
	eventually(t, func() bool { return len(b.main.Messages("sales.sale")) == 2 })
	var h health
	eventually(t, func() bool {
		code := get(t, e, "/readyz", &h)
		return code == 200 && h.Status == "degraded" && !*h.Components.Brokers["partner"].OK
	})
	b.partner.SetOutage(false)
	eventually(t, func() bool { return len(b.partner.Messages("sales.sale")) == 2 })
	eventually(t, func() bool { return get(t, e, "/readyz", &h) == 200 && h.Status == "ready" })
	stats, err := outboxdb.New(b.db.DB(), b.db.Reader()).Stats(t.Context())
	require.NoError(t, err)
	require.Zero(t, stats["partner"].Counts[outbox.Abandoned], "the outage cost nothing but time")
	require.NotEmpty(t, b.logs.with("level=WARN", "the broker doesn't answer", "broker=partner"))
}

// B11: a broker that is away at the start is a reason that names it, also where
// only a subscription needs it, which joins when the broker comes.
func TestStart_B11_HealthNamesABrokerThatIsAway(t *testing.T) {
	b := setup(t)
	supplier := memory.New(memory.Config{})
	supplier.SetOutage(true)
	cfg := b.config()
	cfg.Brokers["supplier"] = supplier
	handled := make(chan struct{}, 1)
	s := b.orders(func(context.Context, Sold) error { handled <- struct{}{}; return nil })
	s.Broker = "supplier"
	cfg.Subscriptions = []subscription.Stream{s}
	e := b.start(cfg)
	d := diagnosed(t, e, "broker_down")
	require.Equal(t, degraded, d.State)
	require.Equal(t, "supplier", d.Reasons[0].Broker)
	require.NotNil(t, d.Reasons[0].Since)
	require.Contains(t, d.Reasons[0].Text, "broker supplier: it doesn't answer")
	require.Contains(t, d.Reasons[0].Text, "continue by themselves")
	b.sell(1)
	eventually(t, func() bool { return len(b.partner.Messages("sales.sale")) == 1 })

	supplier.SetOutage(false)
	diagnosed(t, e)
	require.NoError(t, supplier.Publish(t.Context(), b.main.Messages("sales.sale")))
	<-handled
}

// bare is a broker without topics until somebody creates them.
type bare struct {
	*memory.Broker
	refuse, created atomic.Bool
}

func (b *bare) EnsureTopics(ctx context.Context, topics ...string) error {
	if b.refuse.Load() {
		return errors.New("no leader yet")
	}
	b.created.Store(true)
	return b.Broker.EnsureTopics(ctx, topics...)
}

func (b *bare) Publish(ctx context.Context, messages []broker.Message) error {
	if !b.created.Load() {
		return broker.Classify(broker.Permanent, errors.New("no such topic"))
	}
	return b.Broker.Publish(ctx, messages)
}

// What publishes to topics that could not be created would be abandoned.
func TestStart_NothingIsPublishedBeforeItsTopicExists(t *testing.T) {
	b := setup(t)
	partner := &bare{Broker: b.partner}
	partner.refuse.Store(true)
	cfg := b.config()
	cfg.Brokers["partner"] = partner
	e := b.start(cfg)
	b.sell(1)
	eventually(t, func() bool {
		var report outboxReport
		require.Equal(t, 200, get(t, e, "/api/outbox", &report))
		lane := report.Providers["default"]["partner"]
		return *lane.Breaker != "closed" && lane.LastError != nil && strings.Contains(*lane.LastError, "no leader yet")
	})
	partner.refuse.Store(false)
	eventually(t, func() bool { return len(b.partner.Messages("sales.sale")) == 1 })
}

// S3-08: one processor per provider, each with its own rows; a database that is
// down stops no other, neither at the start nor later.
func TestStart_S3_08_ADatabaseThatIsDownStopsNoOther(t *testing.T) {
	b := setup(t)
	other := newFaulty(t, "analytics")
	analytics := units(t, uow.Config{Domain: parcels, Providers: []uow.Provider{other}})
	require.NoError(t, Migrate(t.Context(), analytics))
	other.down.Store(true)
	cfg := b.config()
	cfg.Units = []*uow.Manager{b.sales, analytics}
	handled := make(chan struct{}, 100)
	s := b.orders(func(context.Context, Sold) error { handled <- struct{}{}; return nil })
	s.Units = analytics
	cfg.Subscriptions = []subscription.Stream{s}
	e := b.start(cfg)

	b.sell(2)
	eventually(t, func() bool { return len(b.main.Messages("sales.sale")) == 2 })
	var h health
	require.Equal(t, 503, get(t, e, "/readyz", &h))
	require.Equal(t, "unavailable", h.Status)
	require.True(t, *h.Components.Providers["default"].OK)
	require.False(t, *h.Components.Providers["analytics"].OK)
	require.Contains(t, *h.Components.Providers["analytics"].Error, "connection refused")

	other.down.Store(false)
	sent := repository.New[*parcel](analytics)
	require.NoError(t, sent.Save(t.Context(), newParcel("p-1")))
	eventually(t, func() bool { return len(b.main.Messages("parcels.parcel")) == 1 })
	eventually(t, func() bool { return len(handled) == 2 })
	eventually(t, func() bool { return get(t, e, "/readyz", &h) == 200 && h.Status == "ready" })

	other.down.Store(true)
	b.sell(1)
	eventually(t, func() bool { return len(b.main.Messages("sales.sale")) == 3 })
	eventually(t, func() bool { return get(t, e, "/readyz", &h) == 503 })
	other.down.Store(false)
	require.NoError(t, sent.Save(t.Context(), newParcel("p-2")))
	eventually(t, func() bool { return len(b.main.Messages("parcels.parcel")) == 2 })
}

// S3-29: without an outbox there are no rows, no tables and no processor.
func TestRun_S3_29_NoOutbox(t *testing.T) {
	b := setup(t)
	db := openEmpty(t, "plain")
	plain := units(t, uow.Config{Domain: sales, Providers: []uow.Provider{db}, NoOutbox: true})
	require.NoError(t, Migrate(t.Context(), plain))
	require.Error(t, outboxdb.Migrations().Check(t.Context(), db.Reader()), "no tables")
	require.NoError(t, Check(t.Context(), plain))
	cfg := b.config()
	cfg.Units = []*uow.Manager{plain}
	e := b.start(cfg)
	require.NoError(t, repository.New[*sale](plain).Save(t.Context(), newSale(1)))
	var report outboxReport
	require.Equal(t, 200, get(t, e, "/api/outbox", &report))
	require.Equal(t, map[string]map[string]laneReport{"plain": {}}, report.Providers)
	require.Empty(t, b.main.Topics())

	// Enabled later, it needs only the tables.
	later := units(t, uow.Config{Domain: sales, Providers: []uow.Provider{db}})
	require.NoError(t, Migrate(t.Context(), later))
	require.NoError(t, Check(t.Context(), later))
}

// A59: warns_when_published_events_without_external_brokers.
func TestStart_A59_WarnsOfPublishedEventsThatGoNowhere(t *testing.T) {
	b := setup(t)
	b.start(b.config())
	warnings := b.logs.with("level=WARN", "published events go to no external broker")
	require.Len(t, warnings, 1, "one for parcels, none for sales")
	require.Contains(t, warnings[0], "context=parcels")
	require.Contains(t, warnings[0], "events=ParcelSent")
}

// An event that another context here knows is published for that one.
func TestStart_PublishedForAContextOfTheEngine(t *testing.T) {
	b := setup(t)
	ear := units(t, uow.Config{Providers: []uow.Provider{b.db}, Domain: domain.MustNew("ear", domain.Foreign[Sold]("Parcels.ParcelSent.v1"))})
	require.NoError(t, Migrate(t.Context(), ear))
	cfg := b.config()
	cfg.Units = append(cfg.Units, ear)
	b.start(cfg)
	require.Empty(t, b.logs.with("level=WARN", "published events go to no external broker"))
}

func TestCheck_And_Migrate(t *testing.T) {
	b := setup(t)
	fresh := openEmpty(t, "fresh")
	m := units(t, uow.Config{Domain: sales, Providers: []uow.Provider{b.db, fresh}, Partitions: 8})
	require.ErrorContains(t, Check(t.Context(), m), `provider "fresh": tables of outbox are missing`)
	err := Migrate(t.Context(), m)
	require.ErrorContains(t, err, `provider "default": outbox: the database has 64 partitions, the configuration says 8`)
	n, err := outboxdb.Partitions(t.Context(), fresh.Reader())
	require.NoError(t, err)
	require.Equal(t, 8, n, "one provider's trouble is not another's")
	require.NoError(t, Check(t.Context(), b.sales, b.parcels))

	another := openEmpty(t, "another")
	require.NoError(t, MigrateProvider(t.Context(), another, 4))
	m = units(t, uow.Config{Domain: sales, Providers: []uow.Provider{another}, Partitions: 4})
	require.ErrorContains(t, Check(t.Context(), m), "the database does not know yet that context sales sends to default; run engine.Migrate")
	require.NoError(t, Migrate(t.Context(), m))
	require.NoError(t, Check(t.Context(), m))
}

func TestStart_And_Stop_AreIdempotent(t *testing.T) {
	b := setup(t)
	e := b.make(b.config())
	require.NoError(t, e.Stop(t.Context()), "it never ran")
	require.Empty(t, e.Addr())
	require.NoError(t, e.Start(t.Context()))
	require.NoError(t, e.Start(t.Context()))
	require.NotEmpty(t, e.Addr())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, e.Run(ctx), "it goes on with what was started, and stops")
	require.NoError(t, e.Stop(t.Context()))
	require.ErrorContains(t, e.Start(t.Context()), "an engine runs once")
}

func TestRun_StoppedWhileItStarts(t *testing.T) {
	b := setup(t)
	other := newFaulty(t, "slow")
	other.hung.Store(true)
	cfg := b.config()
	cfg.Units = append(cfg.Units, units(t, uow.Config{Domain: sales, Providers: []uow.Provider{other}}))
	ctx, cancel := context.WithCancel(t.Context())
	e := b.make(cfg)
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	var h health
	eventually(t, func() bool { return e.Addr() != "" })
	require.Equal(t, 503, get(t, e, "/readyz", &h))
	require.Equal(t, "starting", h.Status)
	cancel()
	require.NoError(t, <-ended)
}

// While handlers finish, the engine says that it is draining, and its pages
// answer at once.
func TestStop_LetsHandlersFinish(t *testing.T) {
	b := setup(t)
	entered, release := make(chan struct{}), make(chan struct{})
	cfg := b.config()
	cfg.Subscriptions = []subscription.Stream{b.orders(func(context.Context, Sold) error {
		close(entered)
		<-release
		return nil
	})}
	e := b.make(cfg)
	require.NoError(t, e.Start(t.Context()))
	b.sell(1)
	<-entered
	ended := make(chan error, 1)
	go func() { ended <- e.Stop(context.Background()) }()
	var h health
	eventually(t, func() bool { return get(t, e, "/readyz", &h) == 503 && h.Status == "draining" })
	var report outboxReport
	require.Equal(t, 200, get(t, e, "/api/outbox", &report))
	require.Equal(t, 200, get(t, e, "/livez", &map[string]string{}))
	close(release)
	require.NoError(t, <-ended)
	require.EqualValues(t, 1, e.Subscriptions()["parcels"].Handled)
	require.Zero(t, b.main.Unacknowledged("sales.sale", "parcels"))
}

func TestStop_LetsCallsFinish(t *testing.T) {
	b := setup(t)
	e := b.make(b.config())
	require.NoError(t, e.Start(t.Context()))
	release := b.partner.Stall()
	b.sell(1)
	eventually(t, func() bool { return len(b.partner.Calls()) == 1 })
	ended := make(chan error, 1)
	go func() { ended <- e.Stop(context.Background()) }()
	var h health
	eventually(t, func() bool { return get(t, e, "/readyz", &h) == 503 && h.Status == "draining" })
	require.Equal(t, 200, get(t, e, "/api/outbox", &outboxReport{}))
	release()
	require.NoError(t, <-ended)
	stats, err := outboxdb.New(b.db.DB(), b.db.Reader()).Stats(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, stats["partner"].Counts[outbox.Published], "settled")
	require.Len(t, b.partner.Messages("sales.sale"), 1)
}

// hangs has a projection, and a subscription whose handler ends only when it is cut off. entered
// is closed when it runs.
func (b *bench) hangs() (cfg Config, entered chan struct{}) {
	entered = make(chan struct{})
	cfg, _ = b.shows(b.config(), nil)
	cfg.Subscriptions = []subscription.Stream{b.orders(func(ctx context.Context, _ Sold) error {
		close(entered)
		<-ctx.Done()
		return ctx.Err()
	})}
	return cfg, entered
}

// A handler that doesn't end is cut off, and leaves time for projections to end, and to release
// partitions.
// Conformance: A79.
func TestStop_IsBounded(t *testing.T) {
	b := setup(t)
	cfg, entered := b.hangs()
	cfg.StopTimeout = 2 * time.Second
	ctx, cancel := context.WithCancel(t.Context())
	e := b.make(cfg)
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	b.sell(1)
	<-entered
	eventually(t, func() bool { return e.phase.Load() == running })
	cancel()
	err := <-ended
	require.ErrorContains(t, err, `subscription "parcels"`)
	require.NotContains(t, err.Error(), "processor")
	require.NotContains(t, err.Error(), "projection")
	stats, err := outboxdb.New(b.db.DB(), b.db.Reader()).Stats(t.Context())
	require.NoError(t, err)
	require.Empty(t, stats["default"].LeaseOwners)
	require.Equal(t, 1, b.main.Unacknowledged("sales.sale", "parcels"), "it comes again")
}

// What a stop cuts off is said also where it ends a start: a handler may run by then.
func TestRun_SaysWhatIsCutOffWhereItEndsTheStart(t *testing.T) {
	b := setup(t)
	cfg, entered := b.hangs()
	cfg.StopTimeout = time.Second
	ctx, cancel := context.WithCancel(t.Context())
	e := b.make(cfg)
	hook := queryHook(func(query string) {
		if strings.Contains(query, "projection") && e.streams[0].started.Load() {
			<-entered
			cancel()
		}
	})
	b.db.DB().AddQueryHook(hook)     //nolint:staticcheck // WithQueryHook makes another DB than the engine's
	b.db.Reader().AddQueryHook(hook) //nolint:staticcheck // likewise
	b.sell(1)
	require.ErrorContains(t, e.Run(ctx), `subscription "parcels"`)
	require.NotEqual(t, running, e.phase.Load())
}

// queryHook sees each query before it runs.
type queryHook func(query string)

func (h queryHook) BeforeQuery(ctx context.Context, event *bun.QueryEvent) context.Context {
	h(event.Query)
	return ctx
}

func (queryHook) AfterQuery(context.Context, *bun.QueryEvent) {}

// A brief outage of everything ends nothing.
func TestRun_OutlivesABrokersRestart(t *testing.T) {
	b := setup(t)
	handled := make(chan struct{}, 100)
	cfg := b.config()
	cfg.Subscriptions = []subscription.Stream{b.orders(func(context.Context, Sold) error { handled <- struct{}{}; return nil })}
	e := b.start(cfg)
	b.sell(1)
	eventually(t, func() bool { return len(handled) == 1 })
	b.main.SetOutage(true)
	b.sell(1)
	var h health
	eventually(t, func() bool { return get(t, e, "/readyz", &h) == 200 && h.Status == "degraded" })
	b.main.SetOutage(false)
	eventually(t, func() bool { return len(handled) == 2 })
	eventually(t, func() bool { return get(t, e, "/readyz", &h) == 200 && h.Status == "ready" })
}

func TestRun_EndsWhenItsServerFails(t *testing.T) {
	b := setup(t)
	e := b.make(b.config())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(t.Context()) }()
	eventually(t, func() bool { return e.phase.Load() == running })
	require.NoError(t, e.server.listener.Close())
	require.ErrorContains(t, <-ended, "HTTP server")
}

// S12: the engine removes dead letters that are over, also of subscriptions that it
// doesn't run, and leaves open ones.
func TestRun_S12_DeadLettersThatAreOverGo(t *testing.T) {
	b := setup(t)
	put := func(status, at string) {
		_, err := b.db.DB().ExecContext(t.Context(), "INSERT INTO dead_letters (id, subscription, topic, partition_key, key_id, message_id, headers, error, reason, attempts, first_at, last_at, status, holds)"+
			" VALUES (lower(hex(randomblob(16))), 'gone', 't', 'k', 'k', 'm', '{}', 'no', 'failed', 8, ?0, ?0, ?1, TRUE)", at, status)
		require.NoError(t, err)
	}
	left := func() (all []string) {
		require.NoError(t, b.db.Reader().NewRaw("SELECT status FROM dead_letters ORDER BY seq").Scan(t.Context(), &all))
		return all
	}
	const old = "2026-01-02T03:04:05.678Z"
	put("replayed", old)
	put("parked", old)
	put("discarded", old)
	put("replayed", time.Now().UTC().Format("2006-01-02T15:04:05.000Z"))
	cfg := b.config()
	cfg.DeadLetters.Every = 50 * time.Millisecond
	b.start(cfg)
	eventually(t, func() bool { return len(left()) == 2 })
	require.Equal(t, []string{"parked", "replayed"}, left())
	eventually(t, func() bool { return len(b.logs.with("dead letters that were over were removed", "letters=2")) == 1 })
	put("discarded", old)
	eventually(t, func() bool { return len(left()) == 2 })

	cfg.DeadLetters.Batch = -1
	_, err := New(cfg)
	require.ErrorContains(t, err, "subscriptions.dead_letters.batch is -1")
}
