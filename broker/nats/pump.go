package nats

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// pinHeader is in what a member gets, and names its tenure.
const pinHeader = "Nats-Pin-Id"

// errGap says that deliveries are missing.
var errGap = errors.New("deliveries got lost on their way")

// pump receives, session after session, until ctx is done. What comes waits for
// Receive.
func (c *consumer) pump(ctx context.Context) {
	var seen <-chan struct{} // Names the connection that we know.
	for tries := 0; ctx.Err() == nil; {
		// Compared, not waited for: a session ends for many reasons at once, and
		// missing this one would leave its losses undiscovered.
		reconnected := c.b.connection()
		if seen != reconnected {
			// Deliveries and acknowledgements may have been lost with the old one.
			c.forget()
			seen = reconnected
		}
		err := c.serve(ctx, reconnected)
		if errors.Is(err, errGap) {
			err = c.reset(ctx, reconnected)
		}
		if errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
			if gone := c.gone(ctx, err); gone != nil {
				c.fail(gone)
				return
			}
		}
		switch {
		case err == nil, ctx.Err() != nil:
		case errors.Is(err, errMoved):
			c.fail(fmt.Errorf("nats: receive: %w", err))
			return
		case !c.b.nc.IsConnected():
			// What is held may still be acknowledged in time, and State tells.
			select {
			case <-reconnected:
			case <-ctx.Done():
			}
		default:
			if c.unwell(fmt.Errorf("nats: receive: %w", err)) {
				tries = 0
			}
			pause(ctx, reconnected, min(200*time.Millisecond<<min(tries, 8), c.b.timing.pull))
			tries++
		}
	}
}

// pause waits before the next attempt after one that failed.
func pause(ctx context.Context, reconnected <-chan struct{}, wait time.Duration) {
	select {
	case <-time.After(wait):
	case <-reconnected:
	case <-ctx.Done():
	}
}

func (c *consumer) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lose()
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
func (c *consumer) recover(ctx context.Context, reconnected <-chan struct{}) (reset bool, err error) {
	info, err := c.info(ctx, reconnected)
	if err != nil {
		return false, err
	}
	var pinned string
	for _, g := range info.PriorityGroups {
		pinned = g.PinnedClientID
	}
	c.mu.Lock()
	own := c.pin
	c.mu.Unlock()
	another := pinned != "" && pinned != own && !c.freed(ctx, reconnected, info, pinned)
	c.mu.Lock()
	c.missing.looked(info.Delivered)
	if another {
		c.missing.ahead = 0 // it is with another member
	}
	c.mu.Unlock()
	if info.NumAckPending == 0 || another {
		return false, nil
	}
	return true, c.reset(ctx, reconnected)
}

// behind says whether the server has made more deliveries than this member saw,
// and seen, how many it saw. Where that was so before and nothing came since, they
// got lost on their way, and the consumer has to start over. The next delivery
// would show the same: this is for the time until then.
func (c *consumer) behind(ctx context.Context, reconnected <-chan struct{}, before uint64) (seen uint64, gap error) {
	seen = c.seen()
	if seen == 0 || !c.sentMore(ctx, reconnected, seen) || c.seen() != seen {
		return 0, nil
	}
	if before == seen {
		c.startOver()
		return 0, errGap
	}
	return seen, nil
}

// sentMore says whether the server has made more than so many deliveries. Without
// an answer it doesn't know: the session finds out what is wrong.
func (c *consumer) sentMore(ctx context.Context, reconnected <-chan struct{}, seen uint64) bool {
	info, err := c.info(ctx, reconnected)
	return err == nil && info.Delivered.Consumer > seen
}

// seen is how many deliveries of its tenure the member has got.
func (c *consumer) seen() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tenure == nil {
		return 0
	}
	return c.tenure.next - 1
}

func (c *consumer) startOver() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.renew(c.pin)
}

func (c *consumer) info(ctx context.Context, reconnected <-chan struct{}) (*jetstream.ConsumerInfo, error) {
	ctx, cancel := until(ctx, reconnected, c.b.timing.absence)
	defer cancel()
	info, err := c.js.Info(ctx)
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.paused = time.Time{}
		if info.Paused {
			c.paused = time.Now().Add(info.PauseRemaining)
		}
	}
	return info, err
}

// reset makes the server start over, with delivery number 1, behind the last
// message before which all is acknowledged.
func (c *consumer) reset(ctx context.Context, reconnected <-chan struct{}) error {
	ctx, cancel := until(ctx, reconnected, c.b.timing.absence)
	defer cancel()
	start, err := c.b.js.ResetConsumer(ctx, c.stream, c.name)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.missing.starts(start.ResetSeq)
	return nil
}

// take keeps a message for Receive. It returns false if messages before it are
// missing. The lock is held.
func (c *consumer) take(m *nats.Msg, pin string) bool {
	meta, err := m.Metadata()
	if err != nil {
		return false
	}
	if c.tenure == nil || c.tenure.pin != pin {
		c.renew(pin)
	}
	c.missing.came(meta)
	c.paused = time.Time{}
	if meta.Sequence.Consumer != c.tenure.next {
		c.renew(pin)
		return false
	}
	c.tenure.next++
	seq := meta.Sequence.Stream
	if c.held[seq] != nil {
		return true // The server thought that we had forgotten it.
	}
	l := &loan{tenure: c.tenure, seq: seq, reply: m.Reply, message: decode(m, meta), size: m.Size(), published: meta.Timestamp, redelivered: int(meta.NumDelivered) - 1}
	c.held[seq] = l
	c.offer(l)
	return true
}

// renew begins a tenure. The lock is held.
func (c *consumer) renew(pin string) {
	c.lose()
	c.tenure, c.pin = &tenure{pin: pin, next: 1, lost: make(chan struct{})}, pin
}
