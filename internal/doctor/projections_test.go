package doctor

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A projection is found if it stands still, or if its view is in use and nobody feeds it.
func TestProjections_StandingStillOrLeft(t *testing.T) {
	each(t, func(t *testing.T, p *patient) {
		p.exec(t, "INSERT INTO projections (projection, build, version, context, status, tables) VALUES ('loans', 1, 1, 'library', 'live', '{}')")
		p.exec(t, "INSERT INTO projection_positions (projection, build, shard, position) VALUES ('loans', 1, 0, 0)")
		p.has(t, "projections", Warning, "projection loans, build 1", "no process feeds it", "waybill projections retire loans")
		p.exec(t, "UPDATE projection_positions SET tries = 1, error = 'no idea', failed_position = 1, failed_event = 'Library.LoanPlaced.v1 m-1', failed_at = "+p.ago(0)+", next_at = "+p.ago(0))
		p.has(t, "projections", Critical, "projection loans, build 1", "stands still at position 1: Library.LoanPlaced.v1 m-1", "waybill projections skip")
		p.exec(t, "UPDATE projection_positions SET tries = 0, error = NULL, locked_until = "+p.ago(-1e12))
		require.Empty(t, p.examine(t), "it is fed")
	})
}
