package outboxtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/outbox"
)

// hands knows in which claim a row and a key are.
type hands struct {
	mu     sync.Mutex
	rows   map[int64]int64
	keys   map[string]int64
	done   map[int64]bool
	rounds int
}

func (h *hands) take(c outbox.Claim) (err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.rounds++
	for _, row := range c.Rows {
		if other, taken := h.rows[row.Seq]; taken {
			err = fmt.Errorf("row %d is in claims %d and %d", row.Seq, other, c.ID)
		}
		if other, taken := h.keys[row.Message.Key]; taken && other != c.ID {
			err = fmt.Errorf("key %s is in claims %d and %d", row.Message.Key, other, c.ID)
		}
		if h.done[row.Seq] {
			err = fmt.Errorf("row %d was published before", row.Seq)
		}
		h.rows[row.Seq], h.keys[row.Message.Key] = c.ID, c.ID
	}
	return err
}

func (h *hands) give(c outbox.Claim, outcomes []outbox.Outcome) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, row := range c.Rows {
		delete(h.rows, row.Seq)
		delete(h.keys, row.Message.Key)
		if outcomes[i].Status == outbox.Published {
			h.done[row.Seq] = true
		}
	}
}

func (h *hands) enough(rounds int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.rounds >= rounds
}

// Workers take partitions, claim, settle one way or the other and give
// partitions back, all at once: each row and each key is in one hand at a time,
// none is published twice, nobody ends in a deadlock, and what is left can be
// claimed.
func manyWorkers(t *testing.T, b *Bench) {
	rounds := 500
	if b.sqlite() {
		rounds = 100 // where all wait for one writer
	}
	if os.Getenv("WAYBILL_LONG") != "" {
		rounds *= 20
	}
	var keys []string
	for range rounds / 25 {
		keys = append(keys, Numbered("k", 40)...)
	}
	b.insertMany(keys...)
	_, err := b.EnsurePartitions(t.Context(), "default")
	require.NoError(t, err)
	h := &hands{rows: map[int64]int64{}, keys: map[string]int64{}, done: map[int64]bool{}}
	var wg sync.WaitGroup
	for i := range 6 {
		name := fmt.Sprintf("w%d", i)
		wg.Go(func() {
			if err := h.work(t.Context(), b, name, rounds); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	wg.Wait()
	b.Exec("UPDATE outbox SET available_at = " + past(b.DB))
	last := b.Worker("last", Partitions, time.Minute)
	require.Len(t, last.Leases, Partitions)
	for c := last.Claim(1000); len(c.Rows) > 0; c = last.Claim(1000) {
		require.NoError(t, h.take(c))
		all := All(c, published())
		h.give(c, all)
		require.Zero(t, last.Settle(c, all...))
	}
	require.Len(t, h.done, len(keys))
}

// work has up to three claims out.
func (h *hands) work(ctx context.Context, b *Bench, name string, rounds int) error {
	var leases []outbox.Lease
	var out []outbox.Claim
	var flights Flights
	for !h.enough(rounds) {
		more, _, err := b.Acquire(ctx, Owner(name, time.Minute), 1+rand.N(3)-len(leases))
		if err != nil {
			return fmt.Errorf("acquire: %w", err)
		}
		leases = append(leases, more...)
		c, err := b.Claim(ctx, flights.Request(outbox.ClaimRequest{Target: "default", Worker: name, Leases: leases, Limit: 1 + rand.N(8), MaxAttempts: 5}))
		if err != nil {
			return fmt.Errorf("claim: %w", err)
		}
		flights.Took(c)
		if err := h.take(c); err != nil {
			return err
		}
		out = append(out, c)
		all := rand.N(3) == 0
		for len(out) == 3 || all && len(out) > 0 {
			if err := h.settle(ctx, b, out[0], &flights); err != nil {
				return err
			}
			out = out[1:]
		}
		if all {
			if err := b.Release(ctx, "default", leases); err != nil {
				return fmt.Errorf("release: %w", err)
			}
			leases = nil
		}
	}
	for _, c := range out {
		if err := h.settle(ctx, b, c, &flights); err != nil {
			return err
		}
	}
	return b.Release(ctx, "default", leases)
}

func (h *hands) settle(ctx context.Context, b *Bench, c outbox.Claim, flights *Flights) error {
	outcomes := make([]outbox.Outcome, len(c.Rows))
	for i, row := range c.Rows {
		outcomes[i] = outbox.Outcome{Status: outbox.Pending, Unspent: true}
		switch rand.N(6) {
		case 0:
			outcomes[i] = published()
		case 1:
			outcomes[i] = failed(-time.Second)
		}
		outcomes[i].Seq = row.Seq
	}
	h.give(c, outcomes)
	stale, err := b.Settle(ctx, outbox.Settlement{Claim: c.ID, Target: "default", Outcomes: outcomes})
	flights.Landed(c.ID, outcomes, stale)
	if err == nil && stale > 0 {
		err = fmt.Errorf("%d rows were in another hand", stale)
	}
	return err
}
