package config

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow/postgres"
	"github.com/waybill-go/waybill/uow/sqlite"
)

// S3-08: a file with two databases, of two kinds: repositories say which, and the
// events of both are published.
func TestLoad_S3_08_TwoProviders(t *testing.T) {
	dsn, schema := os.Getenv("WAYBILL_POSTGRES"), fmt.Sprintf("config_%d", os.Getpid())
	require.NotEmpty(t, dsn, "run scripts/test, or eval \"$(scripts/services up)\"")
	m := memory.New(memory.Config{})
	s, err := Load(t.Context(), write(t, fmt.Sprintf(`domain: ordering
providers:
  analytics: {dialect: sqlite, path: %q}
  default: {dialect: postgres, dsn: %q, schema: %s}
brokers: {default: {kind: memory}}
`, filepath.Join(t.TempDir(), "analytics.db"), dsn, schema)), ordering, Kinds{
		Providers: map[string]OpenProvider{"postgres": postgres.FromSettings, "sqlite": sqlite.FromSettings},
		Brokers:   map[string]broker.Opener{"memory": func(context.Context, broker.Settings) (broker.Broker, error) { return m, nil }},
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := s.Units.Providers()[0].DB().ExecContext(context.Background(), "DROP SCHEMA "+schema+" CASCADE")
		require.NoError(t, err)
		require.NoError(t, s.Close(context.Background()))
	})
	require.Equal(t, "default", s.Units.Providers()[0].Name(), "wherever it stands")
	require.NoError(t, engine.Migrate(t.Context(), s.Units))
	e, err := engine.New(s.Engine)
	require.NoError(t, err)
	require.NoError(t, e.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, e.Stop(context.Background())) })
	for n, in := range []string{"default", "analytics"} {
		o := &order{Root: domain.NewRoot()}
		o.Raise(placed{})
		require.NoError(t, repository.New[*order](s.Units, repository.In(in)).Save(t.Context(), o))
		waittest.Until(t, func() bool { return len(m.Messages("ordering.order")) == n+1 }, in)
	}
}

func TestParse_TwoProvidersOfOneName(t *testing.T) {
	_, err := Parse(write(t, `domain: ordering
providers:
  default: {dialect: sqlite, path: a.db}
  default: {dialect: sqlite, path: b.db}
brokers: {default: {kind: memory}}
`))
	require.ErrorContains(t, err, "waybill.yaml:4: providers.default is written twice, first in line 3")
}
