package relay_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/outbox"
)

// C-66: through a broker that fails in every way, by message and by call, with
// and without having stored, through panics and the death of a process, every row
// is published in the end, in the order of its key. What is abandoned holds its
// key until the operator retries it.
func TestProcessor_C_66_HighVolumeUnreliable(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		n := 2000
		if b.DB.Dialect().Name() == dialect.SQLite {
			n = 500
		}
		if os.Getenv("WAYBILL_LONG") != "" {
			n = 10000
		}
		var rows []outbox.Row
		for range n / 100 {
			rows = append(rows, b.Insert(outboxdbtest.Numbered("k", 100)...)...)
		}
		m := memory.New(memory.Config{})
		u := &unreliable{Broker: m, random: rand.New(rand.NewPCG(1, 2)), calls: map[int]func([]broker.Message) error{
			3: func([]broker.Message) error { return broker.Classify(broker.Unavailable, errors.New("down")) },
			6: func([]broker.Message) error { panic("adapter") },
			9: func([]broker.Message) error { return errors.New("all of it") },
			12: func(all []broker.Message) error {
				return broker.Classify(broker.Unknown, errors.Join(m.Publish(context.Background(), all), errors.New("no answer")))
			},
		}}
		cfg := quick()
		cfg.BatchSize, cfg.OnAbandoned, cfg.Retry.MaxAttempts = 50, outbox.Hold, 3
		first := processor(t, b, cfg, to(u))
		eventually(t, func() bool { return owned(first) == outboxdbtest.Partitions }, "it has all")
		member := b.Count("SELECT member FROM outbox_members")
		processor(t, b, cfg, to(u))
		killed := false
		deadline := time.Now().Add(3 * time.Minute)
		for {
			require.True(t, time.Now().Before(deadline), "not all are published")
			s, err := b.Stats(t.Context())
			require.NoError(t, err)
			published := int(s["default"].Counts[outbox.Published])
			if published == n {
				break
			}
			if published > n/2 && !killed {
				kill(t, first)
				killed = true
				b.Exec("UPDATE outbox_members SET until = ? WHERE member = ?", "2020-01-01T00:00:00.000Z", member)
				processor(t, b, cfg, to(u))
			}
			held, err := b.Find(t.Context(), outbox.Filter{Statuses: []outbox.Status{outbox.Abandoned}})
			require.NoError(t, err)
			for _, e := range held {
				require.True(t, e.Held)
				require.NoError(t, change(t.Context(), b, outbox.VerbRetry, e.Seq))
			}
			<-time.After(50 * time.Millisecond)
		}
		require.Equal(t, rowsByKey(rows), byKey(m.Messages(orders)))
		for _, kind := range []string{"call", "transient", "permanent", "unavailable", "unknown", "unknown and stored"} {
			require.Positive(t, u.failures[kind], kind)
		}
	})
}

// unreliable fails some messages, and some calls as a whole. It keeps prefix.
type unreliable struct {
	broker.Broker
	mu       sync.Mutex
	random   *rand.Rand
	n        int
	calls    map[int]func([]broker.Message) error // by number
	failures map[string]int
}

func (u *unreliable) Publish(ctx context.Context, messages []broker.Message) error {
	stored, failed, whole := u.plan(messages)
	if whole != nil {
		return whole(messages)
	}
	if err := u.Broker.Publish(ctx, stored); err != nil {
		return err
	}
	if len(failed) > 0 {
		return &broker.PublishError{Failed: failed}
	}
	return nil
}

func (u *unreliable) plan(messages []broker.Message) (stored []broker.Message, failed map[int]error, whole func([]broker.Message) error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.failures == nil {
		u.failures = map[string]int{}
	}
	u.n++
	if whole := u.calls[u.n]; whole != nil {
		u.failures["call"]++
		return nil, nil, whole
	}
	failed = map[int]error{}
	cut := map[string]bool{}
	for i, m := range messages {
		if cut[m.Key] {
			failed[i] = broker.Classify(broker.Unavailable, errors.New("behind a failure"))
			continue
		}
		kind, class := "", broker.Transient
		switch p := u.random.Float64(); {
		case p < 0.05:
			kind = "transient"
		case p < 0.06:
			kind, class = "permanent", broker.Permanent
		case p < 0.065:
			kind, class = "unavailable", broker.Unavailable
		case p < 0.075:
			kind, class = "unknown", broker.Unknown
		case p < 0.085:
			kind, class = "unknown and stored", broker.Unknown
		}
		if kind == "" || kind == "unknown and stored" {
			stored = append(stored, m)
		}
		if kind != "" {
			failed[i] = broker.Classify(class, fmt.Errorf("%s, as told", kind))
			cut[m.Key] = true
			u.failures[kind]++
		}
	}
	return stored, failed, nil
}
