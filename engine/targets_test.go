package engine

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
)

// Two processes of one context that know different brokers: the second is
// refused, by a migration, by a check and at its start, until somebody changes
// the database's list.
func TestTargets_AnotherListIsRefused(t *testing.T) {
	b := setup(t)
	forgetful := units(t, uow.Config{Domain: sales, Providers: []uow.Provider{b.db}})
	cfg := b.config()
	cfg.Units = []*uow.Manager{forgetful}
	for what, refused := range map[string]error{
		"migration": Migrate(t.Context(), forgetful),
		"check":     Check(t.Context(), forgetful),
		"start":     b.make(cfg).Start(t.Context()),
	} {
		var wrong *outbox.TargetsError
		require.ErrorAs(t, refused, &wrong, what)
		require.Equal(t, "sales", wrong.Context)
		require.Equal(t, "default,partner", wrong.Have.String())
		require.Equal(t, "default", wrong.Want.String())
		require.ErrorContains(t, refused, `provider "default": outbox: in the database context sales sends to default,partner, in the configuration to default;`+
			" a broker that not all of its processes know misses events: configure default,partner,"+
			" or stop all its processes and run `waybill migrate --set-targets sales=default` or engine.SetTargets")
	}
	require.NoError(t, Check(t.Context(), b.sales, b.parcels), "nothing has flipped it")

	require.NoError(t, SetTargets(t.Context(), b.db, "sales", forgetful.Targets(), "mia"))
	b.start(cfg)
	require.NoError(t, Migrate(t.Context(), forgetful))
	require.ErrorContains(t, Check(t.Context(), b.sales), "configure default, or stop all")
	require.NoError(t, Check(t.Context(), b.parcels), "another context's are its own")
}

// A context that is new to a shared database adds its own list, and so does one
// that is new to it when its engine starts: `waybill --dsn … migrate` knows of no
// context.
func TestTargets_ANewContextAddsItsOwn(t *testing.T) {
	b := setup(t)
	db := openSQLite(t, "shared")
	require.NoError(t, MigrateProvider(t.Context(), db, 0))
	first := units(t, uow.Config{Domain: sales, Providers: []uow.Provider{db}, External: []outbox.Target{{Broker: "partner"}}})
	cfg := b.config()
	cfg.Units = []*uow.Manager{first}
	b.start(cfg)
	second := units(t, uow.Config{Domain: parcels, Providers: []uow.Provider{db}})
	require.NoError(t, Migrate(t.Context(), second))
	all, err := outboxdb.ReadTargets(t.Context(), db.Reader())
	require.NoError(t, err)
	require.Equal(t, map[string]outbox.Targets{
		"sales":   {Broker: "default", External: []string{"partner"}},
		"parcels": {Broker: "default", External: []string{}},
	}, all)
	require.NoError(t, Check(t.Context(), first, second))
}

func TestTargets_OfTwoUnitsOfOneContext(t *testing.T) {
	b := setup(t)
	other := units(t, uow.Config{Domain: sales, Providers: []uow.Provider{b.db}})
	const want = "context sales: it sends to default, and with other units to default,partner: give both the same brokers"
	require.ErrorContains(t, Migrate(t.Context(), b.sales, other), want)
	cfg := b.config()
	cfg.Units = append(cfg.Units, other)
	_, err := New(cfg)
	require.ErrorContains(t, err, want)
}

// A process that only writes is refused at its first unit with events.
func TestTargets_OfAWriter(t *testing.T) {
	b := setup(t)
	forgetful := units(t, uow.Config{Domain: sales, Providers: []uow.Provider{b.db}})
	err := repository.New[*sale](forgetful).Save(t.Context(), newSale(1))
	var wrong *outbox.TargetsError
	require.ErrorAs(t, err, &wrong)
	stats, err := outboxdb.New(b.db.DB(), b.db.Reader()).Stats(t.Context())
	require.NoError(t, err)
	for target, of := range stats {
		require.Equal(t, outbox.NoStats().Counts, of.Counts, target)
	}
	b.sell(1)
}

// Behind a running process its list was changed: what it saves is refused, and it says so, also
// where nothing but its own callers would hear of it.
func TestTargets_OfARunningProcess(t *testing.T) {
	b := setup(t)
	e := b.start(b.config())
	diagnosed(t, e)
	was := b.sales.Targets()
	require.NoError(t, SetTargets(t.Context(), b.db, "sales", outbox.Targets{Broker: "default"}, "mia"))
	d := diagnosed(t, e, "database_refuses")
	require.Equal(t, stuck, d.State)
	require.Contains(t, d.Reasons[0].Text, "database default: the database refuses to let it save events of context sales (outbox: in the database context sales sends to default, in the configuration to default,partner;")
	require.Contains(t, d.Reasons[0].Text, "Give this process the configuration that the database has, and restart it")
	require.Len(t, b.logs.with("something is stuck", "code=database_refuses"), 1)
	require.NoError(t, SetTargets(t.Context(), b.db, "sales", was, "mia"))
	diagnosed(t, e)
	require.Len(t, b.logs.with("it has recovered", "code=database_refuses"), 1)
}

