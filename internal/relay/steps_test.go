package relay_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/internal/relay/relaytest"
)

// noted writes down what a process does with rows, in order.
type noted struct {
	*relaytest.Store

	mu    sync.Mutex
	steps []string
}

func (s *noted) step(step string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps = append(s.steps, step)
}

func (s *noted) trace() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.steps)
}

// Claim implements [relay.Store].
func (s *noted) Claim(ctx context.Context, r relay.ClaimRequest) (relay.Claim, error) {
	c, err := s.Store.Claim(ctx, r)
	if len(c.Rows) > 0 {
		s.step("claim")
	}
	return c, err
}

// LookAndClaim implements [relay.Store].
func (s *noted) LookAndClaim(ctx context.Context, r relay.LookRequest) (relay.Looked, error) {
	l, err := s.Store.LookAndClaim(ctx, r)
	if l.Claim.Alive {
		s.step("claim")
	}
	return l, err
}

// Settle implements [relay.Store].
func (s *noted) Settle(ctx context.Context, t relay.Settlement) (bool, error) {
	switch {
	case len(t.Published) > 0:
		s.step("settle published")
	case len(t.Failed) > 0:
		s.step("settle failed")
	case len(t.Abandoned) > 0:
		s.step("settle abandoned")
	}
	return s.Store.Settle(ctx, t)
}

// A88: whatever becomes of a row, its steps are in the order of the protocol: it is published
// only with a claim of it, settled only with the broker's answer, and claimed anew for
// another attempt.
func TestTrace_A88_ClaimPublishSettle(t *testing.T) {
	attempt := []string{"claim", "publish", "settle failed"}
	for name, c := range map[string]struct {
		fails int
		want  []string
	}{
		"success":                    {0, []string{"claim", "publish", "settle published"}},
		"success after two failures": {2, slices.Concat(attempt, attempt, []string{"claim", "publish", "settle published"})},
		"failure at the last retry":  {3, slices.Concat(attempt, attempt, []string{"claim", "publish", "settle abandoned"})},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				s := &noted{Store: w.store.Connect()}
				failed := 0
				p := w.start(func(p *process, cfg *relay.Config) {
					cfg.Store, cfg.Outbox.Retry.MaxAttempts = s, 3
					p.broker.through(func(ctx context.Context, messages []broker.Message) error {
						s.step("publish")
						if failed++; failed <= c.fails {
							return &broker.PublishError{Failed: map[int]error{0: refuse("not this one")}}
						}
						return p.broker.Broker.Publish(ctx, messages)
					})
				})
				w.insert(p, "a")
				w.until(time.Hour, "it is decided", func() bool { return len(s.trace()) == len(c.want) })
				w.delivered(time.Minute)
				require.Equal(t, c.want, s.trace())
			})
		})
	}
}
