package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
)

// An aggregate that was renamed isn't found any more, and nothing fails: the log names it.
func TestStart_NamesAggregatesThatAreStoredAndNotDeclared(t *testing.T) {
	for name, open := range map[string]func(*testing.T) uow.Provider{
		"sqlite": func(t *testing.T) uow.Provider { return openSQLite(t, "default") },
		"postgres": func(t *testing.T) uow.Provider {
			return openPostgres(t, postgres.Config{DSN: newDatabaseOn(t).String()})
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := setupOn(t, open(t))
			b.sell(2)
			_, err := b.db.DB().ExecContext(t.Context(), "INSERT INTO documents (category, id, version) VALUES ('salesmen::man', '1', 1), ('Sales::sale', '1', 1), ('other::sale', '1', 1)")
			require.NoError(t, err)
			b.start(b.config())
			const said = "aggregates are stored that this build doesn't declare"
			require.Empty(t, b.logs.with(said))

			_, err = b.db.DB().ExecContext(t.Context(), "INSERT INTO events (category, id, version, n, type, occurred_at) VALUES ('sales::ledger', '1', 1, 1, 'x', CURRENT_TIMESTAMP)")
			require.NoError(t, err)
			renamed := units(t, uow.Config{
				Domain:    domain.MustNew("sales", domain.Aggregate[*sale]("deal", domain.Event[SaleMade](domain.Published()))),
				Providers: []uow.Provider{b.db}, External: []outbox.Target{{Broker: "partner"}},
			})
			cfg := b.config()
			cfg.Units = []*uow.Manager{renamed, b.parcels}
			b.start(cfg)
			require.Len(t, b.logs.with(said), 1)
			require.Len(t, b.logs.with("level=WARN", said, "give it the old one back", "context=sales", `aggregates="ledger, sale"`), 1)
		})
	}
}