// A broker that is taken out, or renamed, leaves no rows behind that nobody publishes.
func TestSetTargets_T2_NothingWaitsForABrokerThatGoes(t *testing.T) {
	b := setup(t)
	b.sell(1)
	alone := outbox.Targets{Broker: "default"}
	require.ErrorContains(t, SetTargets(t.Context(), b.db, "sales", alone, "mia"), "rows for broker partner wait, and nobody would publish them any more: let the engines of context sales publish them")
	require.NoError(t, Check(t.Context(), b.sales), "nothing has changed")
	require.NoError(t, SetTargets(t.Context(), b.db, "sales", outbox.Targets{Broker: "main", External: []string{"partner"}}, "mia"), "parcels sends to default as well")
	_, err := Outbox(b.db).Change(t.Context(), outbox.Filter{Target: "partner"}, outbox.Change{Verb: outbox.VerbAbandon, Actor: "test"})
	require.NoError(t, err)
	require.ErrorContains(t, SetTargets(t.Context(), b.db, "sales", alone, ""), "Actor is missing")
	require.NoError(t, SetTargets(t.Context(), b.db, "sales", alone, "mia"))
	actions, err := Outbox(b.db).Actions(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, actions, 3)
	require.Equal(t, []any{"mia", "targets-set", int64(1)}, []any{actions[0].Actor, actions[0].Action, actions[0].Rows})
	require.JSONEq(t, `{"context":"sales","from":{"broker":"main","external":["partner"]},"to":{"broker":"default","external":[]}}`, string(actions[0].Filter))
	require.NoError(t, SetTargets(t.Context(), b.db, "sales", alone, "mia"))
	again, err := Outbox(b.db).Actions(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, actions, again, "nothing has changed")
}

// Two processes mean other brokers by one name, as far as these tell, until one ends.
func TestMembers_SayToWhichBrokerTheyPublish(t *testing.T) {
	b := setup(t)
	one := b.start(b.config())
	other := b.config()
	other.Brokers = map[string]broker.Broker{"default": b.main, "partner": broker.Prefixed(b.partner, "old.")}
	two := b.start(other)
	d := diagnosed(t, one, "brokers_differ")
	require.Contains(t, d.Reasons[0].Text, "its processes publish to different brokers: ")
	require.Contains(t, d.Reasons[0].Text, ", topic_prefix old. (")
	require.NoError(t, two.Stop(t.Context()))
	diagnosed(t, one)
}

// The numbers of a broker that nobody sends to any more end with what is left of it.
func TestSetTargets_OneThatIsGoneIsCountedNoMore(t *testing.T) {
	b := setup(t)
	b.sell(1)
	targets := func() []string {
		stats, err := Outbox(b.db).Stats(t.Context())
		require.NoError(t, err)
		return slices.Sorted(maps.Keys(stats))
	}
	require.Equal(t, []string{"default", "partner"}, targets())
	_, err := Outbox(b.db).Change(t.Context(), outbox.Filter{Target: "partner"}, outbox.Change{Verb: outbox.VerbAbandon, Actor: "mia"})
	require.NoError(t, err)
	require.NoError(t, SetTargets(t.Context(), b.db, "sales", outbox.Targets{Broker: "default"}, "mia"))
	require.Equal(t, []string{"default", "partner"}, targets(), "what was given up is still there")
	_, err = Outbox(b.db).CleanUp(t.Context(), outbox.CleanUp{OlderThan: time.Microsecond, Statuses: []outbox.Status{outbox.Abandoned}, Actor: "mia"})
	require.NoError(t, err)
	require.Equal(t, []string{"default"}, targets())
}

// An event that was renamed is the same event to a broker that comes later, and to one that
// gets it again: it has the name with which it was stored.
func TestBackfill_N3_GivesWhatWasRenamedSince(t *testing.T) {
	t.Parallel()
	partner := outbox.Target{Broker: "partner", Events: []string{"SaleClosed"}}
	for name, backfill := range map[string]func(context.Context, *uow.Manager) (outbox.Backfilled, error){
		"program": func(ctx context.Context, m *uow.Manager) (outbox.Backfilled, error) {
			return Backfill(ctx, m, "partner", "alice")
		},
		"history": func(ctx context.Context, m *uow.Manager) (outbox.Backfilled, error) {
			return BackfillFromHistory(ctx, m, "partner", "alice")
		},
		"command": func(ctx context.Context, m *uow.Manager) (outbox.Backfilled, error) { // which knows no domain
			b := outbox.Backfill{Context: "sales", Target: partner, Actor: "alice"}
			n, err := outboxdb.New(m.Providers()[0].DB(), m.Providers()[0].Reader()).CountBackfill(ctx, b)
			require.NoError(t, err)
			require.EqualValues(t, 1, n.Events)
			return Outbox(m.Providers()[0]).Backfill(ctx, b)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := openSQLite(t, "default")
			program := func(external []outbox.Target, options ...domain.EventOption) *uow.Manager {
				d, err := domain.New("sales", domain.Aggregate[*sale]("sale", domain.Event[SaleMade](options...)))
				require.NoError(t, err)
				return units(t, uow.Config{Domain: d, Providers: []uow.Provider{db}, External: external, History: true})
			}
			before := program(nil, domain.Published())
			require.NoError(t, Migrate(t.Context(), before))
			require.NoError(t, repository.New[*sale](before).Save(t.Context(), newSale(1)))

			require.NoError(t, SetTargets(t.Context(), db, "sales", outbox.Targets{Broker: "default", External: []string{"partner"}, Joining: []string{"partner"}}, "mia"))
			after := program([]outbox.Target{partner}, domain.Published(), domain.Named("SaleClosed"), domain.Alias("Sales.SaleMade"))
			require.NoError(t, Migrate(t.Context(), after))
			done, err := backfill(t.Context(), after)
			require.NoError(t, err)
			require.EqualValues(t, 1, done.Events)
			_, err = db.DB().ExecContext(t.Context(), "DELETE FROM outbox_queue")
			require.NoError(t, err)
			again, err := RepublishHistory(t.Context(), after, Republish{Category: "sales::sale", Target: "partner", Actor: "test"})
			require.NoError(t, err)
			require.EqualValues(t, 1, again.Rows)
			var types []string
			require.NoError(t, db.Reader().NewRaw("SELECT DISTINCT message_type FROM outbox WHERE target_broker = 'partner'").Scan(t.Context(), &types))
			require.Equal(t, []string{"Sales.SaleMade.v1"}, types)
		})
	}
}

