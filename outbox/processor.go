package outbox

import (
	"context"
	"log/slog"

	"github.com/waybill-go/waybill/broker"
)

// Lane is one target broker of a processor.
type Lane struct {
	Target   string // The broker's name, as rows have it.
	Broker   broker.Broker
	External bool
}

// ProcessorConfig is what a processor is made of.
type ProcessorConfig struct {
	Provider string // Names the processor, its lanes and its logs. Required.
	Store    *Store // Required.
	Lanes    []Lane // At least one.
	Outbox   Config
	Logger   *slog.Logger // Defaults to slog.Default().
}

// Processor publishes the rows of one provider: a lane per target broker, each
// with as many workers as configured.
type Processor struct{}

// NewProcessor checks cfg and returns all its mistakes together.
func NewProcessor(cfg ProcessorConfig) (*Processor, error) { panic("to be written") }

// Start returns when all lanes run. They go on after ctx is done; Stop ends them.
func (p *Processor) Start(ctx context.Context) error { panic("to be written") }

// Stop takes no more rows, waits for the calls that are out, settles them and
// releases the partitions. When ctx is done it ends the rest hard and returns
// ctx's error; leases then run out by themselves.
func (p *Processor) Stop(ctx context.Context) error { panic("to be written") }

// Wake tells the lanes of these targets that rows were committed. It never waits.
func (p *Processor) Wake(targets []string) { panic("to be written") }

// LaneStatus is what this process knows of one of its lanes.
type LaneStatus struct {
	Name               string // "outbox-processor-default-to-partner-external"
	Running            bool
	Workers            int
	Partitions         int // owned by this process
	InFlight           int
	Breaker            string // "closed", "open" or "half-open"
	Published          int64  // since the start
	PublishedPerSecond float64
	RetryRate          float64 // attempts that were retries, as a fraction of all
	Stale              int64   // write-backs that came too late and changed nothing
	LastError          string
}

// Status is the state of every lane, by target broker.
func (p *Processor) Status() map[string]LaneStatus { panic("to be written") }
