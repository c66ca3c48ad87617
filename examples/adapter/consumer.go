package streams

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/waybill-go/waybill/broker"
)

// consumer is one member of a group. What it has out stands under its name in the group's
// list of pending entries; what it gave back stands under the name [left], long idle, and
// any member claims it.
type consumer struct {
	b                  *Broker
	topic, group, name string

	mu     sync.Mutex
	out    map[string]bool // Entries' ids.
	closed bool
}

const (
	left = "left"
	// pause is for how long Receive waits for entries before it looks for what can be
	// claimed, whether the context is done, and whether the server is back.
	pause = 50 * time.Millisecond
)

var errClosed = errors.New("streams: the consumer is closed")

// Receive returns what others left behind before what is new.
func (c *consumer) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		c.mu.Lock()
		closed := c.closed
		c.mu.Unlock()
		if closed {
			return nil, errClosed
		}
		entries, err := c.next(context.WithoutCancel(ctx), limit) // An answer that nobody waits for would be out until MaxIdle.
		if refused(err) {
			return nil, fmt.Errorf("streams: receive from %s: %w", c.topic, classify(err))
		}
		if err != nil { // The server is away: it may come back.
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			continue
		}
		if got := c.take(entries); len(got) > 0 {
			return got, nil
		}
	}
}

// next claims, or else reads.
func (c *consumer) next(ctx context.Context, limit int) ([]redis.XMessage, error) {
	entries, _, err := c.b.client.XAutoClaim(ctx, &redis.XAutoClaimArgs{
		Stream: c.topic, Group: c.group, Consumer: c.name, MinIdle: c.b.maxIdle, Start: "0", Count: int64(limit),
	}).Result()
	if err != nil || len(entries) > 0 {
		return entries, err
	}
	streams, err := c.b.client.XReadGroup(ctx, &redis.XReadGroupArgs{
		Group: c.group, Consumer: c.name, Streams: []string{c.topic, ">"}, Count: int64(limit), Block: pause,
	}).Result()
	switch {
	case errors.Is(err, redis.Nil): // Nothing came.
		return nil, nil
	case err != nil:
		return nil, err
	}
	return streams[0].Messages, nil
}

// refused says whether the server answered with an error that doesn't pass by itself.
func refused(err error) bool {
	var answer redis.Error
	return errors.As(err, &answer) && !strings.HasPrefix(answer.Error(), "LOADING")
}

// take notes what is out. An entry that is out already was idle for too long: claiming it
// has given it as much time again.
func (c *consumer) take(entries []redis.XMessage) []broker.Delivery {
	c.mu.Lock()
	defer c.mu.Unlock()
	var got []broker.Delivery
	for _, e := range entries {
		if !c.out[e.ID] {
			c.out[e.ID] = true
			got = append(got, delivery(c.topic, e))
		}
	}
	return got
}

// settled forgets deliveries, and returns the ids of their entries.
func (c *consumer) settled(deliveries []broker.Delivery) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	ids := make([]string, len(deliveries))
	for i, d := range deliveries {
		ids[i], _ = d.Token.(string)
		delete(c.out, ids[i])
	}
	return ids
}

// Ack implements [broker.Consumer].
func (c *consumer) Ack(ctx context.Context, deliveries ...broker.Delivery) error {
	if len(deliveries) == 0 {
		return nil
	}
	if err := c.b.client.XAck(ctx, c.topic, c.group, c.settled(deliveries)...).Err(); err != nil {
		return fmt.Errorf("streams: acknowledge on %s: %w", c.topic, err)
	}
	return nil
}

// Release implements [broker.Consumer].
func (c *consumer) Release(ctx context.Context, deliveries ...broker.Delivery) error {
	return c.giveBack(ctx, c.settled(deliveries))
}

// giveBack makes entries look as if they had been idle for long enough.
func (c *consumer) giveBack(ctx context.Context, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	args := []any{"XCLAIM", c.topic, c.group, left, 0}
	for _, id := range ids {
		args = append(args, id)
	}
	args = append(args, "IDLE", c.b.maxIdle.Milliseconds(), "JUSTID")
	if err := c.b.client.Do(ctx, args...).Err(); err != nil {
		return fmt.Errorf("streams: give back to %s: %w", c.topic, err)
	}
	return nil
}

// Close gives back what is out. The member's name goes with it, unless the server is away:
// then what it had waits until it was idle for MaxIdle.
func (c *consumer) Close(ctx context.Context) error {
	c.mu.Lock()
	closed := c.closed
	c.closed = true
	var ids []string
	for id := range c.out {
		ids = append(ids, id)
	}
	clear(c.out)
	c.mu.Unlock()
	if closed {
		return nil
	}
	if err := c.giveBack(ctx, ids); err != nil {
		return err
	}
	// Deleting a member forgets what it has out, such as what an acknowledgement that
	// failed was about.
	pending, err := c.b.client.XPendingExt(ctx, &redis.XPendingExtArgs{Stream: c.topic, Group: c.group, Start: "-", End: "+", Count: 1, Consumer: c.name}).Result()
	if err != nil || len(pending) > 0 {
		return err
	}
	return c.b.client.XGroupDelConsumer(ctx, c.topic, c.group, c.name).Err()
}
