package nats

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
)

// OpenQuick is Open with members that give up on each other, and on the server,
// soon.
func OpenQuick(ctx context.Context, cfg Config) (*Broker, error) {
	return open(ctx, cfg, timing{pull: 250 * time.Millisecond, absence: time.Second, check: QuickCheck})
}

// OpenPatient is OpenQuick with members that don't take each other for dead, however
// slow the machine is.
func OpenPatient(ctx context.Context, cfg Config) (*Broker, error) {
	return open(ctx, cfg, timing{pull: 250 * time.Millisecond, absence: usual.absence, check: QuickCheck})
}

const QuickCheck = 500 * time.Millisecond

// Conn is for tests that break it.
func (b *Broker) Conn() *nats.Conn { return b.nc }

var (
	CheckVersion = checkVersion
	DurableName  = durableName
)
