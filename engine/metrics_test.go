package engine

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

// scrape fetches /metrics: the text, and the samples by name and labels.
func scrape(t *testing.T, e *Engine) (string, map[string]float64) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+e.Addr()+"/metrics", nil)
	require.NoError(t, err)
	if e.cfg.Server.Token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	response, err := client.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Equal(t, 200, response.StatusCode, "%s", body)
	samples := map[string]float64{}
	for line := range strings.Lines(string(body)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && strings.HasPrefix(name, "waybill_") {
			samples[name], err = strconv.ParseFloat(value, 64)
			require.NoError(t, err, line)
		}
	}
	return string(body), samples
}

// scraped waits until a scrape has these samples, and not those.
func scraped(t *testing.T, e *Engine, want map[string]float64, absent ...string) (got map[string]float64) {
	t.Helper()
	var wrong string
	waittest.Until(t, func() bool {
		_, got = scrape(t, e)
		wrong = ""
		for name, value := range want {
			if v, ok := got[name]; !ok || v != value {
				wrong += fmt.Sprintf("\n%s is there: %t, and %v, not %v", name, ok, v, value)
			}
		}
		for _, name := range absent {
			if v, ok := got[name]; ok {
				wrong += fmt.Sprintf("\n%s is %v, and not away", name, v)
			}
		}
		return wrong == ""
	}, "%v", stringer(func() string { return wrong }))
	return got
}

// complete is an engine that shows every metric.
//
// A check begins with what was weighed.
func complete(t *testing.T) (*bench, *Engine) {
	t.Helper()
	b := setup(t)
	cfg := b.config()
	cfg.Outbox.Retry.BaseDelay = time.Hour
	cfg.Subscriptions = []subscription.Stream{b.orders(func(_ context.Context, s Sold) error {
		if s.Amount == 2 {
			return subscription.Park(errors.New("no such article"))
		}
		return nil
	})}
	weighed := units(t, uow.Config{Domain: scales, Providers: []uow.Provider{b.db}})
	require.NoError(t, Migrate(t.Context(), weighed))
	h := weighing(t, weighed)
	checked := units(t, uow.Config{Domain: checks, Providers: []uow.Provider{b.db}})
	require.NoError(t, Migrate(t.Context(), checked))
	cfg.Contexts = []Context{{Commands: h}, {Units: checked}}
	cfg, _ = b.shows(cfg, nil)
	e := b.start(cfg)
	require.NoError(t, h.Do(t.Context(), Weigh{"p1"}))
	scraped(t, e, map[string]float64{`waybill_subscription_lag_messages{subscription="parcels"}`: 0}) // it has joined its group
	return b, e
}

// troubled is a complete one that isn't healthy, whose numbers are all there are.
func troubled(t *testing.T) *Engine {
	t.Helper()
	b, e := complete(t)
	b.sell(2)
	scraped(t, e, map[string]float64{`waybill_health_reasons{code="dead_letters"}`: 1})
	return e
}

type (
	Scale   struct{ domain.Root }
	Weighed struct {
		ID string `json:"id"`
	}
	checking struct{ domain.ProcessRoot }
)

func (*checking) Weighed(Weighed) error { return nil }

var checks = domain.MustNew("checks",
	domain.Aggregate[*Scale]("scale", domain.Event[Weighed]()),
	domain.Process[*checking]("check", domain.CorrelatedBy("id"), domain.Starts((*checking).Weighed)),
)

