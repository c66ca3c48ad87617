package subscription

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/waybill-go/waybill/broker"
)

const (
	// stopTime is what the parts of a runner may take to end, when they are told to.
	stopTime = 5 * time.Second
	// deafTime is how long a call of a broker's client may go on when its context is done.
	deafTime = 2 * time.Second
	// tellLeft is of how many handlers that don't end the log tells.
	tellLeft = 10
)

// within says whether done is closed in time.
func within(done <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
		return false
	}
}

// bounded stops a part, and leaves it behind if it doesn't end.
func (r *Runner) bounded(what string, stop func()) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		stop()
	}()
	if !within(ended, stopTime) {
		r.log.Warn("it stops, and leaves behind what doesn't end", "what", what, "waited", stopTime)
	}
}

// call calls a broker's client. If that doesn't return although ctx is done, it is left
// behind, and late gets what it returns after all.
func call[T any](ctx context.Context, what string, f func() (T, error), late func(T)) (T, error) {
	var result T
	var err error
	var mu sync.Mutex
	left := false
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		value, failure := f()
		mu.Lock()
		defer mu.Unlock()
		if left && failure == nil && late != nil {
			late(value)
		}
		result, err = value, failure
	}()
	select {
	case <-ended:
		return result, err
	case <-ctx.Done():
	}
	if within(ended, deafTime) {
		return result, err
	}
	mu.Lock()
	defer mu.Unlock()
	left = true
	var none T
	return none, fmt.Errorf("subscription: %s is still running although its context is done; it is abandoned: %w", what, context.Cause(ctx))
}

// leave tells of handlers that go on although their context is done. Their messages
// come again, and nothing that they save from now on is committed.
func (r *Runner) leave(messages []*message) {
	r.left.Add(int64(len(messages)))
	for _, m := range messages[:min(len(messages), tellLeft)] {
		r.log.Warn("a handler is still running although its context is done; nothing it saves from now on is committed",
			"id", m.id, "type", m.meta.Type, "key", m.key, "replayed", m.parked != nil, "all", len(messages))
	}
}

// endReplays waits for what is replayed, as long as lanes may take, and gives back what
// doesn't end.
func (r *Runner) endReplays(ended <-chan struct{}) {
	select {
	case <-ended:
		return
	case <-r.work.Done():
	}
	r.interrupted.Store(true)
	if within(ended, abortTime) {
		return
	}
	messages, _ := r.hands.all()
	r.leave(messages)
	r.bounded("giving dead letters back", func() {
		for _, m := range messages {
			if err := r.letters.release(context.Background(), m, 0); err != nil {
				r.note(err)
			}
		}
	})
}

// working are the messages that lanes have.
func (s *session) working() (messages []*message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.known {
		if m.working {
			messages = append(messages, m)
		}
	}
	return messages
}

// receive is bounded by ctx, whatever the consumer does.
func (s *session) receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	return call(ctx, "receiving", func() ([]broker.Delivery, error) { return s.consumer.Receive(ctx, limit) }, nil)
}

func (s *session) tellBroker(ctx context.Context, what string, f func(context.Context, ...broker.Delivery) error, deliveries ...broker.Delivery) error {
	_, err := call(ctx, what, func() (struct{}, error) { return struct{}{}, f(ctx, deliveries...) }, nil)
	return err
}
