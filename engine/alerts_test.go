package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

// samples is what one scrape found, by name and labels; nil: no answer.
type samples map[string]float64

// provoke brings an engine to where an alert is due, and returns its last scrapes,
// in their order.
type provoke func(t *testing.T, b *bench) []samples

// provoked are the causes of all alerts, by name and severity.
var provoked = map[string]provoke{
	"WaybillOutboxOldest critical": func(t *testing.T, b *bench) []samples { return waitsFor(t, b, 11*time.Minute) },
	"WaybillOutboxOldest warning":  func(t *testing.T, b *bench) []samples { return waitsFor(t, b, 2*time.Minute) },
	"WaybillOutboxFailed critical": func(t *testing.T, b *bench) []samples {
		b.partner.FailWhere(func(broker.Message) error { return refusedRow("not now") })
		return sold(t, b, b.config(), 1, "waybill_outbox_failed", 1)
	},
	"WaybillOutboxStored critical": func(t *testing.T, b *bench) []samples { return stores(t, b, 10001) },
	"WaybillOutboxStored warning":  func(t *testing.T, b *bench) []samples { return stores(t, b, 1001) },
	"WaybillOutboxAbandoned warning": func(t *testing.T, b *bench) []samples {
		b.partner.FailNext(1, broker.Permanent)
		return sold(t, b, b.config(), 1, "waybill_outbox_abandoned", 1)
	},
	"WaybillProcessesIdle warning": func(t *testing.T, b *bench) []samples {
		long := dbtime.Value(b.db.DB().Dialect(), time.Now().Add(-31*24*time.Hour))
		_, err := b.db.DB().ExecContext(t.Context(), "INSERT INTO processes (process, id, version, status, state, began_at, last_at) VALUES ('library.lending', 'l1', 1, 'running', '{}', ?0, ?0)", long)
		require.NoError(t, err)
		e := b.start(b.config())
		got := scraped(t, e, map[string]float64{
			`waybill_processes_idle{process="library.lending",provider="default"}`:             1,
			`waybill_processes{process="library.lending",provider="default",status="running"}`: 1,
		})
		require.InDelta(t, (31 * 24 * time.Hour).Seconds(), got[`waybill_process_oldest_running_seconds{process="library.lending",provider="default"}`], 60)
		return []samples{got}
	},
	"WaybillProjectionStopped critical": func(t *testing.T, b *bench) []samples {
		e := b.projected(errors.New("no idea"))
		b.sell(1)
		return until(t, e, `waybill_projection_stopped{build="1",projection="sales",provider="default"}`, 1)
	},
	"WaybillProjectionBehind warning": func(t *testing.T, b *bench) []samples {
		e := b.projected(errors.New("no idea"))
		b.sell(1)
		_, err := b.db.DB().ExecContext(t.Context(), "UPDATE history SET occurred_at = ?", dbtime.Value(b.db.DB().Dialect(), time.Now().Add(-2*time.Minute)))
		require.NoError(t, err)
		var last samples
		eventually(t, func() bool {
			_, last = scrape(t, e)
			return last[`waybill_projection_behind_seconds{build="1",projection="sales",provider="default"}`] > 110
		})
		return []samples{last}
	},
	"WaybillTimersLate critical": func(t *testing.T, b *bench) []samples { return lateFor(t, b, 11*time.Minute) },
	"WaybillTimersLate warning":  func(t *testing.T, b *bench) []samples { return lateFor(t, b, 2*time.Minute) },
	"WaybillTimersBroken warning": func(t *testing.T, b *bench) []samples {
		b.setTimer(timer("broken", time.Now()))
		_, err := b.db.DB().ExecContext(t.Context(), "UPDATE timers SET message = '7'")
		require.NoError(t, err)
		return until(t, b.start(b.config()), `waybill_timers_broken{provider="default"}`, 1)
	},
	"WaybillOutboxNobodyPublishes critical": func(t *testing.T, b *bench) []samples {
		cfg := b.config()
		cfg.Units = []*uow.Manager{b.parcels} // which has no partner
		return sold(t, b, cfg, 1, "waybill_outbox_pending", 1)
	},
	"WaybillOutboxNotMoving critical": func(t *testing.T, b *bench) []samples {
		// Another process has taken the partitions, and then does nothing.
		store := outboxdb.New(b.db.DB(), b.db.Reader())
		ids, n, err := store.Lanes(t.Context(), []string{"partner"})
		require.NoError(t, err)
		members, err := store.Join(t.Context(), "elsewhere", []relay.Joining{{Lane: ids[0], Target: "partner"}}, time.Hour)
		require.NoError(t, err)
		_, err = store.Take(t.Context(), members[0], ids[0], n)
		require.NoError(t, err)
		b.sell(1)
		b.age(10 * time.Minute)
		return sold(t, b, b.config(), 0, "waybill_outbox_lease_owners", 1)
	},
	"WaybillOutboxMembersSick warning": func(t *testing.T, b *bench) []samples {
		store := outboxdb.New(b.db.DB(), b.db.Reader())
		ids, _, err := store.Lanes(t.Context(), []string{"partner"})
		require.NoError(t, err)
		members, err := store.Join(t.Context(), "elsewhere", []relay.Joining{{Lane: ids[0], Target: "partner"}}, time.Hour)
		require.NoError(t, err)
		_, err = store.Renew(t.Context(), []relay.Renewal{{Member: members[0], Target: "partner", Trouble: "no route to host"}}, time.Hour)
		require.NoError(t, err)
		e := b.start(b.config())
		return []samples{scraped(t, e, map[string]float64{
			`waybill_outbox_members_sick{provider="default",target="partner"}`: 1,
			`waybill_outbox_members{provider="default",target="partner"}`:      2,
		})}
	},
	"WaybillOutboxBrokersDiffer critical": func(t *testing.T, b *bench) []samples {
		other := b.config()
		other.Brokers = map[string]broker.Broker{"default": b.main, "partner": broker.Prefixed(b.partner, "old.")}
		b.start(other)
		return until(t, b.start(b.config()), `waybill_outbox_brokers_differ{provider="default",target="partner"}`, 1)
	},
	"WaybillOutboxHeld warning": func(t *testing.T, b *bench) []samples {
		cfg := b.config()
		cfg.Outbox.OnAbandoned = outbox.Hold
		b.partner.FailNext(1, broker.Permanent)
		s := newSale(1)
		s.Raise(SaleMade{Amount: 2})
		require.NoError(t, b.repo.Save(t.Context(), s))
		return sold(t, b, cfg, 0, "waybill_outbox_held_keys", 1)
	},
	"WaybillOutboxNotCounted warning": func(t *testing.T, b *bench) []samples {
		db, units := newStalling(b)
		cfg := b.config()
		cfg.Units = units
		e := b.start(cfg)
		db.stall.Store(true)
		defer db.stall.Store(false)
		return until(t, e, `waybill_outbox_counted{provider="default"}`, 0)
	},
	"WaybillAbsent critical": func(t *testing.T, b *bench) []samples {
		e := b.make(b.config())
		require.NoError(t, e.Start(t.Context()))
		addr := e.Addr()
		require.NoError(t, e.Stop(t.Context()))
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+"/metrics", nil)
		require.NoError(t, err)
		response, err := http.DefaultClient.Do(request)
		if err == nil {
			_ = response.Body.Close()
		}
		require.Error(t, err, "a scrape finds nobody")
		return []samples{nil}
	},
	"WaybillHealth warning": func(t *testing.T, b *bench) []samples {
		e := b.make(b.config())
		e.databases[0].clock.now = func() time.Time { return time.Now().Add(time.Hour) }
		require.NoError(t, e.Start(t.Context()))
		t.Cleanup(func() { require.NoError(t, e.Stop(context.WithoutCancel(t.Context()))) })
		return until(t, e, `waybill_health_reasons{code="clock_off"}`, 1)
	},
	"WaybillProviderDown critical": func(t *testing.T, b *bench) []samples {
		cfg, other := b.withAnalytics()
		e := b.start(cfg)
		other.down.Store(true)
		defer other.down.Store(false)
		return until(t, e, `waybill_provider_up{provider="analytics"}`, 0)
	},
	"WaybillDatabaseRefuses critical": func(t *testing.T, b *bench) []samples {
		_, err := b.db.DB().ExecContext(t.Context(), "ALTER TABLE outbox_jobs RENAME TO gone")
		require.NoError(t, err)
		return until(t, b.start(b.config()), `waybill_processor_database_refused{provider="default",target="partner"}`, 1)
	},
	"WaybillBrokerDown critical": func(t *testing.T, b *bench) []samples {
		e := b.start(b.config())
		b.partner.SetOutage(true)
		b.sell(1)
		return until(t, e, `waybill_broker_up{broker="partner"}`, 0)
	},
	"WaybillTopicsDown warning": func(t *testing.T, b *bench) []samples {
		b.main.FailWhere(func(m broker.Message) error {
			if m.Topic == "parcels.parcel" {
				return broker.Classify(broker.Unavailable, errors.New("no leader"))
			}
			return nil
		})
		e := b.start(b.config())
		b.send("p-1")
		var last samples
		eventually(t, func() bool {
			b.sell(1) // others of the broker are answered
			_, last = scrape(t, e)
			return last[`waybill_processor_open_topics{provider="default",target="default"}`] == 1
		})
		return []samples{last}
	},
	"WaybillWorkerCrashed warning": func(t *testing.T, b *bench) []samples {
		cfg := b.config()
		crash := &panicking{Broker: b.partner}
		cfg.Brokers["partner"] = crash
		e := b.start(cfg)
		const crashes = `waybill_processor_crashes_total{provider="default",target="partner"}`
		before := until(t, e, crashes, 0)
		crash.left.Store(1)
		b.sell(1)
		return append(before, until(t, e, crashes, 1)...)
	},
	"WaybillSubscriptionNotJoined critical": func(t *testing.T, b *bench) []samples {
		b.main.SetOutage(true)
		cfg := b.config()
		cfg.Subscriptions = []subscription.Stream{b.orders(func(context.Context, Sold) error { return nil })}
		e := b.start(cfg)
		return until(t, e, `waybill_subscription_joined{subscription="parcels"}`, 0)
	},
	"WaybillSubscriptionDown critical": func(t *testing.T, b *bench) []samples {
		e, says := b.consumeFrom()
		says(broker.State{Joined: true, Since: time.Now(), LastError: errors.New("one partition has no leader")})
		return []samples{scraped(t, e, map[string]float64{
			`waybill_subscription_running{subscription="parcels"}`: 0,
			`waybill_subscription_joined{subscription="parcels"}`:  1,
		})}
	},
	"WaybillSubscriptionMissed critical": func(t *testing.T, b *bench) []samples {
		e, says := b.consumeFrom()
		before := until(t, e, `waybill_subscription_missed_total{subscription="parcels"}`, 0)
		says(broker.State{Joined: true, Since: time.Now(), Missed: 15})
		return append(before, until(t, e, `waybill_subscription_missed_total{subscription="parcels"}`, 15)...)
	},
	"WaybillSubscriptionLagUnknown warning": func(t *testing.T, b *bench) []samples {
		cfg := b.config()
		cfg.Brokers["default"] = mute{b.main}
		cfg.Subscriptions = []subscription.Stream{b.orders(func(context.Context, Sold) error { return nil })}
		return []samples{scraped(t, b.start(cfg), map[string]float64{
			`waybill_subscription_lag_known{subscription="parcels"}`: 0,
			`waybill_subscription_joined{subscription="parcels"}`:    1,
		})}
	},
	"WaybillSubscriptionBreakerOpen warning": func(t *testing.T, b *bench) []samples {
		e := b.consume(func(context.Context, Sold) error { return errors.New("the depot doesn't answer") })
		b.sell(6)
		return until(t, e, `waybill_subscription_breaker_open{subscription="parcels"}`, 1)
	},
	"WaybillSubscriptionLag warning": func(t *testing.T, b *bench) []samples {
		cfg := b.config()
		cfg.Brokers["default"] = late{b.main}
		e := b.consumeWith(cfg, blocks)
		b.sell(1)
		var last samples
		eventually(t, func() bool {
			_, last = scrape(t, e)
			return last[`waybill_subscription_lag_seconds{subscription="parcels"}`] > 600
		})
		return []samples{last}
	},
	"WaybillSubscriptionStill critical": func(t *testing.T, b *bench) []samples {
		e := b.consume(blocks)
		b.sell(2)
		return until(t, e, `waybill_subscription_lag_messages{subscription="parcels"}`, 2)
	},
	"WaybillSubscriptionPaused warning": func(t *testing.T, b *bench) []samples {
		e := b.consume(blocks)
		require.NoError(t, e.Pause("parcels"))
		return until(t, e, `waybill_subscription_paused{subscription="parcels"}`, 1)
	},
	"WaybillDeadLetters warning": func(t *testing.T, b *bench) []samples {
		e := b.consume(func(context.Context, Sold) error { return subscription.Park(errors.New("no such article")) })
		b.sell(1)
		return until(t, e, `waybill_dead_letters{provider="default",subscription="parcels"}`, 1)
	},
}