// What happened is what the numbers say, each with the names of its parts.
func TestMetrics_SayWhatHappened(t *testing.T) {
	b, e := complete(t)
	b.partner.FailWhere(func(m broker.Message) error {
		if strings.Contains(string(m.Body), `"amount":3`) || strings.Contains(string(m.Body), `"Amount":3`) {
			return refusedRow("not now")
		}
		return nil
	})
	b.sell(3)
	got := scraped(t, e, map[string]float64{
		`waybill_commands_total{command="Weigh",context="scales",result="done"}`: 1,
		`waybill_ready`: 1,
		`waybill_provider_up{provider="default"}`:                                                         1,
		`waybill_broker_up{broker="default"}`:                                                             1,
		`waybill_broker_up{broker="partner"}`:                                                             1,
		`waybill_outbox_counted{provider="default"}`:                                                      1,
		`waybill_outbox_pending{provider="default",target="partner"}`:                                     0,
		`waybill_outbox_processing{provider="default",target="partner"}`:                                  0,
		`waybill_outbox_failed{provider="default",target="partner"}`:                                      1,
		`waybill_outbox_abandoned{provider="default",target="partner"}`:                                   0,
		`waybill_outbox_published_total{provider="default",target="partner"}`:                             2,
		`waybill_outbox_published_total{provider="default",target="default"}`:                             3,
		`waybill_outbox_retry_rate{provider="default",target="partner"}`:                                  0,
		`waybill_outbox_oldest_pending_seconds{provider="default",target="default"}`:                      0,
		`waybill_outbox_lease_owners{provider="default",target="partner"}`:                                1,
		`waybill_processor_running{provider="default",target="partner"}`:                                  1,
		`waybill_processor_partitions{provider="default",target="partner"}`:                               64,
		`waybill_processor_in_flight{provider="default",target="partner"}`:                                0,
		`waybill_processor_breaker_open{provider="default",target="partner"}`:                             0,
		`waybill_processor_open_topics{provider="default",target="partner"}`:                              0,
		`waybill_processor_published_total{provider="default",target="partner"}`:                          2,
		`waybill_processor_attempts_total{provider="default",target="partner"}`:                           3,
		`waybill_processor_publish_latency_seconds_count{provider="default",target="default"}`:            3,
		`waybill_processor_publish_latency_seconds_count{provider="default",target="partner"}`:            2,
		`waybill_processor_publish_latency_seconds_bucket{provider="default",target="partner",le="+Inf"}`: 2,
		`waybill_processor_publish_latency_seconds_bucket{provider="default",target="partner",le="60"}`:   2,
		`waybill_processor_retries_total{provider="default",target="partner"}`:                            0,
		`waybill_subscription_running{subscription="parcels"}`:                                            1,
		`waybill_subscription_handled_total{subscription="parcels"}`:                                      2,
		`waybill_subscription_parked_total{subscription="parcels"}`:                                       1,
		`waybill_subscription_breaker_open{subscription="parcels"}`:                                       0,
		`waybill_subscription_lag_messages{subscription="parcels"}`:                                       0,
		`waybill_subscription_lag_seconds{subscription="parcels"}`:                                        0,
		`waybill_dead_letters{provider="default",subscription="parcels"}`:                                 1,
	})
	require.Positive(t, got[`waybill_outbox_oldest_pending_seconds{provider="default",target="partner"}`])
	require.Positive(t, got[`waybill_processor_publish_latency_seconds_sum{provider="default",target="partner"}`])

	b.partner.SetOutage(true)
	b.sell(1)
	scraped(t, e, map[string]float64{
		`waybill_processor_breaker_open{provider="default",target="partner"}`: 1,
		`waybill_processor_breaker_open{provider="default",target="default"}`: 0,
		`waybill_broker_up{broker="partner"}`:                                 0,
		`waybill_broker_up{broker="default"}`:                                 1,
		`waybill_ready`:                                                       1,
	})
	b.partner.SetOutage(false)
}

// S3-27: without a database a scrape answers, says so, and leaves its numbers out
// instead of calling them 0; what the process knows stays.
func TestMetrics_S3_27_ADatabaseThatIsDown(t *testing.T) {
	b := setup(t)
	cfg, other := b.withAnalytics()
	orders := b.orders(func(context.Context, Sold) error { return nil })
	orders.Units = cfg.Units[1]
	cfg.Subscriptions = []subscription.Stream{orders}
	e := b.start(cfg)
	well := map[string]float64{
		`waybill_ready`: 1,
		`waybill_provider_up{provider="analytics"}`:                         1,
		`waybill_outbox_counted{provider="analytics"}`:                      1,
		`waybill_outbox_pending{provider="analytics",target="default"}`:     0,
		`waybill_outbox_retry_rate{provider="analytics",target="default"}`:  0,
		`waybill_dead_letters{provider="analytics",subscription="parcels"}`: 0,
	}
	scraped(t, e, well)
	for _, fault := range []func(bool){other.down.Store, other.hung.Store} {
		fault(true)
		scraped(t, e, map[string]float64{
			`waybill_ready`: 0,
			`waybill_provider_up{provider="analytics"}`:                        0,
			`waybill_provider_up{provider="default"}`:                          1,
			`waybill_outbox_counted{provider="analytics"}`:                     0,
			`waybill_outbox_counted{provider="default"}`:                       1,
			`waybill_outbox_pending{provider="default",target="default"}`:      0,
			`waybill_processor_running{provider="analytics",target="default"}`: 1,
		}, `waybill_outbox_pending{provider="analytics",target="default"}`,
			`waybill_outbox_retry_rate{provider="analytics",target="default"}`,
			`waybill_dead_letters{provider="analytics",subscription="parcels"}`)
		fault(false)
		scraped(t, e, well)
	}
}

// watched is a database that counts how often its rows are counted.
type watched struct {
	uow.Provider
	reader *bun.DB
	counts atomic.Int64
}

func (w *watched) Reader() *bun.DB { return w.reader }

func (w *watched) BeforeQuery(ctx context.Context, e *bun.QueryEvent) context.Context {
	if strings.Contains(e.Query, "FROM outbox_counts") {
		w.counts.Add(1)
	}
	return ctx
}

func (*watched) AfterQuery(context.Context, *bun.QueryEvent) {}

