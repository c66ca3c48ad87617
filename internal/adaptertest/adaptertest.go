// Package adaptertest has what each adapter of package broker promises. Their tests run the
// suite with it, and docs/guarantees.md shows it, so that the table says what is tested.
package adaptertest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/brokertest"
)

// Adapter is one adapter, in one configuration.
type Adapter struct {
	Name         string // As the table calls it: its package, and what is configured.
	Capabilities broker.Capabilities
	Declared     brokertest.Declared
	Note         string // Stands under the table.
}

// All are the adapters in the order of the table.
var All = []Adapter{
	{
		Name:         "broker/kafka",
		Capabilities: broker.Capabilities{System: "kafka", Prefix: true, KeyOrder: true, Groups: true, Redelivery: true, Durable: true},
		Declared:     brokertest.Declared{Outage: true, Scopes: true, Lag: true, Published: true, Partition: true, State: true, Transactions: true},
	},
	{
		Name:         "broker/nats",
		Capabilities: broker.Capabilities{System: "nats", KeyOrder: true, Groups: true, Redelivery: true, Dedup: true, Durable: true},
		Declared:     brokertest.Declared{Outage: true, Scopes: true, Standby: true, Lag: true, State: true, Published: true, Partition: true},
	},
	{
		Name:         "broker/nats/embedded",
		Capabilities: broker.Capabilities{System: "nats", KeyOrder: true, Groups: true, Redelivery: true, Dedup: true, Durable: true},
		Declared:     brokertest.Declared{Scopes: true, Standby: true, Lag: true, State: true, Published: true, Partition: true},
		Note:         "The server is in the process: it is away only to other processes, whose adapter is `broker/nats`.",
	},
	{
		Name:         "broker/memory",
		Capabilities: broker.Capabilities{System: "memory", Prefix: true, KeyOrder: true, Groups: true, Redelivery: true},
		Declared:     inMemory,
		Note:         "For tests, within one process.",
	},
	{
		Name:         "broker/memory, NoPrefix",
		Capabilities: broker.Capabilities{System: "memory", KeyOrder: true, Groups: true, Redelivery: true},
		Declared:     inMemory,
	},
	{
		Name:         "broker/memory, Dedup",
		Capabilities: broker.Capabilities{System: "memory", Prefix: true, KeyOrder: true, Groups: true, Redelivery: true, Dedup: true},
		Declared:     inMemory,
	},
	{
		Name:         "broker/watermill/kafka",
		Capabilities: broker.Capabilities{System: "kafka", KeyOrder: true, Groups: true, Redelivery: true, Durable: true},
		Declared:     brokertest.Declared{OneOut: true, State: true},
		Note:         "Its outages aren't part of the suite's run.",
	},
	{
		Name:         "examples/watermill/rabbitmq",
		Capabilities: broker.Capabilities{Groups: true, Redelivery: true, Durable: true},
		Declared:     brokertest.Declared{Outage: true},
		Note:         "What no queue takes is of unknown class: the topic's rows wait as they do in an outage.",
	},
	{
		Name:         "examples/watermill/rabbitmq, Ordered",
		Capabilities: broker.Capabilities{KeyOrder: true, Groups: true, Redelivery: true, Durable: true},
		Declared:     brokertest.Declared{Outage: true, OneOut: true, Standby: true},
	},
	{
		Name:         "examples/watermill/redis",
		Capabilities: broker.Capabilities{Groups: true, Redelivery: true, Durable: true},
		Declared:     brokertest.Declared{Outage: true, AutoTopics: true, OneOut: true},
		Note:         "What a member had out when it left waits until it was idle for `max_idle`, and later messages of its key go on meanwhile.",
	},
}

var inMemory = brokertest.Declared{Outage: true, AutoTopics: true, Scopes: true, Transactions: true, Lag: true, State: true, Published: true, Partition: true}

// Run runs the suite of all adapters with what the table says of one.
func Run(t *testing.T, name string, c brokertest.Config) {
	t.Helper()
	i := slices.IndexFunc(All, func(a Adapter) bool { return a.Name == name })
	require.GreaterOrEqual(t, i, 0, "internal/adaptertest has no adapter %q: add it to All", name)
	require.Zero(t, c.Declared, "internal/adaptertest: what %s declares belongs into All, which docs/guarantees.md shows", name)
	c.Declared = All[i].Declared
	open := c.Open
	c.Open = func(t *testing.T) broker.Broker {
		t.Helper()
		b := open(t)
		require.NoError(t, All[i].Check(b.Capabilities()))
		return b
	}
	brokertest.Run(t, c)
}

// Check compares what a broker declares with what the table says of it.
func (a Adapter) Check(is broker.Capabilities) error {
	is.TopicPrefix = ""
	if is != a.Capabilities {
		return fmt.Errorf("internal/adaptertest: %s declares %+v, and All, which docs/guarantees.md shows, says %+v", a.Name, is, a.Capabilities)
	}
	return nil
}

// Table is All as docs/guarantees.md shows it.
func Table() string {
	var b strings.Builder
	b.WriteString("| adapter | order of a key | an outage costs no attempt | nor does a topic that fails alone | messages of a key in one call | keys side by side | " +
		"members of a group | lag | says that nothing comes | the same id is stored once | exactly once | survives a restart |\n" +
		"|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, a := range All {
		c, d := a.Capabilities, a.Declared
		name, configured, _ := strings.Cut(a.Name, ", ")
		name = "`" + name + "`"
		if configured != "" {
			name += " with `" + configured + "`"
		}
		cells := []string{
			name, says(c.KeyOrder), says(d.Outage), says(d.Scopes), pick(c.Prefix, "many", "one"), pick(d.OneOut, "one message at a time", "yes"),
			pick(d.Standby, "one receives, others stand by", "share"), says(d.Lag), says(d.State), says(c.Dedup), says(d.Transactions), says(c.Durable),
		}
		b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
	}
	b.WriteString("\n")
	for _, a := range All {
		if a.Note != "" {
			b.WriteString("- `" + a.Name + "`: " + a.Note + "\n")
		}
	}
	return b.String()
}

func says(yes bool) string { return pick(yes, "yes", "**no**") }

func pick(yes bool, is, otherwise string) string {
	if yes {
		return is
	}
	return otherwise
}