// until scrapes until a sample has a value.
func until(t *testing.T, e *Engine, name string, value float64) []samples {
	t.Helper()
	return []samples{scraped(t, e, map[string]float64{name: value})}
}

// sold sells something and waits for a sample of the partner.
func sold(t *testing.T, b *bench, cfg Config, n int, metric string, value float64) []samples {
	t.Helper()
	cfg.Outbox.Retry.BaseDelay = time.Hour
	e := b.start(cfg)
	b.sell(n)
	return until(t, e, metric+`{provider="default",target="partner"}`, value)
}

// waitsFor has a row that the partner doesn't take wait for so long.
func waitsFor(t *testing.T, b *bench, d time.Duration) []samples {
	t.Helper()
	b.partner.SetOutage(true)
	b.sell(1)
	b.age(d)
	// The row is pending, in hand or failed, by when the engine learns of the outage.
	return atLeast(t, b.start(b.config()), "waybill_outbox_oldest_pending_seconds", d.Seconds())
}

// lateFor has a timer wait that was due so long ago, and that can't be sent.
func lateFor(t *testing.T, b *bench, d time.Duration) []samples {
	t.Helper()
	b.setTimer(timer("late", time.Now().Add(-d)))
	_, err := b.db.DB().ExecContext(t.Context(), "CREATE TRIGGER stays BEFORE UPDATE ON timers BEGIN SELECT RAISE(ABORT, 'not now'); END")
	require.NoError(t, err)
	e := b.start(b.config())
	var last samples
	eventually(t, func() bool {
		_, last = scrape(t, e)
		return last[`waybill_timers_late_seconds{provider="default"}`] >= d.Seconds()
	})
	return []samples{last}
}

