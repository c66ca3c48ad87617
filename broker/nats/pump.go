package nats

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// pump asks for messages until ctx is done. What it gets waits for Receive; how
// much that can be is limited by the server (maxHeld).
func (c *consumer) pump(ctx context.Context) {
	var seen <-chan struct{} // Names the connection that we know.
	for fresh := true; ctx.Err() == nil; {
		// Compared, not waited for: a request ends for many reasons at once, and
		// missing this one would leave its losses undiscovered.
		reconnected := c.b.connection()
		if seen != reconnected {
			// Deliveries and acknowledgements may have been lost with the old one.
			c.mu.Lock()
			c.lose()
			c.mu.Unlock()
			seen, fresh = reconnected, true
		}
		var err error
		if fresh {
			err = c.recover(ctx, reconnected)
		}
		if err == nil {
			err = c.fetch(ctx, reconnected)
		}
		if errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
			c.fail(fmt.Errorf("nats: receive: %w", err))
			return
		}
		if fresh = err != nil || c.standsBy(); err != nil {
			pause(ctx, reconnected)
		}
	}
}

// pause waits before the next attempt after one that failed.
func pause(ctx context.Context, reconnected <-chan struct{}) {
	select {
	case <-time.After(200 * time.Millisecond):
	case <-reconnected:
	case <-ctx.Done():
	}
}

func (c *consumer) standsBy() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tenure == nil
}

// recover resets the consumer if nobody, or this member before its connection
// broke, has the group, and messages are with somebody who can't acknowledge
// them any more. Two members may do so at once: the one that received already
// sees its numbers begin again, and starts over.
func (c *consumer) recover(ctx context.Context, reconnected <-chan struct{}) error {
	ctx, cancel := c.b.until(ctx, reconnected)
	defer cancel()
	info, err := c.js.Info(ctx)
	if err != nil {
		return err
	}
	var pinned string
	for _, g := range info.PriorityGroups {
		pinned = g.PinnedClientID
	}
	if info.NumAckPending == 0 || (pinned != "" && pinned != c.pin) {
		return nil
	}
	return c.reset(ctx)
}

// reset makes the server start over, with delivery number 1, behind the last
// message before which all is acknowledged.
func (c *consumer) reset(ctx context.Context) error {
	_, err := c.b.js.ResetConsumer(ctx, c.stream, c.name)
	return err
}

// fetch takes in the messages of one request. It returns early when the
// connection is replaced.
func (c *consumer) fetch(ctx context.Context, reconnected <-chan struct{}) error {
	request, cancel := c.b.until(ctx, reconnected)
	defer cancel()
	batch, err := c.js.Fetch(maxHeld, jetstream.FetchContext(request), jetstream.FetchPriorityGroup(pinGroup))
	if err != nil {
		return err
	}
	for m := range batch.Messages() {
		if c.take(m) {
			continue
		}
		cancel() // What is on its way is worth nothing.
		for range batch.Messages() {
		}
		again, cancel := c.b.until(ctx, reconnected)
		defer cancel()
		return c.reset(again)
	}
	return c.ended(request, batch.Error())
}

// ended judges how a request ended.
func (c *consumer) ended(request context.Context, err error) error {
	switch {
	case err == nil, request.Err() != nil:
		return nil
	case errors.Is(err, jetstream.ErrPinIDMismatch):
		c.mu.Lock()
		defer c.mu.Unlock()
		c.lose()
		return nil
	case errors.Is(err, jetstream.ErrConsumerDeleted):
		return jetstream.ErrConsumerNotFound
	}
	return err
}

// take keeps a message for Receive. It returns false if messages before it are
// missing.
func (c *consumer) take(m jetstream.Msg) bool {
	meta, err := m.Metadata()
	if err != nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if pin := m.Headers().Get("Nats-Pin-Id"); c.tenure == nil || c.tenure.pin != pin {
		c.lose()
		c.tenure, c.pin = &tenure{pin: pin, next: 1, lost: make(chan struct{})}, pin
	}
	if meta.Sequence.Consumer != c.tenure.next {
		pin := c.tenure.pin
		c.lose()
		c.tenure = &tenure{pin: pin, next: 1, lost: make(chan struct{})}
		return false
	}
	c.tenure.next++
	seq := meta.Sequence.Stream
	if c.held[seq] != nil {
		return true // The server thought that we had forgotten it.
	}
	l := &loan{tenure: c.tenure, seq: seq, reply: m.Reply(), message: decode(m, meta), published: meta.Timestamp, redelivered: int(meta.NumDelivered) - 1}
	c.held[seq] = l
	c.offer(l)
	return true
}

// keep tells the server that this member is at work on what it holds, so that it
// isn't given out again however long that takes.
func (c *consumer) keep(ctx context.Context) {
	tick := time.NewTicker(c.b.timing.ackWait / 3)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		c.mu.Lock()
		replies := make([]string, 0, len(c.held))
		for _, l := range c.held {
			replies = append(replies, l.reply)
		}
		c.mu.Unlock()
		for _, reply := range replies {
			// Without a connection there is nothing to keep.
			_ = c.b.nc.Publish(reply, []byte("+WPI"))
		}
	}
}