// A broker that comes later, with its past: an engine warns of it and writes down
// which events are published; the back-fill runs beside it, and the broker gets
// what was before, meanwhile and after, in order.
func TestBackfill_BesideAnEngine(t *testing.T) {
	b := setup(t)
	alone := units(t, uow.Config{Domain: sales, Providers: []uow.Provider{b.db}})
	require.NoError(t, SetTargets(t.Context(), b.db, "sales", alone.Targets(), "mia"))
	s := newSale(1)
	s.Raise(SaleNoted{})
	require.NoError(t, repository.New[*sale](alone).Save(t.Context(), s))
	require.NoError(t, SetTargets(t.Context(), b.db, "sales", outbox.Targets{Broker: "default", External: []string{"partner"}, Joining: []string{"partner"}}, "mia"))

	cfg := b.config()
	cfg.Outbox.Lease = time.Minute // nobody dies
	b.start(cfg)
	require.Len(t, b.logs.with("level=WARN", "external brokers are joining", "context=sales", "brokers=partner"), 1)
	b.sell(1)
	var written string
	require.NoError(t, b.db.Reader().NewRaw("SELECT value FROM outbox_settings WHERE name = 'published:sales'").Scan(t.Context(), &written))
	require.Equal(t, `["SaleMade"]`, written)

	_, err := Backfill(t.Context(), b.sales, "nobody", "alice")
	require.ErrorContains(t, err, `context sales has no external broker "nobody"`)
	done, err := Backfill(t.Context(), b.sales, "partner", "alice")
	require.NoError(t, err)
	require.EqualValues(t, 2, done.Events)
	require.False(t, done.Latest.Before(done.Oldest))
	b.sell(1)
	eventually(t, func() bool { return len(b.partner.Messages("sales.sale")) == 3 })
	require.True(t, slices.ContainsFunc(b.partner.Messages("sales.sale"), func(m broker.Message) bool { return m.Key == s.ID() }))
}

// A broker that comes when the outbox has forgotten what it should get: it gets all of it from
// the history, which the other back-fill doesn't read.
func TestBackfill_FromHistory(t *testing.T) {
	db := openSQLite(t, "default")
	alone := units(t, uow.Config{Domain: sales, Providers: []uow.Provider{db}, History: true})
	require.NoError(t, Migrate(t.Context(), alone))
	b := &bench{t: t, db: db, main: memory.New(memory.Config{}), partner: memory.New(memory.Config{}), logs: &logs{}}
	b.repo = repository.New[*sale](alone)
	b.sales = alone
	b.parcels = units(t, uow.Config{Domain: parcels, Providers: []uow.Provider{db}})
	require.NoError(t, Migrate(t.Context(), b.parcels))
	forgets := b.config()
	forgets.Outbox.Retention.Delete = true
	e := b.make(forgets)
	require.NoError(t, e.Start(t.Context()))
	b.sell(3)
	eventually(t, func() bool { return len(b.main.Messages("sales.sale")) == 3 })
	require.NoError(t, e.Stop(t.Context()))

	joined := units(t, uow.Config{Domain: sales, Providers: []uow.Provider{db}, External: []outbox.Target{{Broker: "partner"}}, History: true})
	require.NoError(t, SetTargets(t.Context(), db, "sales", outbox.Targets{Broker: "default", External: []string{"partner"}, Joining: []string{"partner"}, History: outbox.HistoryOn}, "mia"))
	done, err := BackfillFromHistory(t.Context(), joined, "partner", "alice")
	require.NoError(t, err)
	require.EqualValues(t, 3, done.Events)
	b.sales = joined
	b.start(b.config())
	eventually(t, func() bool { return len(b.partner.Messages("sales.sale")) == 3 })
}