// atLeast scrapes until a sample of the partner has a value or more.
func atLeast(t *testing.T, e *Engine, metric string, least float64) []samples {
	t.Helper()
	var last samples
	eventually(t, func() bool {
		_, last = scrape(t, e)
		return last[metric+`{provider="default",target="partner"}`] >= least
	})
	return []samples{last}
}

// stores has so many rows wait. They aren't due, so that none is in hand, nor fails.
func stores(t *testing.T, b *bench, n int) []samples {
	t.Helper()
	s := newSale(1)
	for i := range n - 1 {
		s.Raise(SaleMade{Amount: i})
	}
	require.NoError(t, b.repo.Save(t.Context(), s))
	_, err := b.db.DB().ExecContext(t.Context(), "UPDATE outbox_queue SET due_at = ?", dbtime.Value(b.db.DB().Dialect(), time.Now().Add(time.Hour)))
	require.NoError(t, err)
	return atLeast(t, b.start(b.config()), "waybill_outbox_pending", float64(n))
}

// age has all rows that are there wait for so long already.
func (b *bench) age(d time.Duration) {
	b.t.Helper()
	_, err := b.db.DB().ExecContext(b.t.Context(), "UPDATE outbox_messages SET created_at = ?", dbtime.Value(b.db.DB().Dialect(), time.Now().Add(-d)))
	require.NoError(b.t, err)
}

