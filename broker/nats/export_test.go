package nats

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/waybill-go/waybill/broker"
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

// OpenEndless is OpenQuick with members that wait for each other longer than a test lasts.
func OpenEndless(ctx context.Context, cfg Config) (*Broker, error) {
	return open(ctx, cfg, timing{pull: 250 * time.Millisecond, absence: time.Hour, check: QuickCheck})
}

// Miscount makes a member take more for being on its way than the server will ever send, as
// if it had counted wrongly.
func Miscount(of broker.Consumer) {
	c := of.(*consumer) //nolint:forcetypeassert // a test's own
	c.mu.Lock()
	defer c.mu.Unlock()
	c.session.due += 2 * window
}

// Be has the broker take itself for a process of that name.
func (b *Broker) Be(process string) { b.process = process }

// Moved is what a member finds when it looks whether its topic has another stream.
func Moved(ctx context.Context, of broker.Consumer) error {
	c := of.(*consumer) //nolint:forcetypeassert // as above
	return c.moved(ctx, c.b.connection())
}

// Kept are the calls and watches that haven't ended.
func (b *Broker) Kept() (calls, watches int) {
	b.requests.mu.Lock()
	defer b.requests.mu.Unlock()
	return len(b.requests.calls), len(b.requests.watches)
}

const QuickCheck = 500 * time.Millisecond

// Conn is for tests that break it.
func (b *Broker) Conn() *nats.Conn { return b.nc }

var (
	CheckVersion = checkVersion
	DurableName  = durableName
)
