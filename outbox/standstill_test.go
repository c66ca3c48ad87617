package outbox_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/outbox/outboxtest"
)

// A process that stands still between the two trips of a claim doesn't keep its
// partitions: the server ends its session, and what it says later counts for nothing.
func TestClaim_AProcessThatStandsStillKeepsNothing(t *testing.T) {
	b := outboxtest.Open(t, openPostgres(t))
	w := b.Worker("w1", outboxtest.Partitions, time.Hour)
	b.Insert("k-1")
	stands, goes, ended := make(chan bool), make(chan bool), make(chan error)
	b.Observe(func(query string, _ []any) {
		if strings.HasPrefix(query, "UPDATE outbox AS o") {
			stands <- true
			<-goes
		}
	})
	go func() {
		_, err := b.Claim(t.Context(), outbox.ClaimRequest{
			Target: "default", Worker: "w1", Leases: w.Leases, Limit: 10, MaxAttempts: 5, Memory: &outbox.Memory{}, Silence: 100 * time.Millisecond,
		})
		ended <- err
	}()
	<-stands
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_, err := b.DB.ExecContext(ctx, "UPDATE outbox_partitions SET locked_until = clock_timestamp()")
	require.NoError(t, err, "they are locked for no longer")
	heir := b.Worker("w2", outboxtest.Partitions, time.Hour)
	require.Len(t, heir.Leases, outboxtest.Partitions)
	close(goes)
	require.ErrorContains(t, <-ended, "idle-in-transaction")
	b.Observe(func(string, []any) {})
	require.Equal(t, []outbox.Status{outbox.Pending}, b.Statuses())
	require.Len(t, heir.Claim(10).Rows, 1)
}

// That goes for all claims and takeovers of a processor.
func TestProcessor_BoundsItsSilence(t *testing.T) {
	b := outboxtest.Open(t, openPostgres(t))
	seen, sent := watched(b)
	b.Insert("k-1")
	processor(t, seen, outbox.Config{Lease: 6 * time.Second}, lane(memory.New(memory.Config{})))
	require.Eventually(t, func() bool { return b.Statuses()[0] == outbox.Published }, 30*time.Second, 10*time.Millisecond)
	locks := 0
	for _, q := range sent.Take() {
		if strings.Contains(q, "SKIP LOCKED") {
			locks++
			require.Regexp(t, `idle_in_transaction_session_timeout', (COALESCE\()?'4000`, q)
		}
	}
	require.Positive(t, locks)
}
