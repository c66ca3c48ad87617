package engine

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
)

// diagnosed waits until an engine has exactly these reasons.
func diagnosed(t *testing.T, e *Engine, want ...string) (d diagnosis) {
	t.Helper()
	waittest.Until(t, func() bool {
		d = diagnosis{}
		require.Equal(t, http.StatusOK, get(t, e, "/api/health", &d))
		return strings.Join(codes(d), " ") == strings.Join(want, " ")
	}, "want %q, got %q", want, &d)
	return d
}

// A broker that panics crashes the call that it got; the engine goes on, and tells.
type panicking struct {
	broker.Broker
	left atomic.Int64
}

func (p *panicking) Publish(ctx context.Context, messages []broker.Message) error {
	if p.left.Add(-1) >= 0 {
		panic("nil map")
	}
	return p.Broker.Publish(ctx, messages)
}

// A81, A82, A84: what happens to a real engine is what it says, and says no more
// when it is over.
func TestHealth_A81_A82_A84_OfAnEngine(t *testing.T) {
	t.Parallel()
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		healthOfAnEngine(t, setup(t))
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		healthOfAnEngine(t, setupOn(t, openPostgres(t, postgres.Config{DSN: newDatabaseOn(t).String()})))
	})
}

func healthOfAnEngine(t *testing.T, b *bench) {
	t.Helper()
	cfg := b.guarded()
	cfg.Outbox.OnAbandoned = outbox.Hold
	crash := &panicking{Broker: b.partner}
	cfg.Brokers["partner"] = crash
	cfg.Subscriptions = []subscription.Stream{b.orders(func(_ context.Context, s Sold) error {
		if s.Amount == 13 {
			return subscription.Park(errors.New("no such article"))
		}
		return nil
	})}
	e := b.start(cfg)
	d := diagnosed(t, e)
	require.Equal(t, diagnosis{State: healthy, Summary: "everything is running", Reasons: []reason{}}, d)

	b.partner.SetOutage(true)
	b.sell(1)
	d = diagnosed(t, e, "breaker_open")
	require.Equal(t, degraded, d.State)
	require.Equal(t, []string{"default", "partner", "partner"}, []string{d.Reasons[0].Provider, d.Reasons[0].Target, d.Reasons[0].Broker})
	require.NotNil(t, d.Reasons[0].Since)
	var h health
	require.Equal(t, 200, get(t, e, "/readyz", &h), "rows wait, and the service goes on")
	require.Equal(t, "degraded", h.Status)
	require.Equal(t, []string{"breaker_open"}, codes(*h.Health))
	scraped(t, e, map[string]float64{`waybill_health{state="degraded"}`: 1, `waybill_health{state="healthy"}`: 0, `waybill_health{state="stuck"}`: 0})
	b.partner.SetOutage(false)
	diagnosed(t, e)

	crash.left.Store(1)
	b.sell(1)
	require.Contains(t, diagnosed(t, e, "worker_crashed").Summary, "nil map")
	eventually(t, func() bool { return len(b.partner.Messages("sales.sale")) == 2 })
	var late atomic.Bool
	e.watchdog.mu.Lock()
	e.watchdog.now = func() time.Time {
		if late.Load() {
			return time.Now().Add(recentCrash)
		}
		return time.Now()
	}
	e.watchdog.mu.Unlock()
	late.Store(true)
	diagnosed(t, e)

	b.partner.FailNext(1, broker.Permanent)
	s := newSale(13)
	s.Raise(SaleMade{Amount: 14})
	require.NoError(t, b.repo.Save(t.Context(), s))
	d = diagnosed(t, e, "dead_letters", "keys_held", "rows_abandoned")
	require.Equal(t, "parcels", d.Reasons[0].Subscription)
	require.Contains(t, d.Reasons[1].Text, "1 key held by an abandoned row, with 1 row behind")
	require.Equal(t, 200, get(t, e, "/readyz", &h))
	scraped(t, e, map[string]float64{
		`waybill_outbox_held_keys{provider="default",target="partner"}`: 1,
		`waybill_outbox_held_rows{provider="default",target="partner"}`: 1,
		`waybill_outbox_held_keys{provider="default",target="default"}`: 0,
	})
}

// A database that is down is what stands still, and nothing old is said of it.
func TestHealth_ADatabaseThatIsDown(t *testing.T) {
	t.Parallel()
	b := setup(t)
	cfg, other := b.withAnalytics()
	e := b.start(cfg)
	diagnosed(t, e)
	for _, fault := range []func(bool){other.down.Store, other.hung.Store} {
		fault(true)
		d := diagnosed(t, e, "database_down")
		require.Equal(t, stuck, d.State)
		require.Equal(t, "analytics", d.Reasons[0].Provider)
		fault(false)
		diagnosed(t, e)
	}
}

