package faults

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/internal/chaos"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
	"github.com/waybill-go/waybill/uow/sqlite"
)

// S1-04: what a process without an engine commits, an engine in another one
// publishes at once, without a poll.
// Conformance: U-10.
func TestWakeUp_AcrossProcesses(t *testing.T) {
	t.Parallel()
	test := func(t *testing.T, open func() uow.Provider, deafen func()) {
		db := open()
		reading, err := uow.New(uow.Config{Domain: chaos.Accounts, Providers: []uow.Provider{db}})
		require.NoError(t, err)
		require.NoError(t, engine.Migrate(t.Context(), reading))
		m := memory.New(memory.Config{})
		never := 10 * time.Minute
		e, err := engine.New(engine.Config{
			Units: []*uow.Manager{reading}, Brokers: map[string]broker.Broker{"default": m},
			Outbox: outbox.Config{PollInterval: never, MaxPollInterval: never, Lease: time.Hour},
		})
		require.NoError(t, err)
		require.NoError(t, e.Start(t.Context()))
		t.Cleanup(func() { require.NoError(t, e.Stop(context.Background())) })

		writing, err := uow.New(uow.Config{Domain: chaos.Accounts, Providers: []uow.Provider{open()}})
		require.NoError(t, err)
		repo := repository.New[*chaos.Account](writing)
		published := 0
		save := func(id string) {
			a := chaos.NewAccount(id)
			a.Move(1, "")
			require.NoError(t, repo.Save(t.Context(), a))
			published++
			waittest.Until(t, func() bool { return len(m.Messages(chaos.AccountTopic)) == published })
		}
		for _, id := range []string{"a", "b", "c"} {
			save(id)
		}
		deafen()
		save("d")
		save("e")
	}
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, 0)
		open := func() uow.Provider {
			p, err := postgres.Open(t.Context(), postgres.Config{DSN: w.dsn})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, p.Close()) })
			return p
		}
		// It listens again by itself, and looks for what it has missed.
		test(t, open, func() {
			_, err := w.db.Exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'")
			require.NoError(t, err)
		})
	})
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "test.db")
		test(t, func() uow.Provider {
			p, err := sqlite.Open(t.Context(), sqlite.Config{Path: path})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, p.Close()) })
			return p
		}, func() {})
	})
}