// send raises an event of parcels.
func (b *bench) send(id string) {
	b.t.Helper()
	require.NoError(b.t, repository.New[*parcel](b.parcels).Save(b.t.Context(), newParcel(id)))
}

// consume starts an engine with a subscription.
func (b *bench) consume(handle func(context.Context, Sold) error) *Engine {
	return b.consumeWith(b.config(), handle)
}

func (b *bench) consumeWith(cfg Config, handle func(context.Context, Sold) error) *Engine {
	b.t.Helper()
	cfg.StopTimeout = time.Second
	cfg.Subscriptions = []subscription.Stream{b.orders(handle)}
	e := b.make(cfg)
	require.NoError(b.t, e.Start(b.t.Context()))
	b.t.Cleanup(func() {
		hurry, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = e.Stop(hurry) // handlers that block are cut off
	})
	scraped(b.t, e, map[string]float64{`waybill_subscription_lag_messages{subscription="parcels"}`: 0})
	return e
}

// blocks is a handler that doesn't end by itself.
func blocks(ctx context.Context, _ Sold) error {
	<-ctx.Done()
	return ctx.Err()
}

// late is a broker that had its messages for long.
type late struct{ broker.Broker }

func (l late) Consume(ctx context.Context, topic, group string) (broker.Consumer, error) {
	c, err := l.Broker.Consume(ctx, topic, group)
	return lateConsumer{c}, err
}