// A database that takes a second and more to answer is slow, and not down: a probe doesn't take
// the process out of service for that. One that has been slow and goes away is down.
func TestHealth_ADatabaseThatIsSlow(t *testing.T) {
	t.Parallel()
	b := setup(t)
	cfg, other := b.withAnalytics()
	e := b.start(cfg)
	diagnosed(t, e)
	slow := func() (r reason) {
		waittest.Until(t, func() bool {
			d := diagnosis{}
			require.Equal(t, http.StatusOK, get(t, e, "/api/health", &d))
			i := slices.Index(codes(d), "database_slow")
			if i >= 0 {
				r = d.Reasons[i]
			}
			return i >= 0 && !slices.Contains(codes(d), "database_down")
		})
		return r
	}
	other.slow.Store(true)
	r := slow()
	require.Equal(t, degraded, r.State)
	require.Equal(t, "analytics", r.Provider)
	require.Regexp(t, `took 1\.\ds to answer two short questions`, r.Text)
	<-time.After(freshFor + 100*time.Millisecond) // Now nobody knows, for longer than a probe waits.
	ready := lookAtDatabase(t.Context(), e.databases[1].alive)
	require.NotNil(t, ready.OK)
	require.True(t, *ready.OK)
	other.hung.Store(true)
	diagnosed(t, e, "database_down")
	other.hung.Store(false)
	slow()
	other.slow.Store(false)
	diagnosed(t, e)
}

// Handlers that wait for something else, each in its transaction, leave other units of work no
// connection: the database is well, and health doesn't send anybody to look at it. What others have
// saved is published meanwhile.
func TestHealth_APoolThatIsUsedUp(t *testing.T) {
	t.Parallel()
	config := postgres.Config{DSN: newDatabaseOn(t).String(), MaxConns: 2}
	b := setupOn(t, openPostgres(t, config))
	others := repository.New[*sale](units(t, uow.Config{Domain: sales, Providers: []uow.Provider{openPostgres(t, config)}, External: []outbox.Target{{Broker: "partner"}}}))
	release := make(chan struct{})
	let := sync.OnceFunc(func() { close(release) })
	t.Cleanup(let)
	e := b.consume(func(ctx context.Context, _ Sold) error {
		db, err := uow.DB(ctx)
		if err == nil {
			_, err = db.ExecContext(ctx, "SELECT 1")
		}
		<-release
		return err
	})
	diagnosed(t, e)
	published := func(n int) {
		eventually(t, func() bool { return len(b.partner.Messages("sales.sale")) == n })
	}
	for i := range 3 {
		require.NoError(t, others.Save(t.Context(), newSale(1)))
		published(i + 1)
	}
	d := diagnosed(t, e, "connections_used_up")
	require.Equal(t, stuck, d.State)
	require.Contains(t, d.Reasons[0].Text, "units of work and handlers have all that they may have of the pool's 2")
	require.Contains(t, d.Reasons[0].Text, "Raise max_conns")
	require.NoError(t, others.Save(t.Context(), newSale(1)))
	published(4)
	let()
	diagnosed(t, e)
}

// Handlers that wait for something else in their transactions, in more lanes than there are connections, leave
// one to whoever asks the process for something.
func TestHealth_HandlersThatUseUpThePool(t *testing.T) {
	t.Parallel()
	b := setupOn(t, openPostgres(t, postgres.Config{DSN: newDatabaseOn(t).String(), MaxConns: 20}))
	release := make(chan struct{})
	let := sync.OnceFunc(func() { close(release) })
	t.Cleanup(let)
	waiting := atomic.Int64{}
	cfg := b.config()
	cfg.Subscriptions = []subscription.Stream{b.orders(func(ctx context.Context, _ Sold) error {
		_, err := uow.DB(ctx)
		waiting.Add(1)
		<-release
		return err
	})}
	cfg.Subscriptions[0].Lanes = 30
	e := b.start(cfg)
	b.sell(30)
	eventually(t, func() bool { return waiting.Load() == 17 })
	diagnosed(t, e, "connections_used_up")
	b.sell(30)
	eventually(t, func() bool { return len(b.partner.Messages("sales.sale")) == 60 })
	diagnosed(t, e, "connections_used_up")
	let()
	diagnosed(t, e)
}

