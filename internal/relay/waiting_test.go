package relay_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/internal/liveness"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/outbox"
)

// N1: while rows wait for the lease of a process that is not heard of, the log says
// so, at the start and then now and then: which process, how many partitions, until
// when. The lane's status says it too.
func TestProcessor_N1_SaysWhomItWaitsFor(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		b.Insert("a")
		b.Join("elsewhere-4711-00c0ffee-1", 8*time.Second, outboxdbtest.Partitions)
		p, log := logged(t, b, quick(), to(memory.New(memory.Config{})))
		eventually(t, func() bool { return log.count("all partitions are held by other processes") == 1 }, "it says so at once")
		require.Equal(t, 1, log.count(`held="8 of 8 by elsewhere-4711-00c0ffee until `))
		var silent *outbox.Silence
		eventually(t, func() bool {
			silent = p.Status()[target].Silent
			return silent != nil
		}, "it isn't heard of")
		require.Equal(t, 8, silent.Partitions)
		require.Equal(t, []string{"elsewhere-4711-00c0ffee"}, silent.Processes)
		require.GreaterOrEqual(t, silent.For, time.Second)
		require.Contains(t, silent.String(), "elsewhere-4711-00c0ffee until "+silent.Until.Format("15:04:05Z"))
		statuses(t, b, map[outbox.Status]int{outbox.Published: 1})
		eventually(t, func() bool { return p.Status()[target].Silent == nil }, "it is over")
		require.Equal(t, 1, log.count("all partitions are held by other processes"))
	})
}

// N1: a member's name says what others need to know whether it is alive.
func TestProcessor_N1_ItsWorkersNamesTell(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		p := processor(t, b, quick(), to(memory.New(memory.Config{})))
		eventually(t, func() bool { return owned(p) == outboxdbtest.Partitions }, "it has joined")
		var name string
		require.NoError(t, b.DB.NewRaw("SELECT name FROM outbox_members").Scan(t.Context(), &name))
		require.Contains(t, name, fmt.Sprintf("-%d-", os.Getpid()))
		require.Equal(t, liveness.Alive, liveness.Here().State(name))
	})
}
