package nats

import (
	"context"
	"maps"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybill-go/waybill/internal/liveness"
)

// holderKey is where the group's consumer says to whom the server has pinned it: the pin, and
// the name of that member's process.
const holderKey = "waybill-holder"

// tellHolder has the group say that the pin is this process's, once for each. Where that
// isn't possible, the others wait until the pin ends by itself.
func (c *consumer) tellHolder(ctx context.Context, reconnected <-chan struct{}) {
	c.mu.Lock()
	pin := ""
	if c.tenure != nil {
		pin = c.tenure.pin
	}
	known := pin == c.told
	c.told = pin
	c.mu.Unlock()
	if known || pin == "" {
		return
	}
	ctx, cancel := until(ctx, reconnected, c.b.timing.absence)
	defer cancel()
	config := c.js.CachedInfo().Config
	config.Metadata = maps.Clone(config.Metadata)
	if config.Metadata == nil {
		config.Metadata = map[string]string{}
	}
	config.Metadata[holderKey] = pin + " " + c.b.process
	_, _ = c.b.js.UpdateConsumer(ctx, c.stream, config)
}

// freed takes the pin from a member whose process has ended on this host, as after kill -9:
// the server would keep it for as long as that may be silent. It is tried once for each.
func (c *consumer) freed(ctx context.Context, reconnected <-chan struct{}, info *jetstream.ConsumerInfo, pinned string) bool {
	of, name, _ := strings.Cut(info.Config.Metadata[holderKey], " ")
	if of != pinned || c.tried == pinned || liveness.Here().State(name) != liveness.Dead {
		return false
	}
	c.tried = pinned
	ctx, cancel := until(ctx, reconnected, c.b.timing.absence)
	defer cancel()
	ctx, end := c.b.watch(ctx, "."+c.stream)
	defer end()
	return c.b.unpin(ctx, c.stream, c.name) == nil
}
