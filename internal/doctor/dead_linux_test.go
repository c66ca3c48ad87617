package doctor

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/liveness/livenesstest"
)

// N1: rows that wait for the lease of a process that was killed on this host.
func TestLeases_N1_OfADeadProcess(t *testing.T) {
	each(t, func(t *testing.T, p *patient) {
		p.place(t, 1)
		m := p.processor(t)
		p.exec(t, "UPDATE outbox_members SET name = '"+livenesstest.Alive()+"'")
		require.Empty(t, p.examine(t))
		dead := livenesstest.Dead(t)
		p.exec(t, "UPDATE outbox_members SET name = '"+dead+"'")
		p.has(t, "leases", Warning, "target broker default", "64 partitions still held until 20", "start an engine")
		p.has(t, "leases", Warning, "target broker default", " by "+dead+", whose process on this host is dead: their rows wait", "start an engine")
		rows := m.ClaimAll()
		require.True(t, m.Settle(m.Settlement(rows...)))
		require.Empty(t, p.examine(t))
	})
}
