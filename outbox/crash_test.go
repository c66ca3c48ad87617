package outbox_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/outbox/outboxtest"
)

// crashing is a database whose statements panic, those that have a word, so many
// times.
type crashing struct {
	word string
	left atomic.Int64
}

func (c *crashing) BeforeQuery(ctx context.Context, e *bun.QueryEvent) context.Context {
	if strings.Contains(e.Query, c.word) && c.left.Add(-1) >= 0 {
		panic("nil map")
	}
	return ctx
}

func (*crashing) AfterQuery(context.Context, *bun.QueryEvent) {}

// A82, A83: the poll, the keeping of leases and the workers outlive a panic of
// theirs: each starts again, and the lane says how often.
func TestProcessor_A82_A83_PartsOutliveTheirPanics(t *testing.T) {
	t.Parallel()
	for name, word := range map[string]string{
		"poll":   "WITH v(target_broker, partition, after, changes)",
		"leases": "outbox_workers",
		"worker": "claim_id",
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, b *outboxtest.Bench) {
				crash := &crashing{word: word}
				crash.left.Store(3)
				m := memory.New(memory.Config{})
				p := start(t, outbox.ProcessorConfig{
					Provider: "default", Store: outbox.NewStore(b.As.WithQueryHook(crash), b.As.WithQueryHook(crash)),
					Lanes: []outbox.Lane{lane(m)}, Outbox: quick(),
				})
				b.Insert("a", "b", "a")
				require.Eventually(t, func() bool { return p.Status()["default"].Crashes > 0 }, 10*time.Second, time.Millisecond)
				require.Eventually(t, func() bool { return crash.left.Load() <= 0 && len(m.Messages(topic)) >= 3 }, 20*time.Second, time.Millisecond)
				statuses(t, b, map[outbox.Status]int{outbox.Published: 3})
			})
		})
	}
}
