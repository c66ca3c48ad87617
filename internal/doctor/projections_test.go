package doctor

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun/dialect"
)

// A projection is found if it stands still, or if its view is in use and nobody feeds it.
func TestProjections_StandingStillOrLeft(t *testing.T) {
	each(t, func(t *testing.T, p *patient) {
		p.exec(t, "INSERT INTO projections (projection, build, version, context, status, tables) VALUES ('loans', 1, 1, 'library', 'live', '{}')")
		p.exec(t, "INSERT INTO projection_positions (projection, build, shard, position) VALUES ('loans', 1, 0, 0)")
		p.has(t, "projections", Warning, "projection loans, build 1", "no process feeds it", "waybill projections retire loans")
		p.exec(t, "INSERT INTO projections (projection, build, version, context, status) VALUES ('loans', 2, 3, 'library', 'building')")
		p.exec(t, "INSERT INTO projection_positions (projection, build, shard, position) VALUES ('loans', 2, 0, 0)")
		p.has(t, "projections", Warning, "projection loans, build 1", "no process feeds it", "if no build has it any more, start one that has version 3, which continues build 2; if the projection is gone from all, `waybill projections retire loans` removes it")
		p.exec(t, "DELETE FROM projection_positions WHERE build = 2")
		p.exec(t, "DELETE FROM projections WHERE build = 2")
		p.exec(t, "INSERT INTO projections (projection, build, version, context, status, tables) VALUES ('loans', 2, 2, 'library', 'old', '{}')")
		p.exec(t, "INSERT INTO projection_positions (projection, build, shard, position, locked_until) VALUES ('loans', 2, 0, 0, "+p.ago(-5e10)+")")
		p.has(t, "projections", Warning, "projection loans, build 1", "no process feeds it", "`waybill projections switch loans --to 2` puts build 2 in use, which is fed")
		p.exec(t, "DELETE FROM projection_positions WHERE build = 2")
		p.exec(t, "DELETE FROM projections WHERE build = 2")
		p.exec(t, "UPDATE projection_positions SET tries = 1, error = 'no idea', failed_position = 1, failed_event = 'Library.LoanPlaced.v1 m-1', failed_at = "+p.ago(0)+", next_at = "+p.ago(0))
		p.has(t, "projections", Critical, "projection loans, build 1", "stopped at position 1: Library.LoanPlaced.v1 m-1", "waybill projections skip")
		p.exec(t, "UPDATE projection_positions SET tries = 0, error = NULL, locked_until = "+p.ago(-5e10))
		require.Empty(t, p.examine(t), "it is fed")
		p.exec(t, "UPDATE projection_positions SET position = 17")
		p.has(t, "projections", Critical, "projection loans, build 1", "it stands at position 17, and the history ends at 0", "waybill projections rebuild loans")
		p.exec(t, "UPDATE projection_positions SET position = 0")
		if p.DB().Dialect().Name() != dialect.PG {
			return
		}
		tx, err := p.DB().BeginTx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { _ = tx.Rollback() }()
		var pid int
		var me string
		require.NoError(t, tx.QueryRowContext(t.Context(), "INSERT INTO history (version, occurred_at, n, message_id, category, id, type, data)"+
			" VALUES (1, now(), 1, gen_random_uuid(), 'library::loan', 'l1', 'Library.LoanPlaced.v1', '{}') RETURNING pg_backend_pid(),"+
			" (SELECT virtualtransaction FROM pg_locks WHERE pid = pg_backend_pid() LIMIT 1)").Scan(&pid, &me))
		p.exec(t, "UPDATE projection_positions SET held_by = '"+me+"', held_since = "+p.ago(time.Second))
		require.Empty(t, p.examine(t), "it doesn't wait for long")
		p.exec(t, "UPDATE projection_positions SET held_since = "+p.ago(time.Hour))
		p.has(t, "projections", Warning, "projection loans, build 1", fmt.Sprintf("pid %d, application", pid), fmt.Sprintf("SELECT pg_terminate_backend(%d)", pid))
		require.NoError(t, tx.Rollback())
		require.Empty(t, p.examine(t), "what has ended isn't waited for")
	})
}
