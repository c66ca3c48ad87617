package engine

import (
	"context"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
)

// Schemathesis makes up requests from the document, right ones and wrong ones, and
// compares the answers with it. The engine meanwhile has rows of every status, on
// both databases, and dead letters. It needs a Python of its own and minutes, which is
// why it needs WAYBILL_LONG.
func TestOpenAPI_Schemathesis(t *testing.T) {
	if os.Getenv("WAYBILL_LONG") == "" {
		return
	}
	script, err := filepath.Abs("../scripts/python")
	require.NoError(t, err)
	python, err := exec.CommandContext(t.Context(), script, "engine/testdata/schemathesis.txt").Output()
	require.NoError(t, err)
	schemathesis := filepath.Join(filepath.Dir(strings.TrimSpace(string(python))), "schemathesis")
	for name, open := range map[string]func(t *testing.T) uow.Provider{
		"SQLite": func(t *testing.T) uow.Provider { return openSQLite(t, "default") },
		"PostgreSQL": func(t *testing.T) uow.Provider {
			return openPostgres(t, postgres.Config{DSN: newDatabaseOn(t).String()})
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := setupOn(t, open(t)).busy()
			for who, arguments := range map[string][]string{
				"everybody": nil, "operator": {"--header", "Authorization: Bearer " + token},
			} {
				t.Run(who, func(t *testing.T) {
					arguments := append([]string{
						"run", "http://" + e.Addr() + "/openapi.json", "--checks", "all", "--no-color", "--max-examples", "100",
						"--max-response-time", "20", "--warnings", "off", "--output-sanitize", "false",
						"--exclude-path", "/api/stream", // which doesn't end
					}, arguments...)
					command := exec.CommandContext(t.Context(), schemathesis, arguments...)
					command.Dir = t.TempDir()
					out, err := command.CombinedOutput()
					require.NoError(t, err, "%s", out)
					require.Contains(t, string(out), "No issues found")
				})
			}
			var left messagesReport
			require.Equal(t, 200, call(t, e, http.MethodGet, "/api/outbox/messages?limit=1000", "", &left))
			require.NotEmpty(t, left.Messages)
		})
	}
}

// busy is an engine that has rows of every status, and dead letters, until the test
// ends.
func (b *bench) busy() *Engine {
	var n atomic.Int64
	b.partner.FailWhere(func(broker.Message) error {
		switch n.Add(1) % 5 {
		case 0:
			return broker.Classify(broker.Permanent, errors.New("not wanted"))
		case 1, 2:
			return errors.New("not now")
		case 3:
			<-time.After(100 * time.Millisecond)
		}
		return nil
	})
	s := b.orders(func(_ context.Context, sold Sold) error {
		if sold.Amount%3 == 0 {
			return errors.New("no such parcel")
		}
		return nil
	})
	s.MaxAttempts = 1
	cfg := b.guarded()
	cfg.Outbox.OnAbandoned = outbox.Hold
	cfg.Subscriptions = []subscription.Stream{s}
	cfg.Server.ShowPayloads, cfg.Server.Redact = true, []string{"amount"}
	e := b.start(cfg)

	ctx, stop := context.WithCancel(b.t.Context())
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := 1; ctx.Err() == nil; i++ {
			s := newSale(i)
			s.Raise(SaleMade{Amount: i}) // it waits for the first
			if err := b.repo.Save(ctx, s); err != nil && ctx.Err() == nil {
				b.t.Error(err)
			}
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	})
	b.t.Cleanup(func() { stop(); writer.Wait() })
	eventually(b.t, func() bool {
		var report outboxReport
		require.Equal(b.t, 200, get(b.t, e, "/api/outbox", &report))
		for _, status := range outbox.Statuses() {
			if report.Providers["default"]["partner"].Counts[status] == 0 {
				return false
			}
		}
		return *e.subscriptionsState(ctx, fresh).Subscriptions["parcels"].DeadLetters > 0
	})
	return e
}
