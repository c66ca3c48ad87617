package engine

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/migrate"
	"github.com/waybill-go/waybill/internal/rights"
	"github.com/waybill-go/waybill/internal/rights/rightstest"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
)

// S1: an engine whose role lacks a right says so within seconds, in the database's
// words and with what helps, instead of being well and publishing nothing; with the
// grants that are printed it publishes, and starts as a role that owns nothing.
func TestEngine_S1_ARightThatIsMissingShows(t *testing.T) {
	at := newDatabaseOn(t).String()
	owner := openPostgres(t, postgres.Config{DSN: at})
	setupOn(t, owner)
	name := rightstest.Login(t, owner.DB(), migrate.Engine)
	own := func(statement string) {
		_, err := owner.DB().ExecContext(t.Context(), statement, bun.Ident(name))
		require.NoError(t, err)
	}
	// What the documentation once said is enough.
	own("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO ?")
	own("GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO ?")
	role := openPostgres(t, postgres.Config{DSN: rightstest.DSN(t, at, name)})
	limited := setupOn(t, role) // which migrates: there is nothing to do
	e := limited.start(limited.config())
	begin := time.Now()
	require.NoError(t, limited.repo.Save(t.Context(), newSale(1)))

	var d diagnosis
	eventually(t, func() bool {
		require.Equal(t, 200, get(t, e, "/api/health", &d))
		return d.State == stuck
	})
	require.Less(t, time.Since(begin), 10*time.Second)
	require.Equal(t, "database_refuses", d.Reasons[0].Code)
	require.Contains(t, d.Reasons[0].Text, "the database refuses to let it look for rows (outbox: poll: ERROR: permission denied for sequence outbox_messages_seq_seq (SQLSTATE 42501))")
	require.Contains(t, d.Reasons[0].Text, "`waybill doctor` says which right the role lacks")
	require.NotNil(t, d.Reasons[0].Since)
	var h health
	eventually(t, func() bool { // Each lane finds out by itself.
		require.Equal(t, 200, get(t, e, "/readyz", &h))
		return !*h.Components.Processors["default"]["partner"].OK
	})
	require.Equal(t, "degraded", h.Status)
	require.Contains(t, *h.Components.Processors["default"]["partner"].Error, "permission denied for sequence")
	var report outboxReport
	require.Equal(t, 200, get(t, e, "/api/outbox", &report))
	require.Contains(t, *report.Providers["default"]["partner"].LastError, "permission denied for sequence")

	require.NoError(t, rights.Give(t.Context(), owner.DB(), []rights.Grantee{{Role: migrate.Engine, Name: name}}, rights.Features()))
	eventually(t, func() bool { return len(limited.partner.Messages("sales.sale")) == 1 })
	eventually(t, func() bool {
		require.Equal(t, 200, get(t, e, "/api/health", &d))
		return d.State == healthy
	})
}

// S1: a program that only saves, as a role that may do no more, may call Migrate and
// Check: they change nothing where the tables and the context are there.
func TestMigrate_S1_NeedsNoRightWhereAllIsThere(t *testing.T) {
	at := newDatabaseOn(t).String()
	owner := openPostgres(t, postgres.Config{DSN: at})
	setupOn(t, owner)
	p := rightstest.As(t, owner, postgres.Config{DSN: at}, migrate.App, rights.Features()...)
	b := setupOn(t, p)
	require.NoError(t, Check(t.Context(), b.sales, b.parcels))
	require.NoError(t, repository.New[*sale](b.sales).Save(t.Context(), newSale(1)))
	require.NoError(t, b.sales.Do(t.Context(), func(ctx context.Context) error {
		_, err := uow.DB(ctx)
		return err
	}))
}

// S1: so it may where an earlier build wrote down what is published, and where a broker is joining
// and an engine has started since.
func TestMigrate_S1_NeedsNoRightToNoteAgainWhatIsPublished(t *testing.T) {
	at := newDatabaseOn(t).String()
	owner := openPostgres(t, postgres.Config{DSN: at})
	setupOn(t, owner)
	_, err := owner.DB().ExecContext(t.Context(), "DELETE FROM outbox_settings WHERE name LIKE 'ever-published:%'")
	require.NoError(t, err)
	p := rightstest.As(t, owner, postgres.Config{DSN: at}, migrate.App, rights.Features()...)
	setupOn(t, p)
	_, err = owner.DB().ExecContext(t.Context(), `UPDATE outbox_settings SET value = '{"broker": "default", "external": ["partner"], "joining": ["partner"]}' WHERE name = 'targets:sales'`)
	require.NoError(t, err)
	setupOn(t, owner)
	setupOn(t, p)
}
