package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
	"github.com/waybill-go/waybill/uow/sqlite"
)

// signals are the four of a target, and what retry_rate is made of.
type signals struct {
	pending, failed, abandoned, published int64
	attempts, retries                     float64
}

func (s signals) rate() float64 {
	if s.attempts == 0 {
		return 0
	}
	return s.retries / s.attempts
}

// S3-27, A85: pending, failed, abandoned and the rate of retries, per provider and per
// target broker, are the same by the API, as metrics and by the command line, on
// both databases.
func TestSignals_S3_27_SayTheSame(t *testing.T) {
	for name, retention := range map[string]outbox.Retention{"kept": {}, "deleted on publish": {Delete: true}} {
		t.Run(name, func(t *testing.T) { signalsSayTheSame(t, retention) })
	}
}

func signalsSayTheSame(t *testing.T, retention outbox.Retention) {
	dsn, path := server(t), filepath.Join(t.TempDir(), "archive.db")
	main, err := postgres.Open(t.Context(), postgres.Config{DSN: dsn})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, main.Close()) })
	archive, err := sqlite.Open(t.Context(), sqlite.Config{Name: "archive", Path: path})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, archive.Close()) })
	units, err := uow.New(uow.Config{Domain: ordering, Providers: []uow.Provider{main, archive}, External: []outbox.Target{{Broker: "partner"}}})
	require.NoError(t, err)
	require.NoError(t, engine.Migrate(t.Context(), units))

	for provider, orders := range map[string][][]string{
		"default": {{"fine"}, {"fine"}, {"once"}, {"always", "behind"}, {"never"}},
		"archive": {{"fine"}, {"always", "behind"}, {"always", "behind", "behind"}},
	} {
		for _, notes := range orders {
			o := &order{Root: domain.NewRoot()}
			for _, note := range notes {
				o.Raise(placed{Note: note})
			}
			require.NoError(t, repository.New[*order](units, repository.In(provider)).Save(t.Context(), o))
		}
	}
	want := map[string]map[string]signals{
		"default": {
			"default": {published: 6, attempts: 6},
			"partner": {published: 3, failed: 1, pending: 1, abandoned: 1, attempts: 2 + 2 + 2 + 1, retries: 2},
		},
		"archive": {
			"default": {published: 6, attempts: 6},
			"partner": {published: 1, failed: 2, pending: 3, attempts: 1 + 2 + 2, retries: 2},
		},
	}

	// A failed row is tried again at once, and once more after an hour.
	partner, tried := memory.New(memory.Config{}), sync.Map{}
	partner.FailWhere(func(m broker.Message) error {
		_, again := tried.LoadOrStore(m.ID, true)
		switch body := string(m.Body); {
		case strings.Contains(body, "never"):
			return broker.Classify(broker.Permanent, errors.New("too large"))
		case strings.Contains(body, "always"), strings.Contains(body, "once") && !again:
			// Of scope row: otherwise nobody pays for what may be an outage.
			return broker.Scoped(broker.Transient, broker.ScopeRow, errors.New("not now"))
		}
		return nil
	})
	e, err := engine.New(engine.Config{
		Units:   []*uow.Manager{units},
		Brokers: map[string]broker.Broker{"default": memory.New(memory.Config{}), "partner": partner},
		Outbox: outbox.Config{
			PollInterval: 20 * time.Millisecond, MaxPollInterval: 20 * time.Millisecond, Retention: retention,
			Retry: outbox.RetryPolicy{BaseDelay: time.Millisecond, Multiplier: 3.6e6},
		},
		Server: engine.Server{Addr: "127.0.0.1:0"},
	})
	require.NoError(t, err)
	require.NoError(t, e.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, e.Stop(context.Background())) })
	read := func(path string) string {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+e.Addr()+path, nil)
		require.NoError(t, err)
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		response, err := client.Do(request)
		require.NoError(t, err)
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.Equal(t, 200, response.StatusCode, "%s", body)
		return string(body)
	}

	config := filepath.Join(t.TempDir(), "waybill.yaml")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, "providers:\n  default: {dialect: postgres, dsn: %q}\n  archive: {dialect: sqlite, path: %q}\n", dsn, path), 0o600))
	same := func(text string) string {
		var a answer
		require.NoError(t, json.Unmarshal([]byte(text), &a), text)
		return a.differs(want)
	}
	differs := same(read("/api/outbox"))
	for deadline := time.Now().Add(90 * time.Second); differs != "" && time.Now().Before(deadline); differs = same(read("/api/outbox")) {
		<-time.After(50 * time.Millisecond)
	}
	require.Empty(t, differs)

	r := waybill(t, "--config", config, "--json", "outbox", "stats")
	require.Zero(t, r.code, r.stderr)
	require.Empty(t, same(r.stdout))
	r = waybill(t, "--config", config, "outbox", "stats")
	require.Zero(t, r.code, r.stderr)
	require.Regexp(t, `(?m)^default +partner +1 +0 +3 +1 +1 +28\.6 % `, r.stdout)
	require.Regexp(t, `(?m)^archive +partner +3 +0 +1 +2 +0 +40\.0 % `, r.stdout)

	metrics := read("/metrics")
	for provider, targets := range want {
		for target, s := range targets {
			for name, value := range map[string]float64{
				"outbox_pending": float64(s.pending), "outbox_failed": float64(s.failed), "outbox_abandoned": float64(s.abandoned),
				"outbox_published_total": float64(s.published), "outbox_retry_rate": s.rate(),
				// The only process that has published knows the same.
				"processor_attempts_total": s.attempts, "processor_retries_total": s.retries,
			} {
				require.Contains(t, metrics, fmt.Sprintf("waybill_%s{provider=%q,target=%q} %v\n", name, provider, target, value))
			}
		}
	}
}

// differs says what is not as wanted; "": nothing.
func (a answer) differs(want map[string]map[string]signals) string {
	var text strings.Builder
	for provider, targets := range want {
		for target, s := range targets {
			got := a.Providers[provider][target]
			counts := map[outbox.Status]int64{"pending": s.pending, "processing": 0, "published": s.published, "failed": s.failed, "abandoned": s.abandoned}
			if fmt.Sprint(got.Counts) != fmt.Sprint(counts) || got.RetryRate != s.rate() {
				fmt.Fprintf(&text, "%s to %s: %v and %v, not %v and %v\n", provider, target, got.Counts, got.RetryRate, counts, s.rate())
			}
		}
	}
	return text.String()
}

// Every command that an alert or the watchdog tells people to run is one of this
// program.
func TestAlerts_S2_23_NameCommandsThatExist(t *testing.T) {
	for path, least := range map[string]int{
		"deploy/prometheus/waybill-alerts.yaml": 10, "engine/reasons.go": 10, "docs/guides/alerts-and-health.md": 3,
	} {
		text, err := os.ReadFile("../../" + path)
		require.NoError(t, err)
		commands := regexp.MustCompile("`waybill ([^`]+)`").FindAllStringSubmatch(string(text), -1)
		require.GreaterOrEqual(t, len(commands), least, path)
		for _, c := range commands {
			only := "--target x"
			if strings.HasPrefix(c[1], "dead-letters") {
				only = "--subscription x"
			}
			r := waybill(t, append(strings.Fields(strings.ReplaceAll(c[1], "{only}", only)), "--help")...)
			require.Zero(t, r.code, "%s: %s: %s", path, c[0], r.stderr)
		}
	}
}