type lateConsumer struct{ broker.Consumer }

func (c lateConsumer) Lag(ctx context.Context) (int64, error) {
	return c.Consumer.(broker.Lagging).Lag(ctx)
}

func (c lateConsumer) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	deliveries, err := c.Consumer.Receive(ctx, limit)
	for i := range deliveries {
		deliveries[i].Published = deliveries[i].Published.Add(-11 * time.Minute)
	}
	return deliveries, err
}

// unitTest is a scenario for promtool: the scrapes as series of one instance, each
// held for as long as any rule waits; expression must give value at the end.
func unitTest(name string, scrapes []samples, expression string, value float64) string {
	const held = 90 // minutes
	var text strings.Builder
	fmt.Fprintf(&text, "  - name: %s\n    interval: 1m\n    input_series:\n", name)
	series := map[string]string{}
	for i, s := range scrapes {
		for name, value := range s {
			for range i - strings.Count(series[name], "x") { // it was not there before
				series[name] += fmt.Sprintf("_x%d ", held)
			}
			series[name] += fmt.Sprintf("%sx%d ", strconv.FormatFloat(value, 'f', -1, 64), held)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(series)) {
		metric, labels, _ := strings.Cut(strings.TrimSuffix(name, "}"), "{")
		fmt.Fprintf(&text, "      - {series: '%s{job=\"test\",instance=\"a\",%s}', values: '%s'}\n", metric, labels, strings.TrimSpace(series[name]))
	}
	if len(series) == 0 {
		text.WriteString("      []\n")
	}
	// A little after the change, and at the end.
	at := held
	if len(scrapes) > 1 {
		at = held + 5
	}
	fmt.Fprintf(&text, "    promql_expr_test:\n      - {expr: '%s', eval_time: %dm, exp_samples: [{labels: '{}', value: %v}]}\n", expression, at, value)
	return text.String()
}

// S2-23: every rule that is shipped fires on what a real engine shows when its cause
// is there, and none on what a healthy one shows.
// Conformance: B3, B10, F-21.
func TestAlerts_S2_23_FireWhenProvoked(t *testing.T) {
	text, err := os.ReadFile(alerts + ".yaml")
	require.NoError(t, err)
	var rules []string
	for _, m := range regexp.MustCompile(`(?s)- alert: (\w+).*?severity: (\w+)`).FindAllStringSubmatch(string(text), -1) {
		rules = append(rules, m[1]+" "+m[2])
	}
	slices.Sort(rules)
	require.Equal(t, rules, slices.Sorted(maps.Keys(provoked)), "each rule has a cause")

	path, err := filepath.Abs(alerts + ".yaml")
	require.NoError(t, err)
	tests := fmt.Sprintf("rule_files: [%q]\nevaluation_interval: 1m\ntests:\n", path)
	var mu sync.Mutex
	add := func(scenario string, scrapes []samples, expression string, value float64) {
		mu.Lock()
		defer mu.Unlock()
		tests += unitTest(scenario, scrapes, expression, value)
	}
	t.Run("scrapes", func(t *testing.T) {
		for _, rule := range rules {
			t.Run(rule, func(t *testing.T) {
				t.Parallel()
				name, severity, _ := strings.Cut(rule, " ")
				add(rule, provoked[rule](t, setup(t)), fmt.Sprintf(`count(ALERTS{alertstate="firing", alertname="%s", severity="%s"}) > bool 0`, name, severity), 1)
			})
		}
		t.Run("healthy", func(t *testing.T) {
			t.Parallel()
			add("healthy", healthyScrapes(t), `count(ALERTS) or vector(0)`, 0)
		})
	})
	file := filepath.Join(t.TempDir(), "provoked.yaml")
	require.NoError(t, os.WriteFile(file, []byte(tests), 0o600))
	promtool(t, "", "test", "rules", file)
}

func healthyScrapes(t *testing.T) []samples {
	t.Helper()
	b := setup(t)
	e := b.consume(func(context.Context, Sold) error { return nil })
	b.sell(3)
	return []samples{scraped(t, e, map[string]float64{
		`waybill_subscription_handled_total{subscription="parcels"}`:          3,
		`waybill_subscription_lag_messages{subscription="parcels"}`:           0,
		`waybill_outbox_published_total{provider="default",target="partner"}`: 3,
		`waybill_outbox_pending{provider="default",target="default"}`:         0,
	})}
}
