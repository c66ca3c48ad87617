package postgres_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/internal/dbtest"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
	"github.com/waybill-go/waybill/uow/uowtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func dsn(t *testing.T) string { return dbtest.Environment(t, "WAYBILL_POSTGRES") }

// open opens a provider on a schema of the test's own.
func open(t *testing.T, change ...func(*postgres.Config)) uow.Provider {
	p, _ := dbtest.Postgres(t, change...)
	return p
}

// beside opens the schema of p once more, as another process does.
func beside(t *testing.T, p uow.Provider) uow.Provider {
	var schema string
	require.NoError(t, p.DB().NewRaw("SELECT current_schema()").Scan(t.Context(), &schema))
	other, err := postgres.Open(t.Context(), postgres.Config{DSN: dsn(t), Schema: schema})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, other.Close()) })
	return other
}

func TestProvider(t *testing.T) {
	uowtest.Run(t, uowtest.Config{
		Open:   func(t *testing.T) uow.Provider { return open(t) },
		Beside: beside,
		InUse:  func(p uow.Provider) int { return int(postgres.Pool(p).Stat().AcquiredConns()) },
	})
}
