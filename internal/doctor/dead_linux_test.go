package doctor

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/liveness"
	"github.com/waybill-go/waybill/internal/liveness/livenesstest"
)

// N1: rows that wait for the lease of a process that was killed on this host.
func TestLeases_N1_OfADeadProcess(t *testing.T) {
	each(t, func(t *testing.T, p *patient) {
		p.place(t, 1)
		p.processor(t)
		p.exec(t, "UPDATE outbox_partitions SET locked_by = '"+livenesstest.Alive()+"'")
		require.Empty(t, p.examine(t))
		dead := livenesstest.Dead(t)
		p.exec(t, "UPDATE outbox_partitions SET locked_by = '"+dead+"'", "UPDATE outbox_partitions SET locked_by = '"+liveness.Process(dead)+"-2' WHERE partition < 9")
		p.has(t, "leases", Warning, "target broker default", "64 partitions still held until 20", "start an engine")
		p.has(t, "leases", Warning, "target broker default", " by "+liveness.Process(dead)+", whose process on this host is dead: their rows wait", "start an engine")
		p.exec(t, claimed, published+", expires_at = "+p.ago(-time.Hour))
		require.Empty(t, p.examine(t))
	})
}
