package doctor

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/dbtime"
)

// In a database that was copied and isn't accepted, no engine does anything. What stands still for
// that must not look as if nobody needed it any more: its remedy is to accept the database, and not
// to remove anything.
func TestIdentity_WhatStandsStillInACopyIsNotOfferedForRemoval(t *testing.T) {
	each(t, func(t *testing.T, p *patient) {
		p.exec(t, "INSERT INTO projections (projection, build, version, context, status, tables) VALUES ('loans', 1, 1, 'library', 'live', '{}')",
			"INSERT INTO projection_positions (projection, build, shard, position) VALUES ('loans', 1, 0, 0)",
			`INSERT INTO outbox_settings (name, value) VALUES ('identity', '{"system": "1", "file": "1"}')`)
		_, err := p.DB().ExecContext(t.Context(), "INSERT INTO inbox (subscription, message_id, processed_at) VALUES ('old', 'm', ?)", dbtime.Value(p.DB().Dialect(), time.Now().AddDate(0, 0, -41)))
		require.NoError(t, err)
		p.place(t, 1)

		stands := map[string]string{}
		for _, f := range p.examine(t) {
			if f.Check != "identity" {
				stands[f.Check] = f.Remedy
			}
		}
		require.Equal(t, map[string]string{"lanes": acceptFirst, "projections": acceptFirst, "subscriptions": acceptFirst}, stands)
	})
}