// Many scrapes, and the API beside them, count the rows once a second.
func TestMetrics_ScrapesDoNotLoadTheDatabase(t *testing.T) {
	b := setup(t)
	db := &watched{Provider: b.db}
	db.reader = b.db.Reader().WithQueryHook(db)
	cfg := b.config()
	cfg.Units = []*uow.Manager{units(t, uow.Config{Domain: sales, Providers: []uow.Provider{db}, External: []outbox.Target{{Broker: "partner"}}})}
	e := b.start(cfg)
	began := time.Now()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 10 {
				metrics := ask(e.Handler(), "GET", "/metrics", "localhost", "127.0.0.1:1", "")
				api := ask(e.Handler(), "GET", "/api/outbox", "localhost", "127.0.0.1:1", "")
				if api.Code != 200 || !strings.Contains(metrics.Body.String(), `waybill_outbox_counted{provider="default"} 1`) {
					t.Error(api.Code, metrics.Body)
				}
			}
		})
	}
	all.Wait()
	require.Positive(t, db.counts.Load())
	require.LessOrEqual(t, db.counts.Load(), int64(time.Since(began)/freshFor)+1)
}

var update = flag.Bool("update", false, "write docs/reference/metrics.md anew")

// The reference has every metric that there is, as the registry describes it, and
// no other.
func TestMetrics_TheReferenceHasAll(t *testing.T) {
	text, _ := scrape(t, troubled(t))
	help, types, labels := map[string]string{}, map[string]string{}, map[string]string{}
	for line := range strings.Lines(text) {
		words := strings.SplitN(strings.TrimSpace(line), " ", 4)
		switch words[1] {
		case "HELP":
			help[words[2]] = words[3]
		case "TYPE":
			types[words[2]] = words[3]
		default:
			name, pairs, _ := strings.Cut(words[0], "{")
			var names []string
			for _, m := range regexp.MustCompile(`(\w+)="`).FindAllStringSubmatch(pairs, -1) {
				names = append(names, m[1])
			}
			if histogram, ok := strings.CutSuffix(name, "_sum"); ok && types[histogram] == "histogram" {
				name = histogram
			}
			labels[name] = strings.Join(names, ", ")
		}
	}
	var rows []string
	for name := range help {
		if strings.HasPrefix(name, "waybill_") {
			rows = append(rows, fmt.Sprintf("| `%s` | %s | %s | %s |\n", name, types[name], labels[name], help[name]))
		}
	}
	require.Greater(t, len(rows), 30)
	slices.Sort(rows)
	const path, begin = "../docs/reference/metrics.md", "|---|---|---|---|\n"
	have, err := os.ReadFile(path)
	require.NoError(t, err)
	head, _, ok := strings.Cut(string(have), begin)
	require.True(t, ok, "what is before the table is written by hand")
	want := head + begin + strings.Join(rows, "")
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(want), 0o600))
		return
	}
	require.Equal(t, want, string(have), "docs/reference/metrics.md is not what an engine has: go test ./engine -run TestMetrics_TheReference -update")
}

const alerts = "../deploy/prometheus/waybill-alerts"

// promtool runs Prometheus' own tool.
func promtool(t *testing.T, stdin string, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	require.NoError(t, err, "promtool is missing: run scripts/test, or install it (Debian: apt-get install prometheus)")
	c := exec.CommandContext(t.Context(), path, args...)
	c.Stdin = strings.NewReader(stdin)
	var said bytes.Buffer
	c.Stdout, c.Stderr = &said, &said
	require.NoError(t, c.Run(), "promtool %s\n%s", strings.Join(args, " "), &said)
}

// Prometheus' own tool finds names, units and texts in order.
func TestMetrics_PromtoolLikesThem(t *testing.T) {
	_, e := complete(t)
	text, _ := scrape(t, e)
	promtool(t, text, "check", "metrics")
}

// S2-23: the rules are ready for Prometheus, and each fires above its threshold and
// not at it.
func TestAlerts_S2_23_FireAtTheirThresholds(t *testing.T) {
	promtool(t, "", "check", "rules", alerts+".yaml")
	promtool(t, "", "test", "rules", alerts+"_test.yaml")

	// None is left out, and they ask only for what there is.
	rules, err := os.ReadFile(alerts + ".yaml")
	require.NoError(t, err)
	tests, err := os.ReadFile(alerts + "_test.yaml")
	require.NoError(t, err)
	found := regexp.MustCompile(`(?s)- alert: (\w+).*?severity: (\w+)`).FindAllStringSubmatch(string(rules), -1)
	require.NotEmpty(t, found)
	for _, m := range found {
		require.Regexp(t, fmt.Sprintf(`ALERTS{alertname="%s", alertstate="firing".*severity="%s"`, m[1], m[2]), string(tests), "a case that fires")
	}
	text, _ := scrape(t, troubled(t))
	for _, name := range regexp.MustCompile(`waybill_\w+`).FindAllString(string(rules), -1) {
		require.True(t, strings.Contains(text, "# TYPE "+name+" "), "the rules ask for %s", name) //nolint:testifylint // the text is long
	}
}

// stringer is a text as it is when it is asked for.
type stringer func() string

func (s stringer) String() string { return s() }
