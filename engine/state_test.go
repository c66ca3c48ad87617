package engine

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/nats"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

// telling is a broker whose consumers fare as they are told to.
type telling struct {
	broker.Broker
	state atomic.Pointer[broker.State]
}

type tellingConsumer struct {
	broker.Consumer
	state *atomic.Pointer[broker.State]
}

func (b *telling) Consume(ctx context.Context, topic, group string) (broker.Consumer, error) {
	c, err := b.Broker.Consume(ctx, topic, group)
	return tellingConsumer{c, &b.state}, err
}

func (c tellingConsumer) State() broker.State { return *c.state.Load() }

// mute is a broker whose consumers should know their lag, and don't.
type mute struct{ broker.Broker }

type muteConsumer struct{ broker.Consumer }

func (b mute) Consume(ctx context.Context, topic, group string) (broker.Consumer, error) {
	c, err := b.Broker.Consume(ctx, topic, group)
	return muteConsumer{c}, err
}

func (muteConsumer) Lag(context.Context) (int64, error) {
	return 0, errors.New("not allowed to describe the group")
}

// consumeFrom starts an engine that only consumes, and returns what tells its consumer
// how it fares. At first it is well.
func (b *bench) consumeFrom() (e *Engine, says func(broker.State)) {
	b.t.Helper()
	from := &telling{Broker: b.main}
	says = func(s broker.State) { from.state.Store(&s) }
	says(broker.State{Joined: true, Since: time.Now(), Partitions: 4})
	cfg := b.config()
	cfg.Brokers["default"] = from
	cfg.Subscriptions = []subscription.Stream{b.orders(func(context.Context, Sold) error { return nil })}
	e = b.start(cfg)
	until(b.t, e, `waybill_subscription_running{subscription="parcels"}`, 1)
	return e, says
}

// within is the reason that an engine has for not being healthy, 10 seconds after its
// cause at most.
func within(t *testing.T, e *Engine, code string) (r reason) {
	t.Helper()
	require.Eventually(t, func() bool {
		var d diagnosis
		get(t, e, "/api/health", &d)
		for _, found := range d.Reasons {
			if found.Code == code {
				r = found
				return d.State != healthy
			}
		}
		return false
	}, 10*time.Second, 50*time.Millisecond, "health says %s within 10 s", code)
	return r
}

// subscriptionOf is what /readyz says of parcels.
func subscriptionOf(t *testing.T, e *Engine) (status string, c component) {
	t.Helper()
	var h health
	get(t, e, "/readyz", &h)
	return h.Status, h.Components.Subscriptions["parcels"]
}

// B3: a service that only consumes is unhealthy soon when its broker gives it nothing,
// and says why, since when and what helps: in health, /readyz, the API and metrics.
func TestConsumer_B3_ThatGetsNothingIsUnhealthyAndSaysWhy(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e, says := b.consumeFrom()
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for code, err := range map[string]error{
		"subscription_cut_off": broker.Classify(broker.Unavailable, errors.New("no route to host")),
		"subscription_refused": broker.Classify(broker.Permanent, errors.New("GROUP_AUTHORIZATION_FAILED")),
	} {
		says(broker.State{Since: since, LastError: err})
		r := within(t, e, code)
		require.Equal(t, "parcels", r.Subscription)
		require.NotNil(t, r.Since)
		for _, words := range []string{err.Error(), "2026-01-02T03:04:05Z", "it continues"} {
			require.Contains(t, strings.ReplaceAll(r.Text, "and continues", "it continues"), words)
		}
		status, c := subscriptionOf(t, e)
		require.Equal(t, "degraded", status)
		require.False(t, *c.OK)
		require.Contains(t, *c.Error, err.Error())

		var report subscriptionsReport
		require.Equal(t, http.StatusOK, get(t, e, "/api/subscriptions", &report))
		seen := report.Subscriptions["parcels"]
		require.False(t, seen.Running || seen.Joined)
		require.Equal(t, "2026-01-02T03:04:05Z", *seen.Since)
		require.Equal(t, err.Error(), *seen.Refusal)

		_, now := scrape(t, e)
		require.Zero(t, now[`waybill_subscription_joined{subscription="parcels"}`])
		eventually(t, func() bool { // as soon as what was known before is old
			_, now = scrape(t, e)
			_, messages := now[`waybill_subscription_lag_messages{subscription="parcels"}`]
			_, seconds := now[`waybill_subscription_lag_seconds{subscription="parcels"}`]
			return !messages && !seconds
		})
		says(broker.State{Joined: true, Since: time.Now()})
		diagnosed(t, e)
	}
}

// B10: what the broker removed before it was consumed shows, with how much and what helps.
func TestConsumer_B10_MissedMessagesShow(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e, says := b.consumeFrom()
	says(broker.State{Joined: true, Since: time.Now(), Missed: 15})
	r := within(t, e, "subscription_missed")
	require.Contains(t, r.Text, "15 messages")
	require.Contains(t, r.Text, "waybill history republish")
	require.Contains(t, codes(diagnosed(t, e, "subscription_missed")), "subscription_missed")
	_, now := scrape(t, e)
	require.InDelta(t, 15, now[`waybill_subscription_missed_total{subscription="parcels"}`], 0)
}

// B9: a service that only consumes from NATS is unhealthy within 10 s of its server's end.
func TestConsumer_B9_OfNATSThatIsStoppedIsUnhealthy(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s, err := natsserver.NewServer(&natsserver.Options{Host: "127.0.0.1", Port: natsserver.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true})
	require.NoError(t, err)
	s.Start()
	stop := sync.OnceFunc(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	t.Cleanup(stop)
	from, err := nats.Open(t.Context(), nats.Config{URL: s.ClientURL()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, from.Close(context.Background())) })
	cfg := b.config()
	cfg.Units = []*uow.Manager{b.parcels}
	cfg.Brokers = map[string]broker.Broker{"default": from}
	cfg.Subscriptions = []subscription.Stream{b.orders(func(context.Context, Sold) error { return nil })}
	e := b.start(cfg)
	until(t, e, `waybill_subscription_running{subscription="parcels"}`, 1)

	stop()
	r := within(t, e, "subscription_cut_off")
	require.Contains(t, r.Text, "no connection")
	status, c := subscriptionOf(t, e)
	require.Equal(t, "degraded", status)
	require.False(t, *c.OK)
}