// A handler that waits for something else in its transaction has SQLite's one writer: health says
// which, and not that the database refuses what waits for it.
func TestHealth_AHandlerThatHasTheOneWriter(t *testing.T) {
	t.Parallel()
	b := setup(t)
	release := make(chan struct{})
	let := sync.OnceFunc(func() { close(release) })
	t.Cleanup(let)
	e := b.consume(func(ctx context.Context, _ Sold) error {
		_, err := uow.DB(ctx)
		<-release
		return err
	})
	diagnosed(t, e)
	b.sell(1)
	d := diagnosed(t, e, "writer_held")
	require.Equal(t, stuck, d.State)
	require.Contains(t, d.Reasons[0].Text, "its one writer isn't free (the handler of Sales.SaleMade.v1, message ")
	require.Equal(t, "ready", e.health(t.Context()).Status, "it goes on reading")
	let()
	diagnosed(t, e)
}

// Two services whose topics are the same share out what each has published, if both have the
// subscription: whoever hears of an outbox that it doesn't know, beside its own, says so.
func TestHealth_TwoServicesThatShareTopics(t *testing.T) {
	t.Parallel()
	b := setup(t)
	cfg := b.config()
	cfg.Subscriptions = []subscription.Stream{b.orders(func(context.Context, Sold) error { return nil })}
	e := b.start(cfg)
	diagnosed(t, e)
	var own string
	var err error
	waittest.Until(t, func() bool {
		own, err = outboxdb.Name(t.Context(), b.db.Reader())
		return err == nil && own != ""
	}, "the outbox got no name: %v", &err)
	hears := func(of string) {
		_, err := b.db.DB().ExecContext(t.Context(), "INSERT INTO inbox_marks (subscription, partition, source) VALUES ('parcels', '0', ?)", of+":default")
		require.NoError(t, err)
	}
	hears("elsewhere")
	hears("further") // as of a stream that others alone publish
	<-time.After(freshFor)
	diagnosed(t, e)
	hears(own)
	d := diagnosed(t, e, "senders_mixed")
	require.Equal(t, degraded, d.State)
	require.Equal(t, "parcels", d.Reasons[0].Subscription)
	require.Contains(t, d.Reasons[0].Text, "each handles a part of the events")
	require.Contains(t, d.Reasons[0].Text, "topic_prefix")
	long := dbtime.Value(b.db.DB().Dialect(), time.Now().Add(-2*heardFor))
	_, err = b.db.DB().ExecContext(t.Context(), "UPDATE inbox_marks SET seen_at = ? WHERE source <> ?", long, own+":default")
	require.NoError(t, err)
	diagnosed(t, e)
}

// A database that answers, and in which no unit of work commits as somebody has removed its
// settings, is as one that is down, until they are there again.
func TestHealth_ADatabaseWithoutItsSettings(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := b.start(b.config())
	diagnosed(t, e)
	_, err := b.db.DB().ExecContext(t.Context(), "DELETE FROM outbox_settings WHERE name = 'partitions'")
	require.NoError(t, err)
	d := diagnosed(t, e, "database_down")
	require.Contains(t, d.Reasons[0].Text, "the partition count is missing from outbox_settings; run `waybill migrate`")
	require.NoError(t, Migrate(t.Context(), b.sales, b.parcels))
	diagnosed(t, e)
}

// stalling is a database that answers, and doesn't end counting its rows.
type stalling struct {
	uow.Provider
	reader *bun.DB
	stall  atomic.Bool
}

func (s *stalling) Reader() *bun.DB { return s.reader }

func (s *stalling) BeforeQuery(ctx context.Context, e *bun.QueryEvent) context.Context {
	if strings.Contains(e.Query, "FROM outbox_counts") && s.stall.Load() {
		for s.stall.Load() && ctx.Err() == nil {
			<-time.After(time.Millisecond)
		}
	}
	return ctx
}

func (*stalling) AfterQuery(context.Context, *bun.QueryEvent) {}

func newStalling(b *bench) (*stalling, []*uow.Manager) {
	db := &stalling{Provider: b.db}
	db.reader = b.db.Reader().WithQueryHook(db)
	return db, []*uow.Manager{units(b.t, uow.Config{Domain: sales, Providers: []uow.Provider{db}, External: []outbox.Target{{Broker: "partner"}}})}
}

// A81: a count that doesn't end delays no probe, nor what else there is to say.
func TestHealth_A81_AHungCountDelaysNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	db, units := newStalling(b)
	cfg := b.config()
	cfg.Units = units
	e := b.make(cfg)
	for _, d := range e.databases { // who waits for a count waits for long
		d.stats = newCached(d.report, e.lookouts, time.Hour, time.Hour)
	}
	require.NoError(t, e.Start(t.Context()))
	db.stall.Store(true)
	for range 3 {
		var h health
		require.Equal(t, 200, get(t, e, "/readyz", &h))
		require.Equal(t, "ready", h.Status)
	}
	db.stall.Store(false)
	require.NoError(t, e.Stop(t.Context()))

	e = b.start(cfg)
	began := time.Now()
	e.watchdog.mu.Lock()
	e.watchdog.now = func() time.Time { return began.Add(30 * time.Since(began)) } // a second is as long as settling
	e.watchdog.mu.Unlock()
	db.stall.Store(true)
	diagnosed(t, e, "not_counted")
	db.stall.Store(false)
	diagnosed(t, e)
}

// Before and after its time an engine says that it doesn't run.
func TestHealth_OfAnEngineThatDoesNotRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := b.make(b.config())
	require.Equal(t, []string{"not_running"}, codes(e.diagnose(t.Context())))
	require.NoError(t, e.Start(t.Context()))
	diagnosed(t, e)
	require.NoError(t, e.Stop(t.Context()))
	d := e.diagnose(t.Context())
	require.Equal(t, "the engine: it has stopped", d.Summary)
}

// D5, A84: rows that all failed are no healthy outbox: that shows in health, API and
// metrics, with how many, since when, and the broker's words.
func TestHealth_D5_A84_ABrokerThatRefuses(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.partner.FailWhere(func(broker.Message) error { return refusedRow("quota used up") })
	cfg := b.guarded()
	cfg.Outbox.Retry.BaseDelay = time.Hour
	e := b.start(cfg)
	b.sell(2)
	var d diagnosis
	eventually(t, func() bool { // one of them fails first
		d = diagnosed(t, e, "rows_failed")
		return strings.Contains(d.Summary, "outbox default to partner: 2 rows failed (")
	})
	require.Equal(t, degraded, d.State)
	require.Contains(t, d.Summary, "quota used up")
	var report outboxReport
	require.Equal(t, 200, get(t, e, "/api/outbox", &report))
	lane := report.Providers["default"]["partner"]
	require.EqualValues(t, 2, lane.Counts[outbox.Failed])
	require.Positive(t, *lane.OldestPendingSeconds)
	require.Contains(t, *lane.LastError, "quota used up")
	got := scraped(t, e, map[string]float64{
		`waybill_outbox_failed{provider="default",target="partner"}`: 2,
		`waybill_health{state="degraded"}`:                           1,
	})
	require.Positive(t, got[`waybill_outbox_oldest_pending_seconds{provider="default",target="partner"}`])
}

// A81: a subscription that is behind, or a broker that is away, keeps nobody from
// calling the service.
func TestHealth_A81_ASubscriptionThatIsBehindIsReady(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := b.consume(blocks)
	b.sell(5)
	scraped(t, e, map[string]float64{`waybill_subscription_lag_messages{subscription="parcels"}`: 5})
	var h health
	require.Equal(t, 200, get(t, e, "/readyz", &h))
	require.Equal(t, "ready", h.Status)
	b.partner.SetOutage(true)
	b.sell(1)
	eventually(t, func() bool { return get(t, e, "/readyz", &h) == 200 && h.Status == "degraded" })
}

// A80: while the engine drains, what its last handlers raise is still published, and
// probes are told to send nobody.
func TestStop_A79_A80_PublishesWhileItDrains(t *testing.T) {
	t.Parallel()
	b := setup(t)
	entered, release := make(chan struct{}), make(chan struct{})
	cfg := b.config()
	cfg.Subscriptions = []subscription.Stream{b.orders(func(ctx context.Context, _ Sold) error {
		close(entered)
		<-release
		return repository.New[*parcel](b.parcels).Save(ctx, newParcel("p-1"))
	})}
	e := b.make(cfg)
	require.NoError(t, e.Start(t.Context()))
	b.sell(1)
	<-entered
	ended := make(chan error, 1)
	go func() { ended <- e.Stop(context.Background()) }()
	var h health
	eventually(t, func() bool { return get(t, e, "/readyz", &h) == 503 && h.Status == "draining" })
	require.Equal(t, []string{"not_running"}, codes(*h.Health))
	b.sell(1)
	eventually(t, func() bool { return len(b.partner.Messages("sales.sale")) == 2 })
	close(release)
	require.NoError(t, <-ended)
	require.EqualValues(t, 1, e.Subscriptions()["parcels"].Handled)
}
